"""Which tests of `make test` run beside which: with pytest-xdist, each file by one worker, in the files' order.

Whole stacks are one unit: twelve processes and more each, with kubelets and timeouts of their own, so one worker runs
them one after another, and the others have what is left of the machine for everything else. That unit comes first
(`tests/chaos`, `tests/e2e`), and the short files of `tests/unit` last, so that all workers end at about the same time.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

_STACKS = "stacks"
_WITH_STACKS = ("tests/chaos/test_storm.py", "tests/e2e/")


class StacksInTurn(LoadFileScheduling):
    """One unit of work for all whole stacks, and one for each file of other tests."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return _STACKS if nodeid.startswith(_WITH_STACKS) else super()._split_scope(nodeid)
