"""The cost of one more node, pod or event as a cluster grows, and the needs of many clusters: computed, not believed.

Each size is measured by a process of its own (`python -m tests.measured.bench.scale.growth NODES`), so that its memory
is its own. A cost that does not depend on the size has the exponent 0: the slope of a line through the logarithms.
"""

import gc
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop
from kai_scheduler.scheduler import look_at_new
from kaicore.rules.deciding.decide import Proposal, decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import amounts, pod
from tests.given.work.workloads import OWNER, Workloads
from tests.measured.bench.figures import Figure
from tests.measured.bench.scale.one_scheduler import Size, Sustained, measured_once
from tests.measured.bench.scale.shapes import shape

ROOT = Path(__file__).parents[4]

SIZES = (100, 300, 1_000, 3_000, 10_000, 30_000)

_ZONE = amounts(cpu=64, memory=512, gpu=4)
_CONFIG = EngineConfig()
#: Pods that wait when a cycle is measured: those of a fifth of a second at 2,000 per second.
_WAITING = 400
_RUNS = 3
#: Pods that come one by one, as in a cluster of 1,000 nodes on most days.
TRICKLE = Size(nodes=1_000, pods=150, per_s=15, runs=1)


class Costs(msgspec.Struct, frozen=True):
    """The cost of a size, CPU times in microseconds.

    Attributes:
        nodes: the size; each node runs a pod.
        decide_us: a cycle that places `_WAITING` pods, per pod.
        fold_us: folding an event, the mean over nodes that join, pods that come, are placed, bound and run.
        fold_decision_us: folding an event of a cycle on a cluster of the full size.
        save_us: saving a snapshot, per node.
        memory_bytes: of a state, per node.
        snapshot_bytes: per node.
        restored_bytes: of the state that a snapshot is restored to, per node.
        restore_us: restoring it, per node.
    """

    nodes: int
    decide_us: float
    fold_us: float
    fold_decision_us: float
    save_us: float
    memory_bytes: float
    snapshot_bytes: float
    restored_bytes: float
    restore_us: float


#: What is drawn from each size, and how it is called.
_COSTS = (
    ("decide_us", "deciding", "us per pod"),
    ("fold_us", "folding a cluster's life", "us per event"),
    ("fold_decision_us", "folding a cycle's own decisions", "us per event"),
    ("save_us", "saving a snapshot", "us per node"),
    ("memory_bytes", "memory of a state", "bytes per node"),
    ("snapshot_bytes", "snapshot", "bytes per node"),
    ("restored_bytes", "memory of a restored state", "bytes per node"),
    ("restore_us", "restoring a snapshot", "us per node"),
)


def costs(count: int) -> Costs:
    """Measure one size, in this process."""
    look_at_new()
    cluster = _running(count)
    gc.collect()
    before = _resident_bytes()
    states: list[ClusterState] = []
    life_us = _cpu_us(lambda: states.append(ClusterState("test").fold_all(cluster.events))) / len(cluster.events)
    memory = _resident_bytes() - before
    body = encode_state(states[0])
    before = _resident_bytes()
    restore_us = _cpu_us(lambda: states.append(decode_state(body)))
    restored = _resident_bytes() - before
    deciding, folding = [], []
    for run in range(_RUNS):
        for number in range(_WAITING):
            cluster.add_pod(pod(f"wait-{run}-{number:05}", owner=OWNER, created_at=run, **shape(number)))
        made: list[Proposal] = []
        deciding.append(_cpu_us(lambda made=made: made.append(_decided(cluster))) / _WAITING)
        events = sum(len(unit.events) for unit in made[0].units)
        folding.append(_cpu_us(lambda made=made: cluster.append(made[0].units)) / events)
    saved: list[bytes] = []
    save_us = _cpu_us(lambda: saved.append(encode_state(cluster.state)))
    return Costs(
        nodes=count,
        decide_us=statistics.median(deciding),
        fold_us=life_us,
        fold_decision_us=statistics.median(folding),
        save_us=save_us / count,
        memory_bytes=memory / count,
        snapshot_bytes=len(saved[0]) / count,
        restored_bytes=restored / count,
        restore_us=restore_us / count,
    )


