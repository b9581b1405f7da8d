"""The bus on NATS: publishing, subscribing, feeds from log and bus, and how late the relay is.

`python -m tests.measured.bench.bus` runs it alone. Postgres is durable, relay and reader are processes of their own on
uvloop, as in production; all of them share this machine.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import uvloop
from kaicore.ledger.bus import Limits, Message, NatsBus
from kaicore.ledger.bus.wire import from_message, to_message
from kaicore.ledger.feed import EventFeed, EventSource, FeedOptions
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import Event
from kaicore.runtime.embedded import EmbeddedNats, EmbeddedPostgres

from tests.given.processes.relay_process import RelayProcess, relayed
from tests.given.servers.servers import scratch_directory
from tests.measured.bench.figures import Figure, figure
from tests.measured.bench.log import batch

RUNS = 3
EVENTS = 20_000
LIMITS = Limits(max_bytes=-1)


async def publish_rate(bus: NatsBus, cluster: str, messages: list[Message], *, size: int) -> float:
    """Publish in batches into a new stream; return messages per second."""
    await bus.delete_stream(cluster)
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    began = time.perf_counter()
    for start in range(0, len(messages), size):
        await bus.publish(cluster, messages[start : start + size])
    return len(messages) / (time.perf_counter() - began)


async def subscribe_rate(bus: NatsBus, cluster: str, count: int) -> float:
    """Take what a stream holds; return messages per second."""
    began = time.perf_counter()
    subscription = await bus.subscribe(cluster, after=0)
    taken = 0
    while taken < count:
        await subscription.ready(timeout_s=60)
        taken += len(subscription.take(500))
    rate = taken / (time.perf_counter() - began)
    await subscription.close()
    return rate


async def read_from_log(log: PostgresLog, cluster: str, count: int) -> float:
    """Read a feed's history; return events per second."""
    feed = EventFeed(log, None, cluster)
    began = time.perf_counter()
    while feed.position < count:
        await feed.next_batch()
    rate = count / (time.perf_counter() - began)
    await feed.close()
    return rate


class Beginning:
    """A log as it was when it had one event, for a feed that has to take all others from the bus."""

    def __init__(self, log: PostgresLog) -> None:
        self._log = log

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        return await self._log.read(cluster, after=after, upto=1, limit=limit, where=where)


async def read_from_bus(log: PostgresLog, bus: NatsBus, cluster: str, messages: list[Message]) -> float:
    """Read from the bus what was just published there; return events per second."""
    await bus.delete_stream(cluster)
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    await bus.publish(cluster, messages[:1])
    options = FeedOptions(check_s=3600)
    feed = EventFeed(cast("PostgresLog", Beginning(log)), bus, cluster, options=options)
    await feed.next_batch()
    await feed.next_batch(timeout_s=0)
    await bus.publish(cluster, messages[1:])
    began = time.perf_counter()
    while feed.position < len(messages):
        await feed.next_batch()
    rate = (len(messages) - 1) / (time.perf_counter() - began)
    assert feed.source is EventSource.BUS
    await feed.close()
    return rate


@dataclass(frozen=True, slots=True)
class Latencies:
    """Milliseconds, in order of size.

    Attributes:
        append: how long appends took.
        bus: from the begin of an append until each of its events came from the bus.
        relay: from the end of an append until then; 0 where the event was faster than the answer to the appender.
    """

    append: list[float]
    bus: list[float]
    relay: list[float]


