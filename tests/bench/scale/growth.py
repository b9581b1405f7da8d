"""What one more node, pod or event costs as a cluster grows, and what many clusters need: computed, not believed.

Each size is measured by a process of its own, `python -m tests.bench.scale.growth NODES`, so that its memory is its own.
A cost that does not depend on the size has the exponent 0: it is the slope of a straight line through the logarithms.
"""

import asyncio
import gc
import math
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from kai_scheduler.main import GC_THRESHOLDS
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.decide import decide
from kaicore.rules.state.snapshot import encode_state

from tests.bench.figures import Figure
from tests.factory import amounts, pod
from tests.workloads import OWNER, Workloads

ROOT = Path(__file__).parents[3]

SIZES = (100, 300, 1_000, 3_000, 10_000, 30_000)

_ZONE = amounts(cpu=64, memory=512, gpu=4)
_CONFIG = EngineConfig()
#: Pods that wait when a cycle is measured: those of a fifth of a second at 2,000 per second.
_WAITING = 400
_RUNS = 3


class Costs(msgspec.Struct, frozen=True):
    """What a size costs, CPU times in microseconds.

    Attributes:
        nodes: the size; each node runs a pod.
        decide_us: a cycle that places `_WAITING` pods, per pod.
        fold_us: folding an event, the mean over nodes that join, pods that come, are placed, bound and run.
        fold_decision_us: folding an event of a cycle on a cluster of the full size.
        save_us: saving a snapshot, per node.
        memory_bytes: of the process, per node, beyond that of an empty one.
        snapshot_bytes: per node.
    """

    nodes: int
    decide_us: float
    fold_us: float
    fold_decision_us: float
    save_us: float
    memory_bytes: float
    snapshot_bytes: float


#: What is drawn from each size, and how it is called.
_COSTS = (
    ("decide_us", "deciding", "us per pod"),
    ("fold_us", "folding a cluster's life", "us per event"),
    ("fold_decision_us", "folding a cycle's own decisions", "us per event"),
    ("save_us", "saving a snapshot", "us per node"),
    ("memory_bytes", "memory of the scheduler", "bytes per node"),
    ("snapshot_bytes", "snapshot", "bytes per node"),
)


def costs(count: int) -> Costs:
    """Measure one size, in this process."""
    gc.set_threshold(*GC_THRESHOLDS)
    empty = _resident_bytes()
    cluster = Workloads()
    for number in range(count):
        cluster.add_node(f"n{number:05}", _ZONE, _ZONE, policy="restricted")
    for number in range(count):
        cluster.add_pod(pod(f"run-{number:06}", owner=OWNER, cpu=2 + number % 8, memory=16, gpu=1, created_at=number))
    for decision in cluster.cycle().placements:
        cluster.see(cluster.state.pods[decision.uid].pod, node_name=decision.node, phase="Running")
    life = _cpu_us(lambda: ClusterState("test").fold_all(cluster.events)) / len(cluster.events)
    events, cluster.events = len(cluster.events), []
    gc.collect()
    memory = _resident_bytes() - empty
    deciding, folding = [], []
    for run in range(_RUNS):
        for number in range(_WAITING):
            one = {"cpu": 2 + number % 8, "memory": 16 + number % 5, "gpu": 1}
            cluster.add_pod(pod(f"wait-{run}-{number:05}", owner=OWNER, created_at=run, **one))
        began = time.process_time()
        proposal = decide(cluster.state, _CONFIG, shard="default", now=cluster.now, actor="bench")
        deciding.append((time.process_time() - began) * 1e6 / _WAITING)
        appended = sum(len(unit.events) for unit in proposal.units)
        folding.append(_cpu_us(lambda made=proposal.units: cluster.append(made)) / appended)
    saved: list[bytes] = []
    save = _cpu_us(lambda: saved.append(encode_state(cluster.state)))
    assert events
    return Costs(
        nodes=count,
        decide_us=statistics.median(deciding),
        fold_us=life,
        fold_decision_us=statistics.median(folding),
        save_us=save / count,
        memory_bytes=memory / count,
        snapshot_bytes=len(saved[0]) / count,
    )
