"""The scheduler's check of itself: the state in memory against one that is folded anew from the log.

Snapshots are made of the state in memory, so a wrong one would be saved as it is. The fold therefore begins with the
state that was seen to be right last: the one just folded at the start, later that of the last check. It goes on a few
events at a time, beside the cycles.
"""

import asyncio
from collections.abc import Callable

from kaicore.analysis.replay.log_states import fold_on
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.snapshots import read_state, take_state
from kaicore.rules.state.cluster_state import ClusterState

#: Events that are folded before cycles get their turn: some milliseconds.
_STEP = 50


class SelfCheck:
    """Compares a state, now and then, with a fold of the log."""

    def __init__(self, log: EventLog, *, every_s: float, monotonic: Callable[[], float]) -> None:
        """Args:
        every_s: seconds from one check to the next; 0 for no checks.
        monotonic: seconds that never jump.
        """
        self._log, self._every_s, self._monotonic = log, every_s, monotonic
        self._folding: asyncio.Task[ClusterState | None] | None = None

    def trust(self, state: ClusterState) -> None:
        """Begin with a state that has just been folded from the log."""
        self.stop()
        self._seen_s = self._monotonic()
        if self._every_s:
            self._right = take_state(state)

    def stop(self) -> None:
        """Give up the check that is under way."""
        if self._folding is not None:
            self._folding.cancel()
        self._folding = None

    def look(self, state: ClusterState, *, idle: bool) -> ClusterState | None:
        """Begin a check if it is time; return the right state, at an earlier position, if one found a difference.

        Args:
            idle: whether the scheduler has nothing to do; a check that is long overdue begins all the same.

        Raises:
            KaiError: the log could not be read; the next check begins where this one did.
        """
        if self._folding is None:
            waited_s = self._monotonic() - self._seen_s
            if self._every_s and waited_s >= (self._every_s if idle else 2 * self._every_s):
                self._seen_s = self._monotonic()
                self._folding = asyncio.create_task(self._differing(state))
        elif self._folding.done():
            folding, self._folding = self._folding, None
            return folding.result()
        return None

    async def _differing(self, state: ClusterState) -> ClusterState | None:
        here = take_state(state)
        right = read_state(state.cluster, self._right)
        async for _ in fold_on(self._log, right, here.position, step=_STEP):
            pass
        if take_state(right) != here:
            return right
        self._right = here
        return None
