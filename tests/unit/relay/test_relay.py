"""How relays behave, alone and together, in virtual time; on real servers in tests/integration and tests/chaos."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
from kai_relay.cluster_relay import RelayOptions
from kai_relay.metrics import RelayMetrics
from kai_relay.readiness import BUS, Readiness
from kai_relay.relay import Relay
from kai_relay.settings import RelaySettings
from kaicore.errors import BusUnavailable, EventsRetired, NoRoom
from kaicore.ledger.bus import Limits, MemoryBus, Message, StreamState
from kaicore.ledger.bus.port import stream_bytes
from kaicore.ledger.bus.wire import from_message
from kaicore.ledger.log.port import Filter
from kaicore.rules.events.envelope import Event
from kaicore.runtime.service import Health, get_logger, read_settings
from kaicore.runtime.service.log_access import LOG
from prometheus_client import CollectorRegistry

from tests.unreliable import LIMITS, UnreliableBus, UnreliableLog, append, relay
from tests.virtual_time import run_virtually

C = "c"
OPTIONS = RelayOptions(batch=10, refill=20)


def virtually(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        run_virtually(test())

    return run


class Running:
    """A relay that runs."""

    def __init__(self, log: UnreliableLog, bus: MemoryBus, clusters: tuple[str, ...], options: RelayOptions) -> None:
        self.registry = CollectorRegistry()
        self.health = Health(LOG, BUS)
        self.stopping = asyncio.Event()
        self.relay = Relay(
            log,
            bus,
            clusters=clusters,
            options=options,
            metrics=RelayMetrics(registry=self.registry, clock=lambda: 1.0),
            readiness=Readiness(self.health),
            logger=get_logger(),
        )
        self.task = asyncio.ensure_future(self.relay.run(self.stopping))

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"kai_relay_{name}", {"cluster": C, **labels}) or 0.0

    @property
    def active(self) -> bool:
        return self.value("active") == 1

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


@asynccontextmanager
async def relaying(
    log: UnreliableLog, bus: MemoryBus, *, clusters: tuple[str, ...] = (), options: RelayOptions = OPTIONS
) -> AsyncIterator[Running]:
    running = Running(log, bus, clusters, options)
    try:
        yield running
    finally:
        running.stopping.set()
        await asyncio.wait([running.task])
        if not running.task.cancelled():
            running.task.result()


async def on_bus(bus: MemoryBus, cluster: str = C) -> list[Event]:
    state = await bus.stream(cluster)
    assert state is not None
    found = [await bus.read(cluster, position) for position in range(state.first, state.last + 1)]
    events = [from_message(message) for message in found if message is not None]
    return [event for event in events if event is not None]


@virtually
async def test_events_are_published_in_order_at_their_positions() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, C, 35)
    async with relaying(log, bus, options=RelayOptions(batch=10)) as running:
        await asyncio.sleep(0.1)
        assert await on_bus(bus) == await log.read(C)
        await append(log, C, 3)
        await asyncio.sleep(0.1)
        assert await on_bus(bus) == await log.read(C)
        message = await bus.read(C, 38)
        assert message is not None
        assert message.type == "PodDeleted"
        assert running.health.ready
        assert running.value("published_events_total") == 38
        assert running.value("position") == 38
        assert running.value("lag_events") == 0
        assert running.value("publish_latency_seconds_count") == 5
        assert running.active
    assert not running.active


@virtually
async def test_only_the_end_of_a_long_log_is_put_into_a_new_stream() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, C, 100)
    async with relaying(log, bus) as running:
        await asyncio.sleep(0.1)
        assert await bus.stream(C) == StreamState(81, 100)
        assert running.value("rebuilds_total", reason="missing") == 1


@virtually
async def test_a_relay_goes_on_where_the_stream_ends() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, C, 30)
    await relay(log, bus, C, upto=17)
    async with relaying(log, bus) as running:
        await asyncio.sleep(0.1)
        assert await bus.stream(C) == StreamState(1, 30)
        assert await on_bus(bus) == await log.read(C)
        assert running.value("published_events_total") == 13
        assert running.value("rebuilds_total", reason="missing") == 0


@virtually
async def test_clusters_are_relayed_as_they_appear() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    async with relaying(log, bus) as running:
        await asyncio.sleep(1)
        assert running.health.ready
        for name in ("a", "b"):
            await append(log, name, 5)
            await asyncio.sleep(3)
            assert await bus.stream(name) == StreamState(1, 5)


@virtually
async def test_only_the_clusters_asked_for_are_relayed() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    for name in ("a", "b"):
        await append(log, name, 5)
    async with relaying(log, bus, clusters=("b",)):
        await asyncio.sleep(5)
        assert await bus.stream("a") is None
        assert await bus.stream("b") == StreamState(1, 5)


@virtually
async def test_a_cluster_whose_name_fits_into_no_subject_does_not_stop_the_others() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, "Not.A.Label", 5)
    await append(log, C, 5)
    async with relaying(log, bus) as running:
        await asyncio.sleep(5)
        assert await bus.stream(C) == StreamState(1, 5)
        assert running.health.ready


@virtually
async def test_the_second_relay_stands_by_and_takes_over_when_the_first_dies() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, C, 5)
    async with relaying(log, bus) as one, relaying(log, bus) as two:
        await asyncio.sleep(1)
        for _ in range(200):
            await append(log, C, 3)
            await asyncio.sleep(0.05)
        first, second = (one, two) if one.active else (two, one)
        assert (first.active, second.active) == (True, False)
        assert second.value("fenced_total") == 1
        assert second.value("position") > 500
        assert first.health.ready
        assert second.health.ready

        # A silent log is no reason to take over.
        await asyncio.sleep(600)
        assert not second.active

        await first.kill()
        await append(log, C, 7)
        await asyncio.sleep(5)
        assert second.active
        assert second.value("fenced_total") == 1
        assert await on_bus(bus) == await log.read(C)


@virtually
async def test_two_relays_that_begin_together_make_one_stream() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, C, 500)
    async with relaying(log, bus) as one, relaying(log, bus) as two:
        await asyncio.sleep(1)
        await append(log, C, 50)
        await asyncio.sleep(5)
        events = await on_bus(bus)
        assert events == (await log.read(C))[-len(events) :]
        assert len(events) >= 70
        assert one.active != two.active


@virtually
async def test_standing_by_is_no_busy_loop() -> None:
    log, bus = UnreliableLog(), CountingBus()
    await append(log, C, 5)
    async with relaying(log, bus), relaying(log, bus):
        await append(log, C, 5)
        await asyncio.sleep(5)
        bus.calls = 0
        await asyncio.sleep(100)
        assert bus.calls < 600


class CountingBus(UnreliableBus):
    calls = 0

    async def stream(self, cluster: str) -> StreamState | None:
        self.calls += 1
        return await super().stream(cluster)

    async def publish(self, cluster: str, messages: Any) -> None:
        self.calls += 1
        await super().publish(cluster, messages)


@virtually
async def test_a_wiped_bus_is_filled_again() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, C, 50)
    async with relaying(log, bus) as running:
        await asyncio.sleep(1)
        for wiped in range(1, 4):
            # Whether there is traffic or not.
            bus.wipe()
            await append(log, C, wiped % 2)
            await asyncio.sleep(2)
            events = await on_bus(bus)
            assert events == (await log.read(C))[-len(events) :]
            assert 20 <= len(events) <= 21
            assert running.value("rebuilds_total", reason="missing") == 1 + wiped


@virtually
async def test_a_bus_that_lost_its_end_gets_it_again() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, C, 50)
    async with relaying(log, bus):
        await asyncio.sleep(1)
        bus.wipe()
        await bus.create_stream(C, first=31, limits=LIMITS)
        await relay(log, bus, C, upto=42)
        await asyncio.sleep(3)
        assert await bus.stream(C) == StreamState(31, 50)
        await append(log, C, 1)
        await asyncio.sleep(1)
        assert await on_bus(bus) == (await log.read(C))[30:]


@virtually
async def test_a_stream_of_another_log_is_made_anew() -> None:
    for theirs, ours, reason in ((50, 30, "ahead"), (50, 50, "foreign"), (30, 50, "foreign")):
        log, other, bus = UnreliableLog(), UnreliableLog(), UnreliableBus()
        await append(other, C, theirs, origin="elsewhere")
        await relay(other, bus, C)
        await append(log, C, ours)
        async with relaying(log, bus) as running:
            await asyncio.sleep(5)
            assert await bus.stream(C) == StreamState(ours - 19, ours)
            assert await on_bus(bus) == (await log.read(C))[-20:]
            assert running.value("rebuilds_total", reason=reason) == 1


@virtually
async def test_a_log_that_is_replaced_under_a_running_relay_replaces_the_stream() -> None:
    for length in (10, 30, 50):
        log, bus = UnreliableLog(), UnreliableBus()
        await append(log, C, 30)
        async with relaying(log, bus):
            await asyncio.sleep(1)
            del log._clusters[C]
            await append(log, C, length, origin="restored")
            await asyncio.sleep(1)
            await append(log, C, 1, origin="restored")
            await asyncio.sleep(5)
            events = await on_bus(bus)
            assert events == (await log.read(C))[-len(events) :]
            assert events[-1].position == length + 1


@virtually
async def test_a_stranger_in_the_stream_is_thrown_out() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, C, 5)
    async with relaying(log, bus) as running:
        await asyncio.sleep(1)
        await bus.publish(C, [Message(6, "Nonsense", b"nonsense")])
        await append(log, C, 3)
        await asyncio.sleep(10)
        assert await on_bus(bus) == await log.read(C)
        assert sum(running.value("rebuilds_total", reason=reason) for reason in ("foreign", "ahead")) == 1


@virtually
async def test_an_aged_out_stream_is_gone_on_with() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, C, 5)
    async with relaying(log, bus) as running:
        await asyncio.sleep(1)
        await bus.set_limits(C, Limits(max_bytes=0))
        assert await bus.stream(C) == StreamState(6, 5)
        await running.kill()
    async with relaying(log, bus) as running:
        await append(log, C, 2)
        await asyncio.sleep(1)
        assert await bus.stream(C) == StreamState(6, 7)
        assert running.value("rebuilds_total", reason="missing") == 0


@virtually
async def test_limits_that_the_bus_refuses_stop_nothing() -> None:
    class StubbornBus(UnreliableBus):
        async def set_limits(self, cluster: str, limits: Limits) -> None:
            raise BusUnavailable("not enough servers")

    log, bus = UnreliableLog(), StubbornBus()
    await append(log, C, 5)
    await relay(log, bus, C, upto=3)
    async with relaying(log, bus) as running:
        await asyncio.sleep(1)
        assert await bus.stream(C) == StreamState(1, 5)
        assert running.health.ready


class BrokenBus(UnreliableBus):
    """Its store can be broken: then it takes nothing, or has not what it says it has, until the stream is made anew."""

    takes, has = True, True

    async def publish(self, cluster: str, messages: Any) -> None:
        if not self.takes:
            raise BusUnavailable("no answer in 5 s")
        await super().publish(cluster, messages)

    async def read(self, cluster: str, position: int) -> Message | None:
        return await super().read(cluster, position) if self.has else None

    async def delete_stream(self, cluster: str) -> None:
        self.takes = self.has = True
        await super().delete_stream(cluster)


@virtually
async def test_a_stream_whose_store_is_broken_is_made_anew() -> None:
    for broken, reason in (("takes", "unwritable"), ("has", "lost")):
        log, bus = UnreliableLog(), BrokenBus()
        await append(log, C, 50)
        async with relaying(log, bus) as running:
            await asyncio.sleep(1)
        setattr(bus, broken, False)
        async with relaying(log, bus) as running:
            await append(log, C, 3)
            await asyncio.sleep(10)
            assert await on_bus(bus) == (await log.read(C))[-20:]
            assert running.value("rebuilds_total", reason=reason) == 1
            assert running.health.ready


@virtually
async def test_an_outage_is_no_reason_to_make_a_stream_anew() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, C, 5)
    async with relaying(log, bus) as running:
        await asyncio.sleep(1)
        for _ in range(5):
            bus.disconnect()
            await append(log, C, 1)
            await asyncio.sleep(3)
            bus.reconnect()
            await asyncio.sleep(3)
        assert await bus.stream(C) == StreamState(1, 10)
        assert running.value("rebuilds_total", reason="unwritable") == 0


class CountedRoom(UnreliableBus):
    """Has room for so many bytes, and remembers what it was asked for."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.asked = room, list[int]()

    async def create_stream(self, cluster: str, *, first: int, limits: Limits) -> None:
        self.asked.append(limits.max_bytes)
        if limits.max_bytes > self.room:
            raise NoRoom("insufficient storage resources available")
        await super().create_stream(cluster, first=first, limits=limits)

    async def set_limits(self, cluster: str, limits: Limits) -> None:
        self.asked.append(limits.max_bytes)
        await super().set_limits(cluster, limits)


