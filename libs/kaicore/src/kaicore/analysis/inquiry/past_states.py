"""States of a cluster at any position of its log, so that going from one to the next is cheap.

A state is made from the nearest one before it: one that an earlier question left here and that is folded on in place,
or the nearest sound snapshot.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from kaicore.analysis.inquiry.log_bounds import check_position
from kaicore.errors import CorruptLog, LogUnavailable
from kaicore.ledger.log.port import EventLog, Snapshot
from kaicore.ledger.log.snapshots import STATE_SNAPSHOT, content
from kaicore.ledger.log.state_snapshot import read_state
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA

#: Events folded before others get their turn.
_PAGE = 1000
#: States that are left for the next question.
_MOST_STATES = 3


class PastStates:
    """States of one cluster."""

    def __init__(
        self, log: EventLog, cluster: str, *, progress: Callable[[int, int], None] = lambda _, __: None
    ) -> None:
        """Args:
        log: that is folded.
        cluster: whose.
        progress: called with how far a state is folded, and how far it will be, in positions.
        """
        self._log = log
        self._cluster = cluster
        self._progress = progress
        #: Those of the last questions, the oldest first.
        self._states: list[ClusterState] = []
        self._turn = asyncio.Lock()

    async def at(self, position: int) -> ClusterState:
        """Return the state after the event at a position; 0 is the empty state.

        It may be folded on for the next question: the caller answers from it before the next `await`.

        Raises:
            UnknownMoment: there is no such position.
            EventsRetired: its events are gone with a retired month, and no sound snapshot stands for them.
            CorruptLog: the log contradicts itself.
            UnknownEvent: this program is too old for the log.
            LogUnavailable: the log does not answer.
        """
        check_position(self._cluster, position, await self._log.head(self._cluster))
        async with self._turn:
            state = await self._nearest(position)
            try:
                await self._fold(state, position)
            except LogUnavailable:
                self._leave(state)
                raise
            self._leave(state)
            return state

    async def _nearest(self, position: int) -> ClusterState:
        """Return the last state at or before a position that there is; it is no longer left for others."""
        before = [state for state in self._states if state.position <= position]
        near = max(before, key=lambda state: state.position, default=None)
        after = 0 if near is None else near.position
        if after < position:
            # Beyond what is here already.
            restored = await self._restored(position, beyond=after)
            if restored is not None:
                return restored
        if near is None:
            return ClusterState(self._cluster)
        self._states.remove(near)
        return near

    async def _restored(self, position: int, *, beyond: int) -> ClusterState | None:
        """Return what the last sound snapshot at or before a position holds; None where it is not beyond another."""
        newest = await self._log.load_snapshot(
            self._cluster, name=STATE_SNAPSHOT, schema=SNAPSHOT_SCHEMA, upto=position
        )
        snapshots: list[Snapshot] = [] if newest is None else [newest]
        if await self._log.retired(self._cluster):
            snapshots += await self._log.kept_snapshots(self._cluster, name=STATE_SNAPSHOT)
        for one in sorted(snapshots, key=lambda one: -one.position):
            if beyond < one.position <= position:
                state = content(self._cluster, one, partial(read_state, self._cluster), end=position)
                if state is not None:
                    return state
        return None

    async def _fold(self, state: ClusterState, position: int) -> None:
        while state.position < position:
            page = await self._log.read(self._cluster, after=state.position, upto=position, limit=_PAGE)
            if not page:
                raise CorruptLog(f"cluster {self._cluster}: event {state.position + 1} is missing")
            state.fold_all(page)
            self._progress(state.position, position)
            await asyncio.sleep(0)

    def _leave(self, state: ClusterState) -> None:
        self._states.append(state)
        del self._states[:-_MOST_STATES]
