"""Placements of Kueue, KAI-Scheduler, Koordinator and Volcano, restated; differences on purpose say so."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from kaicore.rules.topology.placing import request as asking
from kaicore.rules.topology.placing.search import search

from tests.given.cluster.rooms import room_of, tree_of

BLOCK, RACK = 0, 1
REQUIRED_RACK, REQUIRED_BLOCK = asking.LevelConstraint(required=RACK), asking.LevelConstraint(required=BLOCK)
PREFERRED_RACK, ANYWHERE = asking.LevelConstraint(preferred=RACK), asking.LevelConstraint(unconstrained=True)


def counts_on(
    racks: Sequence[tuple[str, str, Sequence[int]]],
    pods: int,
    constraint: asking.LevelConstraint,
    strategy: asking.TopologyStrategy = asking.TopologyStrategy.BEST_FIT,
) -> list[int] | asking.Refused:
    paths = [(block, rack) for block, rack, nodes in racks for _ in nodes]
    free = [count for *_, nodes in racks for count in nodes]
    found = search(
        asking.SetRequest("set", tuple(range(pods)), constraint=constraint),
        tree_of(paths),
        room_of(free, pods),
        strategy,
    )
    if isinstance(found, asking.Refused):
        return found
    on = Counter(found.rows.values())
    return [on[row] for row in range(len(free))]


ONE_RACK = [("b", "r", (3, 2, 1))]
FULL = [("b", "r1", (3, 2, 1)), ("b", "r2", (4,))]
FOUR_SIZES = [("b", "r", (3, 3, 2, 1))]


@pytest.mark.parametrize(
    ("racks", "pods", "constraint", "expected"),
    [
        (ONE_RACK, 4, ANYWHERE, [1, 2, 1]),
        (ONE_RACK, 2, ANYWHERE, [0, 2, 0]),
        (FULL, 5, PREFERRED_RACK, [3, 2, 0, 0]),
        (FULL, 8, PREFERRED_RACK, [3, 0, 1, 4]),
        (FOUR_SIZES, 7, REQUIRED_RACK, [3, 3, 0, 1]),
        (FOUR_SIZES, 7, ANYWHERE, [3, 1, 2, 1]),
    ],
)
def test_pods_are_placed_as_by_kueue(
    racks: list[tuple[str, str, Sequence[int]]], pods: int, constraint: asking.LevelConstraint, expected: list[int]
) -> None:
    assert counts_on(racks, pods, constraint) == expected


def test_slices_without_another_level_go_to_the_tightest_block_as_by_kueue() -> None:
    racks = [("b1", "r1", (2,)), ("b1", "r2", (3,)), ("b2", "r1", (6,))]
    constraint = asking.LevelConstraint(slices=(asking.Slices(2, required=RACK),))

    assert counts_on(racks, 4, constraint) == [2, 2, 0]


@pytest.mark.parametrize(
    ("pods", "constraint", "expected"),
    [
        (12, asking.LevelConstraint(required=0, slices=(asking.Slices(2, required=1),)), [6, 0, 4, 0, 2]),
        (10, asking.LevelConstraint(unconstrained=True, slices=(asking.Slices(2, required=1),)), [0, 2, 4, 2, 2]),
    ],
)
def test_slices_on_nodes_fill_as_by_kueue(pods: int, constraint: asking.LevelConstraint, expected: list[int]) -> None:
    tree = tree_of([("r", f"h{number}") for number in range(5)])
    found = search(
        asking.SetRequest("set", tuple(range(pods)), constraint=constraint), tree, room_of((6, 5, 4, 3, 2), pods)
    )

    assert isinstance(found, asking.Placed)
    assert [Counter(found.rows.values())[row] for row in range(5)] == expected


def test_pods_of_a_slice_use_the_fewest_nodes_unlike_kueue() -> None:
    constraint = asking.LevelConstraint(required=BLOCK, slices=(asking.Slices(4, required=RACK),))

    assert counts_on(ONE_RACK, 4, constraint) == [3, 0, 1]


def test_a_required_zone_with_a_preferred_rack_is_filled_as_in_kais_documentation() -> None:
    racks = [("a", f"r{number}", (free,)) for number, free in enumerate((2, 1, 1, 1))]
    racks += [("b", f"r{number}", (2,)) for number in range(3)]
    constraint = asking.LevelConstraint(required=0, preferred=1)

    for strategy in (asking.TopologyStrategy.BEST_FIT, asking.TopologyStrategy.BIN_PACK):
        assert counts_on(racks, 3, constraint, strategy) == [2, 1, 0, 0, 0, 0, 0]


SPINES = [("s1", "b1"), ("s1", "b2"), ("s2", "b3"), ("s2", "b4")]
SPINE_PATHS = [SPINES[number] for number in (0, 1, 2, 3, 3, 2, 1, 0)]
"""node-1 to node-8: b1 has nodes 1 and 8, b2 2 and 7, b3 3 and 6, b4 4 and 5."""


@pytest.mark.parametrize(
    ("pods", "cpus", "constraint", "nodes"),
    [
        (4, 16, asking.LevelConstraint(preferred=1), [1, 8, 2, 7]),
        (2, 16, asking.LevelConstraint(required=1), [1, 8]),
        (2, 8, asking.LevelConstraint(required=1), [1, 1]),
    ],
)
def test_offered_slots_are_taken_as_by_koordinator(
    pods: int, cpus: int, constraint: asking.LevelConstraint, nodes: list[int]
) -> None:
    tree = tree_of(SPINE_PATHS, [f"node-{number}" for number in range(1, 9)])
    request = asking.SetRequest("set", tuple(range(pods)), constraint=constraint)
    found = search(request, tree, room_of([16] * 8, pods, cpus), asking.TopologyStrategy.OFFER_SLOTS)

    assert isinstance(found, asking.Placed)
    assert [found.rows[pod] + 1 for pod in range(pods)] == nodes


@pytest.mark.parametrize(
    ("free", "pods", "blocks"),
    [
        ((4, 1, 3, 2, 2), 4, {0: 4}),
        ((3, 1, 0, 3, 2), 5, {3: 3, 4: 2}),
        ((3, 0, 3, 2, 2), 5, {2: 3, 3: 2}),
        ((3, 3, 1, 3, 3), 6, {0: 3, 1: 3}),
        ((4, 3, 1, 3, 3), 6, {3: 3, 4: 3}),
        ((2, 2, 2, 0, 4), 5, {0: 2, 1: 2, 2: 1}),
    ],
    ids=["one-block", "side-by-side", "not-over-a-full-one", "the-first-of-equals", "least-left-over", "three"],
)
def test_blocks_are_neighbours_as_in_slurm(free: tuple[int, ...], pods: int, blocks: dict[int, int]) -> None:
    tree = tree_of([(f"b{number}",) for number in range(5)])
    request = asking.SetRequest("set", tuple(range(pods)), constraint=asking.LevelConstraint(preferred=0))
    placed = search(request, tree, room_of(free, pods), asking.TopologyStrategy.CONTIGUOUS)

    assert isinstance(placed, asking.Placed)
    assert Counter(placed.rows.values()) == blocks


def test_a_late_pod_comes_to_the_lowest_common_tier_as_by_volcano() -> None:
    tree = tree_of([("t2-0", "t1-0"), ("t2-0", "t1-1"), ("t2-1", "t1-2"), ("t2-1", "t1-3")])
    held = np.array([0, 0, 0, 1])
    request = asking.SetRequest("set", (0,), constraint=asking.LevelConstraint(preferred=1), held=held)
    found = search(request, tree, room_of((1, 1, 5, 0), 1), asking.TopologyStrategy.LOWEST_TIER)

    assert isinstance(found, asking.Placed)
    assert found.rows == {0: 2}


def test_a_thousand_pods_in_sub_groups_of_ten_fill_every_tier_as_in_volcanos_benchmark() -> None:
    tree = tree_of([(f"t{row // 10:02}",) for row in range(200)])
    children = tuple(
        asking.SetRequest(
            f"g{number:02}", tuple(range(number * 10, number * 10 + 10)), constraint=asking.LevelConstraint(required=0)
        )
        for number in range(20)
    )
    found = search(asking.SetRequest("job", children=children), tree, room_of([1] * 200, 200))

    assert isinstance(found, asking.Placed)
    assert sorted(found.rows.values()) == list(range(200))
    assert [found.domains[child.name] for child in children] == [(0, number) for number in range(20)]
