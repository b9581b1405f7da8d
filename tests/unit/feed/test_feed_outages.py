"""A feed with its log or bus away, another than before, or wrong; in virtual time."""

import asyncio

import msgspec
import pytest
from kaicore.errors import CorruptLog, EventsRetired, LogUnavailable
from kaicore.ledger.bus.wire import to_message
from kaicore.ledger.feed import EventFeed, EventSource, Fallback, FeedMetrics
from kaicore.ledger.log.chain import event_hash
from prometheus_client import CollectorRegistry

from tests.given.doubles.feeding import C, Recorder, feeding, feeding_on_log, live_feed, positions
from tests.given.doubles.memory_bus import MemoryBus
from tests.given.doubles.unreliable import RetiringLog, UnreliableBus, UnreliableLog, append, relay
from tests.given.doubles.virtual_time import virtually


@virtually
async def test_the_bus_carries_on_while_the_log_is_away() -> None:
    async with live_feed() as (log, bus, feed, recorder):
        await append(log, C, 3)
        events = await log.read(C, after=1)
        log.away = True
        for event in events:
            assert await feed.next_batch(timeout_s=5) == []
            await bus.publish(C, [to_message(event, max_data=bus.max_data)])
            assert positions(await feed.next_batch()) == [event.position]
        assert recorder.fallbacks == []


@virtually
async def test_both_gone_is_waited_for() -> None:
    async with live_feed() as (log, bus, feed, _):
        await append(log, C, 3)
        log.away = True
        bus.disconnect()
        assert await feed.next_batch(timeout_s=600) == []
        log.away = False
        assert positions(await feed.next_batch(timeout_s=10)) == [2, 3, 4]


@virtually
async def test_a_log_that_is_away_at_the_start_is_waited_for() -> None:
    log = UnreliableLog()
    await append(log, C, 3)
    log.away = True
    async with feeding(log, UnreliableBus(), after=2) as feed:
        assert await feed.next_batch(timeout_s=60) == []
        assert feed.position == 2
        log.away = False
        assert positions(await feed.next_batch(timeout_s=10)) == [3]


@virtually
async def test_a_log_that_is_away_at_the_start_is_waited_for_while_the_bus_brings_events() -> None:
    log, bus = UnreliableLog(), UnreliableBus()
    await append(log, C, 2)
    await relay(log, bus, C)
    await append(log, C, 1)
    (third,) = await log.read(C, after=2)
    log.away = True
    async with feeding(log, bus, after=2) as feed:
        waiting = asyncio.ensure_future(feed.next_batch())
        await asyncio.sleep(60)
        await bus.publish(C, [to_message(third, max_data=bus.max_data)])
        await asyncio.sleep(60)
        log.away = False
        assert positions(await waiting) == [3]


@virtually
async def test_a_stream_of_another_log_is_never_believed() -> None:
    log, other, bus, recorder = UnreliableLog(), UnreliableLog(), UnreliableBus(), Recorder()
    await append(other, C, 5, origin="elsewhere")
    await relay(other, bus, C)
    async with feeding(log, bus, recorder=recorder) as feed:
        # An empty log is like the other one up to there.
        assert await feed.next_batch(timeout_s=10) == []
        await append(log, C, 3)
        assert positions(await feed.next_batch()) == [1, 2, 3]
        assert await feed.next_batch(timeout_s=10) == []
        assert set(recorder.fallbacks) == {Fallback.FOREIGN}
        # Its relay goes on.
        await append(other, C, 1, origin="elsewhere")
        await relay(other, bus, C)
        await append(log, C, 5)
        assert positions(await feed.next_batch()) == [4, 5, 6, 7, 8]
    assert set(recorder.sources) == {EventSource.LOG}


@virtually
async def test_the_relay_of_another_log_is_not_believed_either() -> None:
    async with live_feed() as (log, bus, feed, recorder):
        other = UnreliableLog()
        await append(other, C, 2, origin="elsewhere")
        await relay(other, bus, C)
        await append(log, C, 1)
        read = await feed.next_batch()
        assert read == await log.read(C, after=1)
        assert recorder.fallbacks == [Fallback.FOREIGN]
        assert recorder.sources == [EventSource.LOG]


@virtually
async def test_what_a_restored_log_left_on_the_bus_is_not_believed() -> None:
    log, bus, recorder = UnreliableLog(), UnreliableBus(), Recorder()
    await append(log, C, 3)
    await relay(log, bus, C)
    last = (await log.read(C))[-1]
    lost = msgspec.structs.replace(last, position=4, actor="lost")
    lost = msgspec.structs.replace(lost, hash=event_hash(last.hash, lost))
    await bus.publish(C, [to_message(lost, max_data=bus.max_data)])
    async with feeding(log, bus, recorder=recorder) as feed:
        assert positions(await feed.next_batch()) == [1, 2, 3]
        assert await feed.next_batch(timeout_s=10) == []
        await append(log, C, 2)
        assert await feed.next_batch() == (await log.read(C))[3:]
    assert set(recorder.fallbacks) == {Fallback.FOREIGN}


@virtually
async def test_a_log_that_ends_before_what_was_read_is_corrupt() -> None:
    for with_bus in (True, False):
        log, bus = UnreliableLog(), UnreliableBus()
        await append(log, C, 5)
        await relay(log, bus, C)
        async with feeding(log, bus if with_bus else None) as feed:
            await feed.next_batch()
            del log._clusters[C]
            await append(log, C, 3)
            with pytest.raises(CorruptLog, match="the log ends at 3, but 5 was read from it"):
                await feed.next_batch()


