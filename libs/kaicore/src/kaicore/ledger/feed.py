"""The feed of a cluster's events: each once and in order, from any position, whatever the bus does.

History comes from the log, live events from the bus, and the log again whenever the bus lags, loses, repeats, reorders,
is wiped, belongs to another log or is gone. Without a bus the feed lives on the log alone. The source of an event only
decides how soon it arrives. `FeedObserver` has the reports that a feed makes while it works.

One rule decides what it yields, `Cursor.continued_by`: an event is next if its position is one more and its hash
continues the chain. The test costs two microseconds, and makes the event's origin irrelevant. A bus that garbles, that
is left over from another log, or that was restored from an old backup cannot bring in a wrong event. A client that
forges events on purpose could, if it may publish.

A feed does nothing between two calls: it has no task of its own and holds no more than the bus's subscription does. A
slow reader finds events late, and nothing piles up.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, Self

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from kaicore.backoff import backoff
from kaicore.errors import BusUnavailable, CorruptLog, EventsRetired, InvalidObject, LogUnavailable
from kaicore.ledger.bus.port import Bus, Subscription
from kaicore.ledger.bus.wire import from_message
from kaicore.ledger.log.chain import GENESIS, continues
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.envelope import Event


class EventSource(StrEnum):
    """The source of events."""

    LOG = "log"
    BUS = "bus"


class Fallback(StrEnum):
    """A reason why a feed went back from the bus to the log.

    Attributes:
        GAP: a message is missing.
        FOREIGN: a message does not continue what the log says, or the bus says more than the log.
        LARGE: an event is too large for the bus.
        LAG: an event has been in the log for a while, and the bus does not bring it.
        ENDED: the connection broke, or the stream was deleted.
    """

    GAP = "gap"
    FOREIGN = "foreign"
    LARGE = "large"
    LAG = "lag"
    ENDED = "ended"


class FeedObserver(Protocol):
    """Is called with what happens; must be quick and must not raise."""

    def delivered(self, source: EventSource, events: Sequence[Event]) -> None:
        """Events are about to be handed to the reader."""

    def fell_back(self, reason: Fallback) -> None:
        """The feed reads from the log again."""


_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class FeedMetrics:
    """The metrics of all feeds of a process; `of` gives the observer of one feed."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY, clock: Callable[[], float] = time.time) -> None:
        """Args:
        clock: seconds since the epoch.
        """
        self.clock = clock
        self.events = Counter("kai_feed_events", "Events read", ["cluster", "source"], registry=registry)
        self.position = Gauge("kai_feed_position", "Position of the event read last", ["cluster"], registry=registry)
        self.delay = Histogram(
            "kai_feed_delay_seconds",
            "From an event's recording to its delivery, of the newest event of each batch",
            ["cluster"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.fallbacks = Counter(
            "kai_feed_fallbacks", "Returns from the bus to the log", ["cluster", "reason"], registry=registry
        )

    def of(self, cluster: str) -> "ClusterFeedMetrics":
        """Return the observer of one cluster's feed."""
        return ClusterFeedMetrics(self, cluster)


class ClusterFeedMetrics:
    """The metrics of one cluster's feed; see `kaicore.ledger.feed.FeedObserver`."""

    def __init__(self, metrics: FeedMetrics, cluster: str) -> None:
        self._metrics = metrics
        self._cluster = cluster

    def delivered(self, source: EventSource, events: Sequence[Event]) -> None:
        """See `FeedObserver.delivered`."""
        cluster, metrics = self._cluster, self._metrics
        metrics.events.labels(cluster, source.value).inc(len(events))
        metrics.position.labels(cluster).set(events[-1].position)
        metrics.delay.labels(cluster).observe(max(0.0, metrics.clock() - events[-1].recorded_at / 1e6))

    def fell_back(self, reason: Fallback) -> None:
        """See `FeedObserver.fell_back`."""
        self._metrics.fallbacks.labels(self._cluster, reason.value).inc()


class Cursor(msgspec.Struct, frozen=True, gc=False):
    """The event that was read last; the default is before the first event.

    Attributes:
        hash: the event's; None when it is unknown, because the event has left the log with an old month.
    """

    position: int = 0
    hash: bytes | None = GENESIS

    def continued_by(self, event: Event) -> bool:
        """True if `event` is certainly the next one."""
        return event.position == self.position + 1 and self.hash is not None and continues(self.hash, event)

    def at(self, event: Event) -> Self:
        """Return the place of an event."""
        return type(self)(event.position, event.hash)

    def through(self, cluster: str, events: Sequence[Event]) -> Self:
        """Return the place after events that the log gave, having checked that they come next.

        Raises CorruptLog: naming the first event that does not.
        """
        position, hash_ = self.position, self.hash
        for event in events:
            if event.position != position + 1 or not (hash_ is None or continues(hash_, event)):
                problem = (
                    "its hash does not continue the chain"
                    if event.position == position + 1
                    else f"should be event {position + 1}"
                )
                raise CorruptLog(f"cluster {cluster}: event {event.position} after {position}: {problem}")
            position, hash_ = event.position, event.hash
        return type(self)(position, hash_)


async def find_cursor(log: EventLog, cluster: str, position: int) -> Cursor | None:
    """Return the place of the event at `position`; None when the log has no such event.

    Raises EventsRetired: the event has left the log, and the one after it, too.
    """
    if position == 0:
        return Cursor()
    try:
        events = await log.read(cluster, after=position - 1, upto=position, limit=1)
    except EventsRetired as error:
        if error.position != position:
            raise
        head = await log.head(cluster)
        return Cursor(position, head.hash if head.position == position else None)
    return Cursor().at(events[0]) if events else None


class Retry:
    """The time of the next attempt: at once after the first failure, then later each time."""

    def __init__(self, *, first_s: float, most_s: float) -> None:
        """Args:
        first_s: seconds from the second failure to the next attempt; doubled with each failure.
        """
        self._first_s = first_s
        self._most_s = most_s
        self._failures = 0
        self._at = 0.0

    @property
    def remaining_s(self) -> float:
        """Seconds until the next attempt."""
        return max(0.0, self._at - asyncio.get_running_loop().time())

    @property
    def due(self) -> bool:
        """True if it is time for an attempt."""
        return self.remaining_s == 0.0

    def failed(self) -> None:
        """Put the next attempt off."""
        self.postpone(backoff(self._failures, first=self._first_s, most=self._most_s))
        self._failures += 1

    def postpone(self, seconds: float) -> None:
        """Put the next attempt off by that much, and the ones after it no more than before."""
        self._at = asyncio.get_running_loop().time() + seconds

    def succeeded(self) -> None:
        """Begin anew."""
        self._at, self._failures = 0.0, 0


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedOptions:
    """A feed's settings.

    Attributes:
        batch: events in a batch at most.
        check_s: seconds between two looks at the log's head while the bus is silent; what was in the log at one look
            and has not come by the next is fetched from there. While neither has anything new, doubled each time.
        bus_patience_s: seconds that subscribing may take; the log is not read meanwhile.
        retry_s: seconds until a log or bus that failed is tried again; doubled each time, up to `retry_max_s`.
        retry_max_s: see `retry_s`.
    """

    batch: int = 500
    check_s: float = 0.5
    check_most_s: float = 2.0
    bus_patience_s: float = 1.0
    retry_s: float = 0.5
    retry_max_s: float = 5.0


class EventFeed:
    """An endless iterator over batches of a cluster's events; for one reader."""

    def __init__(
        self,
        log: EventLog,
        bus: Bus | None,
        cluster: str,
        *,
        after: int = 0,
        options: FeedOptions | None = None,
        observer: FeedObserver | None = None,
    ) -> None:
        """Args:
        bus: None to read from the log alone.
        after: position of the event before the first to read.
        observer: is called with what the feed does.
        """
        self._log = log
        self._bus = bus
        self._cluster = cluster
        self._options = options or FeedOptions()
        self._observer = observer
        self._cursor: Cursor | None = Cursor() if after == 0 else None
        self._after = after
        # There is more in the log, as far as we know.
        self._behind = True
        self._log_retry = Retry(first_s=self._options.retry_s, most_s=self._options.retry_max_s)
        self._bus_retry = Retry(first_s=self._options.retry_s, most_s=self._options.retry_max_s)
        self._subscription: Subscription | None = None
        self._discarded: list[Subscription] = []
        # How far the bus was when we looked, until we are there, too; forgotten after a while, or when the log is away.
        self._bus_end: int | None = None
        self._looked_at = 0.0
        # The bus must have got this far to be worth another try.
        self._bus_must_reach = 0
        self._check_at, self._check_s = 0.0, self._options.check_s
        self._left_at = 0.0
        # The log's head at the last check.
        self._due = 0
        self._waiting: asyncio.Future[int] | None = None
        self._reading = False
        self._closed = asyncio.Event()

    @property
    def position(self) -> int:
        """Position of the event that was delivered last."""
        return self._after if self._cursor is None else self._cursor.position

    @property
    def source(self) -> EventSource:
        """The source of the next events."""
        return EventSource.LOG if self._subscription is None else EventSource.BUS

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Event]:
        batch = await self.next_batch()
        if not batch:
            raise StopAsyncIteration
        return batch

    async def next_batch(self, *, timeout_s: float | None = None) -> list[Event]:
        """Wait for the next events and return them; empty after `timeout_s`, and when the feed is closed.

        The timeout ends the waiting, not a reading that is under way, so that 0 makes sense. Cancelling the call loses
        nothing: the next one returns what this one would have. A log or a bus that does not answer is waited for.

        Raises:
            CorruptLog: the log contradicts itself, or what it said before, or ends before `after`.
            EventsRetired: what comes next has left the log with an old month.
        """
        with self._alone():
            return await self._next_batch(math.inf if timeout_s is None else _now() + timeout_s)

    async def catch_up(self, position: int, own: Sequence[Event] = ()) -> list[Event]:
        """Return, straight from the log, all events up to and including `position` that were not delivered yet.

        With the positions that an append returned, this is how a writer reads its own events.

        Args:
            position: of the last event to return.
            own: the last of these events without a gap, as an append returned them; they are not read again.

        Raises:
            LogUnavailable: nothing counts as delivered then.
            CorruptLog: the log contradicts itself, or has no such position.
        """
        with self._alone():
            cursor = self._cursor or await self._find_place()
            events: list[Event] = []
            upto = own[0].position - 1 if own else position
            while cursor.position < upto:
                page = await self._log.read(self._cluster, after=cursor.position, upto=upto, limit=self._options.batch)
                if not page:
                    raise CorruptLog(f"cluster {self._cluster}: the log ends at {cursor.position}, before {upto}")
                cursor = cursor.through(self._cluster, page)
                events += page
            rest = [event for event in own if event.position > cursor.position]
            if rest:
                # That the first one follows shows that all do: the append has chained them.
                cursor = cursor.through(self._cluster, rest[:1]).at(rest[-1])
                events += rest
            self._deliver(EventSource.LOG, events, cursor)
            return events

    async def close(self) -> None:
        """End the feed; a waiting reader gets an empty batch, and iteration stops."""
        self._closed.set()
        if self._waiting is not None:
            self._waiting.cancel()
        self._discard_subscription()
        await self._close_discarded()

    async def _next_batch(self, deadline: float) -> list[Event]:
        now = _now()
        if now - self._left_at > self._options.check_s:
            # What piled up while the reader was away is no fault of the bus.
            self._due, self._check_at = 0, now + self._options.check_s
        while not self._closed.is_set():
            await self._close_discarded()
            if self._behind and self._log_retry.due and (events := await self._from_log()):
                return events
            if self._subscription is None and self._bus_retry.due and (not self._behind or not self._log_retry.due):
                await self._subscribe()
            if events := self._from_bus():
                return events
            if not (self._behind and self._log_retry.due):
                if _now() >= deadline:
                    return []
                await self._wait(deadline)
        self._discard_subscription()
        await self._close_discarded()
        return []

    async def _from_log(self) -> list[Event]:
        limit = self._options.batch
        try:
            cursor = self._cursor or await self._find_place()
            events = await self._log.read(self._cluster, after=cursor.position, limit=limit)
        except LogUnavailable as error:
            self._log_failed(error)
            return []
        self._log_retry.succeeded()
        cursor = cursor.through(self._cluster, events)
        self._behind = len(events) == limit
        self._deliver(EventSource.LOG, events, cursor)
        return events

    def _from_bus(self) -> list[Event]:
        if self._subscription is None or self._cursor is None:
            return []
        cursor, events, reason = self._cursor, [], None
        for message in self._subscription.take(self._options.batch):
            if message.position <= cursor.position:
                continue
            if message.position > cursor.position + 1:
                reason = Fallback.GAP
                break
            try:
                event = from_message(message)
            except CorruptLog:
                reason = Fallback.FOREIGN
                break
            if event is None:
                reason = Fallback.LARGE
                break
            if not cursor.continued_by(event):
                reason = Fallback.FOREIGN
                break
            events.append(event)
            cursor = cursor.at(event)
        if events:
            self._bus_retry.succeeded()
            self._deliver(EventSource.BUS, events, cursor)
        if reason is not None:
            self._fall_back(reason)
        return events

    async def _wait(self, deadline: float) -> None:
        if self._subscription is not None:
            try:
                arrived = await self._subscription.ready(timeout_s=min(self._check_at, deadline) - _now())
            except BusUnavailable as error:
                _log.info("cluster %s: %s", self._cluster, error)
                self._fall_back(Fallback.ENDED)
                return
            if not arrived and _now() >= self._check_at:
                await self._check_bus()
            return
        patience_s = self._options.retry_max_s if self._bus is None else self._bus_retry.remaining_s
        patience_s = max(patience_s, self._options.retry_s)
        if self._log_retry.due:
            await self._wait_for_log(max(0.0, min(patience_s, deadline - _now())))
        else:
            await self._pause(min(patience_s, self._log_retry.remaining_s, deadline - _now()))

    async def _wait_for_log(self, timeout_s: float) -> None:
        waiting = asyncio.ensure_future(self._log.wait_beyond(self._cluster, self.position, timeout_s=timeout_s))
        self._waiting = waiting
        try:
            await asyncio.wait([waiting])
        finally:
            self._waiting = None
            waiting.cancel()
        try:
            await self._check_head(await waiting)
        except LogUnavailable as error:
            self._log_failed(error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closed.is_set() or (task is not None and task.cancelling()):
                raise

    async def _check_bus(self) -> None:
        self._check_at = _now() + self._check_s
        if self._due > self.position:
            self._bus_must_reach = self._due
            self._fall_back(Fallback.LAG)
            return
        try:
            head = await self._log.head(self._cluster)
            await self._check_head(head.position)
        except LogUnavailable as error:
            # The bus goes on, and the next check comes.
            _log.debug("cluster %s: %s", self._cluster, error)
            return
        quiet = head.position == self.position
        self._check_s = min(2 * self._check_s, self._options.check_most_s) if quiet else self._options.check_s
        self._check_at = _now() + self._check_s
        self._due = head.position
        self._behind = False

    async def _check_head(self, head: int) -> None:
        if head > self.position:
            self._behind = True
        elif head < self.position:
            # An implementation may answer from what it last heard; only the log itself can accuse the log.
            head = (await self._log.head(self._cluster)).position
            if head < self.position:
                raise CorruptLog(
                    f"cluster {self._cluster}: the log ends at {head}, but {self.position} was read from it"
                )

    async def _subscribe(self) -> None:
        """Subscribe where the log was read to, once that is as far as the bus had got before.

        What is on the bus from before we looked may be left over from a log that was replaced, or from the lost end of
        one that was restored, and would fit. What comes after we looked comes from a relay that has compared. So the
        bus gives no history, and nothing before the log has said what event goes before: it could not be compared.
        """
        if self._bus is None or self._cursor is None or self.position == 0:
            return
        if not self._bus.connected:
            self._bus_retry.postpone(self._options.retry_s)
            return
        try:
            async with asyncio.timeout(self._options.bus_patience_s):
                if self._bus_end is None or _now() > self._looked_at + self._options.retry_max_s:
                    self._bus_end = await self._look_at_bus()
                    self._behind = self._behind or (self._bus_end or 0) > self.position
                if self._bus_end is None:
                    self._bus_retry.failed()
                elif self._bus_end <= self.position:
                    self._subscription = await self._bus.subscribe(self._cluster, after=self.position)
                    self._bus_end = None
                    self._due, self._check_at = 0, _now() + self._options.check_s
                elif not self._behind:
                    self._bus_end = None
                    self._fall_back(Fallback.FOREIGN)
        except (BusUnavailable, TimeoutError) as error:
            _log.debug("cluster %s: cannot subscribe: %r", self._cluster, error)
            self._bus_end = None
            self._bus_retry.failed()
        except InvalidObject as error:
            _log.warning("the bus cannot carry events of this cluster, its log can: %s", error)
            self._bus = None

    async def _look_at_bus(self) -> int | None:
        """Return how far the bus is; None when that is not far enough."""
        assert self._bus is not None
        self._looked_at = _now()
        state = await self._bus.stream(self._cluster)
        if state is not None and state.last >= self._bus_must_reach:
            return state.last
        # Where we are now is where the bus has to be by the next attempt.
        self._bus_must_reach = self.position
        return None

    async def _find_place(self) -> Cursor:
        cursor = await find_cursor(self._log, self._cluster, self._after)
        if cursor is None:
            raise CorruptLog(f"cluster {self._cluster}: the log has no event {self._after} to go on from")
        self._cursor = cursor
        return cursor

    def _deliver(self, source: EventSource, events: list[Event], cursor: Cursor) -> None:
        # No await between this and the reader's getting the events: either both happen or neither.
        self._cursor = cursor
        if events:
            self._check_s = self._options.check_s
        if events and self._observer is not None:
            self._observer.delivered(source, events)

    def _fall_back(self, reason: Fallback) -> None:
        self._discard_subscription()
        self._behind = True
        self._bus_retry.failed()
        level = logging.WARNING if reason is Fallback.FOREIGN else logging.INFO
        _log.log(level, "cluster %s: back to the log after %d: %s", self._cluster, self.position, reason.value)
        if self._observer is not None:
            self._observer.fell_back(reason)

    def _log_failed(self, error: LogUnavailable) -> None:
        self._behind = True
        self._bus_end = None
        self._log_retry.failed()
        _log.warning("cluster %s: cannot read the log: %s", self._cluster, error)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            pass

    def _discard_subscription(self) -> None:
        if self._subscription is not None:
            self._discarded.append(self._subscription)
            self._subscription = None

    async def _close_discarded(self) -> None:
        while self._discarded:
            await self._discarded.pop().close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._reading:
            raise RuntimeError("a feed is for one reader at a time")
        self._reading = True
        try:
            yield
        finally:
            self._reading = False
            self._left_at = _now()


def _now() -> float:
    return asyncio.get_running_loop().time()
