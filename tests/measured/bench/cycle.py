"""Folding and deciding, without any server: events folded per second, and the duration of a cycle."""

import time
from collections.abc import Iterator

from kai_scheduler.scheduler import look_at_new
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import Cluster, amounts, pod
from tests.measured.bench.figures import Figure, figure

_ZONE = amounts(cpu=48, memory=512, gpu=4, nic=4)

#: Requests of the classes; the third is of whole nodes, which only `restricted` ones admit.
_CLASSES = (
    {"cpu": 8, "memory": 64, "gpu": 1},
    {"cpu": 4, "memory": 32, "gpu": 1, "nic": 1},
    {"cpu": 80, "memory": 800, "gpu": 8, "nic": 8},
    {"cpu": 6, "memory": 16},
)


def filled(nodes: int, pods: int, *, classes: int, since_s: int = 0) -> Cluster:
    """A cluster of 8-GPU nodes of two zones, half of them restricted, and waiting pods of several classes."""
    cluster = Cluster()
    for index in range(nodes):
        policy = "restricted" if index % 2 else "single-numa-node"
        cluster.add_node(f"n{index:05}", _ZONE, _ZONE, policy=policy)
    for index in range(pods):
        variant = index % classes
        spec = dict(_CLASSES[variant % len(_CLASSES)])
        spec["memory"] += variant // len(_CLASSES)
        cluster.add_pod(pod(f"p{index:06}", created_at=since_s + index // 50, **spec))
    return cluster


def _crowded(pods: int, *, waited_s: int) -> Cluster:
    """Three full nodes, and pods that wait: two cycles have recorded why."""
    cluster = filled(3, pods, classes=4, since_s=Cluster().now // 1_000_000 - waited_s)
    for _ in range(2):
        cluster.cycle()
    return cluster


def _decided(cluster: Cluster) -> tuple[float, int]:
    """The time of a cycle, seconds, and how many pods it places."""
    began = time.perf_counter()
    proposal = decide(cluster.state, EngineConfig(), shard="default", now=cluster.now, actor="bench")
    return time.perf_counter() - began, len(proposal.result.placements)


def figures() -> Iterator[Figure]:
    """Measure, with the collector as the scheduler sets it."""
    look_at_new()
    for waited, waited_s in (("a minute", 60), ("a day", 86_400)):
        cluster = _crowded(1_000, waited_s=waited_s)
        timed = [_decided(cluster)[0] * 1e3 for _ in range(30)]
        yield figure(f"cycle: 3 full nodes, 1000 pods that came {waited} ago, nothing new", timed, "ms")
    for nodes, pods, classes in ((1_000, 3_000, 4), (1_000, 3_000, 40), (10_000, 10_000, 40)):
        cluster = filled(nodes, pods, classes=classes)
        size = f"{nodes} nodes, {pods} pods, {classes} classes"
        seconds, placed = zip(*(_decided(cluster) for _ in range(3)), strict=True)
        yield figure(f"cycle: {size}: {placed[0]} placed", [s * 1e3 for s in seconds], "ms")
        if classes == 40:
            yield figure(f"cycle per pod: {size}", [s * 1e6 / pods for s in seconds], "us")
    cluster = filled(1_000, 20_000, classes=4)
    cluster.cycle()
    for one in list(cluster.state.pods.values())[:5_000]:
        if one.node:
            bound = payloads.PodBound(one.pod.uid, "default", one.pod.name, one.node)
            cluster.record(f"pod/{one.pod.uid}", bound)
    rates, saving, restoring = [], [], []
    for _ in range(3):
        began = time.perf_counter()
        state = ClusterState("test").fold_all(cluster.events)
        rates.append(len(cluster.events) / (time.perf_counter() - began))
        began = time.perf_counter()
        body = encode_state(state)
        saving.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        decode_state(body)
        restoring.append((time.perf_counter() - began) * 1e3)
    yield figure("fold", rates, "events/s")
    yield figure(f"snapshot: encode, {len(body) >> 20} MiB", saving, "ms")
    yield figure("snapshot: restore", restoring, "ms")