@virtually
async def test_a_stream_gets_the_room_that_there_is() -> None:
    log, bus = UnreliableLog(), CountedRoom(200 << 20)
    await append(log, C, 5)
    async with relaying(log, bus, options=replace(OPTIONS, limits=Limits())):
        await asyncio.sleep(1)
        assert bus.asked == [1 << 30, 512 << 20, 256 << 20, 128 << 20]
        assert await bus.stream(C) == StreamState(1, 5)


@virtually
async def test_a_streams_limit_follows_the_free_disk() -> None:
    free = 10 << 30
    log, bus = UnreliableLog(), CountedRoom(1 << 40)
    await append(log, C, 5)
    options = replace(OPTIONS, room=lambda used: stream_bytes(free=free, used=used))
    async with relaying(log, bus, options=options):
        await asyncio.sleep(100)
        assert bus.asked == [1 << 30]
        free = 5 << 30
        await asyncio.sleep(100)
        free = 4_900 << 20
        await asyncio.sleep(100)
        free = 0
        await asyncio.sleep(100)
        assert bus.asked == [1 << 30, 512 << 20, 64 << 20]


def test_a_stream_takes_a_tenth_of_the_disk_within_bounds() -> None:
    gib = 1 << 30
    assert stream_bytes(free=10 * gib, used=0) == gib
    assert stream_bytes(free=9 * gib, used=gib) == gib, "its own bytes are room that it has"
    assert stream_bytes(free=100_000 * gib, used=0) == 4 * gib
    assert stream_bytes(free=0, used=5000) == 64 << 20


