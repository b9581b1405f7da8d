"""The relay of all clusters of a log: one task for each, begun as the log gets to know it.

A task publishes one cluster's events on the bus, in the order of the log, each at the sequence that is its position.

The position to begin at is read from the stream itself, so there is no checkpoint that could be wrong. Before anything
is published, the stream's last message is compared with the log's event at that position. Hashes are chained, so if
these two agree, all before them do; if they do not, the stream belongs to another log, or to an end of this one that
is lost, and it is made anew. It is also made anew when it accepts nothing although the bus answers, or lacks messages
that it claims to have: its store was deleted or its disk is full.

A second relay loses the race for a position sooner or later, and stands by: it watches the stream, and takes over when
the stream stands still although there is more in the log. No relay has to know the leader: the stream takes each
position once, from the relay that comes first.

A relay is ready when log and bus work for all clusters.
"""

import asyncio
import math
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from kaicore.errors import (
    BusUnavailable,
    CorruptLog,
    EventsRetired,
    Fenced,
    InvalidObject,
    LogError,
    LogUnavailable,
    NoRoom,
)
from kaicore.ledger.bus import Bus, Limits, StreamState
from kaicore.ledger.bus.port import stream_bytes
from kaicore.ledger.bus.wire import from_message, message_hash, stream_name, to_message
from kaicore.ledger.feed import Cursor, Retry, find_cursor
from kaicore.ledger.log.chain import mark_of
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import FieldsErased
from kaicore.runtime.process_context import end_all
from kaicore.runtime.service import Health
from kaicore.runtime.service.log_access import LOG
from kaicore.runtime.service.logs import Logger
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from pydantic import BaseModel, Field

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class RelayMetrics:
    """The metrics of all clusters that a process relays."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY, clock: Callable[[], float] = time.time) -> None:
        """Args:
        clock: seconds since the epoch.
        """

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"kai_relay_{name}", text, ["cluster"], registry=registry)

        def counter(name: str, text: str, *labels: str) -> Callable[..., None]:
            """A counter, as the function that counts one by its labels."""
            metric = Counter(f"kai_relay_{name}", text, ["cluster", *labels], registry=registry)
            return lambda *values: metric.labels(*values).inc()

        self._clock = clock
        self._active = gauge("active", "1 if this relay publishes, 0 if it stands by")
        self._position = gauge("position", "Position of the event published last, by any relay")
        self._lag_events = gauge("lag_events", "Events in the log that are not on the bus")
        self._lag_microseconds = gauge("lag_microseconds", "Age of the oldest event that is not on the bus")
        self._published = Counter("kai_relay_published_events", "Events published", ["cluster"], registry=registry)
        self.fenced = counter("fenced", "Times that another relay was found to be ahead")
        self.rebuilt = counter("rebuilds", "Streams made, by why there was none that would do", "reason")
        self._latency = Histogram(
            "kai_relay_publish_latency_seconds",
            "From an event's recording in the log to its confirmation by the bus, of the oldest event of each batch",
            ["cluster"],
            buckets=_BUCKETS,
            registry=registry,
        )

    @contextmanager
    def publishing(self, cluster: str) -> Iterator[None]:
        """Show that we publish, while inside."""
        active = self._active.labels(cluster)
        active.set(1)
        try:
            yield
        finally:
            active.set(0)

    def published(self, cluster: str, *, count: int, position: int, recorded_at: int) -> None:
        """Count a batch with an oldest event recorded then, microseconds since the epoch."""
        self._published.labels(cluster).inc(count)
        self._position.labels(cluster).set(position)
        self._latency.labels(cluster).observe(self._age_us(recorded_at) / 1e6)

    def lag(self, cluster: str, *, position: int, head: int, oldest: int | None) -> None:
        """Set how far the bus is behind the log; `oldest` is when the oldest missing event was recorded."""
        self._position.labels(cluster).set(position)
        self._lag_events.labels(cluster).set(max(0, head - position))
        self._lag_microseconds.labels(cluster).set(0 if oldest is None else self._age_us(oldest))

    def _age_us(self, recorded_at: int) -> int:
        return max(0, int(self._clock() * 1e6) - recorded_at)


BUS = "bus"


class Readiness:
    """Sums up the clusters' troubles into the service's conditions."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._troubles: dict[str, dict[str, str]] = {LOG: {}, BUS: {}}

    def works(self, cluster: str) -> None:
        """Say that both work for a cluster."""
        for condition in (LOG, BUS):
            if self._troubles[condition].pop(cluster, None) is not None or self._health.conditions[condition]:
                self._report(condition)

    def fails(self, cluster: str, condition: str, why: str) -> None:
        """Say why one of them does not work for a cluster."""
        self._troubles[condition][cluster] = why
        self._report(condition)

    def _report(self, condition: str) -> None:
        troubles = self._troubles[condition]
        if troubles:
            self._health.unmet(condition, "; ".join(f"{cluster}: {why}" for cluster, why in sorted(troubles.items())))
        else:
            self._health.met(condition)


