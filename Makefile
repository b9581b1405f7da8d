PYTHON ?= python3
BIN := .venv/bin
# Packages of this repository: no index has them, and no lock names them.
OURS := --no-emit-package kai-ledger --no-emit-package kai-ledger-apiserver --no-emit-package kai-ledger-fleet
INSTALLED := .venv/.installed
# Tests start some hundreds of processes, each of which would compile our sources anew where containers set it.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: headlamp help install production run test check types rules docs reference chart image chaos prove bench storm league beside fidelity devices digest format lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED)  ## create .venv and install everything, servers included, from the lock

$(INSTALLED): requirements/dev.lock pyproject.toml tools/apiserver/pyproject.toml tools/fleet/pyproject.toml scripts/bootstrap.py
	@$(PYTHON) scripts/bootstrap.py
	@touch $@

production:  ## create the environment DIR with what production needs and nothing else
	@test -n "$(DIR)" || { echo "where? make production DIR=/opt/kai"; exit 2; }
	@$(PYTHON) scripts/bootstrap.py "$(DIR)"

run: $(INSTALLED)  ## the demonstration; FOR=10m brings work for so long, ONCE=1 prints a report and ends
	@$(BIN)/kai demo $(if $(ONCE),--once,--clusters 2 $(if $(FOR),--for $(FOR)))

test: $(INSTALLED)  ## every test, on real Postgres and NATS; ARGS=tests/unit/cli, ARGS="-k gang"
	@$(BIN)/python -m pytest $(or $(ARGS),--numprocesses 5)

check: $(INSTALLED)  ## format, lint, types, import rules, dead code, sizes
	@$(MAKE) --no-print-directory --jobs 2 --output-sync types rules

types: $(INSTALLED)
	@$(BIN)/mypy

rules: $(INSTALLED)
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python scripts/check_circles.py
	@$(BIN)/python scripts/check_dead_code.py
	@$(BIN)/python scripts/check_sizes.py

docs: $(INSTALLED)  ## the documentation as a site in site/, read without a server or a network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

reference: $(INSTALLED)  ## write the pages of docs/reference and the boards of deploy/grafana that are made from the code
	@$(BIN)/python scripts/docs/reference.py
	@$(BIN)/python scripts/boards.py

image: $(INSTALLED)  ## the image of all services as an OCI layout in build/image, without a container engine; ARGS=--lock, ARGS=--test
	@$(BIN)/python -m scripts.image $(ARGS)

chart: $(INSTALLED)  ## check the Helm chart for Kubernetes 1.31 to 1.37, write deploy/k8s from it, pack it into build/; ARGS=--test
	@$(BIN)/python scripts/chart.py $(ARGS)

chaos: $(INSTALLED)  ## real processes under faults of all kinds; SEED=7 MINUTES=5, ARGS="--only kill cut"
	@$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) --minutes $(or $(MINUTES),5) $(ARGS)
	@$(if $(ARGS),,KAI_TEST_LONG=1 $(BIN)/python -m pytest --quiet \
		tests/chaos/test_clusters_lost.py tests/chaos/test_nats_cluster.py tests/chaos/test_takeover.py \
		tests/chaos/test_second_instances.py tests/chaos/test_agent_dials_out.py tests/e2e/test_versions_side_by_side.py)

prove: $(INSTALLED)  ## 10,000 runs of the simulated services with faults, 1,000 of two clusters and a hub; SEEDS=500
	@$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),10000) $(ARGS)
	@$(BIN)/python -m tests.simulation --hub --seeds $$(($(or $(SEEDS),10000) / 10)) $(ARGS)

bench: $(INSTALLED)  ## benchmarks, one JSON line per figure
	@$(BIN)/python -m tests.measured.bench $(ARGS)

storm: $(INSTALLED)  ## churning pods on kubelets that are ahead of the API, in virtual time or on real processes: denied pods, causes of misses; ARGS="--live --pods 2000"
	@$(BIN)/python -m tests.measured.storms $(ARGS)

league: $(INSTALLED)  ## public traces through this engine and through published policies; ARGS="--seeds 42 43" or ARGS=over-time
	@$(BIN)/python -m tests.measured.league $(ARGS)

beside: $(INSTALLED)  ## beside the real kube-scheduler on a real API server, built with Go: figures, guides; ARGS=--simulated
	@$(BIN)/python -m tests.measured.beside $(ARGS)

fidelity: $(INSTALLED)  ## prediction against recorded decisions of the real kubelet
	@$(BIN)/python -m tests.fidelity $(VECTORS) $(ARGS)

devices: $(INSTALLED)  ## allocation of devices against Kubernetes' own allocator, built with Go; SEEDS=20000
	@$(BIN)/python -m tests.fidelity.device_oracle $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

digest: $(INSTALLED)  ## whether cycles decide as when the digests were last renewed
	@$(BIN)/python -m tests.measured.digest $(ARGS)

headlamp:  ## the Headlamp plugin: its types, tests and build; needs node 20 and 900 MB
	@command -v npm >/dev/null || { echo "skipped: the plugin needs node and npm, and there is no npm here"; exit 0; }; \
		cd deploy/headlamp && npm install --no-audit --no-fund --ignore-scripts --no-package-lock --loglevel error \
		&& npm run --silent tsc && npm run --silent test && npm run --silent build

format: $(INSTALLED)  ## format and fix what can be fixed
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

lock: $(INSTALLED)  ## renew requirements/*.lock from pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --upgrade \
		--extra all pyproject.toml -o requirements/runtime.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --upgrade \
		--all-extras --group dev $(OURS) pyproject.toml -o requirements/dev.lock
	@echo hatchling | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --upgrade \
		- -o requirements/build.lock

clean:  ## remove the environment and all caches (not data directories)
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis site
