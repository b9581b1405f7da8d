"""Every program says its version."""

import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points, version

import pytest

SERVICES = [script for script in entry_points(group="console_scripts") if script.name.startswith("kai-")]


def test_all_services_are_programs() -> None:
    assert len(SERVICES) == 14


@pytest.mark.parametrize("script", SERVICES, ids=lambda script: script.name)
def test_a_service_says_its_version(script: EntryPoint) -> None:
    module = script.value.partition(":")[0]
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{script.name} {version('kai-ledger')}\n"), done.stderr
