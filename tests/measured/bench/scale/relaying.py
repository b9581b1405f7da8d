"""The relay: a log that has grown while it was away is put on the bus, as fast as one process can."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import uvloop
from kaicore.ledger.bus import NatsBus
from kaicore.ledger.bus.port import Limits
from kaicore.ledger.log.postgres import PostgresLog

from tests.given.processes.relay_process import relayed
from tests.measured.bench.figures import Figure, figure
from tests.measured.bench.scale.one_scheduler import fill, waiting_pods
from tests.measured.bench.scale.services import Servers, ServiceProcess, durable_servers


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a measurement: events, repetitions."""

    events: int
    runs: int


FULL = Size(events=40_000, runs=3)


@dataclass(frozen=True, slots=True)
class Relayed:
    """The result: events per second, and CPU microseconds of the relay per event."""

    per_s: float
    relay_us: float


async def relaying(servers: Servers, cluster: str, size: Size) -> Relayed:
    """Relay a cluster's log from its beginning."""
    bus = await NatsBus.open(servers.nats_url, name="bench")
    try:
        assert await bus.wait_connected(timeout_s=60)
        async with await PostgresLog.open(servers.database_url) as log:
            await fill(log, cluster, waiting_pods(size.events))
        await bus.create_stream(cluster, first=1, limits=Limits(max_bytes=-1))
        async with ServiceProcess("kai_relay.main", servers.settings(cluster)) as relay:
            await relayed(bus, cluster, 1)
            state, began, cpu_s = await bus.stream(cluster), time.perf_counter(), relay.cpu_s
            assert state is not None
            await relayed(bus, cluster, size.events)
            events = size.events - state.last
            return Relayed(events / (time.perf_counter() - began), (relay.cpu_s - cpu_s) * 1e6 / events)
    finally:
        await bus.close()


async def _measured(size: Size) -> list[Relayed]:
    async with durable_servers() as servers:
        return [await relaying(servers, f"run-{number}", size) for number in range(size.runs)]


def figures(size: Size = FULL) -> Iterator[Figure]:
    runs = uvloop.run(_measured(size))
    what = f"scale: relay, catching up with {size.events} events"
    yield figure(f"{what}: published", [run.per_s for run in runs], "events/s")
    yield figure(f"{what}: CPU of the relay", [run.relay_us for run in runs], "us per event")
    yield figure(f"{what}: one core of it would publish", [1e6 / run.relay_us for run in runs], "events/s")
