"""States of a cluster at any position of its log, arranged so that stepping from one to the next is cheap.

A state is made from the nearest earlier one. That is a state that an earlier question left here, which is folded
further in place; or a copy of one that was passed recently; or the nearest valid snapshot of the log and of its trail.
A copy costs a tenth of what reading a snapshot does.

A state that is kept and folded further as its log grows, so that no question folds it from the beginning.

Questions go before folding in advance. A process that starts folds the logs of all its clusters, so that later
questions find their states. That may take long, and a question about one cluster must not wait for the logs of the
others.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial

from kaicore.analysis.replay.log_states import check_position, fold_on, restored, saved
from kaicore.errors import KaiError, LogUnavailable
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.snapshots import Trail, take_state, trail_of
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import fork
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA


class QuestionsFirst:
    """The clusters that questions are about; folding without a question gives way to them.

    Attributes:
        unasked: held by the one cluster that is folded without a question.
    """

    def __init__(self) -> None:
        self.unasked = asyncio.Lock()
        self._asked: Counter[str] = Counter()
        self._changed = asyncio.Event()

    @contextmanager
    def about(self, cluster: str) -> Iterator[None]:
        """A question about a cluster is being answered."""
        self._count(cluster, 1)
        try:
            yield
        finally:
            self._count(cluster, -1)

    async def give_way(self, cluster: str) -> None:
        """Wait while there are questions, and none about this cluster, which would wait for what is folded now."""
        while self._asked.total() and not self._asked[cluster]:
            await self._changed.wait()

    def _count(self, cluster: str, change: int) -> None:
        self._asked[cluster] += change
        self._changed.set()
        self._changed = asyncio.Event()


_log = logging.getLogger(__name__)

#: Events folded before others get their turn: some milliseconds' worth.
_EVENTS_A_PAGE = 200
#: Events that a state may lack that is asked for now and then: a question folds them in some 0.1 s.
_MOST_LACKING = 4000
#: Events from which on a snapshot is read instead, where there is a nearer one.
_MANY_LACKING = 50_000
#: Looks after a question at which it is still folded ahead of the next: ten minutes' worth.
_LOOKS_AFTER = 300
#: Seconds between two looks at how many it lacks, and until a log that failed is tried again.
_LOOK_S, _PAUSE_S = 2.0, 2.0


class KeptState:
    """The state of one cluster."""

    def __init__(
        self,
        log: EventLog,
        cluster: str,
        *,
        questions: QuestionsFirst | None = None,
        past: "PastStates | None" = None,
        progress: Callable[[int, int], None] = lambda _, __: None,
    ) -> None:
        """Args:
        questions: about this and other clusters, to which `follow` gives way.
        past: is to have the states that were passed last; None for none.
        progress: called with how far it is folded, and how far it will be, in positions.
        """
        self._questions = questions or QuestionsFirst()
        self._past = past
        self._progress = progress
        self.cluster = cluster
        #: Events that were folded for it here, by all questions together.
        self.folded = 0
        #: Set as soon as `follow` has folded it once, or could not.
        self.tried = asyncio.Event()
        self._looks_left = 0
        #: The log's end at the last look.
        self._seen = 0
        self._log = log
        self._state: ClusterState | None = None
        self._turn = asyncio.Lock()
        self._trail = Trail(log, cluster, schema=SNAPSHOT_SCHEMA)

    @property
    def position(self) -> int:
        """The position up to which it is folded; 0 before the first question."""
        return 0 if self._state is None else self._state.position

    @property
    def in_use(self) -> bool:
        """True where it is to be near the log's end: it was asked for of late, or it cannot be folded."""
        return self._state is None or self._looks_left > 0

    async def current(self) -> ClusterState:
        """Return the state as of the log's end when this was called, or later.

        It goes on changing: the caller answers from it before the next `await`.

        Raises:
            EventsRetired: its first events have left it, and no snapshot stands for them.
            CorruptLog: the log contradicts itself.
            UnknownEvent: this program is too old for the log.
        """
        self._looks_left = _LOOKS_AFTER
        with self._questions.about(self.cluster):
            return await self._at_the_end()

    async def _at_the_end(self) -> ClusterState:
        head = await self._log.head(self.cluster)
        async with self._turn:
            if self._state is None:
                self._state = await restored(self._log, self.cluster)
            elif head.position > self.position + _MANY_LACKING or await self._has_left_the_log(head.position):
                nearer = await restored(self._log, self.cluster)
                self._state = max(self._state, nearer, key=lambda state: state.position)
            try:
                await self._fold(self._state, head.position)
            except LogUnavailable:
                raise
            except Exception:
                # An event may be folded by half.
                self._state = None
                raise
            return self._state

    async def _fold(self, state: ClusterState, position: int) -> None:
        async with aclosing(fold_on(self._log, state, position, step=_EVENTS_A_PAGE)) as steps:
            async for count in steps:
                self.folded += count
                self._progress(state.position, position)
                await self._trail.passed(state.position, partial(take_state, state))
                if self._past is not None and position - state.position < _NEAR:
                    self._past.passed(state)
                await self._questions.give_way(self.cluster)

    async def follow(self) -> None:
        """Fold it so that questions find little to fold, until cancelled; a log that fails is tried again.

        So events are folded many at a time, and no append wakes this process; the last ones once no more come. Nobody
        may ask for hours: after ten minutes without a question nothing is folded until the next one.
        """
        while True:
            try:
                if self.in_use and (self._state is None or await self._lacks_enough()):
                    async with self._questions.unasked:
                        await self._at_the_end()
                self._looks_left = max(0, self._looks_left - 1)
                self.tried.set()
                await asyncio.sleep(_LOOK_S)
            except KaiError as error:
                self.tried.set()
                _log.warning("cluster %s: its state cannot be followed: %s", self.cluster, error)
                await asyncio.sleep(_PAUSE_S)

    async def _has_left_the_log(self, end: int) -> bool:
        """Tell whether events that it lacks may be gone with a retired month, which takes a while."""
        return end > self.position + _MOST_LACKING and await self._log.retired(self.cluster) > self.position

    async def _lacks_enough(self) -> bool:
        head = (await self._log.head(self.cluster)).position
        grows, self._seen = head > self._seen, head
        return head > self.position + (_MOST_LACKING if grows else 0)


