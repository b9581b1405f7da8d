"""What travels in the wheel: `kai demo` works where there is no checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_demonstrations_manifests_fleets_and_definitions_travel_with_the_wheel(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "dist"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    installed = tmp_path / "site"
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(installed)
    examples = installed / "kai_cli" / "_examples"
    assert {path.name for path in examples.iterdir()} == {path.name for path in (ROOT / "examples").iterdir()}
    migrations = {path.name for path in (ROOT / "migrations" / "versions").glob("*.py")}
    assert migrations <= {path.name for path in (installed / "kaicore" / "_migrations" / "versions").iterdir()}
    for definition in (ROOT / "deploy" / "k8s" / "crds").rglob("*.yaml"):
        assert (installed / "kaicore" / "_crds" / definition.relative_to(ROOT / "deploy" / "k8s" / "crds")).exists()
    where = (
        "import kai_cli; from kai_cli.example_manifests import example_manifests; "
        "from kai_fleet import profile; print(profile.__file__); print(example_manifests())"
    )
    done = subprocess.run(
        [sys.executable, "-c", where],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(line.startswith(str(installed)) for line in done.stdout.splitlines()), done.stdout