@virtually
async def test_a_large_event_travels_as_its_hash() -> None:
    log, bus = UnreliableLog(), UnreliableBus(max_data=450)
    await append(log, C, 10)
    async with relaying(log, bus):
        await asyncio.sleep(1)
        message = await bus.read(C, 10)
        assert message is not None
        assert message.data == b"#" + (await log.read(C))[-1].hash
    # The next relay knows the stream by it.
    async with relaying(log, bus) as running:
        await append(log, C, 1)
        await asyncio.sleep(1)
        assert await bus.stream(C) == StreamState(1, 11)
        assert running.value("rebuilds_total", reason="foreign") == 0


@virtually
async def test_outages_of_bus_and_log_are_waited_for_and_reported() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, C, 5)
    async with relaying(log, bus) as running:
        await asyncio.sleep(1)
        assert running.health.ready

        bus.disconnect()
        await append(log, C, 5)
        await asyncio.sleep(30)
        assert running.health.conditions[BUS] is not None
        assert running.health.conditions[LOG] is None
        bus.reconnect()
        await asyncio.sleep(5)
        assert running.health.ready
        assert await bus.stream(C) == StreamState(1, 10)

        log.away = True
        await asyncio.sleep(30)
        assert running.health.conditions[LOG] is not None
        assert running.health.conditions[BUS] is None
        log.away = False
        await append(log, C, 5)
        await asyncio.sleep(5)
        assert running.health.ready
        assert await bus.stream(C) == StreamState(1, 15)


