"""Relays when the bus has no room, breaks or is away, and when the log does; in virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kai_relay.main import RelaySettings
from kai_relay.relay import BUS, RelayOptions
from kaicore.errors import BusUnavailable, NoRoom
from kaicore.ledger.bus import Limits, Message, StreamState
from kaicore.ledger.bus.port import stream_bytes
from kaicore.runtime.service import read_settings
from kaicore.runtime.service.log_access import LOG

from tests.given.doubles.relaying import OPTIONS, C, Running, holding, on_bus, relaying
from tests.given.doubles.unreliable import RetiringLog, UnreliableBus, UnreliableLog, append, relay
from tests.given.doubles.virtual_time import virtually


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
    log, bus = await holding(5)
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
    async with relaying(log, bus, options=OPTIONS):
        await asyncio.sleep(1)
        assert bus.asked == [1 << 30, 512 << 20, 256 << 20, 128 << 20]
        assert await bus.stream(C) == StreamState(1, 5)


@virtually
async def test_a_streams_limit_follows_the_free_disk() -> None:
    free = 10 << 30
    log, bus = UnreliableLog(), CountedRoom(1 << 40)
    await append(log, C, 5)

    class FreeDisk(RelayOptions):
        @property
        def room(self) -> Callable[[int], int]:
            return lambda used: stream_bytes(free=free, used=used)

    async with relaying(log, bus, options=FreeDisk(batch=10, refill=20)):
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
    log, bus = await holding(5)
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
    log, bus = await holding(5)
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
    log, bus = await holding(5)
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
    log, bus = await holding(15)
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
