"""A feed in each single case, in virtual time; that it always yields the log is in tests/property."""

import asyncio

import pytest
from kaicore.ledger.bus.wire import to_message
from kaicore.ledger.feed import EventFeed, EventSource, Fallback

from tests.given.doubles.feeding import C, Recorder, feeding, feeding_on_log, live_feed, positions
from tests.given.doubles.unreliable import UnreliableBus, UnreliableLog, append, relay
from tests.given.doubles.virtual_time import virtually


@virtually
async def test_history_comes_from_the_log_and_live_events_from_the_bus() -> None:
    log, bus, recorder = UnreliableLog(), UnreliableBus(), Recorder()
    await append(log, C, 7)
    await relay(log, bus, C)
    async with feeding(log, bus, recorder=recorder, batch=3, after=1) as feed:
        assert [positions(await feed.next_batch()) for _ in range(2)] == [[2, 3, 4], [5, 6, 7]]
        waiting = asyncio.ensure_future(feed.next_batch())
        await asyncio.sleep(0.1)
        await append(log, C, 2)
        await relay(log, bus, C)
        assert positions(await waiting) == [8, 9]
        assert feed.position == 9
    assert recorder.sources == [EventSource.LOG] * 6 + [EventSource.BUS] * 2
    assert recorder.fallbacks == []


@virtually
async def test_iteration_ends_when_the_feed_is_closed() -> None:
    log = UnreliableLog()
    await append(log, C, 3)
    feed = EventFeed(log, None, C)
    read: list[int] = []

    async def reading() -> None:
        async for batch in feed:
            read.extend(positions(batch))

    task = asyncio.ensure_future(reading())
    await asyncio.sleep(1)
    await append(log, C, 1)
    await asyncio.sleep(1)
    await feed.close()
    await task
    assert read == [1, 2, 3, 4]
    assert await feed.next_batch() == []


@virtually
async def test_closing_ends_a_wait_for_the_bus_and_a_wait_for_a_log_that_is_away() -> None:
    async with live_feed() as (log, _, feed, _):
        waiting = asyncio.ensure_future(feed.next_batch())
        await asyncio.sleep(0.1)
        await feed.close()
        assert await waiting == []

        log.away = True
        other = EventFeed(log, None, C)
        waiting = asyncio.ensure_future(other.next_batch())
        await asyncio.sleep(20)
        await other.close()
        assert await waiting == []


@virtually
async def test_a_closed_feed_does_not_swallow_its_readers_cancellation() -> None:
    log = UnreliableLog()
    await append(log, C, 1)
    feed = EventFeed(log, None, C, after=1)
    waiting = asyncio.ensure_future(feed.next_batch())
    await asyncio.sleep(0.1)
    waiting.cancel()
    await feed.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@virtually
async def test_without_a_bus_the_log_is_enough() -> None:
    log, recorder = UnreliableLog(), Recorder()
    async with feeding(log, None, recorder=recorder) as feed:
        for expected in ([1, 2], [3]):
            waiting = asyncio.ensure_future(feed.next_batch())
            await asyncio.sleep(30)
            await append(log, C, len(expected))
            assert positions(await waiting) == expected
    assert set(recorder.sources) == {EventSource.LOG}


@virtually
async def test_a_cluster_that_the_bus_cannot_name_is_read_from_the_log() -> None:
    log = UnreliableLog()
    await append(log, "Not.A.Label", 3)
    feed = EventFeed(log, UnreliableBus(), "Not.A.Label")
    assert positions(await feed.next_batch()) == [1, 2, 3]
    assert await feed.next_batch(timeout_s=20) == []
    await append(log, "Not.A.Label", 1)
    assert positions(await feed.next_batch()) == [4]
    await feed.close()


@virtually
async def test_timeouts_end_the_waiting_and_not_the_reading() -> None:
    async with feeding_on_log(5) as (_, feed):
        assert positions(await feed.next_batch(timeout_s=0)) == [1, 2, 3, 4, 5]
        started = asyncio.get_running_loop().time()
        assert await feed.next_batch(timeout_s=100) == []
        assert asyncio.get_running_loop().time() - started == pytest.approx(100, abs=0.01)