#: Times in a row that a stream may take nothing, with the bus there, before it is made anew.
_REFUSALS = 2
#: Seconds in which a stream is not made anew once more because it is another log's: two relays would do it in turn.
_SHARED_S = 60.0
#: Why a stream's end is not of our log, where that shows.
_NOT_OURS = ("ahead", "foreign")
#: Bytes below which a stream is not tried to be made.
_LEAST_BYTES = 16 << 20
#: A stream's limit is changed when the room differs by more than this part of it.
_ROOM_DIFFERS = 4
#: Relays that stand by wait longer by up to this part, so that not all come at once.
_SPREAD = 0.3


#: Seconds between two looks at the room for a stream, and at the stream while the log is silent.
_ROOM_S, _IDLE_S = 30.0, 5.0

#: Seconds after publishing in which events gather, so that a busy log is read and published in few batches.
_GATHER_S = 0.02

#: Seconds until a bus or log that failed is tried again: doubled each time, from the first to the second.
_RETRY_S, _RETRY_MAX_S = 0.1, 2.0


class RelayOptions(BaseModel):
    """Settings of relaying, apart from addresses and seals."""

    batch: int = Field(default=500, ge=1, le=5000, description="events per batch at most")
    refill: int = Field(default=10_000, ge=0, description="events put into a stream that had to be made anew")
    stream_max_age_s: int = Field(default=48 * 3600, ge=0, description="how long a stream keeps an event; 0: for ever")
    stream_max_bytes: int | None = Field(
        default=None,
        ge=-1,
        description="size of a stream; -1: unlimited; default: what there is room for, 1 GiB at most",
    )
    nats_store_dir: Path | None = Field(
        default=None,
        description="folder of NATS' store, if it is on this machine: a stream gets a tenth of its disk",
    )
    stream_replicas: int = Field(default=1, ge=1, le=5, description="NATS servers that hold a stream")
    takeover_ms: int = Field(
        default=1500, ge=100, description="how long another relay may stand still before we take over"
    )

    @property
    def limits(self) -> Limits:
        """The streams'."""
        limits = Limits(max_age_s=self.stream_max_age_s, replicas=self.stream_replicas)
        return limits if self.stream_max_bytes is None else replace(limits, max_bytes=self.stream_max_bytes)

    @property
    def room(self) -> Callable[[int], int] | None:
        """Returns how many bytes a stream may have that has so many; None: as `limits` says."""
        directory = self.nats_store_dir
        if directory is None or self.stream_max_bytes is not None:
            return None

        def room(used: int) -> int:
            try:
                return stream_bytes(free=shutil.disk_usage(directory).free, used=used)
            except OSError:
                # A store that was deleted is noticed elsewhere.
                return Limits().max_bytes

        return room


