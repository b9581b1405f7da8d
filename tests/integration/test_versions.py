"""Every program says its version."""

from importlib.metadata import EntryPoint, entry_points, version

import pytest

from tests.given.processes.kai_commands import talking

SERVICES = [script for script in entry_points(group="console_scripts") if script.name.startswith("kai-")]
#: Seconds that a program may take for it.
PATIENCE_S = 60


def test_all_services_are_programs() -> None:
    assert len(SERVICES) == 14


@pytest.mark.parametrize("script", SERVICES, ids=lambda script: script.name)
def test_a_service_says_its_version(script: EntryPoint) -> None:
    module, _, function = script.value.partition(":")
    assert function == "main"
    process, said = talking(module, "--version")
    with said:
        assert said.read() == f"{script.name} {version('kai-ledger')}\n"
    assert process.wait(PATIENCE_S) == 0
