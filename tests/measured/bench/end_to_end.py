"""Pods bound per second, end to end: API server, log, bus, scheduler, binder, kubelets, exporter on this machine.

Once with what the binder tells people (conditions of pods that wait, events), once without, twice in turn: how much
slower bindings get, and what that costs each process in CPU time.
"""

import asyncio
import os
import re
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
from kai_cli.running.load import Loader
from kai_cli.running.processes import SupervisedProcess
from kai_cli.running.stack import ClusterSpec, Stack
from kai_cli.sources.paths import DataDirectory
from kaicore.analysis.replay.log_states import events_of
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import Event

from tests.given.servers.servers import scratch_directory
from tests.measured.bench.figures import Figure, figure

_NODES_PROFILE, _PODS, _LARGE_PODS = "bench1000", 3000, 300
_ROUNDS = 2
#: Settings of the binder.
_TELLING = ("KAI_POD_CONDITIONS", "KAI_FAILED_SCHEDULING_EVENTS", "KAI_SCHEDULED_EVENTS")
_CLUSTER = "bench"
_TYPES = ("PodObserved", "PodPlaced", "PodBound", "PodRejected", "PlacementObserved")


@dataclass(frozen=True, slots=True)
class _Run:
    """One run's result: the log's events, and CPU seconds by process from the first pod to the last observation."""

    events: list[Event]
    cpu_s: dict[str, float]


def figures() -> Iterator[Figure]:
    """Measure; the spread of the rate is that between the thirds of a run, or between runs."""
    quiet, telling = [], []
    for _ in range(_ROUNDS):
        quiet.append(asyncio.run(_measure(tell=False)))
        telling.append(asyncio.run(_measure(tell=True)))
    yield from _figures(telling[0].events)
    yield from _cost_of_telling(quiet, telling)


async def _measure(*, tell: bool) -> _Run:
    os.environ.update(dict.fromkeys(_TELLING, str(tell).lower()))
    with scratch_directory() as root, DataDirectory(root).lock() as held:
        stack = Stack(DataDirectory(root), lock=held, report=lambda _: None, log_level="warning")
        try:
            await stack.start()
            cluster = await stack.add_cluster(ClusterSpec(name=_CLUSTER, profile=_NODES_PROFILE))
            async with await PostgresLog.open(stack.database_url) as log:
                await nodes_known(log, _CLUSTER, 1000)
                before = cpu_by_process(stack, [_CLUSTER])
                async with KubeClient(configured_access(cluster.service_kubeconfig)) as client:
                    pods = [pod(index) for index in range(_PODS)] + [_large_pod(index) for index in range(_LARGE_PODS)]
                    loading = asyncio.create_task(Loader(client).create(pods))
                    events = await _until_bound(log)
                    await loading
                    await all_told(stack, _CLUSTER)
                after = cpu_by_process(stack, [_CLUSTER])
                return _Run(events, {name: after[name] - before.get(name, 0.0) for name in after})
        finally:
            await stack.stop()
            for name in _TELLING:
                del os.environ[name]


def cpu_by_process(stack: Stack, clusters: Sequence[str]) -> dict[str, float]:
    """CPU seconds so far of each service of the stack, those of all clusters together, their children included."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # Behind the name, which may hold anything: state, parent, …, user and system time, and those of children.
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid] = int(fields[1])
            used[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    names = {process.spec.name: process.pid for process in stack.processes}
    names |= {server.name: server.pid for server in stack.servers}
    by_pid = {pid: _service_of(name, clusters) for name, pid in names.items() if pid is not None}
    total = dict.fromkeys(by_pid.values(), 0.0)
    for pid, seconds in used.items():
        above: int | None = pid
        while above is not None and above not in by_pid:
            above = parents.get(above)
        if above is not None:
            total[by_pid[above]] += seconds
    return total


def process_of(stack: Stack, service: str) -> SupervisedProcess:
    """Return the process that runs a service, by itself or among others."""
    return next(one for one in stack.processes if service in {spec.name for spec in one.spec.services})


def _service_of(process: str, clusters: Sequence[str]) -> str:
    for cluster in clusters:
        process = process.removeprefix(f"{cluster}-")
    return process


def _cost_of_telling(quiet: list[_Run], telling: list[_Run]) -> Iterator[Figure]:
    size = f"1000 nodes, {_PODS} pods and {_LARGE_PODS} that fit nowhere"
    for what, runs in (("off", quiet), ("on", telling)):
        yield figure(f"conditions and events {what}: bound, {size}", [_rate(run.events) for run in runs], "pods/s")
    ratios = [_rate(on.events) / _rate(off.events) for off, on in zip(quiet, telling, strict=True)]
    yield figure(f"conditions and events: bound with them to bound without, {size}", ratios, "ratio")
    for name in sorted(telling[0].cpu_s):
        for what, runs in (("off", quiet), ("on", telling)):
            cpu = [run.cpu_s.get(name, 0.0) / _PODS * 1000 for run in runs]
            yield figure(f"conditions and events {what}: CPU of {name}, {size}", cpu, "s per 1000 pods")


def _rate(events: list[Event]) -> float:
    seen = [event.recorded_at for event in events if event.type == "PodObserved"]
    bound = [event.recorded_at for event in events if event.type == "PodBound"]
    return len(bound) / (max(bound) - min(seen)) * 1e6


async def nodes_known(log: EventLog, cluster: str, count: int, *, by: str = "TopologyObserved") -> None:
    """Wait until the log knows the zones of so many nodes, or has so many events of another type."""
    recorded, after = 0, 0
    while recorded < count:
        after = await log.wait_beyond(cluster, after, timeout_s=5)
        recorded = len(await log.read(cluster, limit=100_000, where=Filter(types=(by,))))


async def all_told(stack: Stack, cluster: str) -> None:
    """Wait until the binder has written all that waits to be written: its cost counts, too."""
    (binder,) = [one for process in stack.processes for one in process.spec.services if one.name == f"{cluster}-binder"]
    url = binder.ready_url.replace("/readyz", "/metrics")
    async with asyncio.timeout(300), aiohttp.ClientSession() as session:
        while True:
            async with session.get(url) as response:
                metrics = await response.text()
            waiting = re.search(r"^kai_binder_waiting_side_writes\{.*\} (\S+)$", metrics, re.MULTILINE)
            if waiting is not None and not float(waiting[1]):
                return
            await asyncio.sleep(0.5)


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


def _large_pod(index: int) -> dict[str, Any]:
    made = pod(_PODS + index)
    amounts = {"cpu": "8", "nvidia.com/gpu": "64"}
    made["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    return made


def pod(index: int) -> dict[str, Any]:
    """A pod of one or two GPUs, of three classes."""
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
