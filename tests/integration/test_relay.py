"""Relay and feeds on real servers that stay up; for those that die see tests/chaos/test_bus_kill.py."""

import asyncio
import secrets
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from kaicore.errors import BusUnavailable, ConfigurationError, NoRoom
from kaicore.ledger.bus import Limits, NatsBus, StreamState
from kaicore.ledger.bus.wire import from_message
from kaicore.ledger.feed import EventFeed, EventSource
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.nkeys import new_seed
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import NodeDeleted
from kaicore.runtime.embedded import EmbeddedNats

from tests.conftest import as_role
from tests.given.logs.new_events import new_event, unit
from tests.given.processes.relay_process import PATIENCE_S, RelayProcess, relayed, until
from tests.given.servers.servers import scratch_directory

StartRelay = Callable[..., RelayProcess]


@pytest.fixture
async def bus(nats_url: str, cluster_name: str) -> AsyncIterator[NatsBus]:
    opened = await NatsBus.open(nats_url, name="test")
    assert await opened.wait_connected(timeout_s=PATIENCE_S)
    yield opened
    await opened.delete_stream(cluster_name)
    await opened.close()


@pytest.fixture
def relay_of(nats_url: str) -> StartRelay:
    """Makes relays of a database: `relay_of(url, "--takeover-ms", "300")`."""
    return lambda database_url, *options: RelayProcess(database_url, nats_url, *options)


async def append(log: PostgresLog, cluster: str, count: int) -> int:
    await log.append(cluster, [unit(new_event(f"pod/{number}")) for number in range(count)])
    return (await log.head(cluster)).position


async def read_to(feed: EventFeed, position: int) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(PATIENCE_S):
        while feed.position < position:
            events += await feed.next_batch()
    return events


async def test_the_bus_has_the_log_in_order_and_feeds_take_it_from_there(
    superuser_url: str, relay_of: StartRelay, postgres_log: PostgresLog, bus: NatsBus, cluster_name: str
) -> None:
    """The relay needs no right but to read the log: deploy/ gives it the role kai_read."""
    log, cluster = postgres_log, cluster_name
    head = await append(log, cluster, 1200)
    async with relay_of(as_role(superuser_url, "kai_read")) as relay, AsyncExitStack() as stack:
        await relayed(bus, cluster, head)
        feeds = [EventFeed(log, bus, cluster, after=after) for after in (0, 700, 1200)]
        for feed in feeds:
            stack.push_async_callback(feed.close)
        for feed in feeds:
            after = feed.position
            assert await read_to(feed, head) == await log.read(cluster, after=after, limit=10_000)
            # The next one comes by the bus.
            assert await feed.next_batch(timeout_s=0.01) == []
            assert feed.source is EventSource.BUS

        reading = [asyncio.ensure_future(read_to(feed, head + 800)) for feed in feeds]
        for _ in range(80):
            await append(log, cluster, 10)
        expected = await log.read(cluster, after=head, limit=10_000)
        assert [await task for task in reading] == [expected] * 3

        assert await bus.stream(cluster) == StreamState(1, 2000)
        for position in (1, 777, 2000):
            message = await bus.read(cluster, position)
            assert message is not None
            event = from_message(message)
            assert event is not None
            assert event.position == message.position == position
            assert [event] == await log.read(cluster, after=position - 1, limit=1)
        assert await relay.stop() == 0


async def test_another_logs_stream_is_made_anew(
    module_database_url: str, database_url: str, relay_of: StartRelay, bus: NatsBus, cluster_name: str
) -> None:
    """As after the loss of a database while NATS was kept."""
    cluster = cluster_name
    async with await PostgresLog.open(module_database_url) as lost:
        await append(lost, cluster, 30)
        async with relay_of(module_database_url):
            await relayed(bus, cluster, 30)
    async with await PostgresLog.open(database_url) as log, relay_of(database_url):
        await append(log, cluster, 20)
        await until(bus, cluster, lambda state: state == StreamState(1, 20))
        assert await carried(bus, cluster, 20) == (await log.read(cluster))[-1]


async def test_limits_given_to_a_relay_are_given_to_its_streams(
    database_url: str, relay_of: StartRelay, postgres_log: PostgresLog, bus: NatsBus, cluster_name: str
) -> None:
    await append(postgres_log, cluster_name, 500)
    async with relay_of(database_url):
        await relayed(bus, cluster_name, 500)
    async with relay_of(database_url, "--stream-max-bytes", "20000", "--stream-max-age-s", "60"):
        await until(bus, cluster_name, lambda state: state.first > 1)
        await append(postgres_log, cluster_name, 10)
        await relayed(bus, cluster_name, 510)


