"""The promises of `kaicore.ledger.bus.port`, held against the bus in memory and NATS."""

import asyncio
import secrets
from collections.abc import Callable

import pytest
from kaicore.errors import BusUnavailable, Fenced, InvalidObject
from kaicore.ledger.bus import Bus, Limits, Message, StreamState

from tests.given.processes.relay_process import PATIENCE_S

LIMITS = Limits(max_age_s=3600, max_bytes=64 << 20)


def message(position: int, size: int = 10) -> Message:
    return Message(position, "PodObserved", b"{" + str(position).encode().rjust(size - 2) + b"}")


def messages(first: int, last: int, size: int = 10) -> list[Message]:
    return [message(position, size) for position in range(first, last + 1)]


async def collect(bus: Bus, cluster: str, *, after: int, upto: int) -> list[Message]:
    subscription = await bus.subscribe(cluster, after=after)
    messages_read: list[Message] = []
    try:
        while not messages_read or messages_read[-1].position < upto:
            assert await subscription.ready(timeout_s=PATIENCE_S)
            messages_read += subscription.take(100)
    finally:
        await subscription.close()
    return messages_read


async def test_a_cluster_without_a_stream_has_none(bus: Bus, cluster: str) -> None:
    assert await bus.stream(cluster) is None
    assert await bus.read(cluster, 1) is None
    await bus.delete_stream(cluster)
    with pytest.raises(BusUnavailable):
        await bus.subscribe(cluster, after=0)
    with pytest.raises(BusUnavailable):
        await bus.publish(cluster, messages(1, 3))
    with pytest.raises(BusUnavailable):
        await bus.set_limits(cluster, LIMITS)


async def test_an_events_place_in_its_trace_travels_with_it(bus: Bus, cluster: str) -> None:
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    sent = Message(1, "PodPlaced", b"{}", f"00-{'a' * 32}-{'b' * 16}-01")
    await bus.publish(cluster, [sent])
    subscription = await bus.subscribe(cluster, after=0)
    assert await subscription.ready(timeout_s=10)
    assert subscription.take(1) == [sent]
    await subscription.close()


@pytest.mark.parametrize("first", [1, 20_001])
async def test_sequence_is_position_from_the_first_message_on(bus: Bus, cluster: str, first: int) -> None:
    await bus.create_stream(cluster, first=first, limits=LIMITS)
    state = await bus.stream(cluster)
    assert state == StreamState(first, first - 1)
    assert state.empty

    await bus.publish(cluster, messages(first, first + 4))

    state = await bus.stream(cluster)
    assert state == StreamState(first, first + 4)
    assert not state.empty
    assert await bus.read(cluster, first + 2) == message(first + 2)
    assert await bus.read(cluster, first + 5) is None
    assert await collect(bus, cluster, after=first - 1, upto=first + 4) == messages(first, first + 4)


async def test_a_stream_is_created_once(bus: Bus, cluster: str) -> None:
    await bus.create_stream(cluster, first=5, limits=LIMITS)
    await bus.publish(cluster, messages(5, 7))
    for first in (5, 9):
        await bus.create_stream(cluster, first=first, limits=LIMITS)
        assert await bus.stream(cluster) == StreamState(5, 7)


async def test_a_publisher_that_is_behind_is_fenced(bus: Bus, cluster: str) -> None:
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    await bus.publish(cluster, messages(1, 10))

    for late in (messages(1, 10), messages(8, 12), messages(10, 10)):
        with pytest.raises(Fenced):
            await bus.publish(cluster, late)

    assert await bus.stream(cluster) == StreamState(1, 10)


async def test_a_publisher_that_is_ahead_of_the_stream_is_told_so(bus: Bus, cluster: str) -> None:
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    with pytest.raises(BusUnavailable, match="fallen back"):
        await bus.publish(cluster, messages(5, 9))
    assert await bus.stream(cluster) == StreamState(1, 0)


async def test_two_publishers_at_once_make_one_gapless_stream(bus: Bus, cluster: str) -> None:
    await bus.create_stream(cluster, first=1, limits=LIMITS)

    async def publish_all() -> int:
        fenced, at = 0, 0
        while at < 2000:
            try:
                await bus.publish(cluster, messages(at + 1, min(at + 100, 2000)))
            except Fenced:
                fenced += 1
            state = await bus.stream(cluster)
            assert state is not None
            at = state.last
        return fenced

    await asyncio.gather(publish_all(), publish_all())

    assert await collect(bus, cluster, after=0, upto=2000) == messages(1, 2000)


async def test_subscribers_get_history_and_what_comes_then(bus: Bus, cluster: str) -> None:
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    await bus.publish(cluster, messages(1, 2000))
    collecting = [asyncio.ensure_future(collect(bus, cluster, after=after, upto=4000)) for after in (0, 1500, 2000)]
    for first in range(2001, 4000, 500):
        await bus.publish(cluster, messages(first, first + 499))

    for after, task in zip((0, 1500, 2000), collecting, strict=True):
        assert await task == messages(after + 1, 4000)


