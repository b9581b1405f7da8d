"""The contents of the wheel: `kai demo` works where there is no checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from tests.given.processes.compiled import share_compiled

ROOT = Path(__file__).parents[3]


def build(project: Path, into: Path) -> Path:
    """Build a project's wheel and unpack it."""
    (wheel,) = WheelBuilder(str(project)).build(directory=str(into.with_suffix(".dist")), versions=["standard"])
    with zipfile.ZipFile(wheel) as files:
        files.extractall(into)
    for package in ROOT.glob("*/*/src/*"):
        share_compiled(package, into / package.name)
    return into


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the production wheel unpacks to."""
    return build(ROOT, tmp_path_factory.mktemp("wheel") / "site")


def run(*command: str, path: list[Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with what was unpacked and with the libraries, but without this checkout (`-S`)."""
    places = [*path, Path(sysconfig.get_path("purelib"))]
    return subprocess.run(
        [sys.executable, "-S", *command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))},
        capture_output=True,
        text=True,
        check=False,
    )


#: Runs one program after the other, as `python -m` does: a process for each would import all of it again.
_ONE_BY_ONE = """
import contextlib, io, json, runpy, sys
sys.modules.update(dict.fromkeys({hidden!r}))
ends = []
for program in {programs!r}:
    code, said, sys.argv[:] = 0, io.StringIO(), program
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            runpy.run_module(program[0], run_name="__main__")
        except SystemExit as ended:
            code = ended.code or 0
            if isinstance(code, str):
                code, _ = 1, said.write(code)
        except Exception as error:
            code, _ = 1, said.write(str(error))
    ends.append((code, said.getvalue()))
print(json.dumps(ends))
"""


def ended(
    *programs: tuple[str, ...], path: list[Path], cwd: Path, hidden: tuple[str, ...] = ()
) -> list[tuple[int, str]]:
    """Run programs without some libraries; the exit code of each, and what it said."""
    done = run("-c", _ONE_BY_ONE.format(programs=programs, hidden=hidden), path=path, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return [(code, said) for code, said in json.loads(done.stdout)]


def test_production_wheel_carries_no_tool_and_says_where_it_is_missed(installed: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in installed.iterdir() if path.suffix != ".dist-info") == [
        "kai_api",
        "kai_binder",
        "kai_cli",
        "kai_exporter",
        "kai_gpu_reservation",
        "kai_hub",
        "kai_ingest",
        "kai_ledger",
        "kai_operator",
        "kai_projector",
        "kai_relay",
        "kai_scheduler",
        "kai_watcher",
        "kai_webhook",
        "kaicore",
    ]
    up = ("kai_cli.main", "up", "--data-dir", str(tmp_path / "data"))
    version, done = ended(("kai_cli.main", "--version"), up, path=[installed], cwd=tmp_path)
    assert (version[0], "kai " in version[1]) == (0, True), version
    assert (done[0], "is not installed: pip install 'kai-ledger[demo]'" in done[1]) == (2, True), done


def test_demonstration_from_wheels_finds_its_manifests_fleets_and_definitions(installed: Path, tmp_path: Path) -> None:
    tools = [build(ROOT / "tools" / name, tmp_path / name) for name in ("fleet", "apiserver")]
    examples = installed / "kai_cli" / "_examples"
    assert {path.name for path in examples.iterdir()} == {path.name for path in (ROOT / "examples").iterdir()}
    migrations = {path.name for path in (ROOT / "migrations" / "versions").glob("*.py")}
    assert migrations <= {path.name for path in (installed / "kaicore" / "_migrations" / "versions").iterdir()}
    for definition in (ROOT / "deploy" / "k8s" / "crds").rglob("*.yaml"):
        assert (installed / "kaicore" / "_crds" / definition.relative_to(ROOT / "deploy" / "k8s" / "crds")).exists()
    for name in ("exporter.yaml", "scheduler.yaml"):
        manifest = (ROOT / "deploy" / "k8s" / name).read_text()
        assert (installed / "kai_operator" / "_templates" / name).read_text() == manifest
    where = (
        "from kai_cli.demonstration.demo import example_manifests; from kai_fleet.profiles import profile; "
        "import kai_apiserver.main; print(profile.__file__); print(kai_apiserver.main.__file__); "
        "print(example_manifests())"
    )
    done = run("-c", where, path=[installed, *tools], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    places = (str(installed), str(tmp_path))
    assert all(line.startswith(places) for line in done.stdout.splitlines()), done.stdout


def test_extras_are_what_one_service_alone_needs_and_who_misses_one_is_told_its_name(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    alone = ("gpu-reservation", "mcp", "operator", "otel", "parquet")
    assert set(extras["all"]) == {name for extra in alone for name in extras[extra]}
    assert not set(extras["all"]) & set(project["dependencies"])
    hidden = ("kopf", "mcp", "mcp.server.mcpserver", "opentelemetry", "opentelemetry.proto", "pyarrow", "pynvml")
    nobody = "postgresql://nobody@127.0.0.1:1/x"
    programs = {
        ("kai_gpu_reservation.main", "--pod-name", "a", "--pod-namespace", "b"): ("nvidia-ml-py", "gpu-reservation"),
        ("kai_cli.main", "mcp"): ("mcp", "mcp"),
        ("kai_cli.main", "export", "x", "--format=parquet"): ("pyarrow", "parquet"),
        ("kai_operator.main",): ("kopf", "operator"),
        ("kai_projector.main", "--database-url", nobody, "--otlp-endpoint", "http://127.0.0.1:4318"): (
            *("opentelemetry-proto", "otel"),
        ),
    }
    ends = ended(*programs, path=[*map(Path, sys.path[1:])], cwd=tmp_path, hidden=hidden)
    for (code, said), (library, extra) in zip(ends, programs.values(), strict=True):
        message = f"{library} is not installed: pip install 'kai-ledger[{extra}]'"
        assert (code != 0, message in said) == (True, True), said
