"""States of a cluster at any position of its log, arranged so that stepping from one to the next is cheap.

A state is made from the nearest earlier one. That is a state that an earlier question left here, which is folded
further in place; or one that was passed recently and kept as bytes; or the nearest valid snapshot of the log and of its
trail.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from functools import partial

from kaicore.analysis.replay.log_states import check_position, fold_on
from kaicore.errors import LogUnavailable
from kaicore.ledger.log.port import EventLog, Snapshot
from kaicore.ledger.log.snapshots import STATE_SNAPSHOT, Trail, content, read_state, take_state, trail_of
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA

#: Events folded before others get their turn.
_PAGE = 1000
#: States that are left for the next question, and what they may be as bytes together, which is less than in memory.
_MOST_STATES, _MOST_STATES_BYTES = 3, 64 * 1024 * 1024
#: Events between two states that are kept as bytes: so many, and at least one for so many bytes of a state.
_STEP, _BYTES_PER_EVENT = 2000, 2500
#: Events that are folded at most for a state that only adds to an answer.
_NEAR = 12_000
#: What they may be together.
_MOST_BYTES = 64 * 1024 * 1024


class PastStates:
    """States of one cluster."""

    def __init__(
        self,
        log: EventLog,
        cluster: str,
        *,
        once: bool = False,
        progress: Callable[[int, int], None] = lambda _, __: None,
    ) -> None:
        """Args:
        log: that is folded.
        once: no second question will come: what is passed is not kept here, which takes as long as folding.
        progress: called with how far a state is folded, and how far it will be, in positions.
        """
        self._once = once
        self._log = log
        self._cluster = cluster
        self._progress = progress
        #: Those of the last questions, the oldest first.
        self._states: list[ClusterState] = []
        #: States as bytes, by position; those that were of use last are at the end.
        self._passed: dict[int, Snapshot] = {}
        #: Bytes of the last one that was seen.
        self._size = 0
        self._trail = Trail(log, cluster, schema=SNAPSHOT_SCHEMA)
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

    async def near(self, position: int) -> ClusterState | None:
        """Return what `at` does; None where the nearest state is over 12,000 events before, and nearer ones may come.

        A log without a trail, such as a file, is folded as far for the answer in any case.

        Raises: see `at`.
        """
        async with self._turn:
            state = await self._nearest(position)
            self._leave(state)
            if position - state.position > _NEAR and trail_of(self._log) is not None:
                return None
        return await self.at(position)

    async def _nearest(self, position: int) -> ClusterState:
        """Return the last state at or before a position that there is; it is no longer left for others."""
        left = max((state.position for state in self._states if state.position <= position), default=0)
        passed = max((place for place in self._passed if place <= position), default=0)
        here, retired = max(left, passed), await self._log.retired(self._cluster)
        # What the log has is asked for only where it can be much nearer, or where events are missing in between.
        if position - here >= self._step() or here < retired:
            state = await self._restored(position, beyond=here, retired=retired)
            if state is not None:
                return state
        if passed > left:
            self._passed[passed] = self._passed.pop(passed)
            return read_state(self._cluster, self._passed[passed])
        for state in self._states:
            if state.position == left:
                self._states.remove(state)
                return state
        return ClusterState(self._cluster)

    async def _restored(self, position: int, *, beyond: int, retired: int) -> ClusterState | None:
        """Return what the last sound snapshot at or before a position holds; None where it is not beyond another."""
        trail = trail_of(self._log)
        snapshots = [
            await self._log.load_snapshot(self._cluster, name=STATE_SNAPSHOT, schema=SNAPSHOT_SCHEMA, upto=position)
        ]
        if trail is not None:
            snapshots.append(await trail.load(self._cluster, schema=SNAPSHOT_SCHEMA, upto=position))
        if retired and not any(one is not None and one.position >= retired for one in snapshots):
            snapshots += await self._log.kept_snapshots(self._cluster, name=STATE_SNAPSHOT)
        sound = [one for one in snapshots if one is not None and beyond < one.position <= position]
        for one in sorted(sound, key=lambda one: -one.position):
            state = content(self._cluster, one, partial(read_state, self._cluster), end=position)
            if state is not None:
                self._pass(one)
                return state
        return None

    async def _fold(self, state: ClusterState, position: int) -> None:
        passed = max((place for place in self._passed if place <= state.position), default=0)
        async with aclosing(fold_on(self._log, state, position, step=_PAGE)) as steps:
            async for _ in steps:
                self._progress(state.position, position)
                await self._trail.passed(state.position, partial(take_state, state))
                if not self._once and state.position - passed >= self._step():
                    passed = state.position
                    self._pass(take_state(state))

    def _step(self) -> int:
        return max(_STEP, self._size // _BYTES_PER_EVENT)

    def _pass(self, snapshot: Snapshot) -> None:
        """Keep a state as bytes, and forget those that were of no use for the longest time."""
        self._size = len(snapshot.body)
        self._passed.pop(snapshot.position, None)
        self._passed[snapshot.position] = snapshot
        excess = sum(len(one.body) for one in self._passed.values()) - _MOST_BYTES
        for place, one in list(self._passed.items()):
            if excess <= 0:
                break
            excess -= len(one.body)
            del self._passed[place]

    def _leave(self, state: ClusterState) -> None:
        most = max(1, min(_MOST_STATES, _MOST_STATES_BYTES // max(1, self._size)))
        self._states.append(state)
        del self._states[:-most]
