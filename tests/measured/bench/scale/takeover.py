"""The time until a second instance does the work of the first one, by kind of fault.

Of each service two processes run: one leads, the other is ready; or both work, and each can do all of it. The first one
is killed (`kill -9`), frozen (SIGSTOP), stopped (SIGTERM), or cut off from Postgres, NATS and the API server while
its connections live (partition). At that moment there is something to do. The time is from the fault until that is
done. Then a new instance is started, which is the next one to take over.

Nearly all of the time is waiting, so several such pairs of each service run side by side, each with a Postgres and a
NATS of its own. Whether the machine was too busy for that tells how late this process's own timers were meanwhile.
"""

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import uvloop
from kaicore.analysis.ask.projections.store import ViewStore
from kaicore.ledger.bus import NatsBus
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Unit
from kaicore.rules.events.payloads import NodeCharged, PodObserved, PodPlaced

from tests.given.logs.new_events import append_of_cycle, new_event
from tests.given.processes.relay_process import relayed
from tests.given.servers.api_server_process import ApiServerProcess
from tests.measured.bench import apiserver
from tests.measured.bench.figures import Figure, figure
from tests.measured.bench.scale.instances import Fault, Template
from tests.measured.bench.scale.one_scheduler import fill, nodes, waiting_pods
from tests.measured.bench.scale.services import Servers, durable_servers, recorded
from tests.measured.bench.scale.takeover_clients import of_api, of_ingest
from tests.measured.bench.scale.trials import Seconds, Size, taken_over

_LOOK_S = 0.02

#: Nodes on which there is something to bind at once: of two binders, each has some of them.
_NODES_AT_ONCE = 16

#: `KAI_BENCH_TAKEOVERS=100` faults of each kind, and then there is a p99.
FULL = Size(faults=int(os.environ.get("KAI_BENCH_TAKEOVERS", "5")))

#: A file to which each takeover is written; those that are there already count too. So a long measurement is made of
#: several short ones.
_KEPT = os.environ.get("KAI_BENCH_TAKEOVERS_KEPT", "")

#: Pairs of each service side by side.
_PAIRS = int(os.environ.get("KAI_BENCH_TAKEOVERS_PAIRS", "1"))

#: Measured are the services with names that begin like this; all of them by default.
_ONLY = os.environ.get("KAI_BENCH_TAKEOVERS_OF", "")

#: Faults of one kind from which on one in a hundred means something.
_FOR_P99 = 100

#: Seconds between two looks at how late timers are.
_TICK_S = 0.05


class _Kept(msgspec.Struct, frozen=True):
    """One takeover of a service, in seconds, as it is written to a file."""

    service: str
    fault: str
    seconds: float


async def of_scheduler(servers: Servers, cluster: str, size: Size) -> Seconds:
    """Measure schedulers: a pod comes, and is placed."""
    async with await PostgresLog.open(servers.database_url) as log:
        await fill(log, cluster, nodes(20 + size.together // 8))
        pods = iter(waiting_pods(size.together))

        async def work() -> None:
            head = await log.head(cluster)
            await fill(log, cluster, [next(pods)])
            await recorded(log, cluster, "PodPlaced", count=1, after=head.position)

        # Without a relay a feed looks into the log only now and then.
        async with Template("kai_relay.main") as relays:
            await relays.start(servers.settings(cluster))
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

        # Without a relay a feed looks into the log only now and then.
        async with Template("kai_relay.main") as relays:
            await relays.start(servers.settings(cluster))
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
        load, numbers, cycles = apiserver.Load(api), count(), count(1)
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
                    placed = [_placed(fact, node) for node, fact in enumerate(observed)]
                    await log.append(cluster, append_of_cycle(cluster, next(cycles), placed))
                    await recorded(log, cluster, "PodBound", count=_NODES_AT_ONCE, after=head.position)

                return await taken_over("kai_binder.main", settings, work, size, replicas=True)
        finally:
            await load.close()


async def _observed(log: PostgresLog, cluster: str, names: set[str]) -> list[PodObserved]:
    """Wait until the log has pods of these names; those of an earlier fault may appear meanwhile."""
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
    "ingest": of_ingest,
    "api": of_api,
}


async def _measured(size: Size, pairs: int) -> tuple[dict[str, Seconds], list[float]]:
    """Return the seconds by service, and how late timers were."""
    chosen = [name for name in MEASURED if name.startswith(_ONLY)]
    faults = -(-size.faults // pairs)
    late: list[float] = []
    async with AsyncExitStack() as stack:
        places = [await stack.enter_async_context(durable_servers()) for _ in range(pairs)]
        ticking = asyncio.create_task(_tick(late))
        each = [
            MEASURED[name](servers, f"takeover-{number}", Size(faults, size.kinds, partial(_keep, name)))
            for number, name in enumerate(chosen)
            for servers in places
        ]
        made = iter(await asyncio.gather(*each))
        ticking.cancel()
    seconds: dict[str, Seconds] = {name: {fault: [] for fault in size.kinds} for name in chosen}
    for name in chosen:
        for _ in places:
            for fault, measured in next(made).items():
                seconds[name][fault] += measured
    return seconds, late


def _keep(service: str, fault: Fault, seconds: float) -> None:
    if _KEPT:
        with Path(_KEPT).open("ab") as kept:
            kept.write(msgspec.json.encode(_Kept(service, fault.value, seconds)) + b"\n")


def _kept() -> dict[str, Seconds]:
    """Return the seconds by service of a file of takeovers; none where no file is named."""
    seconds: dict[str, Seconds] = {}
    if _KEPT and Path(_KEPT).exists():
        for line in Path(_KEPT).read_bytes().splitlines():
            one = msgspec.json.decode(line, type=_Kept)
            seconds.setdefault(one.service, {}).setdefault(Fault(one.fault), []).append(one.seconds)
    return seconds


async def _tick(late: list[float]) -> None:
    while True:
        due = time.perf_counter() + _TICK_S
        await asyncio.sleep(_TICK_S)
        late.append(time.perf_counter() - due)


def figures(size: Size = FULL, pairs: int = _PAIRS) -> Iterator[Figure]:
    """Measure; all services side by side, since nearly all of the time is waiting."""
    services, late = uvloop.run(_measured(size, pairs))
    services |= _kept()
    for service, by_fault in services.items():
        for fault, seconds in by_fault.items():
            yield from _of(f"{service}, {fault}", seconds)
    for fault in size.kinds:
        yield from _of(f"any service, {fault}", [one for of in services.values() for one in of.get(fault, ())])
    yield figure("scale: takeover, lateness of the bench's own timers, p99", [_p99(late)], "s")


def _of(what: str, seconds: list[float]) -> Iterator[Figure]:
    what = f"scale: takeover, {what}"
    if seconds:
        yield figure(f"{what}, p50", seconds, "s")
        if len(seconds) >= _FOR_P99:
            yield figure(f"{what}, p99", [_p99(seconds)], "s")
        yield figure(f"{what}, longest of {len(seconds)}", [max(seconds)], "s")


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]
