"""`make production DIR=…`: an environment that needs neither the checkout nor the tools of development."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = (
    "kai-api",
    "kai-binder",
    "kai-exporter",
    "kai-gpu-reservation",
    "kai-hub",
    "kai-ingest",
    "kai-operator",
    "kai-projector",
    "kai-relay",
    "kai-scheduler",
    "kai-watcher",
    "kai-webhook",
)


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command without anything in its environment that leads to the checkout."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("KAI_", "PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=bare | environment, capture_output=True, text=True, check=False
    )


def names(lock: Path) -> set[str]:
    """The distributions that a lock file names."""
    return {match[1].lower() for line in lock.read_text().splitlines() if (match := re.match(r"([\w.-]+)==", line))}


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment; it is installed from a package index, so the test is skipped where none answers."""
    directory = tmp_path_factory.mktemp("production")
    version = importlib.metadata.version("msgspec")
    fetch = ("-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(directory / "try"), f"msgspec=={version}")
    asked = run(sys.executable, *fetch, cwd=directory, PIP_DISABLE_PIP_VERSION_CHECK="1")
    if asked.returncode != 0:
        pytest.skip(f"no package index answers: {asked.stderr.strip().splitlines()[-1:]}")
    made = run("make", "-s", "production", f"DIR={directory / 'kai'}", f"PYTHON={sys.executable}", cwd=ROOT)
    assert made.returncode == 0, made.stdout + made.stderr
    return directory / "kai"


#: It takes forty seconds of CPU: the gate has the lock and the wheel without it.
made = pytest.mark.skipif(
    "CI" in os.environ and "KAI_TEST_LONG" not in os.environ, reason="makes an environment: without CI, KAI_TEST_LONG=1"
)


#: Hides every distribution but those that it is given.
_HIDING = """
import importlib.metadata, sys
allowed, of = set(sys.argv[1:]), importlib.metadata.packages_distributions()
class Hides:
    def find_spec(self, name, path=None, target=None):
        having = {one.lower().replace("_", "-") for one in of.get(name.partition(".")[0], ())}
        if having and not having & allowed:
            raise ModuleNotFoundError(f"no {name} in production", name=name)
sys.meta_path.insert(0, Hides())
"""


#: Processes that use none of the heavy libraries, each of which takes 0.05 to 0.2 s of a start.
LEAN = ("kai-scheduler", "kai-relay", "kai-projector", "kai-hub", "kai-webhook", "kai-api")
HEAVY = ("aiohttp", "alembic", "jwt", "kubernetes_asyncio", "rich")


def test_services_and_the_command_line_import_nothing_beyond_the_runtime_lock_and_lean_ones_nothing_heavy(
    tmp_path: Path,
) -> None:
    allowed = ("kai-ledger", *names(ROOT / "requirements" / "runtime.lock"))
    lean, every = (
        ", ".join(f"{name.replace('-', '_')}.main" for name in some) for some in (LEAN, (*SERVICES, "kai-cli"))
    )
    code = f"import {lean}\nprint([one for one in {HEAVY!r} if one in sys.modules])\nimport {every}\nimport pytest"
    done = run(sys.executable, "-c", f"{_HIDING}{code}", *allowed, cwd=tmp_path)
    assert done.stdout.strip() == "[]", done.stderr
    # It is the only one that is hidden.
    assert done.stderr.strip().endswith("ModuleNotFoundError: no pytest in production"), done.stderr


@made
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_production_environment_has_the_runtime_lock_and_the_wheel_and_nothing_else(
    production: Path, tmp_path: Path
) -> None:
    code = "import importlib.metadata as m, json; print(json.dumps([d.metadata['Name'] for d in m.distributions()]))"
    listed = run(production / "bin" / "python", "-c", code, cwd=tmp_path)
    installed = {name.lower().replace("_", "-") for name in re.findall(r'"([^"]+)"', listed.stdout)}
    assert installed - {"pip", "setuptools"} <= {"kai-ledger", *names(ROOT / "requirements" / "runtime.lock")}
    assert {"kai-ledger", "msgspec", "psycopg"} <= installed
    where = run(production / "bin" / "python", "-c", "import kaicore; print(kaicore.__file__)", cwd=tmp_path)
    assert where.stdout.startswith(str(production)), "it does not come from the checkout"


@made
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_production_environment_runs_every_service_and_finds_its_migrations(production: Path, tmp_path: Path) -> None:
    version = importlib.metadata.version("kai-ledger")
    # What every service imports is there; one process, for each of its own would take a second.
    mains = ", ".join(f"{name.replace('-', '_')}.main" for name in SERVICES)
    imported = run(production / "bin" / "python", "-c", f"import {mains}", cwd=tmp_path)
    assert imported.returncode == 0, imported.stderr
    assert [name for name in SERVICES if not (production / "bin" / name).exists()] == []
    for program in ("kai", "kai-relay"):
        output = run(production / "bin" / program, "--version", cwd=tmp_path)
        assert (output.returncode, version in output.stdout) == (0, True), (program, output.stdout + output.stderr)
    # Where no server is, migrating fails at the server, and not before for want of its scripts.
    migrated = run(
        production / "bin" / "kai", "migrate", "--database-url", "postgresql://kai@127.0.0.1:1/kai", cwd=tmp_path
    )
    assert migrated.returncode != 0
    assert "cannot migrate" in migrated.stdout + migrated.stderr


def test_production_without_a_folder_asks_for_one(tmp_path: Path) -> None:
    output = run("make", "-s", "-C", ROOT, "production", cwd=tmp_path)
    assert output.returncode != 0
    assert "make production DIR=/opt/kai" in output.stdout