@virtually
async def test_a_missing_message_is_fetched_from_the_log() -> None:
    async with live_feed() as (log, bus, feed, recorder):
        await append(log, C, 6)
        events = await log.read(C, after=1)
        bus.deliver_only = {2, 3, 6, 7}
        await bus.publish(C, [to_message(event, max_data=bus.max_data) for event in events])
        assert positions(await feed.next_batch()) == [2, 3]
        assert positions(await feed.next_batch()) == [4, 5, 6, 7]
        assert recorder.fallbacks == [Fallback.GAP]
        assert recorder.sources == [EventSource.BUS] * 2 + [EventSource.LOG] * 4

        bus.deliver_only = None
        assert await feed.next_batch(timeout_s=0) == []
        await append(log, C, 1)
        await relay(log, bus, C)
        assert positions(await feed.next_batch()) == [8]
        assert recorder.sources[-1] is EventSource.BUS


@virtually
async def test_an_event_too_large_for_the_bus_is_fetched_from_the_log() -> None:
    async with live_feed() as (log, bus, feed, recorder):
        # Every tenth event is large.
        await append(log, C, 10)
        await relay(log, bus, C)
        assert positions(await feed.next_batch()) == list(range(2, 10))
        assert positions(await feed.next_batch()) == [10, 11]
        assert recorder.fallbacks == [Fallback.LARGE]


@virtually
async def test_a_bus_that_does_not_bring_what_is_in_the_log_is_late() -> None:
    async with live_feed() as (log, bus, feed, recorder):
        await append(log, C, 3)
        started = asyncio.get_running_loop().time()
        assert positions(await feed.next_batch()) == [2, 3, 4]
        assert asyncio.get_running_loop().time() - started < 2
        assert recorder.fallbacks == [Fallback.LAG]

        # From then on the log alone counts, without delay, until the bus has caught up.
        for expected in range(5, 60):
            waiting = asyncio.ensure_future(feed.next_batch())
            await asyncio.sleep(1)
            await append(log, C, 1)
            started = asyncio.get_running_loop().time()
            assert positions(await waiting) == [expected]
            assert asyncio.get_running_loop().time() - started < 0.01
        assert recorder.fallbacks == [Fallback.LAG]

        await relay(log, bus, C)
        assert await feed.next_batch(timeout_s=20) == []
        assert feed.source is EventSource.BUS


@virtually
async def test_a_bus_that_trails_steadily_is_late_too() -> None:
    async with live_feed() as (log, bus, feed, recorder):
        lag = 40

        async def load() -> None:
            for head in range(2, 200):
                await append(log, C, 1)
                await relay(log, bus, C, upto=max(1, head - lag))
                await asyncio.sleep(0.1)

        loading = asyncio.ensure_future(load())
        while feed.position < 199:
            await feed.next_batch()
        await loading
        assert recorder.fallbacks[0] is Fallback.LAG
        assert recorder.sources.count(EventSource.BUS) < 60


@virtually
async def test_a_slow_reader_is_not_the_fault_of_the_bus() -> None:
    async with live_feed() as (log, bus, feed, recorder):
        for _ in range(20):
            await append(log, C, 5)
            await relay(log, bus, C)
            await feed.next_batch()
            await asyncio.sleep(3)
        assert Fallback.LAG not in recorder.fallbacks


@virtually
async def test_the_log_carries_on_while_the_bus_is_gone_and_the_bus_takes_over_again() -> None:
    async with live_feed() as (log, bus, feed, recorder):
        bus.disconnect()
        await append(log, C, 2)
        assert positions(await feed.next_batch()) == [2, 3]
        assert recorder.fallbacks == [Fallback.ENDED]
        assert await feed.next_batch(timeout_s=60) == []
        bus.reconnect()
        await relay(log, bus, C)
        assert await feed.next_batch(timeout_s=1) == []
        await append(log, C, 1)
        await relay(log, bus, C)
        assert positions(await feed.next_batch()) == [4]
        assert recorder.sources == [EventSource.LOG] * 2 + [EventSource.BUS]


@virtually
async def test_a_wiped_bus_costs_nothing() -> None:
    async with live_feed() as (log, bus, feed, recorder):
        await append(log, C, 2)
        await relay(log, bus, C)
        bus.wipe()
        await append(log, C, 2)
        assert positions(await feed.next_batch()) == [2, 3]
        assert positions(await feed.next_batch()) == [4, 5]
        await relay(log, bus, C, keep=2)
        assert await feed.next_batch(timeout_s=10) == []
        assert feed.source is EventSource.BUS
        assert recorder.fallbacks == [Fallback.ENDED]
