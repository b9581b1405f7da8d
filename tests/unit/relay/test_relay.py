"""Relays, alone and together, in virtual time; on real servers in tests/integration and tests/chaos."""

import asyncio
from typing import Any

import msgspec
from kai_relay.relay import BUS, RelayOptions
from kaicore.ledger.bus import Limits, Message, StreamState
from kaicore.ledger.log.chain import mark_of, marked
from kaicore.rules.events.envelope import NewEvent, derived_id
from kaicore.rules.events.payloads import ErasedEvent, FieldsErased

from tests.given.doubles.relaying import C, holding, on_bus, relaying
from tests.given.doubles.unreliable import LIMITS, UnreliableBus, UnreliableLog, append, relay
from tests.given.doubles.virtual_time import virtually
from tests.given.logs.new_events import unit


@virtually
async def test_events_are_published_in_order_at_their_positions() -> None:
    log, bus = await holding(35)
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
    log, bus = await holding(100)
    async with relaying(log, bus) as running:
        await asyncio.sleep(0.1)
        assert await bus.stream(C) == StreamState(81, 100)
        assert running.value("rebuilds_total", reason="missing") == 1


@virtually
async def test_a_relay_goes_on_where_the_stream_ends() -> None:
    log, bus = await holding(30)
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
    log, bus = await holding(5)
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
    log, bus = await holding(500)
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
    log, bus = await holding(50)
    async with relaying(log, bus) as running:
        await asyncio.sleep(1)
        for wiped in range(1, 4):
            # Whether there is traffic or not.
            bus.wipe()
            await append(log, C, wiped % 2)
            await asyncio.sleep(6)
            events = await on_bus(bus)
            assert events == (await log.read(C))[-len(events) :]
            assert 20 <= len(events) <= 21
            assert running.value("rebuilds_total", reason="missing") == 1 + wiped


@virtually
async def test_a_bus_that_lost_its_end_gets_it_again() -> None:
    log, bus = await holding(50)
    async with relaying(log, bus):
        await asyncio.sleep(1)
        bus.wipe()
        await bus.create_stream(C, first=31, limits=LIMITS)
        await relay(log, bus, C, upto=42)
        await asyncio.sleep(6)
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
async def test_two_systems_with_a_cluster_of_one_name_on_one_bus_say_so() -> None:
    """They took the stream from each other for ever, and each called itself ready."""
    (log, bus), other = await holding(10), UnreliableLog()
    await append(other, C, 30, origin="elsewhere")
    async with relaying(log, bus) as one, relaying(other, bus) as two:
        for _ in range(30):
            await append(log, C, 1)
            await append(other, C, 2, origin="elsewhere")
            await asyncio.sleep(1)
        rebuilds = [
            sum(running.value("rebuilds_total", reason=reason) for reason in ("foreign", "ahead"))
            for running in (one, two)
        ]
        assert max(rebuilds) == 1
        (said,) = [why for running in (one, two) if (why := running.health.conditions[BUS])]
        assert "another kai-ledger has a cluster of this name on this NATS" in said


@virtually
async def test_a_log_that_is_replaced_under_a_running_relay_replaces_the_stream() -> None:
    for length in (10, 30, 50):
        log, bus = await holding(30)
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
    log, bus = await holding(5)
    async with relaying(log, bus) as running:
        await asyncio.sleep(1)
        await bus.publish(C, [Message(6, "Nonsense", b"nonsense")])
        await append(log, C, 3)
        await asyncio.sleep(10)
        assert await on_bus(bus) == await log.read(C)
        assert sum(running.value("rebuilds_total", reason=reason) for reason in ("foreign", "ahead")) == 1


@virtually
async def test_an_aged_out_stream_is_gone_on_with() -> None:
    log, bus = await holding(5)
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
async def test_a_stream_that_holds_what_was_erased_from_the_log_is_made_anew_once() -> None:
    log, bus = await holding(12)
    async with relaying(log, bus) as running:
        await asyncio.sleep(0.1)
        # As `kai erase` does it: the events get other bodies in the log, and an event at its end names them.
        events = log._cluster(C).events
        changed = msgspec.structs.replace(events[4], body=msgspec.Raw(b'{"uid":"u","name":"erased-u"}'))
        events[4] = marked(events[3].hash, changed)
        erased = FieldsErased(("u",), "default", "erased-u", (ErasedEvent(5, mark_of(events[4])),))
        await log.append(C, [unit(NewEvent(derived_id("erased"), "erasure/u", erased, "kai erase", 0))])
        await asyncio.sleep(10)
        assert await on_bus(bus) == await log.read(C)
        assert running.value("rebuilds_total", reason="missing") == 2
        await append(log, C, 3)
        await asyncio.sleep(1)
        assert await on_bus(bus) == await log.read(C)
        assert running.value("rebuilds_total", reason="missing") == 2