def _running(count: int) -> Workloads:
    """Return a cluster of so many nodes, each of which runs a pod."""
    cluster = Workloads()
    for number in range(count):
        cluster.add_node(f"n{number:05}", _ZONE, _ZONE, policy="restricted")
    for number in range(count):
        cluster.add_pod(pod(f"run-{number:06}", owner=OWNER, cpu=2 + number % 8, memory=16, gpu=1, created_at=number))
    for decision in cluster.cycle().placements:
        cluster.see(cluster.state.pods[decision.uid].pod, node_name=decision.node, phase="Running")
    return cluster


def _decided(cluster: Workloads) -> Proposal:
    return decide(cluster.state, _CONFIG, shard="default", now=cluster.now, actor="bench")


def _cpu_us(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e6


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the line through the logarithms: a cost grows with that power of the size."""
    return statistics.linear_regression([math.log(one) for one in sizes], [math.log(one) for one in values]).slope


def measured(size: int) -> Costs:
    command = [sys.executable, "-m", "tests.measured.bench.scale.growth", str(size)]
    return msgspec.json.decode(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout, type=Costs)


def figures(sizes: Sequence[int] = SIZES) -> Iterator[Figure]:
    """Measure, sum up, and compute what many clusters need."""
    runs = [measured(size) for size in sizes]
    for name, what, unit in _COSTS:
        values = [getattr(run, name) for run in runs]
        for size, value in zip(sizes, values, strict=True):
            yield Figure(f"scale: growth, {what}, {size} nodes", round(value, 2), unit, 0)
        slope = exponent(sizes, values)
        yield Figure(f"scale: growth, {what}, {sizes[0]} to {sizes[-1]} nodes", round(slope, 3), "exponent", 0)
    yield from needs(Fleet(), uvloop.run(measured_once(TRICKLE)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The work to schedule.

    Attributes:
        clusters: that share a Postgres and a NATS.
        nodes: of each.
        pods_per_node_hour: pods that begin on a node in an hour.
        events_per_pod: in a pod's life, observations of exporters among them.
        pod_us: CPU of a pod's life in a binder, and in a watcher (`scale.three_clusters`).
        pod_bytes: of a pod's life in Postgres, indexes included (README).
        services_mib: memory of a cluster's scheduler, binder, watcher and ingest.
    """

    clusters: int = 100
    nodes: int = 1_000
    pods_per_node_hour: float = 8.0
    events_per_pod: float = 11.0
    pod_us: float = 4_000.0
    pod_bytes: float = 16_000.0
    services_mib: float = 450.0


def needs(fleet: Fleet, trickle: Sustained) -> Iterator[Figure]:
    """Compute what a fleet needs, each event as dear as where pods come one by one and nothing is done in bulk."""
    pods = fleet.clusters * fleet.nodes * fleet.pods_per_node_hour / 3600
    events = pods * fleet.events_per_pod
    scheduler_us = trickle.scheduler_us / trickle.events_per_pod
    of = f"scale: {fleet.clusters} clusters x {fleet.nodes} nodes, {fleet.pods_per_node_hour:g} pods per node and hour"
    for what, value, unit in (
        ("pods that begin", pods, "pods/s"),
        ("events", events, "events/s"),
        ("Postgres", events * trickle.postgres_us / 1e6, "cores"),
        ("relays together", events * trickle.relay_us / 1e6, "cores"),
        ("schedulers together", events * scheduler_us / 1e6, "cores"),
        ("binders and watchers together", pods * fleet.pod_us / 1e6, "cores"),
        ("memory of the clusters' services", fleet.clusters * fleet.services_mib / 1024, "GiB"),
        ("log per day", pods * 86_400 * fleet.pod_bytes / 1e9, "GB"),
    ):
        yield Figure(f"{of}: {what}", round(value, 2), unit, 0)


if __name__ == "__main__":
    print(msgspec.json.encode(costs(int(sys.argv[1]))).decode())
