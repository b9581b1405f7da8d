"""States of the past that pages show, the last few kept: a slider goes to and fro."""

import asyncio
from collections import OrderedDict

from kaicore.analysis.inquiry.moments import state_at
from kaicore.ledger.log.port import EventLog
from kaicore.rules.state.cluster_state import ClusterState


class PastStates:
    """States as of positions; whoever asks for one must not change it."""

    def __init__(self, log: EventLog, *, most: int = 4) -> None:
        """Args:
        log: whose clusters.
        most: how many states are kept.
        """
        self._log = log
        self._most = most
        self._kept: OrderedDict[tuple[str, int], ClusterState] = OrderedDict()
        self._turn = asyncio.Lock()

    async def at(self, cluster: str, position: int) -> ClusterState:
        """Return the state at a position; see `state_at` for what is raised."""
        key = cluster, position
        async with self._turn:
            state = self._kept.get(key)
            if state is None:
                state = self._kept[key] = await state_at(self._log, cluster, position)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return state
