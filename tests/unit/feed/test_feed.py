"""What a feed does in each single case, in virtual time; that it always yields the log is in tests/property."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import msgspec
import pytest
from kaicore.errors import CorruptLog, EventsRetired, LogUnavailable
from kaicore.ledger.bus import Bus, MemoryBus
from kaicore.ledger.bus.wire import to_message
from kaicore.ledger.feed import EventFeed, Fallback, FeedMetrics, FeedOptions, Source
from kaicore.ledger.log.chain import event_hash
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import Filter
from kaicore.rules.events.envelope import Event
from prometheus_client import CollectorRegistry

from tests.unreliable import UnreliableBus, UnreliableLog, append, relay
from tests.virtual_time import run_virtually

C = "c"


def virtually(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        run_virtually(test())

    return run


class Recorder:
    """Remembers what a feed told."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.fallbacks: list[Fallback] = []

    def delivered(self, source: Source, events: Sequence[Event]) -> None:
        self.sources += [source] * len(events)

    def fell_back(self, reason: Fallback) -> None:
        self.fallbacks.append(reason)


@asynccontextmanager
async def feeding(
    log: MemoryLog, bus: Bus | None, *, after: int = 0, recorder: Recorder | None = None, batch: int = 500
) -> AsyncIterator[EventFeed]:
    feed = EventFeed(log, bus, C, after=after, observer=recorder, options=FeedOptions(batch=batch))
    try:
        yield feed
    finally:
        await feed.close()


@asynccontextmanager
async def live_feed() -> AsyncIterator[tuple[UnreliableLog, UnreliableBus, EventFeed, Recorder]]:
    """A feed that has read event 1 from the log and is subscribed."""
    log, bus, recorder = UnreliableLog(), UnreliableBus(max_data=450), Recorder()
    await append(log, C, 1)
    await relay(log, bus, C)
    async with feeding(log, bus, recorder=recorder) as feed:
        assert positions(await feed.next_batch()) == [1]
        assert await feed.next_batch(timeout_s=0) == []
        assert feed.source is Source.BUS
        recorder.sources.clear()
        yield log, bus, feed, recorder


def positions(events: list[Event]) -> list[int]:
    return [event.position for event in events]


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
    assert recorder.sources == [Source.LOG] * 6 + [Source.BUS] * 2
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
    assert set(recorder.sources) == {Source.LOG}


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
    log = UnreliableLog()
    await append(log, C, 5)
    async with feeding(log, None) as feed:
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
        assert recorder.sources == [Source.BUS] * 2 + [Source.LOG] * 4

        bus.deliver_only = None
        assert await feed.next_batch(timeout_s=0) == []
        await append(log, C, 1)
        await relay(log, bus, C)
        assert positions(await feed.next_batch()) == [8]
        assert recorder.sources[-1] is Source.BUS


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
        assert feed.source is Source.BUS


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
        assert recorder.sources.count(Source.BUS) < 60


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
        assert recorder.sources == [Source.LOG] * 2 + [Source.BUS]


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
        assert feed.source is Source.BUS
        assert recorder.fallbacks == [Fallback.ENDED]


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
    assert set(recorder.sources) == {Source.LOG}


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
        assert recorder.sources == [Source.LOG]


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
    log = UnreliableLog()
    await append(log, C, 5)
    async with feeding(log, None) as feed:
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


class RetiringLog(UnreliableLog):
    """A log whose first events have been retired."""

    retired = 4

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        if after < self.retired:
            raise EventsRetired(cluster, self.retired)
        return await super().read(cluster, after=after, upto=upto, limit=limit, where=where)


@virtually
async def test_reading_goes_on_right_after_retired_events_and_not_before() -> None:
    log = RetiringLog()
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
        assert recorder.sources[0] is Source.LOG
        with pytest.raises(CorruptLog, match="the log ends at 1201, before 1202"):
            await feed.catch_up(1202)
        log.away = True
        with pytest.raises(LogUnavailable):
            await feed.catch_up(1202)


@virtually
async def test_a_cancelled_catch_up_loses_nothing() -> None:
    log = UnreliableLog()
    await append(log, C, 5000)
    async with feeding(log, None) as feed:
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
async def test_an_old_answer_to_a_waiter_accuses_nobody() -> None:
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
