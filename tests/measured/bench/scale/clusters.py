"""Three clusters under one hub, end to end: dispatches are submitted at once, and every pod of them is bound.

Per cluster a simulated API server with its nodes, a watcher, a scheduler and a binder; for all of them one hub, one
relay, one Postgres, one NATS; each a process of its own. What is measured is how long it takes until the last pod is
bound, how long the hub takes for its choices, and the CPU time of each service.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import uvloop
from kaicore.analysis.trial.dispatching import HubLog, read_dispatch
from kaicore.analysis.trial.simulation import Located
from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.payloads import ClusterRegistered
from kaicore.rules.hub.hub_state import HUB, cluster_stream, dispatch_stream

from tests.given.servers.api_server_process import ApiServerProcess
from tests.measured.bench import apiserver
from tests.measured.bench.figures import Figure, figure
from tests.measured.bench.scale.services import Servers, ServiceProcess, durable_servers, recorded

_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a measurement: dispatches, pods of each, and nodes of each cluster."""

    clusters: int
    nodes: int
    dispatches: int
    pods: int


FULL = Size(clusters=3, nodes=1_000, dispatches=300, pods=8)


@dataclass(frozen=True, slots=True)
class Run:
    """The cost of one run.

    Attributes:
        seconds: from the first submission to the last bind.
        chosen_s: from the first submission to the last choice of a cluster.
        cpu_s: of the hub, and of all schedulers, binders and watchers.
        spread: how many dispatches the clusters were given, the fewest and the most.
    """

    seconds: float
    chosen_s: float
    cpu_s: dict[str, float]
    spread: tuple[int, int]


async def run(servers: Servers, size: Size) -> Run:
    """Submit, and wait until all of it is bound."""
    names = [f"c{number}" for number in range(size.clusters)]
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        log = await stack.enter_async_context(await PostgresLog.open(servers.database_url))
        hub = HubLog(log)
        services: dict[str, list[ServiceProcess]] = {}

        async def start(kind: str, settings: dict[str, str]) -> None:
            process = await stack.enter_async_context(ServiceProcess(f"kai_{kind}.main", settings))
            services.setdefault(kind, []).append(process)

        everything = servers.settings("") | {"CLUSTERS": ",".join([HUB, *names])}
        await start("relay", everything)
        for name in names:
            (directory / name).mkdir()
            api = await stack.enter_async_context(ApiServerProcess(directory / name, "--no-https", "--no-controllers"))
            await _create_nodes(api, size.nodes)
            await hub.refresh()
            await hub.append(cluster_stream(name), ClusterRegistered(cluster=name), subject=name)
            settings = servers.settings(name) | {"KUBECONFIG": str(api.http_kubeconfig)}
            for kind in ("watcher", "scheduler", "binder"):
                await start(kind, settings)
            await recorded(log, name, "NodeObserved", count=size.nodes)
        await start("hub", everything)
        await recorded(log, HUB, "LeaseRenewed", count=size.clusters)
        head = await log.head(HUB)
        before = {kind: sum(one.cpu_s for one in processes) for kind, processes in services.items()}
        began = time.time()
        for number in range(size.dispatches):
            name = f"d{number}"
            pods = [Located(name, _pod(f"{name}-{place}")) for place in range(size.pods)]
            await hub.append(dispatch_stream(name), read_dispatch(name, pods), subject=name)
        given = await recorded(log, HUB, "DispatchGiven", count=size.dispatches, after=head.position)
        chosen_s = given[-1].recorded_at / 1e6 - began
        counts, last = await _bound(log, names, size.dispatches * size.pods)
        used = {kind: sum(one.cpu_s for one in them) - before[kind] for kind, them in services.items()}
    dispatches = [count // size.pods for count in counts]
    return Run(last / 1e6 - began, chosen_s, used, (min(dispatches), max(dispatches)))


async def _bound(log: PostgresLog, names: list[str], count: int) -> tuple[list[int], int]:
    """Wait until so many pods are bound in all clusters; how many in each, and when the last one was."""
    counts, last, after = dict.fromkeys(names, 0), 0, dict.fromkeys(names, 0)
    while sum(counts.values()) < count:
        for name in names:
            where = Filter(types=("PodBound",))
            for event in await log.read(name, after=after[name], limit=100_000, where=where):
                counts[name], last, after[name] = counts[name] + 1, max(last, event.recorded_at), event.position
        await asyncio.sleep(_LOOK_S)
    return list(counts.values()), last


async def _create_nodes(api: ApiServerProcess, count: int) -> None:
    load = apiserver.Load(api)
    try:
        bodies = [msgspec.json.encode(apiserver.node(number)) for number in range(count)]
        await load.all(partial(load.send, "POST", "/api/v1/nodes", body) for body in bodies)
    finally:
        await load.close()


def _pod(name: str) -> dict[str, Any]:
    resources = {"cpu": "12", "memory": "96Gi", "nvidia.com/gpu": "1"}
    container = {"name": "main", "image": "x", "resources": {"limits": resources}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": "kai-ledger", "containers": [container]},
    }


async def _measured(size: Size) -> Run:
    async with durable_servers() as servers:
        return await run(servers, size)


def figures(size: Size = FULL) -> Iterator[Figure]:
    one = uvloop.run(_measured(size))
    pods = size.dispatches * size.pods
    what = f"scale: {size.clusters} clusters x {size.nodes} nodes, {size.dispatches} dispatches of {size.pods} pods"
    yield figure(f"{what}: submitted to bound", [pods / one.seconds], "pods/s")
    yield figure(f"{what}: clusters chosen", [size.dispatches / one.chosen_s], "dispatches/s")
    yield figure(f"{what}: CPU of the hub", [one.cpu_s["hub"] * 1e6 / size.dispatches], "us per dispatch")
    for kind in ("scheduler", "binder", "watcher", "relay"):
        yield figure(f"{what}: CPU of all {kind}s", [one.cpu_s[kind] * 1e6 / pods], "us per pod")
    yield figure(f"{what}: fewest dispatches in a cluster", [one.spread[0]], "dispatches")
    yield figure(f"{what}: most dispatches in a cluster", [one.spread[1]], "dispatches")
