"""Pods bound per second, end to end: API server, log, bus, scheduler, binder, kubelets, exporter on this machine."""

import asyncio
import statistics
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from kai_cli.directory_lock import lock
from kai_cli.load import Loader
from kai_cli.paths import DataDirectory
from kai_cli.stack import ClusterSpec, Stack
from kaicore.events.envelope import Event
from kaicore.inquiry.folding import events_of
from kaicore.k8s.access import configured_access
from kaicore.k8s.client import KubeClient
from kaicore.log.port import EventLog, Filter
from kaicore.log.postgres import PostgresLog

from tests.bench.figures import Figure, figure
from tests.servers import scratch_directory

_NODES_PROFILE, _PODS = "bench1000", 3000
_CLUSTER = "bench"
_TYPES = ("PodObserved", "PodPlaced", "PodBound", "PodRejected", "PlacementObserved")


def figures() -> Iterator[Figure]:
    """Measure one run; the spread of the rate is that between its thirds."""
    return iter(asyncio.run(_measure()))


async def _measure() -> list[Figure]:
    with scratch_directory() as root, lock(DataDirectory(root)) as held:
        stack = Stack(DataDirectory(root), lock=held, tell=lambda _: None, log_level="warning")
        try:
            await stack.start()
            cluster = await stack.add_cluster(ClusterSpec(name=_CLUSTER, profile=_NODES_PROFILE))
            async with await PostgresLog.open(stack.database_url) as log:
                await _nodes_known(log)
                async with KubeClient(configured_access(cluster.service_kubeconfig)) as client:
                    loading = asyncio.create_task(Loader(client).create([_pod(index) for index in range(_PODS)]))
                    events = await _until_bound(log)
                    await loading
                return _figures(events)
        finally:
            await stack.stop()


async def _nodes_known(log: EventLog) -> None:
    known, after = 0, 0
    while known < 1000:
        after = await log.wait_beyond(_CLUSTER, after, timeout_s=5)
        known = len(await log.read(_CLUSTER, limit=100_000, where=Filter(types=("TopologyObserved",))))


async def _until_bound(log: EventLog) -> list[Event]:
    bound = head = 0
    async with asyncio.timeout(300):
        while bound < _PODS:
            head = await log.wait_beyond(_CLUSTER, head, timeout_s=5)
            await asyncio.sleep(0.5)
            bound = len(await log.read(_CLUSTER, limit=100_000, where=Filter(types=("PodBound",))))
    # Observations follow within the exporter's poll.
    await asyncio.sleep(5)
    return [event async for event in events_of(log, _CLUSTER, where=Filter(types=_TYPES))]


def _figures(events: list[Event]) -> list[Figure]:
    seen: dict[str, int] = {}
    placed: dict[str, int] = {}
    bound: dict[str, int] = {}
    for event in events:
        first = {"PodObserved": seen, "PodPlaced": placed, "PodBound": bound}.get(event.type)
        if first is not None:
            first.setdefault(event.stream, event.recorded_at)
    began = min(seen.values())
    ends = sorted(bound.values())
    third = len(ends) // 3
    marks = [began, ends[third], ends[2 * third], ends[-1]]
    rates = [third / (later - earlier) * 1e6 for earlier, later in pairwise(marks)]
    rate = len(ends) / (ends[-1] - began) * 1e6
    size = f"1000 nodes, {_PODS} pods"
    waits = [(bound[stream] - seen[stream]) / 1e6 for stream in bound]
    decided = [(placed[stream] - seen[stream]) / 1e6 for stream in placed]
    rejected = sum(event.type == "PodRejected" for event in events)
    observed = len({event.stream for event in events if event.type == "PlacementObserved"})
    spread = (max(rates) - min(rates)) / 2 / rate * 100
    return [
        Figure(f"end to end: bound, {size}", round(rate, 1), "pods/s", round(spread, 1)),
        figure(f"end to end: seen to placed, median, {size}", [statistics.median(decided)], "s"),
        figure(f"end to end: seen to bound, median, {size}", [statistics.median(waits)], "s"),
        Figure(f"end to end: rejected by kubelets, {size}", rejected, "pods", 0),
        Figure(f"end to end: observed within 5 s of the last bind, {size}", observed, "pods", 0),
    ]


def _pod(index: int) -> dict[str, Any]:
    variants = (
        {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"},
        {"cpu": "16", "memory": "128Gi", "nvidia.com/gpu": "2"},
        {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1", "rdma/hca": "1"},
    )
    requests = variants[index % len(variants)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p{index:05}", "namespace": "default"},
        "spec": {
            "schedulerName": "kai-ledger",
            "containers": [{"name": "main", "image": "x", "resources": {"requests": requests, "limits": requests}}],
        },
    }
