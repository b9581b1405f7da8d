"""How long it takes until a second instance does the work of the first one, by kind of fault.

Of each service two processes run: one leads, the other is ready. The leader is killed (`kill -9`), frozen (SIGSTOP) or
told to stop (SIGTERM), and at that moment there is something to do. The time is from the fault until that is done. Then
a new instance is started, which is the next one to take over.
"""

import asyncio
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import uvloop
from kai_apiserver.process import ApiServerProcess
from kaicore.ledger.bus import NatsBus
from kaicore.ledger.log.postgres import PostgresLog

from tests.bench import apiserver
from tests.bench.figures import Figure, figure
from tests.bench.scale.one_scheduler import fill, nodes, waiting_pods
from tests.bench.scale.services import Servers, ServiceProcess, durable_servers, recorded
from tests.relay_process import relayed

FAULTS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)

#: Seconds that a second instance is given to see, once it is ready, that the first one leads.
_SETTLES_S = 1.0

_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: so many faults of each kind."""

    faults: int


#: `KAI_BENCH_TAKEOVERS=100` takes an hour and a half, and then there is a p99.
FULL = Size(faults=int(os.environ.get("KAI_BENCH_TAKEOVERS", "5")))

#: Faults of one kind from which on one in a hundred means something.
_FOR_P99 = 100

#: Gives work that only a leader does, and waits until it is done.
Work = Callable[[], Awaitable[None]]


async def taken_over(module: str, settings: Mapping[str, str], work: Work, size: Size) -> dict[str, list[float]]:
    """Return the seconds that each takeover took, by fault."""
    seconds: dict[str, list[float]] = {fault.name: [] for fault in FAULTS}
    async with AsyncExitStack() as stack:

        async def start() -> ServiceProcess:
            instance = await stack.enter_async_context(ServiceProcess(module, settings))
            await instance.ready()
            return instance

        leader = await start()
        await work()
        for number in range(size.faults * len(FAULTS)):
            fault = FAULTS[number % len(FAULTS)]
            next_one = await start()
            await asyncio.sleep(_SETTLES_S)
            began = time.perf_counter()
            leader.signal(fault)
            await work()
            seconds[fault.name].append(time.perf_counter() - began)
            await leader.kill()
            leader = next_one
    return seconds


async def of_scheduler(servers: Servers, cluster: str, size: Size) -> dict[str, list[float]]:
    """Measure schedulers: a pod comes, and is placed."""
    async with await PostgresLog.open(servers.database_url) as log:
        await fill(log, cluster, nodes(20))
        pods = iter(waiting_pods(10 + size.faults * len(FAULTS)))

        async def work() -> None:
            head = await log.head(cluster)
            await fill(log, cluster, [next(pods)])
            await recorded(log, cluster, "PodPlaced", count=1, after=head.position)

        return await taken_over("kai_scheduler.main", servers.settings(cluster), work, size)


async def of_relay(servers: Servers, cluster: str, size: Size) -> dict[str, list[float]]:
    """Measure relays: events come, and are on the bus."""
    bus = await NatsBus.open(servers.nats_url, name="bench")
    try:
        async with await PostgresLog.open(servers.database_url) as log:
            pods = iter(waiting_pods(10 + size.faults * len(FAULTS)))

            async def work() -> None:
                await fill(log, cluster, [next(pods)])
                await relayed(bus, cluster, (await log.head(cluster)).position)

            return await taken_over("kai_relay.main", servers.settings(cluster), work, size)
    finally:
        await bus.close()


async def of_watcher(servers: Servers, cluster: str, size: Size) -> dict[str, list[float]]:
    """Measure watchers: a pod is made, and is in the log."""
    async with await PostgresLog.open(servers.database_url) as log, _api_server() as api:
        load, numbers = apiserver.Load(api), iter(range(1_000_000))
        try:

            async def work() -> None:
                head = await log.head(cluster)
                body = msgspec.json.encode(apiserver.pod(next(numbers)))
                await load.send("POST", "/api/v1/namespaces/default/pods", body)
                await recorded(log, cluster, "PodObserved", count=1, after=head.position)

            settings = servers.settings(cluster) | {"KUBECONFIG": str(api.http_kubeconfig)}
            return await taken_over("kai_watcher.main", settings, work, size)
        finally:
            await load.close()


@asynccontextmanager
async def _api_server() -> AsyncIterator[ApiServerProcess]:
    with TemporaryDirectory() as directory:
        async with ApiServerProcess(Path(directory), "--no-https", "--no-controllers") as api:
            yield api


MEASURED = {"scheduler": of_scheduler, "relay": of_relay, "watcher": of_watcher}


async def _measured(size: Size) -> dict[str, dict[str, list[float]]]:
    async with durable_servers() as servers:
        return {name: await measure(servers, name, size) for name, measure in MEASURED.items()}


def figures(size: Size = FULL) -> Iterator[Figure]:
    """Measure."""
    for service, by_fault in uvloop.run(_measured(size)).items():
        for fault, seconds in by_fault.items():
            what = f"scale: takeover, {service}, {fault}"
            yield figure(f"{what}, p50", seconds, "s")
            if len(seconds) >= _FOR_P99:
                yield figure(f"{what}, p99", [statistics.quantiles(seconds, n=100, method="inclusive")[98]], "s")
            else:
                yield figure(f"{what}, longest of {len(seconds)}", [max(seconds)], "s")
