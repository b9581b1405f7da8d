"""NATS, relays and Postgres die, and NATS loses all it had, while events flow: every reader gets each event once."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from kaicore.errors import LogUnavailable
from kaicore.ledger.bus import Limits, NatsBus, StreamState
from kaicore.ledger.bus.wire import from_message
from kaicore.ledger.feed import EventFeed, EventSource, Fallback
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import Event
from kaicore.runtime.embedded import EmbeddedNats, EmbeddedPostgres

from tests.given.examples import BEYOND_THE_GATE
from tests.given.logs.new_events import new_event, unit
from tests.given.processes.relay_process import PATIENCE_S, RelayProcess, relayed, until
from tests.given.servers.servers import scratch_directory

pytestmark = pytest.mark.slow

#: Seconds between two appends: enough events come at any moment, and what waits for a server costs less.
_PAUSE_S = 0.015


class DoomedNats(EmbeddedNats):
    """A server that a test may kill."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._store = directory / "data"

    async def kill_and_wipe(self) -> None:
        await self.kill()
        shutil.rmtree(self._store)

    def send(self, number: signal.Signals) -> None:
        assert self.pid is not None
        os.kill(self.pid, number)


@pytest.fixture
async def nats() -> AsyncIterator[DoomedNats]:
    with scratch_directory() as directory:
        server = DoomedNats(directory)
        await server.start()
        yield server
        await server.kill()


@pytest.fixture
async def bus(nats: DoomedNats) -> AsyncIterator[NatsBus]:
    opened = await NatsBus.open(nats.url, name="test")
    yield opened
    await opened.close()