@virtually
async def test_a_log_that_was_replaced_is_corrupt() -> None:
    async with feeding_on_log(5) as (log, feed):
        await feed.next_batch()
        del log._clusters[C]
        await append(log, C, 6, origin="elsewhere")
        with pytest.raises(CorruptLog, match="event 6 after 5: its hash does not continue the chain"):
            await feed.next_batch()


@virtually
async def test_a_log_with_a_gap_or_a_forged_event_is_corrupt() -> None:
    log = UnreliableLog()
    await append(log, C, 5)
    events = log._clusters[C].events
    forged = msgspec.structs.replace(events[2], actor="somebody else")
    for wrong, message in (
        ([*events[:2], *events[3:]], "event 4 after 2: should be event 3"),
        ([*events[:2], forged, *events[3:]], "event 3 after 2: its hash does not continue the chain"),
    ):
        log._clusters[C].events = wrong
        async with feeding(log, None) as feed:
            with pytest.raises(CorruptLog, match=message):
                await feed.next_batch()


@virtually
async def test_starting_beyond_the_log_is_an_error() -> None:
    log = UnreliableLog()
    await append(log, C, 5)
    async with feeding(log, None, after=6) as feed:
        with pytest.raises(CorruptLog, match="no event 6 to go on from"):
            await feed.next_batch()
        with pytest.raises(CorruptLog, match="no event 6 to go on from"):
            await feed.catch_up(7)


@virtually
async def test_reading_goes_on_right_after_retired_events_and_not_before() -> None:
    log = RetiringLog()
    log.retired = 4
    await append(log, C, 4)
    async with feeding(log, None, after=4) as at_head, feeding(log, None, after=4) as later:
        assert await at_head.next_batch(timeout_s=1) == []
        await append(log, C, 2)
        assert positions(await at_head.next_batch()) == [5, 6]
        assert positions(await later.next_batch()) == [5, 6]
    async with feeding(log, None, after=3) as before:
        with pytest.raises(EventsRetired):
            await before.next_batch()


@virtually
async def test_catching_up_reads_what_an_append_has_returned() -> None:
    async with live_feed() as (log, bus, feed, recorder):
        await append(log, C, 1200)
        assert positions(await feed.catch_up(1100)) == list(range(2, 1101))
        assert await feed.catch_up(1100) == []
        assert await feed.catch_up(7) == []
        await relay(log, bus, C)
        read: list[int] = []
        while feed.position < 1201:
            read += positions(await feed.next_batch())
        assert read == list(range(1101, 1202))
        assert recorder.sources[0] is EventSource.LOG
        with pytest.raises(CorruptLog, match="the log ends at 1201, before 1202"):
            await feed.catch_up(1202)
        log.away = True
        with pytest.raises(LogUnavailable):
            await feed.catch_up(1202)


@virtually
async def test_a_cancelled_catch_up_loses_nothing() -> None:
    async with feeding_on_log(5000) as (_, feed):
        for steps in range(14):
            task = asyncio.ensure_future(feed.catch_up(5000))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                assert len(task.result()) == 5000
                return
            assert feed.position == 0
    raise AssertionError("never finished")


@virtually
async def test_a_feed_is_for_one_reader() -> None:
    log = UnreliableLog()
    async with feeding(log, None) as feed:
        waiting = asyncio.ensure_future(feed.next_batch())
        await asyncio.sleep(0.1)
        with pytest.raises(RuntimeError, match="one reader"):
            await feed.next_batch()
        with pytest.raises(RuntimeError, match="one reader"):
            await feed.catch_up(1)
        waiting.cancel()


class ForgetfulLog(UnreliableLog):
    """Answers waiters from memory, which may be older than what others have read."""

    async def wait_beyond(self, cluster: str, position: int, *, timeout_s: float) -> int:
        return max(0, await super().wait_beyond(cluster, position, timeout_s=timeout_s) - 2)


@virtually
async def test_an_old_answer_to_a_waiter_raises_no_error() -> None:
    log = ForgetfulLog()
    await append(log, C, 5)
    async with feeding(log, None) as feed:
        assert positions(await feed.next_batch()) == [1, 2, 3, 4, 5]
        assert await feed.next_batch(timeout_s=30) == []
        assert (await log.head(C)).position == 5


@virtually
async def test_metrics_say_where_events_came_from() -> None:
    registry = CollectorRegistry()
    metrics = FeedMetrics(registry=registry, clock=lambda: 1.0)
    log, bus = UnreliableLog(), MemoryBus()
    await append(log, C, 3)
    feed = EventFeed(log, bus, C, observer=metrics.of(C))
    await feed.next_batch()
    await relay(log, bus, C)
    await feed.next_batch(timeout_s=1)
    await append(log, C, 2)
    await relay(log, bus, C)
    await feed.next_batch()
    bus.wipe()
    await feed.next_batch(timeout_s=1)
    await feed.close()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"cluster": C, **labels})

    assert value("kai_feed_events_total", source="log") == 3
    assert value("kai_feed_events_total", source="bus") == 2
    assert value("kai_feed_position") == 5
    assert value("kai_feed_fallbacks_total", reason="ended") == 1
    assert value("kai_feed_delay_seconds_count") == 2
