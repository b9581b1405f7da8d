"""The placement on topologies by itself: nodes in memory, no engine around it.

Beside each figure, in its name, what a peer needs for the same, or for it and all around it, as measured in 2026-08
(Kueue, on 2 cores) or published by the project.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from kaicore.rules.topology.placing.request import LevelConstraint, Placed, SetRequest, Slices, TopologyStrategy
from kaicore.rules.topology.placing.search import search

from tests.given.cluster.rooms import room_of, tree_of
from tests.measured.bench.figures import Figure, figure

RUNS = 11

_Paths = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class _Case:
    """The work to place: `free` of each node, pods that take `request` of it, in gangs or all at once."""

    name: str
    paths: _Paths
    free: int
    pods: int
    request: int = 1
    constraint: LevelConstraint | None = None
    children: tuple[SetRequest, ...] = ()
    strategy: TopologyStrategy = TopologyStrategy.BEST_FIT
    gang: int = 0


def _racks(nodes: int, racks_of: int = 16, blocks_of: int = 256) -> _Paths:
    return [(f"b{number // blocks_of:03}", f"r{number // racks_of:03}") for number in range(nodes)]


def _cases() -> Iterator[_Case]:
    rack, small = LevelConstraint(preferred=1), LevelConstraint(required=0)
    name = "2,304 pods of 8 CPUs, preferred rack, 2,500 nodes in racks of 16 and blocks of 256"
    yield _Case(f"{name} (Kueue: 26 to 38 ms)", _racks(2_500), 96, 2_304, 8, rack)
    yield _Case(
        f"{name}, balanced (Kueue: 26 to 38 ms)", _racks(2_500), 96, 2_304, 8, rack, (), TopologyStrategy.BALANCED
    )
    paths = [(f"z{row // 128}", f"b{row // 16:02}", f"r{row // 2:03}") for row in range(512)]
    name = "512 pods of 2 GPUs, preferred rack, 512 nodes in 4x8x8x2 (KAI: 48.7 s end to end)"
    yield _Case(name, paths, 8, 512, 2, LevelConstraint(preferred=2))
    name = "5,000 pods of 8 GPUs, preferred rack, 5,200 nodes (Volcano's use case: no figure)"
    yield _Case(name, _racks(5_200), 8, 5_000, 8, rack)
    children = tuple(
        SetRequest(f"g{number:03}", tuple(range(number * 10, number * 10 + 10)), constraint=small)
        for number in range(100)
    )
    name = "100 sub-groups of 10 pods, each within a HyperNode of tier 1, 1,000 nodes (Volcano: no figure)"
    yield _Case(name, [(f"t{row // 10:03}",) for row in range(1_000)], 1, 1_000, 1, None, children)
    slices = LevelConstraint(slices=(Slices(16, required=1, spares=2),))
    name = "280 segments of 16 of 18 nodes, 5,184 nodes (Slurm's topology/block: no figure)"
    yield _Case(name, _racks(5_184, 18, 288), 4, 4_480, 4, slices)
    for gangs, pods in ((250, 4), (3, 1_000)):
        name = f"{gangs} gangs of {pods:,}, required rack, 5,000 nodes in 50 racks (kube-scheduler: 562 to 975 pods/s)"
        yield _Case(name, [(f"r{row // 100:02}",) for row in range(5_000)], 4_000, gangs * pods, 100, small, gang=pods)


def _durations(case: _Case) -> list[float]:
    """Milliseconds of each run, all of them on the same nodes; the tree's order is made once, as in a cycle."""
    tree, room = tree_of(case.paths), room_of([case.free] * len(case.paths), case.pods, case.request)
    assert len(tree.ordered.rows) == len(case.paths)
    pods = () if case.children else tuple(range(case.pods))
    request = SetRequest("set", pods, case.children, case.constraint)
    durations = []
    for _ in range(RUNS):
        began = time.perf_counter()
        answer = search(request, tree, room, case.strategy)
        durations.append((time.perf_counter() - began) * 1e3)
        assert isinstance(answer, Placed), answer
        room.rollback(0)
    return durations


def _rates(case: _Case) -> list[float]:
    """Pods per second of each run, gang after gang on what the ones before have left."""
    tree, room = tree_of(case.paths), room_of([case.free] * len(case.paths), case.pods, case.request)
    assert len(tree.ordered.rows) == len(case.paths)
    requests = [
        SetRequest("gang", tuple(range(first, first + case.gang)), constraint=case.constraint)
        for first in range(0, case.pods, case.gang)
    ]
    rates = []
    for _ in range(RUNS):
        began = time.perf_counter()
        for request in requests:
            answer = search(request, tree, room, case.strategy)
            assert isinstance(answer, Placed), answer
        rates.append(case.pods / (time.perf_counter() - began))
        room.rollback(0)
    return rates


def _swaps() -> list[float]:
    """Milliseconds of each run to replace 20 pods of a job of 496, each in the rack of its own segment of 16."""
    paths = _racks(5_184, 18, 288)
    rows = {rank: rank // 16 * 18 + rank % 16 for rank in range(496)}
    failed = tuple(range(0, 480, 24))
    there = {rank: row for rank, row in rows.items() if rank not in failed}
    taken, held = set(rows.values()), np.zeros(len(paths), np.int64)
    held[list(there.values())] = 1
    tree, room = tree_of(paths), room_of([int(row not in taken) for row in range(len(paths))], len(failed))
    assert len(tree.ordered.rows) == len(paths)
    constraint = LevelConstraint(slices=(Slices(16, required=1),))
    request = SetRequest("job", tuple(range(len(failed))), (), constraint, held, failed, there)
    found = []
    for _ in range(RUNS):
        began = time.perf_counter()
        answer = search(request, tree, room)
        found.append((time.perf_counter() - began) * 1e3)
        assert isinstance(answer, Placed), answer
        assert all(answer.rows[pod] // 18 == rows[rank] // 18 for pod, rank in enumerate(failed))
        room.rollback(0)
    return found


def figures() -> Iterator[Figure]:
    yield figure("topology search: 20 failed nodes of a job of 496 in segments of 16, 5,184 nodes", _swaps(), "ms")
    for case in _cases():
        if case.gang:
            yield figure(f"topology search: {case.name}", _rates(case), "pods/s")
        else:
            yield figure(f"topology search: {case.name}", _durations(case), "ms")
