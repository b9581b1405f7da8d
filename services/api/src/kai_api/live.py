"""The end of each cluster's log as it grows, read once for all who follow it.

The last events are kept. Who is further behind, such as a client that comes back after an hour, reads the log itself
until it is near enough. Nothing is queued for a client: one that does not read is not waited for by others, and the
connection's own limits end it (`kaicore.runtime.service.http_limits`).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress

from kaicore.errors import EventsRetired, KaiError, UnknownMoment
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.envelope import Event
from kaicore.runtime.service.logs import get_logger

_logger = get_logger()

#: Events kept of each cluster, and read at once.
_KEPT, _PAGE = 2000, 500
#: Seconds that one wait for events lasts, and until a log that failed is tried again.
_WAIT_S, _PAUSE_S = 30.0, 1.0


class LiveLog:
    """The ends of all clusters' logs."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._tails: dict[str, _Tail] = {}
        self._closed = False

    async def follow(self, cluster: str, *, after: int | None, idle_s: float) -> AsyncIterator[list[Event]]:
        """Yield events as they come, in order and without a gap, and an empty list after `idle_s` without any.

        It ends when `close` is called.

        Args:
            after: the last position that is known already; None begins at the log's end.
        """
        tail = self._tails.get(cluster)
        if tail is None:
            tail = self._tails[cluster] = _Tail(self._log, cluster)
        with tail:
            position = await tail.begin() if after is None else after
            while not self._closed:
                events = await tail.after(position, timeout_s=idle_s)
                if events:
                    position = events[-1].position
                yield events

    async def check(self, cluster: str, after: int) -> None:
        """Check that a log can be followed from a position on.

        Raises:
            UnknownMoment: the log ends before it.
            EventsRetired: what comes next has left the log.
        """
        head = await self._log.head(cluster)
        if after > head.position:
            raise UnknownMoment(f"position {after}: cluster {cluster}'s log ends at {head.position}")
        if after < (retired := await self._log.retired(cluster)):
            raise EventsRetired(cluster, retired)

    def close(self) -> None:
        """End all that is followed."""
        self._closed = True
        for tail in self._tails.values():
            tail.wake()

    @property
    def followers(self) -> int:
        """The number of followers of a log."""
        return sum(tail.followers for tail in self._tails.values())


class _Tail:
    """The end of one cluster's log; it is read while somebody follows it."""

    def __init__(self, log: EventLog, cluster: str) -> None:
        self._log = log
        self._cluster = cluster
        self._kept: deque[Event] = deque(maxlen=_KEPT)
        self._position: int | None = None
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        #: Held by the follower that reads what is no longer kept.
        self._turn = asyncio.Lock()
        self.followers = 0

    def __enter__(self) -> None:
        self.followers += 1
        if self._reading is None:
            self._kept.clear()
            self._position = None
            self._reading = asyncio.create_task(self._read())

    def __exit__(self, *_: object) -> None:
        self.followers -= 1
        if not self.followers and self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def wake(self) -> None:
        """Let all who wait look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def begin(self) -> int:
        """Return where the log ends."""
        return (await self._log.head(self._cluster)).position

    async def after(self, position: int, *, timeout_s: float) -> list[Event]:
        """Return what comes after a position; empty where nothing did for a while, or somebody woke all."""
        changed = self._changed
        if self._position is None or position >= self._position:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await changed.wait()
        if self._kept and position >= self._kept[0].position - 1:
            first = position + 1 - self._kept[0].position
            return [self._kept[index] for index in range(first, min(len(self._kept), first + _PAGE))]
        if self._position is not None and position < self._position:
            upto = self._position
            async with self._turn:
                return await self._log.read(self._cluster, after=position, upto=upto, limit=_PAGE)
        return []

    async def _read(self) -> None:
        while True:
            try:
                if self._position is None:
                    self._position = await self.begin()
                    self.wake()
                await self._log.wait_beyond(self._cluster, self._position, timeout_s=_WAIT_S)
                events = await self._log.read(self._cluster, after=self._position, limit=_PAGE)
            except KaiError as error:
                _logger.warning("live events wait for the log", cluster=self._cluster, error=str(error))
                await asyncio.sleep(_PAUSE_S)
                continue
            if events:
                self._kept.extend(events)
                self._position = events[-1].position
                self.wake()
