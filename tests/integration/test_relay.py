"""Relay and feeds on real servers, with nobody dying; for that see tests/chaos/test_bus_kill.py."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
from kaicore.bus import Limits, NatsBus, StreamState
from kaicore.bus.wire import from_message
from kaicore.errors import BusUnavailable, ConfigurationError
from kaicore.events.envelope import Event
from kaicore.feed import EventFeed, Source
from kaicore.log.postgres import PostgresLog

from tests.new_events import new_event, unit
from tests.relay_process import PATIENCE_S, RelayProcess, relayed, until

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
    database_url: str, relay_of: StartRelay, postgres_log: PostgresLog, bus: NatsBus, cluster_name: str
) -> None:
    log, cluster = postgres_log, cluster_name
    head = await append(log, cluster, 1200)
    async with relay_of(database_url) as relay, AsyncExitStack() as stack:
        await relayed(bus, cluster, head)
        feeds = [EventFeed(log, bus, cluster, after=after) for after in (0, 700, 1200)]
        for feed in feeds:
            stack.push_async_callback(feed.close)
        for feed in feeds:
            after = feed.position
            assert await read_to(feed, head) == await log.read(cluster, after=after, limit=10_000)
            # The next one comes by the bus.
            assert await feed.next_batch(timeout_s=0.01) == []
            assert feed.source is Source.BUS

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
    """As after a database was lost whose NATS was kept."""
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
    bus = await NatsBus.open(nats_url.replace("@", "wrong@"), name="test")
    try:
        assert not await bus.wait_connected(timeout_s=0.5)
        # The server says why, and hangs up; which of the two arrives first is open.
        with pytest.raises(BusUnavailable, match=r"(?i)authorization violation|connection reset"):
            await bus.stream("c")
    finally:
        await bus.close()