class ClusterRelay:
    """The relay of one cluster."""

    def __init__(
        self,
        log: EventLog,
        bus: Bus,
        cluster: str,
        *,
        options: RelayOptions,
        metrics: RelayMetrics,
        readiness: Readiness,
        logger: Logger,
        jitter: Callable[[], float],
    ) -> None:
        self._jitter = jitter
        self._log = log
        self._bus = bus
        self._cluster = cluster
        self._options = options
        self._metrics = metrics
        self._readiness = readiness
        self._logger = logger.bind(cluster=cluster)
        #: Whether another relay publishes this cluster.
        self.stands_by = False
        self._cursor = Cursor()
        self._max_bytes = options.limits.max_bytes
        self._room_until = 0.0
        # Times in a row that the stream took nothing although the bus was there.
        self._refusals = 0
        # When the stream was made anew for being another log's.
        self._taken_back_at = -math.inf
        self._retry = Retry(first_s=_RETRY_S, most_s=_RETRY_MAX_S)

    async def run(self) -> NoReturn:
        """Relay until cancelled. Raises InvalidObject: the cluster's name cannot be part of a subject."""
        while True:
            if not self._bus.connected:
                await self._bus.wait_connected(timeout_s=_RETRY_MAX_S)
            await asyncio.sleep(self._retry.remaining_s)
            try:
                self._cursor = await self._take_up()
                with self._metrics.publishing(self._cluster):
                    await self._publish_all()
                self._logger.info("looking at the stream anew", position=self._cursor.position)
            except Fenced as error:
                self._metrics.fenced(self._cluster)
                self._logger.info("another relay is ahead, standing by", error=str(error))
                self.stands_by = True
                try:
                    await self._stand_by()
                finally:
                    self.stands_by = False
            except (BusUnavailable, LogError) as error:
                self._failed(error)

    async def _take_up(self) -> Cursor:
        """Bring the stream into a state that can be published to; return where it ends."""
        state = await self._bus.stream(self._cluster)
        if state is None:
            return await self._make_stream("missing")
        cursor = "unwritable" if self._refusals >= _REFUSALS else await self._end_of(state)
        if isinstance(cursor, str):
            self._check_shared(cursor)
            self._logger.error("the stream cannot be gone on with, making it anew", reason=cursor, last=state.last)
            await self._bus.delete_stream(self._cluster)
            self._refusals = 0
            return await self._make_stream(cursor)
        self._max_bytes = self._wanted_bytes(state)
        await self._set_limits()
        self._logger.info("publishing", after=cursor.position)
        return cursor

    def _check_shared(self, reason: str) -> None:
        """Leave a stream alone that is another log's again, soon after it was made anew for that.

        Raises BusUnavailable: it is.
        """
        if reason not in _NOT_OURS:
            return
        now = asyncio.get_running_loop().time()
        if now - self._taken_back_at < _SHARED_S:
            raise BusUnavailable(
                f"stream {stream_name(self._cluster)} has events of another log again: another kai-ledger has a "
                "cluster of this name on this NATS, and services of both wait for each other's leases; give one of "
                "them another name, or a NATS of its own"
            )
        self._taken_back_at = now

    async def _end_of(self, state: StreamState) -> Cursor | str:
        """Return the place in the log where the stream ends, or why there is none."""
        try:
            cursor = await find_cursor(self._log, self._cluster, state.last)
        except EventsRetired:
            return "retired"
        if cursor is None:
            return "ahead"
        if state.empty or cursor.hash is None:
            return cursor
        message = await self._bus.read(self._cluster, state.last)
        if message is None:
            again = await self._bus.stream(self._cluster)
            if again is None or again != state:
                raise BusUnavailable(f"cluster {self._cluster}: message {state.last} is gone from its stream")
            # It is not gone by age or size, then: the count of messages has it, and the store has not.
            return "lost"
        try:
            return cursor if message_hash(message) == cursor.hash else "foreign"
        except CorruptLog:
            return "foreign"

    async def _make_stream(self, reason: str) -> Cursor:
        head = (await self._log.head(self._cluster)).position
        after = max(0, head - self._options.refill)
        try:
            cursor = await find_cursor(self._log, self._cluster, after)
        except EventsRetired as error:
            cursor = await find_cursor(self._log, self._cluster, error.position)
        if cursor is None:
            raise CorruptLog(f"cluster {self._cluster}: the log ends at {head}, but has no event {after}")
        self._max_bytes = self._wanted_bytes(None)
        while True:
            try:
                await self._bus.create_stream(self._cluster, first=cursor.position + 1, limits=self._limits())
                break
            except NoRoom as error:
                if not self._max_bytes > _LEAST_BYTES:
                    raise
                self._max_bytes //= 2
                self._logger.warning("less room for the stream", max_bytes=self._max_bytes, error=str(error))
        self._metrics.rebuilt(self._cluster, reason)
        self._logger.warning("stream made", reason=reason, first=cursor.position + 1)
        return cursor

    def _limits(self) -> Limits:
        return replace(self._options.limits, max_bytes=self._max_bytes)

    def _wanted_bytes(self, state: StreamState | None) -> int:
        room = self._options.room
        return self._options.limits.max_bytes if room is None else room(0 if state is None else state.size)

    async def _set_limits(self) -> None:
        try:
            await self._bus.set_limits(self._cluster, self._limits())
        except BusUnavailable as error:
            # Old limits are no reason to publish nothing.
            self._logger.warning("the stream keeps its limits", error=str(error))

    async def _follow_room(self) -> None:
        """Look now and then at how much room there is, and give the stream less or more when that differs much."""
        now = asyncio.get_running_loop().time()
        if self._options.room is None or now < self._room_until:
            return
        self._room_until = now + _ROOM_S
        wanted = self._wanted_bytes(await self._bus.stream(self._cluster))
        if abs(wanted - self._max_bytes) * _ROOM_DIFFERS > self._max_bytes:
            self._logger.info("the stream's room changes", max_bytes=wanted, before=self._max_bytes)
            self._max_bytes = wanted
            await self._set_limits()

    async def _publish_all(self) -> None:
        """Publish until the log or the stream is not what it was; in silence, too, that is looked after."""
        events: list[Event] = []
        # Whether there may be more in the log than was read: a page that is not full was its end.
        more = True
        while True:
            await self._follow_room()
            if more and not events:
                events = await self._read(self._cursor)
            if events:
                more = len(events) == self._options.batch
                published, events = events, await self._publish(events)
                if await self._purge(published):
                    return
                if not more:
                    await asyncio.sleep(_GATHER_S)
                    more = True
                continue
            position = self._cursor.position
            self._metrics.lag(self._cluster, position=position, head=position, oldest=None)
            head = await self._log.wait_beyond(self._cluster, position, timeout_s=_IDLE_S)
            if head < position:
                return
            more = head > position
            if not more:
                state = await self._bus.stream(self._cluster)
                if state is None or state.last != position:
                    return
            self._works()

    async def _publish(self, events: list[Event]) -> list[Event]:
        """Publish events; return those that come next, if they have been read meanwhile."""
        cursor = self._cursor.through(self._cluster, events)
        full = len(events) == self._options.batch
        reading = asyncio.ensure_future(self._read(cursor)) if full else None
        try:
            limit = self._bus.max_data
            try:
                await self._bus.publish(self._cluster, [to_message(event, max_data=limit) for event in events])
            except BusUnavailable:
                if self._bus.connected:
                    self._refusals += 1
                raise
            self._refusals = 0
            self._cursor = cursor
            self._works()
            self._metrics.published(
                self._cluster, count=len(events), position=cursor.position, recorded_at=events[0].recorded_at
            )
            if reading is None:
                return []
            following = await reading
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.wait([reading])
        head = await self._log.head(self._cluster)
        oldest = following[0].recorded_at if following else None
        self._metrics.lag(self._cluster, position=cursor.position, head=head.position, oldest=oldest)
        return following

    async def _purge(self, published: Sequence[Event]) -> bool:
        """Delete the stream if something was erased from the log that it still holds; whether it was deleted."""
        for event in published:
            erasure = decode_payload(event) if event.type == FieldsErased.__name__ else None
            if not isinstance(erasure, FieldsErased):
                continue
            state = await self._bus.stream(self._cluster)
            first = event.position if state is None else state.first
            for erased in erasure.events:
                message = await self._bus.read(self._cluster, erased.position) if erased.position >= first else None
                held = None if message is None else from_message(message)
                if held is not None and mark_of(held) != erased.mark:
                    self._logger.warning("the stream holds what was erased from the log, making it anew")
                    await self._bus.delete_stream(self._cluster)
                    return True
        return False

    async def _read(self, cursor: Cursor) -> list[Event]:
        return await self._log.read(self._cluster, after=cursor.position, limit=self._options.batch)

    async def _stand_by(self) -> None:
        """Return when the stream is gone or not ours, or has stood still for a while although the log is further."""
        loop = asyncio.get_running_loop()
        takeover_s = self._options.takeover_ms / 1000
        patience_s = takeover_s * (1 + _SPREAD * self._jitter())
        last, since = -1, loop.time()
        while loop.time() - since < patience_s:
            await asyncio.sleep(max(takeover_s / 4, self._retry.remaining_s))
            try:
                state = await self._bus.stream(self._cluster)
                head = await self._log.head(self._cluster)
                began = state is not None and not 0 <= last <= state.last
                if state is not None and began and await self._end_of(state) in _NOT_OURS:
                    return
            except (BusUnavailable, LogError) as error:
                self._failed(error)
                continue
            self._works()
            if state is None:
                return
            self._metrics.lag(self._cluster, position=state.last, head=head.position, oldest=None)
            if state.last == head.position or state.last != last:
                last, since = state.last, loop.time()
        self._logger.warning("the stream stands still, taking over", last=last)

    def _works(self) -> None:
        self._retry.succeeded()
        self._readiness.works(self._cluster)

    def _failed(self, error: BusUnavailable | LogError) -> None:
        self._retry.failed()
        condition = BUS if isinstance(error, BusUnavailable) else LOG
        self._logger.warning("waiting", on=condition, error=str(error))
        self._readiness.fails(self._cluster, condition, str(error))


