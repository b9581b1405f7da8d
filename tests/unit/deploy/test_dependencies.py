"""What is installed is what was locked: each file by its hash, and nothing that runs code when it is built."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_locked_package_has_a_version_and_hashes(lock: Path) -> None:
    packages = re.findall(r"^(?=[A-Za-z0-9])((?:.*\\\n)*.*)$", lock.read_text(), flags=re.MULTILINE)
    assert len(packages) > 2
    for package in packages:
        assert re.match(r"[\w.\[\]-]+==\S+", package), package
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", package), package


def test_installation_takes_wheels_with_these_hashes_and_nothing_else() -> None:
    (flags,) = re.findall(r"locked = \((.*)\)", (ROOT / "scripts/bootstrap.py").read_text())
    assert flags.startswith('"--require-hashes", "--only-binary", ":all:", "-r"')
