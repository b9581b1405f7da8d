"""A state that is kept and folded further as its log grows, so that no question folds it from the beginning.

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

from kaicore.analysis.replay.log_states import fold_on, restored
from kaicore.errors import KaiError, LogUnavailable
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.snapshots import Trail, take_state
from kaicore.rules.state.cluster_state import ClusterState
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
_PAGE = 200
#: Seconds that one wait for new events lasts, and until a log that failed is tried again.
_WAIT_S, _PAUSE_S = 30.0, 2.0


class KeptState:
    """The state of one cluster."""

    def __init__(
        self,
        log: EventLog,
        cluster: str,
        *,
        questions: QuestionsFirst | None = None,
        progress: Callable[[int, int], None] = lambda _, __: None,
    ) -> None:
        """Args:
        log: that it follows.
        questions: about this and other clusters, to which `follow` gives way.
        progress: called with how far it is folded, and how far it will be, in positions.
        """
        self._questions = questions or QuestionsFirst()
        self._progress = progress
        self.cluster = cluster
        #: Events that were folded for it here, by all questions together.
        self.folded = 0
        #: Set as soon as `follow` has folded it once, or could not.
        self.tried = asyncio.Event()
        self._log = log
        self._state: ClusterState | None = None
        self._turn = asyncio.Lock()
        self._trail = Trail(log, cluster, schema=SNAPSHOT_SCHEMA)

    @property
    def position(self) -> int:
        """The position up to which it is folded; 0 before the first question."""
        return 0 if self._state is None else self._state.position

    async def current(self) -> ClusterState:
        """Return the state as of the log's end when this was called, or later.

        It goes on changing: the caller answers from it before the next `await`.

        Raises:
            LogUnavailable: the log does not answer.
            EventsRetired: its first events have left it, and no snapshot stands for them.
            CorruptLog: the log contradicts itself.
            UnknownEvent: this program is too old for the log.
        """
        with self._questions.about(self.cluster):
            return await self._at_the_end()

    async def _at_the_end(self) -> ClusterState:
        head = await self._log.head(self.cluster)
        async with self._turn:
            if self._state is None:
                self._state = await restored(self._log, self.cluster)
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
        async with aclosing(fold_on(self._log, state, position, step=_PAGE)) as steps:
            async for count in steps:
                self.folded += count
                self._progress(state.position, position)
                await self._trail.passed(state.position, partial(take_state, state))
                await self._questions.give_way(self.cluster)

    async def follow(self) -> None:
        """Fold whatever comes, until cancelled; a log that fails is tried again."""
        while True:
            try:
                async with self._questions.unasked:
                    state = await self._at_the_end()
                self.tried.set()
                await self._log.wait_beyond(self.cluster, state.position, timeout_s=_WAIT_S)
            except KaiError as error:
                self.tried.set()
                _log.warning("cluster %s: its state cannot be followed: %s", self.cluster, error)
                await asyncio.sleep(_PAUSE_S)