#: Seconds between two looks for new clusters.
_DISCOVER_S = 2.0

#: For troubles that belong to no cluster.
_ALL = "all"


@dataclass(eq=False)
class Relay:
    """Relays some clusters of a log, or all.

    Attributes:
        clusters: which; empty for all that the log has.
        readiness: records what works.
    """

    log: EventLog
    bus: Bus
    _: KW_ONLY
    clusters: tuple[str, ...]
    options: RelayOptions
    metrics: RelayMetrics
    readiness: Readiness
    logger: Logger
    jitter: Callable[[], float] = random.random
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _relays: dict[str, ClusterRelay] = field(default_factory=dict, init=False)

    def leads(self) -> tuple[str, ...]:
        """Return the clusters that no other relay is known to publish, sorted."""
        return tuple(sorted(name for name, relay in self._relays.items() if not relay.stands_by))

    async def run(self, stopping: asyncio.Event) -> None:
        """Relay until `stopping` is set."""
        stop = asyncio.ensure_future(stopping.wait())
        try:
            while not stop.done():
                for cluster in await self._find_clusters():
                    if cluster not in self._tasks:
                        self._tasks[cluster] = asyncio.ensure_future(self._relay(cluster))
                running = [task for task in self._tasks.values() if not task.done()]
                look_s = _DISCOVER_S if running and self.bus.connected else _RETRY_S
                await asyncio.wait([stop, *running], timeout=look_s, return_when=asyncio.FIRST_COMPLETED)
                for task in self._tasks.values():
                    if task.done():
                        task.result()
        finally:
            await end_all((stop, *self._tasks.values()))

    async def _find_clusters(self) -> tuple[str, ...]:
        if not self.bus.connected:
            self.readiness.fails(_ALL, BUS, "not connected")
        try:
            with_events = tuple(await self.log.clusters())
        except LogUnavailable as error:
            self.readiness.fails(_ALL, LOG, str(error))
            return ()
        if self.bus.connected:
            self.readiness.works(_ALL)
        return self.clusters or with_events

    async def _relay(self, cluster: str) -> None:
        relay = ClusterRelay(
            self.log,
            self.bus,
            cluster,
            options=self.options,
            metrics=self.metrics,
            readiness=self.readiness,
            logger=self.logger,
            jitter=self.jitter,
        )
        self._relays[cluster] = relay
        try:
            await relay.run()
        except InvalidObject as error:
            self.logger.error("cluster is not relayed; its readers use the log", error=str(error))