async def latencies(
    log: PostgresLog, bus: NatsBus, cluster: str, *, size: int, rounds: int, every_s: float
) -> Latencies:
    """Append a batch every so often, and measure."""
    head = (await log.head(cluster)).position
    subscription = await bus.subscribe(cluster, after=head)
    spans: list[tuple[float, float]] = []
    arrivals: list[tuple[int, float]] = []

    async def receive() -> None:
        while len(arrivals) < rounds * size:
            await subscription.ready(timeout_s=60)
            now = time.perf_counter()
            arrivals.extend(((message.position - head - 1) // size, now) for message in subscription.take(1000))

    receiving = asyncio.ensure_future(receive())
    for _ in range(rounds):
        units = batch(size)
        began = time.perf_counter()
        await log.append(cluster, units)
        spans.append((began, time.perf_counter()))
        await asyncio.sleep(max(0.0, began + every_s - time.perf_counter()))
    await receiving
    await subscription.close()
    return Latencies(
        append=sorted((ended - began) * 1000 for began, ended in spans),
        bus=sorted((at - spans[number][0]) * 1000 for number, at in arrivals),
        relay=sorted(max(0.0, at - spans[number][1]) * 1000 for number, at in arrivals),
    )


async def relay_rate(bus: NatsBus, log: PostgresLog, relay: RelayProcess, cluster: str) -> float:
    """Let a relay catch up with a log; return events per second from the first to the last."""
    head = (await log.head(cluster)).position
    await bus.delete_stream(cluster)
    await bus.create_stream(cluster, first=1, limits=LIMITS)
    subscription = await bus.subscribe(cluster, after=0)
    await relay.start()
    first_at, taken = 0.0, 0
    while taken < head:
        await subscription.ready(timeout_s=60)
        taken += len(subscription.take(1000))
        first_at = first_at or time.perf_counter()
    rate = taken / (time.perf_counter() - first_at)
    await subscription.close()
    await relay.kill()
    return rate


async def fill(log: PostgresLog, cluster: str) -> list[Event]:
    for _ in range(EVENTS // 1000):
        await log.append(cluster, batch(1000))
    return await log.read(cluster, limit=EVENTS)


def percentiles(name: str, runs: list[list[float]]) -> Iterator[Figure]:
    for label, share in (("p50", 50), ("p99", 99)):
        yield figure(f"{name}, {label}", [run[len(run) * share // 100] for run in runs], "ms")


async def measure(postgres_url: str, nats_url: str) -> list[Figure]:
    measured = []
    bus = await NatsBus.open(nats_url, name="bench")
    await bus.wait_connected(timeout_s=60)
    async with await PostgresLog.open(postgres_url) as log:
        events = await fill(log, "bench")
        messages = [to_message(event, max_data=bus.max_data) for event in events]
        measured.append(figure("bus: size of the messages below", [len(messages[0].data)], "bytes"))
        for size in (1, 500):
            count = EVENTS if size > 1 else EVENTS // 10
            rates = [await publish_rate(bus, "bench", messages[:count], size=size) for _ in range(RUNS)]
            measured.append(figure(f"bus: publish, {size} at a time", rates, "messages/s"))
        rates = [await subscribe_rate(bus, "bench", EVENTS) for _ in range(RUNS)]
        measured.append(figure("bus: subscribe", rates, "messages/s"))
        rates = [await read_from_log(log, "bench", EVENTS) for _ in range(RUNS)]
        measured.append(figure("feed: from the log", rates, "events/s"))
        rates = [await read_from_bus(log, bus, "bench", messages) for _ in range(RUNS)]
        measured.append(figure("feed: from the bus", rates, "events/s"))
        assert from_message(messages[-1]) == events[-1]
        relay = RelayProcess(postgres_url, nats_url, "--clusters", "bench")
        rates = [await relay_rate(bus, log, relay, "bench") for _ in range(RUNS)]
        measured.append(figure("relay: catching up", rates, "events/s"))
        async with RelayProcess(postgres_url, nats_url, "--clusters", "live"):
            await log.append("live", batch(1))
            await relayed(bus, "live", 1)
            for size, rounds, every_s in ((1, 150, 0.02), (50, 60, 0.05), (500, 15, 0.2)):
                runs = [
                    await latencies(log, bus, "live", size=size, rounds=rounds, every_s=every_s) for _ in range(RUNS)
                ]
                load = f"{size} each {every_s * 1000:.0f} ms"
                measured += percentiles(f"relay: append, {load}", [run.append for run in runs])
                measured += percentiles(
                    f"relay: begin of the append until read from the bus, {load}", [r.bus for r in runs]
                )
                measured += percentiles(
                    f"relay: end of the append until read from the bus, {load}", [r.relay for r in runs]
                )
    await bus.close()
    return measured


def figures() -> Iterator[Figure]:
    with scratch_directory() as directory:
        postgres, nats = EmbeddedPostgres(directory / "postgres"), EmbeddedNats(directory / "nats")
        asyncio.run(postgres.start())
        asyncio.run(nats.start())
        try:
            upgrade(postgres.url)
            yield from uvloop.run(measure(postgres.url, nats.url))
        finally:
            asyncio.run(nats.kill())
            asyncio.run(postgres.stop())


if __name__ == "__main__":
    for one in figures():
        print(one.line(), flush=True)