async def test_a_frozen_relay_is_replaced_and_fenced_when_it_thaws(
    database_url: str, relay_of: StartRelay, postgres_log: PostgresLog, bus: NatsBus, cluster_name: str
) -> None:
    log, cluster = postgres_log, cluster_name
    async with relay_of(database_url, "--takeover-ms", "300") as frozen:
        await append(log, cluster, 100)
        await relayed(bus, cluster, 100)
        frozen.signal(signal.SIGSTOP)
        async with relay_of(database_url, "--takeover-ms", "300"):
            await append(log, cluster, 100)
            await relayed(bus, cluster, 200)
            frozen.signal(signal.SIGCONT)
            for head in range(210, 600, 10):
                await append(log, cluster, 10)
                await relayed(bus, cluster, head)
            feed = EventFeed(log, None, cluster)
            expected = await read_to(feed, 590)
            await feed.close()
            assert [await carried(bus, cluster, event.position) for event in expected] == expected


class SmallNats(EmbeddedNats):
    """NATS with little room for streams."""

    def _command(self, port: int) -> list[str]:
        command = super()._command(port)
        config = Path(command[-1])
        config.write_text(config.read_text().replace("jetstream { ", "jetstream { max_file_store: 100MB, "))
        return command


async def test_a_stream_fits_into_a_bus_without_much_room_and_is_made_anew_when_its_store_was_deleted(
    database_url: str, postgres_log: PostgresLog, cluster_name: str
) -> None:
    """NATS goes on in its open files until the next block of the stream, and takes nothing then, without a word."""
    cluster = cluster_name
    with scratch_directory() as directory:
        async with SmallNats(directory / "nats") as server:
            bus = await NatsBus.open(server.url, name="test")
            assert await bus.wait_connected(timeout_s=PATIENCE_S)
            with pytest.raises(NoRoom):
                await bus.create_stream(cluster_name, first=1, limits=Limits())
            async with RelayProcess(database_url, server.url):
                await append(postgres_log, cluster, 100)
                await relayed(bus, cluster, 100)
                store = directory / "nats" / "data"
                shutil.rmtree(store)
                head = 100
                while not store.exists():
                    # A block has some megabytes. The stream that is made anew brings the folder back.
                    large = [NodeDeleted(uid=secrets.token_hex(8000), name="n1") for _ in range(100)]
                    await postgres_log.append(cluster, [unit(new_event(payload=one)) for one in large])
                    head += len(large)
                    await until(bus, cluster, lambda state, head=head: state.last >= head or store.exists())
                await relayed(bus, cluster, head)
                await append(postgres_log, cluster, 10)
                await relayed(bus, cluster, head + 10)
                expected = (await postgres_log.read(cluster, after=head))[-1]
                assert await carried(bus, cluster, head + 10) == expected
            await bus.close()


async def carried(bus: NatsBus, cluster: str, position: int) -> Event | None:
    message = await bus.read(cluster, position)
    return None if message is None else from_message(message)


async def test_a_bus_may_be_opened_before_its_server_is_there() -> None:
    bus = await NatsBus.open("nats://127.0.0.1:1", name="test")
    try:
        assert not bus.connected
        assert not await bus.wait_connected(timeout_s=0.01)
        with pytest.raises(BusUnavailable, match="not connected"):
            await bus.create_stream("c", first=1, limits=Limits())
    finally:
        await bus.close()


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:4222", "nats://", "127.0.0.1:4222", "nats://host:port"])
async def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="no url of a NATS server"):
        await NatsBus.open(url, name="test")


async def test_a_wrong_password_is_a_bus_that_is_not_there(nats_url: str) -> None:
    if "@" not in nats_url:
        pytest.skip("this server wants no password")
    scheme, _, rest = nats_url.partition("://")
    bus = await NatsBus.open(f"{scheme}://{new_seed()}@{rest.rpartition('@')[2]}", name="test")
    try:
        assert not await bus.wait_connected(timeout_s=0.5)
        # The server says why, and hangs up; which of the two arrives first is open.
        with pytest.raises(BusUnavailable, match=r"(?i)authorization violation|connection reset"):
            await bus.stream("c")
    finally:
        await bus.close()
