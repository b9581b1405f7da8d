"""Cycles over groups, and the search for victims; each figure's name has the peer's for the same work."""

import gc
import resource
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from kai_scheduler.scheduler import look_at_new
from kaicore.rules.deciding.decide import Proposal, decide
from kaicore.rules.deciding.why import StateRemedies
from kaicore.rules.engine.config import Backfill, EngineConfig
from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes
from kaicore.rules.engine.session import cycle_record
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.groups.membership import SIGS_GROUP_LABEL
from kaicore.rules.model.gpu_share import GpuShare
from kaicore.rules.model.placement import Provenance
from kaicore.rules.model.pod import Container, QosClass
from kaicore.rules.model.quantity import CPU, MEMORY

from tests.given.cluster.factory import amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.workloads import OWNER, Workloads
from tests.measured.bench.figures import Figure, figure

_ZONE = amounts(cpu=64, memory=512, gpu=4)
_CONFIG = EngineConfig()


def nodes(count: int, *, policy: str = "restricted") -> Workloads:
    """Nodes of 8 GPUs on two zones."""
    cluster = Workloads()
    for number in range(count):
        cluster.add_node(f"n{number:05}", _ZONE, _ZONE, policy=policy)
    return cluster


def fill(cluster: Workloads, *, gpu: int, priority: int = 0, per_node: int = 8, of_queue: str = "") -> None:
    """Have every node full of running pods of `gpu` GPUs each."""
    labels = {KAI_QUEUE_LABEL: of_queue} if of_queue else {}
    for number in range(len(cluster.state.columns.rows) * per_node):
        spec = {"cpu": 96, "memory": 640, "gpu": 8} if gpu == 8 else {"cpu": 2, "memory": 8, "gpu": gpu}
        cluster.add_pod(
            pod(f"low-{number:06}", priority=priority, owner=OWNER, created_at=number // 50, labels=labels, **spec)
        )
    started(cluster)


def started(cluster: Workloads) -> None:
    """Waiting pods are placed, and run."""
    result = cluster.cycle()
    for decision in result.placements:
        cluster.see(cluster.state.pods[decision.uid].pod, node_name=decision.node, phase="Running")


def observe(cluster: Workloads) -> None:
    """Exporters report what runs, as predicted: from then on doubts are looked at."""
    for entry in list(cluster.state.pods.values()):
        if entry.predicted is not None and entry.node:
            ids = entry.pod.uid, entry.pod.namespace, entry.pod.name, entry.node
            observed = msgspec.structs.replace(entry.predicted, provenance=Provenance.OBSERVED)
            cluster.record(f"pod/{entry.pod.uid}", payloads.PlacementObserved(*ids, observed))


def timed(
    cluster: Workloads,
    *,
    runs: int = 3,
    config: EngineConfig = _CONFIG,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[float], Proposal]:
    """Decide a few times on one state; milliseconds by the clock."""
    took = []
    for _ in range(runs):
        began = clock()
        proposal = decide(cluster.state, config, shard="default", now=cluster.now, actor="bench")
        took.append((clock() - began) * 1e3)
    return took, proposal


@lru_cache(maxsize=1)
def busy(count: int) -> Workloads:
    """Six running pods per node, and one waiting pod per node in gangs of 8 or 9, of 40 classes."""
    cluster = nodes(count)
    for number in range(count * 6):
        spec = {"cpu": 1 + number % 7, "memory": 8 + number % 5, "gpu": 1}
        cluster.add_pod(pod(f"run-{number:06}", owner=OWNER, created_at=number // 50, **spec))
    started(cluster)
    waiting, gang = count, 0
    while waiting > 0:
        size = min(8 + gang % 3 % 2, waiting)
        spec = {"cpu": 2 + gang % 8, "memory": 16 + gang % 5, "gpu": 1}
        cluster.gang(f"gang-{gang:05}", size, created_at=10_000 + gang, **spec)
        waiting -= size
        gang += 1
    return cluster


def figures() -> Iterator[Figure]:
    """Measure, with the collector as the scheduler sets it."""
    look_at_new()
    for count in (1_000, 3_000, 10_000, 30_000):
        cluster = busy(count)
        took, proposal = timed(cluster)
        placed = len(proposal.result.placements)
        what = f"{count} nodes, {count * 6} running, {count} pending in gangs of 40 classes, {placed} placed"
        yield figure(f"engine: full cycle: {what} (KAI: minutes at 1000 nodes)", took, "ms")
        if count <= 10_000:
            observe(cluster)
            took, proposal = timed(cluster)
            placed = len(proposal.result.placements)
            yield figure(
                f"engine: full cycle: the same {count} nodes, observed by exporters, {placed} placed", took, "ms"
            )
        if count == 10_000:
            cluster.cycle()
            took, proposal = timed(cluster)
            yield figure(f"engine: cycle after it, nothing new: {len(proposal.result.batches)} decided", took, "ms")
            yield _when_schedulable(cluster)
            yield _cost_of_reasons(cluster)
        cluster.events.clear()
        gc.collect()
        yield figure(f"engine: memory of the process with {count} nodes, {count * 7} pods", [_resident_mib()], "MiB")
        busy.cache_clear()
    yield from _shares(10_000)
    for shape in SHAPES:
        name, cluster = shape()
        took, proposal = timed(cluster)
        result = proposal.result
        outcome = (
            f"{len(result.placements)} placed, {len(result.nominations)} nominated, {len(result.evictions)} evicted"
        )
        yield figure(f"engine: {name}: {outcome}", took, "ms")
    for shape, setting, values in SETTINGS:
        name, cluster = shape()
        for value in values:
            took, proposal = timed(cluster, config=msgspec.structs.replace(_CONFIG, **{setting: value}))
            evicted = len(proposal.result.evictions)
            yield figure(f"engine: {name}, {setting} {value}: {evicted} evicted", took, "ms")
    for count in (500, 10_000):
        yield from reserved(count)
    for count, size in ((750, 4), (1_500, 4), (2_250, 4), (3, 1_000), (9, 1_000)):
        took, proposal = timed(gangs(count, size))
        placed = len(proposal.result.placements)
        yield figure(
            f"engine: {count} gangs of {size} on 5000 nodes, {placed} placed (kube-scheduler: 562 to 975 pods/s)",
            [placed * 1e3 / ms for ms in took],
            "pods/s",
        )


def _shares(count: int) -> Iterator[Figure]:
    """CPU of a cycle that places as many shares of a GPU as there are nodes, and of one that places whole GPUs."""
    clusters, took = {"whole GPUs": nodes(count), "shares of a GPU": nodes(count)}, dict[str, list[float]]()
    for kind, cluster in clusters.items():
        for number in range(count):
            milli = (810, 470, 320, 650, 230)[number % 5]
            spec = {"gpu": 1} if kind == "whole GPUs" else {"gpu_share": GpuShare(milli=milli)}
            more = {"owner": OWNER, "created_at": number // 50, "cpu": 2 + number % 5, "memory": 16}
            cluster.add_pod(pod(f"new-{number:06}", **more, **spec))
    look_at_new()
    # In turns, for what else the machine does comes and goes.
    for _ in range(7):
        for kind, cluster in clusters.items():
            one, proposal = timed(cluster, runs=1, config=EngineConfig(gpu_sharing=True), clock=time.process_time)
            took.setdefault(kind, []).extend(one)
            gc.freeze()
    for kind, ms in took.items():
        placed = len(proposal.result.placements)
        yield figure(f"engine: CPU: {count} nodes, {count} {kind} of 5 classes pending, {placed} placed", ms, "ms")
    ratios = [one / other for other, one in zip(*took.values(), strict=True)]
    yield figure("engine: CPU of a cycle with shares, by the one with whole GPUs (aim: 1.5)", ratios, "times")


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def _when_schedulable(cluster: Workloads) -> Figure:
    """The time to say when a pod that wants more memory than any zone has would become schedulable."""
    cluster.add_pod(pod("never", cpu=2, memory=600, gpu=1))
    entry, took = cluster.state.pods["uid-never"], []
    for _ in range(3):
        began = time.perf_counter()
        remedies = StateRemedies(cluster.state, _CONFIG).of(entry)
        took.append((time.perf_counter() - began) * 1e3)
    text = "; ".join(map(str, remedies))
    return figure(
        f"engine: when a pod would become schedulable, on {len(cluster.state.columns.rows)} nodes: {text}", took, "ms"
    )


def _cost_of_reasons(cluster: Workloads) -> Figure:
    """The part of a cycle that goes into saying for each of 40 classes why nothing fits."""
    size = 8 * len(cluster.state.columns.rows)
    for number in range(40):
        cluster.gang(f"never-{number:05}", 2, created_at=number, cpu=2 + number, memory=16, gpu=8, priority=9)
    cluster.gang("too-many", size, least=size, cpu=3, memory=1, gpu=1)
    for number in range(10_000):
        cluster.add_pod(pod(f"alone-{number:05}", cpu=500, gpu=8, priority=1 + number % 2))
    spent = [0.0]

    def measured(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            began = time.perf_counter()
            answer = original(*args)
            spent[0] += time.perf_counter() - began
            return answer

        return call

    shares = []
    original, summarize = FeasibleNodes.reasons, cycle_record.summarize
    FeasibleNodes.reasons, cycle_record.summarize = measured(original), measured(summarize)  # type: ignore[method-assign]
    try:
        for _ in range(3):
            spent[0] = 0.0
            (took,), _ = timed(cluster, runs=1)
            shares.append(spent[0] * 1e5 / took)
    finally:
        FeasibleNodes.reasons, cycle_record.summarize = original, summarize  # type: ignore[method-assign]
    return figure(
        "engine: part of a cycle that goes into reasons, 42 classes that fit nowhere, 10000 nodes, 10000 pods alone",
        shares,
        "%",
    )


def filling(count: int = 500) -> tuple[str, Workloads]:
    """That many empty nodes, and a pod for each of their GPUs."""
    cluster = nodes(count)
    for number in range(count * 8):
        cluster.add_pod(pod(f"p{number:05}", cpu=2, memory=8, gpu=1, created_at=number // 50))
    return f"fill {count} nodes with {count * 8} one-GPU jobs (KAI: 398 s end to end)", cluster


def gangs(count: int, size: int, *, of_nodes: int = 5_000) -> Workloads:
    """Gangs of small pods, and empty nodes without zones."""
    cluster = Workloads()
    for number in range(of_nodes):
        cluster.add_node(f"n{number:05}", cpu=4, memory=32)
    small = Container(name="main", requests={CPU: 100, MEMORY: 100 << 20})
    for number in range(count):
        cluster.gang(f"gang-{number:05}", size, created_at=number, containers=(small,), qos=QosClass.BURSTABLE)
    return cluster


def unschedulable(count: int = 500) -> tuple[str, Workloads]:
    """A gang of whole nodes, which must not evict what every node is full of."""
    cluster = nodes(count)
    fill(cluster, gpu=1, priority=5)
    cluster.gang("large", 10, cpu=96, memory=640, gpu=8, priority=1)
    return f"unschedulable 10x8-GPU gang on {count} full nodes (KAI: 249 s)", cluster


def _queues(cluster: Workloads, *, gpus: int) -> None:
    """Two queues; the second's quota is that many GPUs, the first has none."""
    for name, quota in (("greedy", 0), ("owed", gpus)):
        cluster.record(f"queue/{name}", payloads.QueueObserved(queue(name, quota=quota)))


def whole_nodes(count: int = 500) -> tuple[str, Workloads]:
    """A gang reclaims every node from pods that have whole nodes."""
    cluster = nodes(count)
    _queues(cluster, gpus=count * 8)
    fill(cluster, gpu=8, per_node=1, of_queue="greedy")
    cluster.gang("large", count, cpu=96, memory=640, gpu=8, labels={KAI_QUEUE_LABEL: "owed"})
    return f"{count}x8 GPUs from full-node victims (KAI, reclaim: 85 s)", cluster


def large_job(count: int = 1_000) -> tuple[str, Workloads]:
    """A gang reclaims half of the nodes from pods of one GPU each."""
    cluster = nodes(count)
    _queues(cluster, gpus=count * 4)
    fill(cluster, gpu=1, of_queue="greedy")
    cluster.gang("large", count // 2, cpu=96, memory=640, gpu=8, labels={KAI_QUEUE_LABEL: "owed"})
    jobs = f"{count * 8} one-GPU jobs on {count} nodes"
    return f"{count // 2}x8 GPUs from {jobs} (KAI, ReclaimLargeJobs: 76 s)", cluster


def adversarial(count: int = 250) -> tuple[str, Workloads]:
    """Victims of 3 GPUs leave one free on each zone, and the preemptor's pods want two of one zone."""
    cluster = nodes(count)
    fill(cluster, gpu=3, per_node=2)
    members = [pod(f"large-{n}", cpu=4, memory=8, gpu=2, priority=9) for n in range(count)]
    cluster.gang("large", 0, least=count)
    for one in members:
        fields = {name: getattr(one, name) for name in one.__struct_fields__}
        cluster.add_pod(type(one)(**(fields | {"labels": {SIGS_GROUP_LABEL: "large"}})))
    return f"adversarial NUMA preemption, {count} pods x 2 GPUs (KAI: 65 s)", cluster


def stranded(count: int = 500) -> tuple[str, Workloads]:
    """Half of the nodes have a GPU beside too few CPUs, the others CPUs beside no GPU; pods wait that fit on none."""
    cluster, wanting = Workloads(), 32
    start = cluster.now // 1_000_000 - 600
    for number in range(count):
        poor = number % 2
        cluster.add_node(f"n{number:05}", cpu=40 if poor else 128, memory=512, gpu=8)
        for index in range(8 - poor):
            name = f"run-{number:05}-{index}"
            owner = msgspec.structs.replace(OWNER, name=name, uid=f"uid-of-{name}")
            spec: dict[str, Any] = {"cpu": 5 if poor else 2, "memory": 8, "gpu": 1, "owner": owner}
            cluster.add_pod(pod(name, node_name=f"n{number:05}", phase="Running", start_time=start, **spec))
    for number in range(wanting):
        cluster.add_pod(pod(f"wants-{number}", cpu=8 + number % 3, memory=8, gpu=1))
    return f"{wanting} pods that fit by exchanges on {count} full nodes", cluster


def passed_over(count: int = 500) -> tuple[str, Workloads]:
    """A pod of a whole node waits, with pods of one GPU each on all nodes that came later."""
    cluster = nodes(count)
    fill(cluster, gpu=1)
    cluster.add_pod(pod("whole", cpu=96, memory=640, gpu=8, created_at=1))
    return f"a pod of a whole node behind {count * 8} one-GPU jobs", cluster


def reserved(count: int) -> Iterator[Figure]:
    """A gang of 64 whole nodes waits behind one-GPU jobs, of which every third has a limit: CPU of its first cycle, and
    of the next one, while its room is held.
    """
    cluster = nodes(count)
    for number in range(count * 8):
        limit = 3_600 + number * 7_919 % 86_400 if number % 3 == 0 else 0
        spec: dict[str, Any] = {"cpu": 2, "memory": 8, "gpu": 1, "owner": OWNER, "active_deadline_s": limit}
        cluster.add_pod(pod(f"run-{number:06}", created_at=number // 50, **spec))
    started(cluster)
    cluster.gang("large", 64, cpu=96, memory=640, gpu=8, group={"created_at": 1}, created_at=1)
    for backfill in (Backfill.OFF, Backfill.EASY):
        config = msgspec.structs.replace(_CONFIG, backfill=backfill)
        took, _ = timed(cluster, config=config, clock=time.process_time)
        what = f"a gang of 64 nodes waits, {count} nodes, {count * 8} running"
        yield figure(f"engine: CPU of a cycle with backfill {backfill}: {what}", took, "ms")
    cluster.cycle(config)
    took, _ = timed(cluster, config=config, clock=time.process_time)
    yield figure(f"engine: CPU of a cycle while room is held for it: {what}", took, "ms")


_HOUR_US = 3_600_000_000

#: Clusters, and a setting of which several values are measured there.
SETTINGS: tuple[tuple[Callable[[], tuple[str, Workloads]], str, tuple[int, ...]], ...] = (
    (stranded, "consolidate_win_us", (0, _HOUR_US)),
    (passed_over, "promise_alone_after_us", (0, 4 * _HOUR_US)),
)

#: What is measured; of so many nodes each.
SHAPES: tuple[Callable[..., tuple[str, Workloads]], ...] = (
    filling,
    unschedulable,
    whole_nodes,
    large_job,
    adversarial,
)
