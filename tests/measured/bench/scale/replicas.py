"""Replicas of a shard in simulated time: placed pods per second, and the part of the decisions that lose.

All pods wait at the beginning. A cycle takes as long as its decision took of this process's CPU time, and meanwhile the
others decide and append (`tests/given/processes/replicas.py`). Every replica folds what all of them decided. That time
is measured and counted as if nothing else went on meanwhile; so the rates are those of replicas that have a core each.
"""

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from kai_scheduler.scheduler import look_at_new

from tests.given.cluster.factory import amounts, pod
from tests.given.processes.replicas import Replicas
from tests.given.work.workloads import OWNER, Workloads
from tests.measured.bench.figures import Figure
from tests.measured.bench.scale.shapes import shape

_ZONE = amounts(cpu=64, memory=512, gpu=4)
_GANG = 8
#: Of simulated time; everything is placed long before.
_LONG_S = 3600.0


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a measurement: waiting pods, for each number of nodes and of replicas.

    `overfull_nodes` are so few that they take 59 % of `overfull_pods`.
    """

    nodes: tuple[int, ...]
    replicas: tuple[int, ...]
    pods: int
    overfull_nodes: int
    overfull_pods: int


FULL = Size(nodes=(10_000, 30_000), replicas=(1, 2, 4, 8), pods=8_000, overfull_nodes=150, overfull_pods=2_040)


@dataclass
class FoldingReplicas(Replicas):
    """Replicas of which it is measured how long the others' decisions, and their own, take to fold."""

    folding_s: float = field(default=0.0)

    def end(self, name: str) -> int:
        began = time.process_time()
        placed = super().end(name)
        self.folding_s += time.process_time() - began
        return placed


@dataclass(frozen=True, slots=True)
class Placed:
    """The outcomes of the pods.

    Attributes:
        per_s: placed per second of simulated time, folding included.
        decided_per_s: the same without folding.
        conflict_rate: the part of the decided units that were stale, 0 to 1.
        waiting: pods that were not placed.
    """

    per_s: float
    decided_per_s: float
    conflict_rate: float
    waiting: int


def placed(*, nodes: int, pods: int, replicas: int, gangs: bool) -> Placed:
    """Let replicas place pods that all wait at the beginning."""
    cluster = Workloads()
    for number in range(nodes):
        cluster.add_node(f"n{number:05}", _ZONE, _ZONE, policy="restricted")
    for number in range(pods // _GANG if gangs else pods):
        spec = shape(number) | {"created_at": number}
        if gangs:
            cluster.gang(f"g{number:05}", _GANG, **spec)
        else:
            cluster.add_pod(pod(f"p{number:06}", owner=OWNER, **spec))
    made = FoldingReplicas(cluster)
    names = [f"r{number}" for number in range(replicas)]
    if replicas > 1:
        made.list(names)
    made.run(names if replicas > 1 else [""], until_s=_LONG_S)
    tally = made.tally
    folded_s = made.now_s + made.folding_s
    return Placed(tally.placed / folded_s, tally.placed / made.now_s, tally.conflict_rate, pods - tally.placed)


def figures(size: Size = FULL) -> Iterator[Figure]:
    look_at_new()
    for replicas in (count for count in size.replicas if count > 1):
        run = placed(nodes=size.overfull_nodes, pods=size.overfull_pods, replicas=replicas, gangs=False)
        what = (
            f"scale: {replicas} replicas, simulated time, {size.overfull_nodes} nodes for 59 % of the pods: conflicts"
        )
        yield Figure(what, round(run.conflict_rate * 100, 2), "% of units", 0)
    for nodes in size.nodes:
        for gangs in (False, True):
            for replicas in size.replicas:
                run = placed(nodes=nodes, pods=size.pods, replicas=replicas, gangs=gangs)
                kind = f"in gangs of {_GANG}" if gangs else "alone"
                what = f"scale: {replicas} replicas, simulated time, {nodes} nodes, {size.pods} pods {kind}"
                yield Figure(f"{what}: placed", round(run.per_s, 1), "pods/s", 0)
                yield Figure(f"{what}: placed, folding left out", round(run.decided_per_s, 1), "pods/s", 0)
                yield Figure(f"{what}: conflicts", round(run.conflict_rate * 100, 2), "% of units", 0)
                assert run.waiting == 0, what
                gc.collect()
