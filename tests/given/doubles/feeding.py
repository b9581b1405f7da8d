"""Feeds in virtual time, on a log and a bus that fail on demand."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kaicore.ledger.bus import Bus
from kaicore.ledger.feed import EventFeed, EventSource, Fallback, FeedOptions
from kaicore.ledger.log.memory import MemoryLog
from kaicore.rules.events.envelope import Event

from tests.given.doubles.unreliable import UnreliableBus, UnreliableLog, append, relay

C = "c"


class Recorder:
    """Remembers the events of a feed."""

    def __init__(self) -> None:
        self.sources: list[EventSource] = []
        self.fallbacks: list[Fallback] = []

    def delivered(self, source: EventSource, events: Sequence[Event]) -> None:
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
async def feeding_on_log(events: int) -> AsyncIterator[tuple[UnreliableLog, EventFeed]]:
    """A feed without a bus, on a log that has so many events."""
    log = UnreliableLog()
    await append(log, C, events)
    async with feeding(log, None) as feed:
        yield log, feed


@asynccontextmanager
async def live_feed() -> AsyncIterator[tuple[UnreliableLog, UnreliableBus, EventFeed, Recorder]]:
    """A feed that has read event 1 from the log and is subscribed."""
    log, bus, recorder = UnreliableLog(), UnreliableBus(max_data=450), Recorder()
    await append(log, C, 1)
    await relay(log, bus, C)
    async with feeding(log, bus, recorder=recorder) as feed:
        assert positions(await feed.next_batch()) == [1]
        assert await feed.next_batch(timeout_s=0) == []
        assert feed.source is EventSource.BUS
        recorder.sources.clear()
        yield log, bus, feed, recorder


def positions(events: list[Event]) -> list[int]:
    return [event.position for event in events]