#: Events folded before others get their turn.
_PAGE = 1000
#: States that are left for the next question.
_MOST_STATES = 3
#: Bytes of memory that a state takes for each node and each pod, beside what it shares with others.
_BYTES_OF_A_NODE, _BYTES_OF_A_POD = 1000, 3000
#: Events between two states that are kept: so many, and at least one for so many bytes of a state.
_STEP, _BYTES_PER_EVENT = 2000, 8000
#: Events that are folded at most for a state that only adds to an answer.
_NEAR = 12_000
#: Bytes of all states that are kept.
_MOST_BYTES = 128 * 1024 * 1024


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
        #: States that are not folded on, by position; those that were of use last are at the end.
        self._passed: dict[int, ClusterState] = {}
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
        """Return the last kept state at or before a position; it is no longer left for others."""
        left = max((state.position for state in self._states if state.position <= position), default=0)
        passed = max((place for place in self._passed if place <= position), default=0)
        here, retired = max(left, passed), await self._log.retired(self._cluster)
        known = [*self._passed.values(), *self._states]
        # What the log has is asked for only where it can be much nearer, or where events are missing in between.
        if not known or position - here >= 2 * _step(known[-1]) or here < retired:
            state = await saved(self._log, self._cluster, upto=position, beyond=here)
            if state is not None:
                self.passed(state)
                return state
        if passed > left:
            self._passed[passed] = self._passed.pop(passed)
            return fork(self._passed[passed])
        for state in self._states:
            if state.position == left:
                self._states.remove(state)
                return state
        return ClusterState(self._cluster)

    async def _fold(self, state: ClusterState, position: int) -> None:
        async with aclosing(fold_on(self._log, state, position, step=_PAGE)) as steps:
            async for _ in steps:
                self._progress(state.position, position)
                await self._trail.passed(state.position, partial(take_state, state))
                self.passed(state)

    def passed(self, state: ClusterState) -> None:
        """Keep a copy of a state unless one is kept shortly before; forget those of no use for the longest time."""
        before = max((place for place in self._passed if place <= state.position), default=-_STEP)
        if self._once or state.position - before < _step(state):
            return
        self._passed[state.position] = fork(state)
        excess = sum(map(_size, self._passed.values())) - _MOST_BYTES
        for place, one in list(self._passed.items()):
            if excess <= 0:
                break
            excess -= _size(one)
            del self._passed[place]

    def _leave(self, state: ClusterState) -> None:
        most = max(1, min(_MOST_STATES, _MOST_BYTES // max(1, _size(state))))
        self._states.append(state)
        del self._states[:-most]


def _size(state: ClusterState) -> int:
    return _BYTES_OF_A_NODE * len(state.columns.rows) + _BYTES_OF_A_POD * len(state.pods)


def _step(state: ClusterState) -> int:
    return max(_STEP, _size(state) // _BYTES_PER_EVENT)
