"""The tests of `make test` that run beside each other: with pytest-xdist, each file by one worker.

Whole stacks are two units: twelve processes and more each, with kubelets and timeouts of their own, so never more than
two run at once, and the other workers have what is left of the machine for everything else. The two units come first,
and the short files of `tests/unit` last, so that all workers end at about the same time. There are five workers on two
cores, because most tests wait for a stack, a database or a watch more than half of their time: by the times of one run,
four leave 134 core-seconds idle, and five 60. While stacks run, one of them has a file that computes, then two.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

#: By unit, how the names of its tests begin; the first unit that fits.
_UNITS = {
    "demonstrations": ("tests/e2e/test_demo.py", "tests/e2e/test_documented_commands.py", "tests/e2e/test_living.py"),
    "stacks": ("tests/chaos/test_storm.py", "tests/e2e/test_"),
}
_STACKS = tuple(_UNITS)
_CORES = 2
#: Folders of tests that mostly compute; all others mostly wait for servers and processes.
_COMPUTING = ("tests/e2e/browser/", "tests/fidelity/", "tests/property/", "tests/simulation/", "tests/unit/")


def tell_little(config: pytest.Config) -> None:
    """Have a worker tell of each test once: six messages of each were a tenth of what cheap tests cost.

    That a test begins and ends, and that what goes before and after it has passed, is not shown; JUnit's file has it.
    """
    for plugin in config.pluginmanager.get_plugins():
        # Its module is not imported in a worker: its text is run.
        if type(plugin).__name__ == "WorkerInteractor" and not config.getoption("xmlpath", None):
            plugin.sendevent = partial(_tell, plugin.sendevent)


def _tell(send: Callable[..., None], name: str, **told: Any) -> None:
    match told:
        case {"data": {"when": "setup" | "teardown", "outcome": "passed"}}:
            return
    if name not in ("logstart", "logfinish"):
        send(name, **told)


def unit_of(nodeid: str) -> str | None:
    """Return the unit of whole stacks that a test belongs to; None for a test of anything else."""
    return next((unit for unit, beginnings in _UNITS.items() if nodeid.startswith(beginnings)), None)


def stacks_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests with those of the units first, each otherwise where it was."""
    return sorted(items, key=lambda item: _STACKS.index(unit) if (unit := unit_of(item.nodeid)) else len(_STACKS))


class StacksInTurn(LoadFileScheduling):
    """One unit of work for each of the units of whole stacks, and one for each file of other tests."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid) or super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a worker the first file that computes, where enough cores are left for it, or else the first that waits.

        The whole stacks together need a core.
        """
        others = (units for worker, units in self.assigned_work.items() if worker is not node)
        running = [unit for units in others for unit, tests in units.items() if not all(tests.values())]
        taken = sum(unit.startswith(_COMPUTING) for unit in running) + any(unit in _STACKS for unit in running)
        first = next(iter(self.workqueue))
        if first not in _STACKS:
            fits = (unit for unit in self.workqueue if unit.startswith(_COMPUTING) == (taken < _CORES))
            self.workqueue.move_to_end(next(fits, first), last=False)
        super()._assign_work_unit(node)
