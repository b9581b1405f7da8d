"""The peculiarities of the bus on NATS: the server's answers to a subscription, and the end of a connection."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from kaicore.errors import BusUnavailable
from kaicore.ledger.bus import Limits, Message, NatsBus, jetstream
from kaicore.ledger.bus import connection as connection_module
from kaicore.ledger.bus.client import Outgoing
from kaicore.ledger.bus.connection import Connection

from tests.given.processes.relay_process import PATIENCE_S


@pytest.fixture
async def bus(nats_url: str, cluster_name: str) -> AsyncIterator[NatsBus]:
    opened = await NatsBus.open(nats_url, name="test")
    assert await opened.wait_connected(timeout_s=PATIENCE_S)
    await opened.create_stream(cluster_name, first=1, limits=Limits(max_bytes=64 << 20))
    yield opened
    await opened.delete_stream(cluster_name)
    await opened.close()


def messages(first: int, last: int, *, size: int = 1) -> list[Message]:
    return [Message(position, "PodObserved", b"x" * size) for position in range(first, last + 1)]


async def test_a_request_that_ran_out_is_made_again(
    bus: NatsBus, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream, "_REQUEST_NS", 50_000_000)
    subscription = await bus.subscribe(cluster_name, after=0)
    for last in range(1, 4):
        # Longer than the request stands, which nothing tells us.
        assert not await subscription.ready(timeout_s=0.2)
        await bus.publish(cluster_name, messages(last, last))
        assert await subscription.ready(timeout_s=PATIENCE_S)
        assert [message.position for message in subscription.take(10)] == [last]
    await subscription.close()


async def test_requests_end_at_their_limit_of_bytes_and_go_on(
    bus: NatsBus, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream, "_WINDOW_BYTES", 1)
    subscription = await bus.subscribe(cluster_name, after=0)
    await bus.publish(cluster_name, messages(1, 60, size=1 << 20))
    positions: list[int] = []
    while len(positions) < 60:
        assert await subscription.ready(timeout_s=PATIENCE_S)
        # No more waits for us than one request asked for, and what another one did at the same time.
        taken = subscription.take(1000)
        assert len(taken) <= 2 * 17
        positions += [message.position for message in taken]
    assert positions == list(range(1, 61))
    await subscription.close()


async def test_no_more_than_the_window_waits_for_a_slow_reader(bus: NatsBus, cluster_name: str) -> None:
    subscription = await bus.subscribe(cluster_name, after=0)
    other = await bus.subscribe(cluster_name, after=0)
    await bus.publish(cluster_name, messages(1, 5000))
    read = 0
    while read < 5000:
        assert await other.ready(timeout_s=PATIENCE_S)
        read += len(other.take(1000))
    assert len(subscription.take(10_000)) <= 1000
    await subscription.close()
    await other.close()


async def test_a_subscription_whose_consumer_is_gone_ends(bus: NatsBus, cluster_name: str) -> None:
    subscription = await bus.subscribe(cluster_name, after=0)
    await bus.publish(cluster_name, messages(1, 2))
    assert await subscription.ready(timeout_s=PATIENCE_S)
    await bus._connection.send(Outgoing(f"$JS.API.CONSUMER.DELETE.{subscription._consumer}", b""))
    assert [message.position for message in subscription.take(10)] == [1, 2]
    with pytest.raises(BusUnavailable, match="Consumer Deleted"):
        await subscription.ready(timeout_s=PATIENCE_S)
    await subscription.close()


async def test_a_waiting_request_fails_at_once_when_the_connection_is_gone(nats_url: str) -> None:
    connection = Connection(nats_url, name="test")
    connection.dial()
    assert await connection.wait_up(timeout_s=PATIENCE_S)
    heard = asyncio.Event()

    def silence(_: object) -> None:
        heard.set()

    inbox = await connection.open_inbox(silence)
    lost = asyncio.Event()
    inbox.when_lost(lost.set)
    asking = asyncio.ensure_future(connection.ask([Outgoing(inbox.subject, b"")]))
    await heard.wait()
    await connection.close()
    with pytest.raises(BusUnavailable, match="connection lost"):
        await asking
    assert lost.is_set()


async def test_an_answer_that_does_not_come_is_waited_for_only_so_long(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_ANSWER_S", 0.05)
    connection = Connection(nats_url, name="test")
    connection.dial()
    assert await connection.wait_up(timeout_s=PATIENCE_S)

    def silence(_: object) -> None:
        pass

    inbox = await connection.open_inbox(silence)
    with pytest.raises(BusUnavailable, match="no answer"):
        await connection.ask([Outgoing(inbox.subject, b"")])
    asking = asyncio.ensure_future(connection.ask([Outgoing(inbox.subject, b"")]))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await connection.close()


async def test_a_client_that_the_server_closed_is_replaced(nats_url: str) -> None:
    connection = Connection(nats_url, name="test")
    connection.dial()
    assert await connection.wait_up(timeout_s=PATIENCE_S)
    first = connection._client
    assert first is not None
    heard, lost = asyncio.Event(), asyncio.Event()

    def hear(_: object) -> None:
        heard.set()

    (await connection.open_inbox(hear)).when_lost(lost.set)
    # More than the server takes in one message, past the client's own check: it hangs up for good.
    await first._send_publish("x", "", b"x" * (first.max_payload + 1), first.max_payload + 1, None)
    async with asyncio.timeout(PATIENCE_S):
        await lost.wait()
        assert await connection.wait_up(timeout_s=PATIENCE_S)
        assert connection._client is not first
        inbox = await connection.open_inbox(hear)
        await connection.send(Outgoing(inbox.subject, b"hello"))
        await heard.wait()
    await connection.close()
