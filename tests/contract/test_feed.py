"""A feed over every log and every bus: the same events, whatever they come from."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from kaicore.errors import CorruptLog
from kaicore.ledger.bus import Bus, Limits
from kaicore.ledger.bus.wire import to_message
from kaicore.ledger.feed import EventFeed, EventSource, Fallback
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import NodeDeleted

from tests.given.logs.new_events import new_event, unit
from tests.given.processes.relay_process import PATIENCE_S

LIMITS = Limits(max_bytes=64 << 20)

#: As if the server took no more.
MAX_DATA = 2000


class Reader:
    def __init__(self, log: EventLog, bus: Bus, cluster: str, *, after: int = 0) -> None:
        self.feed = EventFeed(log, bus, cluster, after=after, observer=self)
        self.events: list[Event] = []
        self.from_bus: list[int] = []
        self.fallbacks: list[Fallback] = []

    def delivered(self, source: EventSource, events: Sequence[Event]) -> None:
        if source is EventSource.BUS:
            self.from_bus += [event.position for event in events]

    def fell_back(self, reason: Fallback) -> None:
        self.fallbacks.append(reason)

    async def read_to(self, position: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.feed.position < position:
                self.events += await self.feed.next_batch()

    async def settle_on_bus(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.feed.source is not EventSource.BUS:
                assert await self.feed.next_batch(timeout_s=0.01) == []


async def append(log: EventLog, cluster: str, count: int) -> int:
    await log.append(cluster, [unit(new_event(f"pod/{number}")) for number in range(count)])
    return (await log.head(cluster)).position


async def publish(log: EventLog, bus: Bus, cluster: str, *, first: int = 1) -> None:
    """Bring the stream to the log's head."""
    state = await bus.stream(cluster)
    if state is None:
        await bus.create_stream(cluster, first=first, limits=LIMITS)
    events = await log.read(cluster, after=first - 1 if state is None else state.last, limit=100_000)
    await bus.publish(cluster, [to_message(event, max_data=MAX_DATA) for event in events])


async def settled(log: EventLog, bus: Bus, cluster: str, count: int) -> Reader:
    await append(log, cluster, count)
    await publish(log, bus, cluster)
    reader = Reader(log, bus, cluster)
    await reader.read_to(count)
    await reader.settle_on_bus()
    return reader


async def test_live_events_come_from_the_bus_to_readers_of_any_position(log: EventLog, bus: Bus, cluster: str) -> None:
    await append(log, cluster, 700)
    await publish(log, bus, cluster, first=600)
    readers = [Reader(log, bus, cluster, after=after) for after in (0, 250, 700)]
    for reader in readers:
        await reader.read_to(700)
        await reader.settle_on_bus()
    for _ in range(5):
        head = await append(log, cluster, 60)
        await publish(log, bus, cluster)
        for reader in readers:
            await reader.read_to(head)
    expected = await log.read(cluster, limit=100_000)
    for reader, after in zip(readers, (0, 250, 700), strict=True):
        assert reader.events == expected[after:]
        assert reader.from_bus == list(range(701, 1001))
        assert reader.fallbacks == []
        await reader.feed.close()


async def test_a_deleted_stream_is_made_up_for_and_its_successor_used(log: EventLog, bus: Bus, cluster: str) -> None:
    reader = await settled(log, bus, cluster, 100)
    await bus.delete_stream(cluster)
    head = await append(log, cluster, 100)
    await reader.read_to(head)
    assert reader.from_bus == []
    await publish(log, bus, cluster, first=150)
    await reader.settle_on_bus()
    await append(log, cluster, 10)
    await publish(log, bus, cluster)
    await reader.read_to(210)
    assert reader.from_bus == list(range(201, 211))
    assert reader.events == await log.read(cluster, limit=100_000)
    # A busy machine may be told so only after it has missed an event.
    assert reader.fallbacks in ([Fallback.ENDED], [Fallback.LAG])
    await reader.feed.close()


async def test_a_large_event_is_fetched_and_the_bus_used_again(log: EventLog, bus: Bus, cluster: str) -> None:
    reader = await settled(log, bus, cluster, 1)
    await log.append(cluster, [unit(new_event(payload=NodeDeleted(uid="u1", name="x" * MAX_DATA)))])
    await publish(log, bus, cluster)
    await reader.read_to(2)
    await reader.settle_on_bus()
    await append(log, cluster, 1)
    await publish(log, bus, cluster)
    await reader.read_to(3)
    assert reader.from_bus == [3]
    assert reader.fallbacks == [Fallback.LARGE]
    assert reader.events == await log.read(cluster)
    await reader.feed.close()


async def test_another_logs_events_are_not_delivered(log: EventLog, bus: Bus, cluster: str) -> None:
    reader = await settled(log, bus, cluster, 5)
    other = MemoryLog(clock=lambda: 1)
    await append(other, cluster, 8)
    await publish(other, bus, cluster)
    await append(log, cluster, 10)
    await reader.read_to(15)
    assert reader.from_bus == []
    assert reader.fallbacks[0] is Fallback.FOREIGN
    assert reader.events == await log.read(cluster)
    await reader.feed.close()


async def test_events_appended_by_the_reader_are_read_at_once(log: EventLog, bus: Bus, cluster: str) -> None:
    reader = await settled(log, bus, cluster, 5)
    for _ in range(3):
        head = await append(log, cluster, 4)
        assert [event.position for event in await reader.feed.catch_up(head)] == list(range(head - 3, head + 1))
        # The bus brings them again, and others after them.
        await append(log, cluster, 2)
        await publish(log, bus, cluster)
        await reader.read_to(head + 2)
    assert reader.from_bus == [10, 11, 16, 17, 22, 23]
    await reader.feed.close()


async def test_own_events_are_delivered_after_those_before_them_as_the_append_returned_them(
    log: EventLog, cluster: str
) -> None:
    reader = Reader(log, None, cluster)
    await append(log, cluster, 3)
    outcomes = await log.append(cluster, [unit(), unit(n1=99), unit()])
    own = [event for outcome in outcomes for event in outcome.events]
    assert await reader.feed.catch_up(5, own) == await log.read(cluster)
    assert await reader.feed.catch_up(5, own) == []
    with pytest.raises(CorruptLog):
        await reader.feed.catch_up(6, [msgspec.structs.replace(own[-1], position=6)])
    await reader.feed.close()


async def test_closing_ends_a_waiting_reader(log: EventLog, bus: Bus, cluster: str) -> None:
    reader = await settled(log, bus, cluster, 5)
    waiting = asyncio.ensure_future(reader.feed.next_batch())
    await asyncio.sleep(0)
    await reader.feed.close()
    assert await waiting == []
