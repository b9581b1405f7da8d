"""The binder against the simulated API server: decisions lie in the log, and it carries them out as fast as it can.

A watcher runs beside it, as in use, so that what the binder reads has the pods' changes in it, too. What is measured is
binds per second and the CPU time of each process per bind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import uvloop
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event, Unit
from kaicore.rules.events.payloads import NodeCharged, PodObserved, PodPlaced
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount

from tests.given.logs.new_events import append_of_cycle, new_event
from tests.given.servers.api_server_process import ApiServerProcess
from tests.measured.bench import apiserver
from tests.measured.bench.figures import Figure, figure
from tests.measured.bench.scale.services import Servers, ServiceProcess, cpu_seconds, durable_servers, recorded

_PAGE = 1_000

_AMOUNT = {"cpu": 12_000, "memory": 96 << 30, "nvidia.com/gpu": 1}
_ZONES = (ZoneAmount("node-0", _AMOUNT),)
_PLACEMENT = Placement(Provenance.PREDICTED, (ContainerPlacement("main", ("node-0",), _ZONES),), init=())


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a measurement: pods, nodes, repetitions."""

    nodes: int
    pods: int
    runs: int


FULL = Size(nodes=1_000, pods=5_000, runs=3)


@dataclass(frozen=True, slots=True)
class Bound:
    """The outcomes of decisions; CPU figures are microseconds per bind.

    Attributes:
        per_s: binds per second, from the first decision in the log to the last outcome in it.
    """

    per_s: float
    binder_us: float
    api_server_us: float
    watcher_us: float


async def bound(servers: Servers, cluster: str, size: Size) -> Bound:
    """Have so many pods bound, spread over the nodes."""
    with TemporaryDirectory() as directory:
        async with (
            ApiServerProcess(Path(directory), "--no-https", "--no-controllers") as api,
            await PostgresLog.open(servers.database_url) as log,
        ):
            await _create(api, size)
            settings = servers.settings(cluster) | {"KUBECONFIG": str(api.http_kubeconfig)}
            async with (
                ServiceProcess("kai_relay.main", settings),
                ServiceProcess("kai_watcher.main", settings) as watcher,
                ServiceProcess("kai_binder.main", settings) as binder,
            ):
                observed = await recorded(log, cluster, "PodObserved", count=size.pods + 1)
                units = list(_decisions(observed, nodes=size.nodes))
                # One bind first: once it is done, everything is up.
                await log.append(cluster, append_of_cycle(cluster, 0, units[:1]))
                await recorded(log, cluster, "PodBound", count=1)
                before = binder.cpu_s, cpu_seconds(api.pid), watcher.cpu_s
                head = await log.head(cluster)
                for start in range(1, len(units), _PAGE):
                    await log.append(cluster, append_of_cycle(cluster, start, units[start : start + _PAGE]))
                outcomes = await recorded(log, cluster, "PodBound", count=size.pods, after=head.position)
                after = binder.cpu_s, cpu_seconds(api.pid), watcher.cpu_s
            (first,) = await log.read(cluster, after=head.position, limit=1)
    used = [(late - early) * 1e6 / size.pods for early, late in zip(before, after, strict=True)]
    return Bound(size.pods / (outcomes[-1].recorded_at - first.recorded_at) * 1e6, *used)


async def _create(api: ApiServerProcess, size: Size) -> None:
    load = apiserver.Load(api)
    try:
        for path, make, count in (
            ("/api/v1/nodes", apiserver.node, size.nodes),
            ("/api/v1/namespaces/default/pods", apiserver.pod, size.pods + 1),
        ):
            bodies = [msgspec.json.encode(make(number)) for number in range(count)]
            await load.all(partial(load.send, "POST", path, body) for body in bodies)
    finally:
        await load.close()


def _decisions(observed: Sequence[Event], *, nodes: int) -> Iterator[Unit]:
    for number, event in enumerate(observed):
        fact = decode_payload(event)
        assert isinstance(fact, PodObserved)
        one, node = fact.pod, f"node-{number % nodes:05}"
        placed = PodPlaced(one.uid, one.namespace, one.name, node, "default/1", "class", _PLACEMENT)
        charged = NodeCharged(node=node, cycle="default/1", pods=(one.uid,))
        yield Unit(
            (
                new_event(f"pod/{one.uid}", payload=placed, subject=event.subject, correlation="default/1"),
                new_event(f"node/{node}", payload=charged, subject=node, correlation="default/1"),
            )
        )


async def _measured(size: Size) -> list[Bound]:
    async with durable_servers() as servers:
        return [await bound(servers, f"run-{number}", size) for number in range(size.runs)]


def figures(size: Size = FULL) -> Iterator[Figure]:
    runs = uvloop.run(_measured(size))
    what = f"scale: binder, {size.pods} pods on {size.nodes} nodes, watcher beside it"
    yield figure(f"{what}: bound", [run.per_s for run in runs], "binds/s")
    yield figure(f"{what}: CPU of the binder", [run.binder_us for run in runs], "us per bind")
    yield figure(f"{what}: one core of it would bind", [1e6 / run.binder_us for run in runs], "binds/s")
    yield figure(f"{what}: CPU of the simulated API server", [run.api_server_us for run in runs], "us per bind")
    yield figure(f"{what}: CPU of the watcher", [run.watcher_us for run in runs], "us per bind")
