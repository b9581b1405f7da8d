"""How long nobody does a service's work after the process that did it dies (kill -9) or hangs (SIGSTOP).

Two processes of a service run all the time. Pods come steadily; the process that did the work last gets the fault, and
what is measured is the time from that to the first work of another one, as it is recorded in the log. Then a new second
one is started, and so on.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import uvloop
from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.postgres import PostgresLog

from tests.bench.figures import Figure
from tests.bench.scale.one_scheduler import fill, nodes, waiting_pods
from tests.bench.scale.services import Servers, ServiceProcess, durable_servers, recorded

FAULTS = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}

_PODS_EVERY_S = 0.1
#: Of one of the pods that come, so that the cluster does not run full.
_SMALL = 20


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: so many faults of each kind."""

    faults: int


FULL = Size(faults=20)


@asynccontextmanager
async def _pods_coming(log: PostgresLog, cluster: str) -> AsyncIterator[None]:
    """Have a pod come every so often until the block ends."""

    async def come() -> None:
        for pod in waiting_pods(100_000):
            await fill(log, cluster, [pod])
            await asyncio.sleep(_PODS_EVERY_S)

    coming = asyncio.create_task(come())
    try:
        yield
    finally:
        coming.cancel()
        await asyncio.wait([coming])


async def scheduler_gaps(servers: Servers, cluster: str, fault: signal.Signals, size: Size) -> list[float]:
    """Return the seconds without a decision after each fault of the scheduler that leads."""
    settings = servers.settings(cluster)
    gaps = []
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(await PostgresLog.open(servers.database_url))
        await fill(log, cluster, nodes(_SMALL * (1 + size.faults)))
        await stack.enter_async_context(ServiceProcess("kai_relay.main", settings))
        await stack.enter_async_context(_pods_coming(log, cluster))
        leader = await stack.enter_async_context(_scheduler(settings))
        await recorded(log, cluster, "PodPlaced", count=1)
        for _ in range(size.faults):
            standby = await stack.enter_async_context(_scheduler(settings))
            await standby.ready()
            # The next decision is the leader's: it has what it needs.
            await recorded(log, cluster, "PodPlaced", count=1, after=(await log.head(cluster)).position)
            at = time.time()
            leader.signal(fault)
            gaps.append(await _first_after(log, cluster, at) - at)
            await leader.kill()
            leader = standby
    return gaps


async def _first_after(log: PostgresLog, cluster: str, at: float) -> float:
    """Wait for a decision that was recorded after a time by another than the one that decided last before it."""
    before = await log.read(cluster, limit=1_000_000, where=Filter(types=("PodPlaced",), until=round(at * 1e6)))
    after = before[-1].position
    while True:
        for event in await recorded(log, cluster, "PodPlaced", count=1, after=after):
            after = event.position
            if event.actor != before[-1].actor:
                return event.recorded_at / 1e6


def _scheduler(settings: Mapping[str, str]) -> ServiceProcess:
    return ServiceProcess("kai_scheduler.main", settings)


async def _measured(size: Size) -> Iterator[Figure]:
    made = []
    async with durable_servers() as servers:
        for number, (name, fault) in enumerate(FAULTS.items()):
            gaps = await scheduler_gaps(servers, f"run-{number}", fault, size)
            made += list(in_figures(f"scheduler, {name}", gaps))
    return iter(made)


def in_figures(what: str, gaps: list[float]) -> Iterator[Figure]:
    """Sum gaps up; the spread is half of their range in per cent of the figure."""
    ordered = sorted(gaps)
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        value = ordered[min(len(ordered) - 1, int(len(ordered) * share))]
        spread = (ordered[-1] - ordered[0]) / 2 / value * 100
        name = f"scale: take-over, {what}, {len(gaps)} faults: without a decision, {label}"
        yield Figure(name, round(value, 3), "s", round(spread, 1))


def figures(size: Size = FULL) -> Iterator[Figure]:
    """Measure."""
    yield from uvloop.run(_measured(size))
