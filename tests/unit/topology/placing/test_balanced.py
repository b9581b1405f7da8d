"""Kueue's balanced placement: the examples of KEP-2724, restated."""

from collections import Counter
from collections.abc import Sequence

import pytest
from kaicore.rules.topology.placing.request import LevelConstraint, Placed, SetRequest, Slices, TopologyStrategy
from kaicore.rules.topology.placing.search import search

from tests.given.cluster.rooms import room_of, tree_of

BLOCK, RACK = 0, 1


def balanced(blocks: Sequence[Sequence[int]], pods: int, constraint: LevelConstraint) -> list[list[int]]:
    """Pods in each rack of each block; a rack has one node."""
    paths = [(f"b{block}", f"r{rack}") for block, racks in enumerate(blocks) for rack in range(len(racks))]
    free = [room for racks in blocks for room in racks]
    request = SetRequest("set", tuple(range(pods)), constraint=constraint)
    found = search(request, tree_of(paths), room_of(free, pods), TopologyStrategy.BALANCED)
    assert isinstance(found, Placed)
    on = Counter(paths[row] for row in found.rows.values())
    return [[on[f"b{block}", f"r{rack}"] for rack in range(len(racks))] for block, racks in enumerate(blocks)]


@pytest.mark.parametrize(
    ("blocks", "pods", "expected"),
    [
        ([[15], [15]], 25, [[13], [12]]),
        ([[15, 13, 10]], 23, [[12, 11, 0]]),
        ([[20, 10], [15, 15]], 22, [[0, 0], [11, 11]]),
        ([[20, 10], [15, 15]], 20, [[20, 0], [0, 0]]),
        ([[10, 5], [5, 5, 5]], 15, [[0, 0], [5, 5, 5]]),
    ],
)
def test_pods_are_in_equal_parts_on_the_fewest_racks(
    blocks: list[list[int]], pods: int, expected: list[list[int]]
) -> None:
    assert balanced(blocks, pods, LevelConstraint(preferred=BLOCK)) == expected


def test_slices_are_counted_whole() -> None:
    constraint = LevelConstraint(preferred=BLOCK, slices=(Slices(5, required=RACK),))

    assert balanced([[20, 18]], 25, constraint) == [[15, 10]]


def test_a_required_level_is_filled_as_by_best_fit() -> None:
    assert balanced([[15, 13, 10]], 23, LevelConstraint(required=BLOCK)) == [[15, 0, 8]]


def test_without_a_balance_pods_are_placed_as_by_best_fit() -> None:
    assert balanced([[3], [3]], 5, LevelConstraint(preferred=RACK)) == [[3], [2]]
