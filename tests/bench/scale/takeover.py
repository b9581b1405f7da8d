"""How long it takes until a second instance does the work of the first one, by kind of fault.

Of each service two processes run: one leads, the other is ready; or both work, and each can do all of it. The first one
is killed (`kill -9`), frozen (SIGSTOP), told to stop (SIGTERM), or cut off from Postgres, NATS and the API server while
its connections live (partition). At that moment there is something to do. The time is from the fault until that is
done. Then a new instance is started, which is the next one to take over.
"""

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import uvloop
from kai_apiserver.process import ApiServerProcess
from kaicore.analysis.projections.store import ViewStore
from kaicore.ledger.bus import NatsBus
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Unit
from kaicore.rules.events.payloads import NodeCharged, PodObserved, PodPlaced

from tests.bench import apiserver
from tests.bench.figures import Figure, figure
from tests.bench.scale.instances import Fault, Template
from tests.bench.scale.one_scheduler import fill, nodes, waiting_pods
from tests.bench.scale.services import Servers, durable_servers, recorded
from tests.new_events import new_event
from tests.relay_process import relayed

#: Seconds that a second instance is given to see, once it is ready, that the first one leads.
_SETTLES_S = 1.0

_LOOK_S = 0.02

#: Nodes on which there is something to bind at once: of two binders, each has some of them.
_NODES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: so many faults of each kind."""

    faults: int
    kinds: tuple[Fault, ...] = tuple(Fault)

    @property
    def together(self) -> int:
        """All faults, and some work before them."""
        return 2 * self.faults * len(self.kinds) + 10


#: `KAI_BENCH_TAKEOVERS=100` takes half an hour, all services at once, and then there is a p99.
FULL = Size(faults=int(os.environ.get("KAI_BENCH_TAKEOVERS", "5")))

#: Measured are the services whose names begin like this; all of them by default.
_ONLY = os.environ.get("KAI_BENCH_TAKEOVERS_OF", "")

#: Faults of one kind from which on one in a hundred means something.
_FOR_P99 = 100

#: Gives work that only one of the instances does, and waits until it is done.
Work = Callable[[], Awaitable[None]]

Seconds = dict[Fault, list[float]]


async def taken_over(
    module: str, settings: Mapping[str, str], work: Work, size: Size, *, replicas: bool = False
) -> Seconds:
    """Return the seconds that each takeover took, by fault.

    Args:
        module: of the service.
        settings: of its instances.
        work: see `Work`.
        size: how many faults.
        replicas: whether each instance has a name of its own.
    """
    seconds: Seconds = {fault: [] for fault in size.kinds}
    async with Template(module) as template:
        names = (dict(settings) | ({"REPLICA": f"r{number}"} if replicas else {}) for number in range(size.together))
        leader = await template.start(next(names))
        await work()
        for number in range(size.faults * len(size.kinds)):
            fault = size.kinds[number % len(size.kinds)]
            next_one = await template.start(next(names))
            await asyncio.sleep(_SETTLES_S)
            # So the second one has just seen that the first one is there.
            await work()
            began = time.perf_counter()
            leader.strike(fault)
            await work()
            seconds[fault].append(time.perf_counter() - began)
            await leader.end()
            leader = next_one
    return seconds


async def of_scheduler(servers: Servers, cluster: str, size: Size) -> Seconds:
    """Measure schedulers: a pod comes, and is placed."""
    async with await PostgresLog.open(servers.database_url) as log:
        await fill(log, cluster, nodes(20 + size.together // 8))
        pods = iter(waiting_pods(size.together))

        async def work() -> None:
            head = await log.head(cluster)
            await fill(log, cluster, [next(pods)])
            await recorded(log, cluster, "PodPlaced", count=1, after=head.position)

        return await taken_over("kai_scheduler.main", servers.settings(cluster), work, size)


async def of_replica(servers: Servers, cluster: str, size: Size) -> Seconds:
    """Measure two replicas of a shard: pods come, and all of them are placed, those of both."""
    async with await PostgresLog.open(servers.database_url) as log:
        await fill(log, cluster, nodes(20 + 2 * size.together))
        pods = iter(waiting_pods(_NODES_AT_ONCE * size.together))

        async def work() -> None:
            head = await log.head(cluster)
            await fill(log, cluster, [next(pods) for _ in range(_NODES_AT_ONCE)])
            await recorded(log, cluster, "PodPlaced", count=_NODES_AT_ONCE, after=head.position)

        return await taken_over("kai_scheduler.main", servers.settings(cluster), work, size, replicas=True)


async def of_relay(servers: Servers, cluster: str, size: Size) -> Seconds:
    """Measure relays: events come, and are on the bus."""
    bus = await NatsBus.open(servers.nats_url, name="bench")
    try:
        async with await PostgresLog.open(servers.database_url) as log:
            pods = iter(waiting_pods(size.together))

            async def work() -> None:
                await fill(log, cluster, [next(pods)])
                await relayed(bus, cluster, (await log.head(cluster)).position)

            return await taken_over("kai_relay.main", servers.settings(cluster), work, size)
    finally:
        await bus.close()


async def of_watcher(servers: Servers, cluster: str, size: Size) -> Seconds:
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


async def of_binder(servers: Servers, cluster: str, size: Size) -> Seconds:
    """Measure binders that share the nodes: pods are placed on many, and all of them are bound."""
    async with await PostgresLog.open(servers.database_url) as log, _api_server() as api:
        load, numbers = apiserver.Load(api), iter(range(1_000_000))
        settings = servers.settings(cluster) | {"KUBECONFIG": str(api.http_kubeconfig)}
        try:
            for number in range(_NODES_AT_ONCE):
                await load.send("POST", "/api/v1/nodes", msgspec.json.encode(apiserver.node(number)))
            async with Template("kai_watcher.main") as template:
                await template.start(settings)

                async def work() -> None:
                    head = await log.head(cluster)
                    made = [apiserver.pod(next(numbers)) for _ in range(_NODES_AT_ONCE)]
                    for one in made:
                        await load.send("POST", "/api/v1/namespaces/default/pods", msgspec.json.encode(one))
                    observed = await _observed(log, cluster, {one["metadata"]["name"] for one in made})
                    await log.append(cluster, [_placed(fact, node) for node, fact in enumerate(observed)])
                    await recorded(log, cluster, "PodBound", count=_NODES_AT_ONCE, after=head.position)

                return await taken_over("kai_binder.main", settings, work, size, replicas=True)
        finally:
            await load.close()


async def _observed(log: PostgresLog, cluster: str, names: set[str]) -> list[PodObserved]:
    """Wait until the log has pods of these names; those of an earlier fault may be told of meanwhile."""
    facts: dict[str, PodObserved] = {}
    after = 0
    while len(facts) < len(names):
        for event in await recorded(log, cluster, "PodObserved", count=1, after=after):
            fact, after = decode_payload(event), event.position
            assert isinstance(fact, PodObserved)
            if fact.pod.name in names:
                facts.setdefault(fact.pod.name, fact)
    return list(facts.values())


def _placed(observed: PodObserved, number: int) -> Unit:
    one, node = observed.pod, f"node-{number:05}"
    placed = PodPlaced(one.uid, one.namespace, one.name, node, "default/1", "class")
    charged = NodeCharged(node=node, cycle="default/1", pods=(one.uid,))
    return Unit(
        (
            new_event(f"pod/{one.uid}", payload=placed, subject=f"{one.namespace}/{one.name}", correlation="default/1"),
            new_event(f"node/{node}", payload=charged, subject=node, correlation="default/1"),
        )
    )


async def of_projector(servers: Servers, cluster: str, size: Size) -> Seconds:
    """Measure projectors: an event comes, and is in the read models."""
    async with (
        await PostgresLog.open(servers.database_url) as log,
        await ViewStore.open(servers.database_url, application="bench") as store,
    ):
        pods = iter(waiting_pods(size.together + 1))
        await fill(log, cluster, [next(pods)])

        async def work() -> None:
            await fill(log, cluster, [next(pods)])
            await _projected(store, cluster, (await log.head(cluster)).position)

        return await taken_over("kai_projector.main", servers.settings(cluster), work, size)


async def _projected(store: ViewStore, cluster: str, position: int) -> None:
    while True:
        if any(one.position >= position for one in await store.generations(cluster)):
            return
        await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def _api_server() -> AsyncIterator[ApiServerProcess]:
    with TemporaryDirectory() as directory:
        async with ApiServerProcess(Path(directory), "--no-https", "--no-controllers") as api:
            yield api


MEASURED = {
    "scheduler": of_scheduler,
    "scheduler, of two replicas": of_replica,
    "relay": of_relay,
    "watcher": of_watcher,
    "binder, of two": of_binder,
    "projector": of_projector,
}


async def _measured(size: Size) -> dict[str, Seconds]:
    chosen = [name for name in MEASURED if name.startswith(_ONLY)]
    async with durable_servers() as servers:
        each = [MEASURED[name](servers, f"takeover-{number}", size) for number, name in enumerate(chosen)]
        return dict(zip(chosen, await asyncio.gather(*each), strict=True))


def figures(size: Size = FULL) -> Iterator[Figure]:
    """Measure; all services side by side, since nearly all of the time is waiting."""
    for service, by_fault in uvloop.run(_measured(size)).items():
        for fault, seconds in by_fault.items():
            what = f"scale: takeover, {service}, {fault}"
            yield figure(f"{what}, p50", seconds, "s")
            if len(seconds) >= _FOR_P99:
                yield figure(f"{what}, p99", [statistics.quantiles(seconds, n=100, method="inclusive")[98]], "s")
            yield figure(f"{what}, longest of {len(seconds)}", [max(seconds)], "s")
