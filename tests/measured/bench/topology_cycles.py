"""Whole cycles of groups with topology constraints, from the folded state to the units that are recorded.

Beside each figure, in its name, the peer's: Kueue's as measured in 2026-08 on 2 cores, KAI's and kube-scheduler's as
they publish them. They are of the placement alone (Kueue), of a scheduler's throughput (kube-scheduler) or end to end
(KAI); ours here are of cycles.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from kai_scheduler.scheduler import look_at_new
from kaicore.rules.deciding.decide import Proposal, decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.model.group import PodSet, TopologyConstraint
from kaicore.rules.model.node import KAI_TOPOLOGY, TopologyDefinition, TopologyLevel
from kaicore.rules.model.pod import Container, QosClass
from kaicore.rules.model.quantity import CPU, MEMORY

from tests.given.work.workloads import Workloads
from tests.measured.bench.figures import Figure, figure

RUNS = 5
#: A node has failed when it has been not ready for long enough, and not before.
_CONFIG = EngineConfig(replace_on_pod_termination=False)
_SECOND_US = 1_000_000


def labelled(levels: Sequence[str], paths: Sequence[Sequence[str]], **node: Any) -> Workloads:
    """Nodes, one for each path of label values, and a topology of those labels."""
    cluster = Workloads()
    named = tuple(TopologyLevel(level, (level,)) for level in levels)
    definition = TopologyDefinition(KAI_TOPOLOGY, "dc", "uid-dc", "1", named)
    cluster.record("topology/dc", payloads.TopologyDefinitionObserved(definition))
    for number, path in enumerate(paths):
        cluster.add_node(f"n{number:05}", labels=dict(zip(levels, path, strict=True)), **node)
    return cluster


def racks(nodes: int, *, of: int = 16, blocks_of: int = 256, **node: Any) -> Workloads:
    paths = [(f"b{number // blocks_of:03}", f"r{number // of:04}") for number in range(nodes)]
    return labelled(("block", "rack"), paths, **node)


def asks(required: str = "", preferred: str = "") -> TopologyConstraint:
    return TopologyConstraint("dc", required, preferred)


def preferred_rack() -> tuple[str, Workloads]:
    """Kueue's benchmark."""
    cluster = racks(2_500, cpu=96, memory=512)
    cluster.gang("set", 2_304, topology=asks(preferred="rack"), cpu=8, memory=8)
    return "2,304 pods of 8 CPUs, preferred rack, 2,500 nodes (Kueue: 26 to 38 ms)", cluster


def four_levels() -> tuple[str, Workloads]:
    """KAI's benchmark."""
    paths = [(f"z{row // 128}", f"b{row // 16:02}", f"r{row // 2:03}", f"n{row:03}") for row in range(512)]
    levels = ("zone", "block", "rack", "host")
    cluster = labelled(levels, paths, cpu=96, memory=512, gpu=8)
    cluster.gang("large", 512, topology=asks("zone", "rack"), cpu=8, memory=8, gpu=2)
    return "512 pods of 2 GPUs, required zone, preferred rack, 512 nodes in 4x8x8x2 (KAI: 48.7 s end to end)", cluster


def whole_fleet() -> tuple[str, Workloads]:
    """One gang of nearly all nodes."""
    cluster = racks(5_200, cpu=96, memory=512, gpu=8)
    cluster.gang("large", 5_000, topology=asks(preferred="rack"), cpu=90, memory=500, gpu=8)
    return "5,000 pods of 8 GPUs, preferred rack, 5,200 nodes (Volcano's use case: no figure)", cluster


def sub_groups() -> tuple[str, Workloads]:
    """A hundred parts of a job, each within a rack."""
    cluster = racks(1_000, of=10, blocks_of=100, cpu=96, memory=512, gpu=8)
    names = [f"part-{number:03}" for number in range(100)]
    parts = [PodSet(name, min_pods=10, topology=asks("rack")) for name in names]
    cluster.gang("job", 0, sets=(PodSet(), *parts))
    for name in names:
        cluster.subgroup(name, "job", 10, cpu=90, memory=500, gpu=8)
    return "100 sub-groups of 10 pods, each within a HyperNode of tier 1, 1,000 nodes (Volcano: no figure)", cluster


def hot_swap() -> tuple[str, Workloads]:
    """Twenty nodes of a running job are not ready for long enough."""
    cluster = racks(1_088, blocks_of=544, cpu=96, memory=512, gpu=8)
    pods = cluster.gang("job", 500, topology=asks("block", "rack"), cpu=90, memory=500, gpu=8)
    cluster.full(pods)
    for one in pods[::25]:
        row = cluster.state.columns.row(cluster.state.pods[one.uid].node)
        node = cluster.state.columns.facts[row]
        assert node is not None
        cluster.record(f"node/{node.name}", payloads.NodeObserved(msgspec.structs.replace(node, ready=False)))
    cluster.now += 31 * _SECOND_US
    return "20 nodes of a 500-node job failed, required block, 1,088 nodes (Kueue: one node at a time)", cluster


def gangs(count: int, size: int) -> Workloads:
    """Gangs of small pods, each within a rack of a hundred nodes."""
    cluster = labelled(("rack",), [(f"r{row // 100:02}",) for row in range(5_000)], cpu=4, memory=32)
    small = Container(name="main", requests={CPU: 100, MEMORY: 100 << 20})
    for number in range(count):
        ask: dict[str, Any] = {"created_at": number, "containers": (small,), "qos": QosClass.BURSTABLE}
        cluster.gang(f"gang-{number:05}", size, topology=asks("rack"), **ask)
    return cluster


def timed(cluster: Workloads) -> tuple[list[float], Proposal]:
    """Milliseconds of cycles on one state, after one that makes what later ones keep; and what the last decided."""
    took: list[float] = []
    proposal = decide(cluster.state, _CONFIG, shard="default", now=cluster.now, actor="bench")
    for _ in range(RUNS):
        gc.collect()
        began = time.perf_counter()
        proposal = decide(cluster.state, _CONFIG, shard="default", now=cluster.now, actor="bench")
        took.append((time.perf_counter() - began) * 1e3)
    return took, proposal


#: What is measured in milliseconds.
SHAPES: tuple[Callable[[], tuple[str, Workloads]], ...] = (
    preferred_rack,
    four_levels,
    whole_fleet,
    sub_groups,
    hot_swap,
)


def figures() -> Iterator[Figure]:
    """Measure, with the collector as the scheduler sets it."""
    look_at_new()
    for shape in SHAPES:
        name, cluster = shape()
        took, proposal = timed(cluster)
        result = proposal.result
        done = f"{len(result.placements)} placed, {len(result.evictions)} evicted"
        yield figure(f"topology cycle: {name}: {done}", took, "ms")
    for count, size in ((750, 4), (1_500, 4), (2_250, 4), (3, 1_000), (9, 1_000)):
        took, proposal = timed(gangs(count, size))
        placed = len(proposal.result.placements)
        assert placed == count * size, placed
        yield figure(
            f"topology cycle: {count:,} gangs of {size:,}, required rack, 5,000 nodes in 50 racks, {placed} placed "
            "(kube-scheduler: 562 to 975 pods/s)",
            [placed * 1e3 / ms for ms in took],
            "pods/s",
        )
