"""Record what kubelets of several versions decide on the same scenarios.

`python -m tests.fidelity.recorder.record OUT` builds each version's own managers (`pkg/kubelet/cm`) from the Go module
proxy and drives them by `recorder.go`; that takes Go, and minutes. What was recorded is checked in as
`tests/fidelity/versions.jsonl.gz`, and judged by `tests/fidelity/test_recorded_versions.py`.
"""

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: What is recorded: versions, and the gates that are switched on.
VERSIONS = ("v1.31.14", "v1.33.13", "v1.35.4", "v1.36.3", "v1.37.2")
GI = 2**30
_STAGED = """
api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider cluster-bootstrap code-generator
component-base component-helpers controller-manager cri-api cri-client cri-streaming csi-translation-lib
dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator kube-controller-manager kube-proxy
kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission sample-apiserver sample-cli-plugin
sample-controller streaming
"""


def scenarios(count: int = 120) -> list[dict[str, Any]]:
    """Nodes and pods at random, those whose verdicts versions differ about among them."""
    rng = random.Random(18)  # the same scenarios each time
    return [_scenario(rng, number) for number in range(count)]


def _scenario(rng: random.Random, number: int) -> dict[str, Any]:
    zones, threads = rng.choice((2, 2, 4)), rng.choice((1, 2))
    cpus, memory = rng.choice((8, 12)) * 1000, 16 * GI
    capacity = {"cpu": [cpus] * zones, "memory": [memory] * zones}
    allocatable = {"cpu": [cpus - 2000, *[cpus] * (zones - 1)], "memory": [memory - GI, *[memory] * (zones - 1)]}
    node = {
        "zones": zones,
        "sockets": rng.choice((1, 2)) if zones == 4 else zones,
        "threads_per_core": threads,
        "topology_policy": rng.choice(("restricted", "best-effort", "single-numa-node", "none")),
        "topology_scope": rng.choice(("container", "pod")),
        "cpu_manager_options": _options(rng),
        "feature_gates": {"PodLevelResourceManagers": rng.random() < 0.5},
        "capacity": capacity,
        "allocatable": allocatable,
        "node_allocatable": {name: sum(amounts) for name, amounts in allocatable.items()},
    }
    events: list[dict[str, Any]] = []
    there: list[str] = []
    for place in range(rng.randint(5, 9)):
        if there and rng.random() < 0.25:
            events.append({"op": "remove", "pod": there.pop(rng.randrange(len(there)))})
            continue
        events.append(_pod(rng, f"p{place}", zones * cpus // 1000, zones))
        there.append(f"p{place}")
    return {"id": f"versions-{number:03}", "tags": [], "node": node, "initial_available": allocatable, "events": events}


def _options(rng: random.Random) -> dict[str, str]:
    chosen = rng.choice(((), (), ("distribute-cpus-across-numa",), ("distribute-cpus-across-numa", "full-pcpus-only")))
    return dict.fromkeys(chosen, "true")


def _pod(rng: random.Random, name: str, cpus: int, zones: int) -> dict[str, Any]:
    own = rng.random() < 0.4
    containers = []
    for number in range(rng.randint(1, 2)):
        whole = rng.choice((2, 2, 3, 4, 6, cpus // zones + 2))
        asked = {"cpu": whole * 1000, "memory": rng.choice((1, 2, 4, 10, 20)) * GI}
        containers.append({"name": f"c{number}", "kind": "app", "req": asked})
    event = {"op": "admit", "pod": name, "qos": "Guaranteed", "containers": containers}
    if own:
        if rng.random() < 0.6:
            containers.append({"name": "helper", "kind": "app"})
        total = {
            resource: sum(item.get("req", {}).get(resource, 0) for item in containers) for resource in ("cpu", "memory")
        }
        more = rng.choice((0, 1, 2))
        event["pod_req"] = {"cpu": total["cpu"] + more * 1000, "memory": total["memory"] + more * GI}
    return event


def record(version: str, lines: str, work: Path) -> list[str]:
    """Build one version's recorder and run it."""
    minor = int(version.split(".")[1])
    folder = work / version
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "main.go").write_text(_source(version, minor))
    staged = f"v0{version[2:]}"
    replaces = "\n".join(f"replace k8s.io/{name} => k8s.io/{name} {staged}" for name in _STAGED.split())
    (folder / "go.mod").write_text(f"module recorder\n\ngo 1.23\n\nrequire k8s.io/kubernetes {version}\n\n{replaces}\n")
    environment = os.environ | {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    subprocess.run(["go", "build", "-o", "recorder", "."], cwd=folder, env=environment, check=True)
    done = subprocess.run([folder / "recorder"], input=lines, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def _source(version: str, minor: int) -> str:
    contextual, operations = minor >= 35, minor >= 37
    filled = {
        "@VERSION@": version,
        "@CADVISOR@": "github.com/google/cadvisor/lib/model" if operations else "github.com/google/cadvisor/info/v1",
        "@LOG@": "logger, " if operations else "",
        "@CLOG@": "logger, " if contextual else "",
        "@HLOG@": "logger, " if contextual else "",
        "@CTX@": "ctx, " if contextual else "",
        "@HINTCTX@": "ctx, " if operations else "",
        "@ACTX@": "ctx, " if contextual else "",
        "@OP@": ", lifecycle.AddOperation" if operations else "",
        "@ATTROP@": ", Operation: lifecycle.AddOperation" if operations else "",
        "@PODLEVEL@": "pod.Spec.Resources = &v1.ResourceRequirements{Requests: list(e.PodReq), Limits: list(e.PodReq)}"
        if minor >= 32
        else "",
    }
    source = (HERE / "recorder.go").read_text()
    for placeholder, text in filled.items():
        source = source.replace(placeholder, text)
    return source


def main() -> None:
    """Record all versions into the file that is named."""
    lines = "".join(json.dumps(scenario) + "\n" for scenario in scenarios())
    work = Path(sys.argv[2] if len(sys.argv) > 2 else "/tmp/kai-recorder")  # built again each time
    with gzip.GzipFile(sys.argv[1], "wb", mtime=0) as out:
        for version in VERSIONS:
            for line in record(version, lines, work):
                out.write(line.encode() + b"\n")


if __name__ == "__main__":
    main()