async def test_a_subscription_beyond_the_end_begins_with_what_comes(bus: Bus, cluster: str) -> None:
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    await bus.publish(cluster, messages(1, 3))
    subscription = await bus.subscribe(cluster, after=5)
    await bus.publish(cluster, messages(4, 9))
    taken: list[Message] = []
    while not taken or taken[-1].position < 9:
        assert await subscription.ready(timeout_s=PATIENCE_S)
        taken += subscription.take(10)
    await subscription.close()
    # Older ones may come, too.
    assert taken[-4:] == messages(6, 9)


async def test_ready_says_when_nothing_came_and_take_never_waits(bus: Bus, cluster: str) -> None:
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    subscription = await bus.subscribe(cluster, after=0)
    assert subscription.take(10) == []
    assert not await subscription.ready(timeout_s=0.01)
    assert not await subscription.ready(timeout_s=-1.0)
    await bus.publish(cluster, messages(1, 3))
    assert await subscription.ready(timeout_s=PATIENCE_S)
    assert subscription.take(0) == []
    assert subscription.take(1) == [message(1)]
    await subscription.close()


async def test_a_cancelled_wait_loses_nothing(bus: Bus, cluster: str) -> None:
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    subscription = await bus.subscribe(cluster, after=0)
    taken: list[Message] = []
    publishing = asyncio.ensure_future(bus.publish(cluster, messages(1, 300)))
    while not taken or taken[-1].position < 300:
        waiting = asyncio.ensure_future(subscription.ready(timeout_s=PATIENCE_S))
        for _ in range(secrets.randbelow(4)):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        taken += subscription.take(7)
    await publishing
    await subscription.close()
    assert taken == messages(1, 300)


async def test_a_slow_subscriber_gets_everything(bus: Bus, cluster: str) -> None:
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    subscription = await bus.subscribe(cluster, after=0)
    await bus.publish(cluster, messages(1, 3500))
    taken: list[Message] = []
    while len(taken) < 3500:
        assert await subscription.ready(timeout_s=PATIENCE_S)
        taken += subscription.take(50)
    await subscription.close()
    assert taken == messages(1, 3500)


async def test_deleting_a_stream_ends_its_subscriptions(bus: Bus, cluster: str) -> None:
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    await bus.publish(cluster, messages(1, 3))
    subscription = await bus.subscribe(cluster, after=0)
    assert await subscription.ready(timeout_s=PATIENCE_S)
    await bus.delete_stream(cluster)
    assert [item.position for item in subscription.take(10)] == [1, 2, 3]
    with pytest.raises(BusUnavailable):
        await subscription.ready(timeout_s=PATIENCE_S)
    await subscription.close()

    await bus.create_stream(cluster, first=50, limits=LIMITS)
    assert await bus.stream(cluster) == StreamState(50, 49)


async def test_closing_a_subscription_wakes_its_reader(bus: Bus, cluster: str) -> None:
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    subscription = await bus.subscribe(cluster, after=0)
    waiting = asyncio.ensure_future(subscription.ready(timeout_s=PATIENCE_S))
    await asyncio.sleep(0)
    await subscription.close()
    with pytest.raises(BusUnavailable):
        await waiting
    await subscription.close()


async def test_the_oldest_messages_go_first(bus: Bus, cluster: str) -> None:
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    await bus.publish(cluster, messages(1, 100, size=1000))
    await bus.set_limits(cluster, Limits(max_age_s=0, max_bytes=50_000))
    state = await bus.stream(cluster)
    assert state is not None
    assert 1 < state.first <= state.last == 100

    await bus.publish(cluster, messages(101, 200, size=1000))

    state = await bus.stream(cluster)
    assert state is not None
    assert 101 < state.first <= state.last == 200
    assert await bus.read(cluster, state.first - 1) is None
    taken = await collect(bus, cluster, after=0, upto=200)
    assert taken == messages(state.first, 200, size=1000)


async def test_data_up_to_the_limit_is_carried(bus: Bus, cluster: str) -> None:
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    large = [message(1, bus.max_data), message(2), message(3, bus.max_data), message(4)]
    await bus.publish(cluster, large)
    assert await bus.read(cluster, 3) == large[2]
    assert await collect(bus, cluster, after=0, upto=4) == large


async def test_a_closed_bus_says_so(bus: Bus, cluster: str) -> None:
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    subscription = await bus.subscribe(cluster, after=0)
    await bus.delete_stream(cluster)
    await bus.close()
    await bus.close()
    assert not bus.connected
    assert not await bus.wait_connected(timeout_s=0.01)
    with pytest.raises(BusUnavailable):
        await subscription.ready(timeout_s=PATIENCE_S)
    calls: list[Callable[[], object]] = [
        lambda: bus.stream(cluster),
        lambda: bus.publish(cluster, messages(1, 1)),
        lambda: bus.subscribe(cluster, after=0),
        lambda: bus.delete_stream(cluster),
    ]
    for call in calls:
        with pytest.raises(BusUnavailable):
            await call()  # type: ignore[misc]  # each is a coroutine


@pytest.mark.parametrize("name", ["", "a.b", "A", "-a", "a-", "a b", "a*", ">", "ä", "a" * 64])
async def test_a_cluster_needs_a_name_that_fits_into_a_subject(bus: Bus, name: str) -> None:
    with pytest.raises(InvalidObject, match="cluster: name"):
        await bus.stream(name)
    with pytest.raises(InvalidObject, match="cluster: name"):
        await bus.publish(name, messages(1, 1))