class Reader:
    """A feed that is read all the time, over a connection of its own."""

    def __init__(self, log: PostgresLog, bus: NatsBus, cluster: str, *, after: int) -> None:
        self.events: list[Event] = []
        self._bus = bus
        self._feed = EventFeed(log, bus, cluster, after=after, observer=self)
        self._from_bus = asyncio.Event()
        self._read_some = asyncio.Condition()
        self._task = asyncio.ensure_future(self._read())

    def delivered(self, source: EventSource, events: Sequence[Event]) -> None:
        if source is EventSource.BUS:
            self._from_bus.set()

    def fell_back(self, reason: Fallback) -> None:
        pass

    async def _read(self) -> None:
        async for batch in self._feed:
            async with self._read_some:
                self.events += batch
                self._read_some.notify_all()

    async def reach(self, position: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self._read_some:
            await self._read_some.wait_for(lambda: self._feed.position >= position)

    async def read_from_bus(self) -> None:
        self._from_bus.clear()
        async with asyncio.timeout(PATIENCE_S):
            await self._from_bus.wait()

    async def close(self) -> None:
        await self._feed.close()
        await self._task
        await self._bus.close()


class Writer:
    """Appends until it is stopped, whatever happens to the log."""

    def __init__(self, log: PostgresLog, cluster: str) -> None:
        self._log = log
        self._cluster = cluster
        self._stopped = False
        self._grown = asyncio.Condition()
        self.head = 0
        self._task = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        number = 0
        while not self._stopped:
            number += 1
            made = unit(new_event(f"pod/{number}"), new_event("node/n1"))
            while True:
                with suppress(LogUnavailable):
                    (outcome,) = await self._log.append(self._cluster, [made])
                    break
            async with self._grown:
                self.head = outcome.positions[-1]
                self._grown.notify_all()
            await asyncio.sleep(_PAUSE_S)

    async def more(self, count: int) -> None:
        """Wait until so many more events were appended."""
        wanted = self.head + count
        async with asyncio.timeout(PATIENCE_S), self._grown:
            await self._grown.wait_for(lambda: self.head >= wanted)

    async def stop(self) -> int:
        """Stop appending; return the log's head."""
        self._stopped = True
        await self._task
        return self.head


@asynccontextmanager
async def flowing(log: PostgresLog, nats: DoomedNats, cluster: str) -> AsyncIterator[tuple[Writer, list[Reader]]]:
    """Events are appended all the time and read by several; in the end all of them must have got everything."""
    writer = Writer(log, cluster)
    readers = []
    async with AsyncExitStack() as stack:
        await writer.more(50)
        for after in (0, 20, writer.head):
            bus = await NatsBus.open(nats.url, name=f"reader-{after}")
            readers.append(Reader(log, bus, cluster, after=after))
            stack.push_async_callback(readers[-1].close)
        yield writer, readers
        head = await writer.stop()
        expected = await log.read(cluster, limit=1_000_000)
        assert [event.position for event in expected] == list(range(1, head + 1))
        for reader in readers:
            await reader.reach(head)
            assert reader.events == expected[-len(reader.events) :]


async def assert_stream_is_the_logs_end(bus: NatsBus, log: PostgresLog, cluster: str) -> None:
    """Sequence is position, from the first message to the log's head."""
    head = await log.head(cluster)
    await relayed(bus, cluster, head.position)
    state = await bus.stream(cluster)
    assert state is not None
    assert state.last == head.position
    events = await log.read(cluster, after=state.first - 1, limit=1_000_000)
    published: list[Event] = []
    subscription = await bus.subscribe(cluster, after=state.first - 1)
    while len(published) < len(events):
        assert await subscription.ready(timeout_s=PATIENCE_S)
        for message in subscription.take(1000):
            event = from_message(message)
            assert event is not None
            assert event.position == message.position
            published.append(event)
    await subscription.close()
    assert published == events


async def all_from_bus(readers: list[Reader]) -> None:
    await asyncio.gather(*(reader.read_from_bus() for reader in readers))


async def test_nats_is_killed_and_comes_back_as_it_was_or_without_its_store(
    database_url: str, postgres_log: PostgresLog, nats: DoomedNats, bus: NatsBus, cluster_name: str
) -> None:
    async with RelayProcess(database_url, nats.url, "--refill", "100"):
        async with flowing(postgres_log, nats, cluster_name) as (writer, readers):
            for kill, count in ((nats.kill_and_wipe, 100), (nats.kill, 20), (nats.kill_and_wipe, 100)):
                await all_from_bus(readers)
                await kill()
                await writer.more(count)
                # Nothing waits for the bus.
                for reader in readers:
                    await reader.reach(writer.head)
                await nats.start()
            await all_from_bus(readers)
        await assert_stream_is_the_logs_end(bus, postgres_log, cluster_name)
    state = await bus.stream(cluster_name)
    assert state is not None
    assert state.first > 1


async def test_nats_stops_answering_without_a_word(
    database_url: str, postgres_log: PostgresLog, nats: DoomedNats, bus: NatsBus, cluster_name: str
) -> None:
    async with RelayProcess(database_url, nats.url):
        async with flowing(postgres_log, nats, cluster_name) as (writer, readers):
            await all_from_bus(readers)
            nats.send(signal.SIGSTOP)
            try:
                await writer.more(50)
                for reader in readers:
                    await reader.reach(writer.head)
            finally:
                nats.send(signal.SIGCONT)
            await all_from_bus(readers)
        await assert_stream_is_the_logs_end(bus, postgres_log, cluster_name)


@BEYOND_THE_GATE
async def test_relays_are_killed_and_others_take_over(
    database_url: str, postgres_log: PostgresLog, nats: DoomedNats, bus: NatsBus, cluster_name: str
) -> None:
    async with AsyncExitStack() as stack:
        relays = [
            await stack.enter_async_context(RelayProcess(database_url, nats.url, "--takeover-ms", "300"))
            for _ in range(2)
        ]
        async with flowing(postgres_log, nats, cluster_name) as (writer, readers):
            for relay in relays:
                # Whichever of them publishes: it is the turn of each.
                await relayed(bus, cluster_name, writer.head)
                await relay.kill()
                await writer.more(50)
                await relayed(bus, cluster_name, writer.head)
                await relay.start()
            # And without any of them, for a while.
            for relay in relays:
                await relay.kill()
            await writer.more(200)
            for reader in readers:
                await reader.reach(writer.head)
            await relays[0].start()
            await all_from_bus(readers)
        await assert_stream_is_the_logs_end(bus, postgres_log, cluster_name)


@BEYOND_THE_GATE
async def test_the_relay_survives_everything_around_it(
    server: EmbeddedPostgres, nats: DoomedNats, bus: NatsBus, cluster_name: str
) -> None:
    async with await PostgresLog.open(server.url) as log, RelayProcess(server.url, nats.url) as relay:
        async with flowing(log, nats, cluster_name) as (writer, readers):
            await all_from_bus(readers)
            await server.kill()
            await server.start()
            await writer.more(50)
            await relayed(bus, cluster_name, writer.head)
            await asyncio.gather(server.kill(), nats.kill_and_wipe())
            await asyncio.gather(server.start(), nats.start())
            await writer.more(50)
            await all_from_bus(readers)
        await assert_stream_is_the_logs_end(bus, log, cluster_name)
        assert await relay.stop() == 0


async def test_a_stream_that_was_cut_short_is_filled_from_there(
    database_url: str, postgres_log: PostgresLog, nats: DoomedNats, bus: NatsBus, cluster_name: str
) -> None:
    """A server that was killed may have lost what it had not written: here, as if it had kept half."""
    async with flowing(postgres_log, nats, cluster_name) as (writer, _):
        async with RelayProcess(database_url, nats.url):
            await writer.more(100)
            await relayed(bus, cluster_name, writer.head)
        half = [await bus.read(cluster_name, position) for position in range(1, 51)]
        await bus.delete_stream(cluster_name)
        await bus.create_stream(cluster_name, first=1, limits=Limits())
        await bus.publish(cluster_name, [message for message in half if message is not None])
        async with RelayProcess(database_url, nats.url):
            await until(bus, cluster_name, lambda state: state.last >= writer.head)
            await writer.stop()
            await assert_stream_is_the_logs_end(bus, postgres_log, cluster_name)
    assert await bus.stream(cluster_name) == StreamState(1, writer.head)