@virtually
async def test_outages_are_survived_standing_by() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, C, 5)
    async with relaying(log, bus) as one, relaying(log, bus) as two:
        await asyncio.sleep(1)
        for _ in range(20):
            await append(log, C, 1)
            await asyncio.sleep(0.05)
        assert one.active != two.active
        for outage in ("bus", "log", "both"):
            if outage != "log":
                bus.disconnect()
            log.away = outage != "bus"
            await asyncio.sleep(10)
            bus.reconnect()
            log.away = False
            await append(log, C, 5)
            await asyncio.sleep(10)
        assert one.health.ready
        assert two.health.ready
        assert await on_bus(bus) == await log.read(C)


@virtually
async def test_a_new_relay_waits_for_log_and_bus() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, C, 5)
    bus.disconnect()
    log.away = True
    async with relaying(log, bus) as running:
        await asyncio.sleep(10)
        assert not running.health.ready
        assert not running.task.done()
        bus.reconnect()
        log.away = False
        await asyncio.sleep(10)
        assert running.health.ready
        assert await bus.stream(C) == StreamState(1, 5)


class RetiringLog(UnreliableLog):
    """A log whose first events have been retired."""

    retired = 0

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        if after < self.retired:
            raise EventsRetired(cluster, self.retired)
        return await super().read(cluster, after=after, upto=upto, limit=limit, where=where)


@virtually
async def test_a_stream_begins_after_what_the_log_has_retired() -> None:
    for stream_end in (0, 12, 25, 28):
        log, bus = RetiringLog(), UnreliableBus()
        await append(log, C, 30)
        if stream_end:
            await relay(log, bus, C, upto=stream_end)
        log.retired = 25
        async with relaying(log, bus) as running:
            await asyncio.sleep(5)
            assert await bus.stream(C) == StreamState(1 if stream_end >= 25 else 26, 30)
            assert running.value("rebuilds_total", reason="retired") == (stream_end == 12)


@virtually
async def test_a_corrupt_log_is_not_published_beyond_its_corruption() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, C, 15)
    events = log._clusters[C].events
    log._clusters[C].events = [*events[:12], *events[13:]]
    async with relaying(log, bus) as running:
        await asyncio.sleep(30)
        assert await bus.stream(C) == StreamState(1, 10)
        assert "should be event 13" in (running.health.conditions[LOG] or "")


@virtually
async def test_a_defect_is_not_hidden() -> None:
    class BrokenBus(UnreliableBus):
        async def stream(self, cluster: str) -> StreamState | None:
            raise ZeroDivisionError

    log = UnreliableLog()
    await append(log, C, 1)
    running = Running(log, BrokenBus(), (), OPTIONS)
    with pytest.raises(ZeroDivisionError):
        await running.task


def test_clusters_are_given_with_commas_between_them() -> None:
    needed = ["--database-url", "postgresql://", "--nats-url", "nats://"]
    assert read_settings(RelaySettings, needed).clusters == ()
    assert read_settings(RelaySettings, [*needed, "--clusters", "a, b,"]).clusters == ("a", "b")
