"""The search: what is held, ranks, slices, sets in sets, spares, what is outside, and why something is refused."""

from collections.abc import Sequence

import numpy as np
import pytest
from kaicore.rules.topology.placing.request import (
    LevelConstraint,
    Placed,
    Refused,
    SetRequest,
    Slices,
    TopologyStrategy,
)
from kaicore.rules.topology.placing.search import search

from tests.given.cluster.rooms import MemoryRoom, room_of, tree_of

BLOCK, RACK = 0, 1
BLOCKS = [("b1", "r1"), ("b1", "r1"), ("b1", "r2"), ("b1", "r2"), ("b2", "r3"), ("b2", "r3")]
REQUIRED_RACK, PREFERRED_RACK = LevelConstraint(required=RACK), LevelConstraint(preferred=RACK)


def rows_of(found: Placed | Refused) -> list[int]:
    assert isinstance(found, Placed), found
    return [found.rows[pod] for pod in sorted(found.rows)]


def placed(
    request: SetRequest,
    free: Sequence[int],
    paths: Sequence[Sequence[str]] = BLOCKS,
    strategy: TopologyStrategy = TopologyStrategy.BEST_FIT,
    pods: int = 32,
) -> list[int]:
    return rows_of(search(request, tree_of(paths), room_of(free, pods), strategy))


def test_a_late_pod_of_a_required_domain_goes_where_the_others_are() -> None:
    request = SetRequest("set", (0,), constraint=REQUIRED_RACK, held=np.array([0, 0, 0, 1, 0, 0]))

    assert placed(request, [5, 5, 1, 0, 1, 1]) == [2]


def test_a_late_pod_of_a_full_required_domain_is_refused() -> None:
    request = SetRequest("set", (0,), constraint=REQUIRED_RACK, held=np.array([0, 0, 0, 1, 0, 0]))
    found = search(request, tree_of(BLOCKS), room_of([5, 5, 0, 0, 5, 5], 1))

    assert found == Refused("set", RACK, wanted=1, fitting=0, domain=1, tried=0, domains=3, joined=True, pods=1)


def test_pods_that_run_in_two_required_domains_attract_none_there() -> None:
    request = SetRequest("set", (0,), constraint=REQUIRED_RACK, held=np.array([1, 0, 0, 1, 0, 0]))
    found = search(request, tree_of(BLOCKS), room_of([5] * 6, 1))

    assert found == Refused("set", RACK, wanted=1, fitting=0, domain=-1, tried=0, domains=3, pods=1)


@pytest.mark.parametrize(
    ("free", "row"),
    [([9, 9, 9, 1, 1, 1], 3), ([9, 2, 0, 0, 1, 1], 1), ([0, 0, 0, 0, 1, 1], 4)],
    ids=["same rack", "same block", "farther"],
)
def test_a_late_pod_of_a_preferred_domain_goes_to_the_nearest_that_takes_it(free: list[int], row: int) -> None:
    request = SetRequest("set", (0,), constraint=PREFERRED_RACK, held=np.array([0, 0, 1, 1, 0, 0]))

    assert placed(request, free) == [row]


def test_pods_take_places_in_order_of_domain_and_node_name() -> None:
    paths = [("b", "r2"), ("b", "r1"), ("b", "r1")]
    tree = tree_of(paths, ["n3", "n2", "n1"])
    found = search(SetRequest("set", (2, 0, 1), constraint=LevelConstraint(required=BLOCK)), tree, room_of([1] * 3, 3))

    assert isinstance(found, Placed)
    assert [found.rows[pod] for pod in (2, 0, 1)] == [2, 1, 0]
    assert found.domains == {"set": (BLOCK, 0)}


def test_slices_of_several_layers_stay_together_at_each() -> None:
    constraint = LevelConstraint(slices=(Slices(4, required=BLOCK), Slices(2, required=RACK)))
    rows = placed(SetRequest("set", tuple(range(8)), constraint=constraint), [1, 2, 3, 2, 3, 2])

    blocks, racks = [BLOCKS[row][0] for row in rows], [BLOCKS[row] for row in rows]
    assert [len(set(blocks[first : first + 4])) for first in (0, 4)] == [1, 1]
    assert [len(set(racks[first : first + 2])) for first in (0, 2, 4, 6)] == [1, 1, 1, 1]


def test_preferred_slices_are_in_one_rack_where_racks_have_room_and_the_rest_in_one_block() -> None:
    constraint = LevelConstraint(required=BLOCK, slices=(Slices(2, required=BLOCK, preferred=RACK),))
    rows = placed(SetRequest("set", tuple(range(4)), constraint=constraint), [1, 2, 1, 0, 2, 1])

    assert [BLOCKS[row] for row in rows] == [("b1", "r1"), ("b1", "r1"), ("b1", "r1"), ("b1", "r2")]


def test_a_last_slice_may_be_smaller() -> None:
    constraint = LevelConstraint(slices=(Slices(2, required=RACK),))
    rows = placed(SetRequest("set", tuple(range(5)), constraint=constraint), [1, 1, 1, 0, 1, 1])

    assert [BLOCKS[row][1] for row in rows] == ["r1", "r1", "r3", "r3", "r2"]


def test_a_broken_slice_is_completed_in_its_own_domain() -> None:
    constraint = LevelConstraint(slices=(Slices(2, required=RACK),))
    held = np.array([1, 1, 0, 0, 1, 0])
    request = SetRequest("set", (0,), constraint=constraint, held=held, ranks=(3,), held_ranks={0: 0, 1: 1, 2: 4})

    assert placed(request, [1, 1, 9, 9, 0, 5]) == [5]


def test_a_broken_slice_without_room_in_its_domain_is_refused() -> None:
    constraint = LevelConstraint(slices=(Slices(2, required=RACK),))
    request = SetRequest("set", (0,), constraint=constraint, ranks=(3,), held_ranks={0: 0, 1: 1, 2: 4})
    found = search(request, tree_of(BLOCKS), room_of([1, 1, 9, 9, 0, 0], 1))

    assert isinstance(found, Refused)
    assert (found.set_name, found.wanted, found.fitting) == ("set", 1, 0)


def test_segments_leave_their_spares_free() -> None:
    paths = [("b", f"r{number // 18}") for number in range(54)]
    constraint = LevelConstraint(slices=(Slices(16, required=RACK, spares=2),))
    request = SetRequest("set", tuple(range(32)), constraint=constraint)
    rows = placed(request, [1] * 18 + [1] * 17 + [0] + [1] * 18, paths)

    assert [paths[row][1] for row in rows] == ["r0"] * 16 + ["r2"] * 16


def test_a_spare_can_stand_in_for_any_node_of_its_segment() -> None:
    paths = [("b", "r")] * 3
    constraint = LevelConstraint(slices=(Slices(2, required=RACK, spares=1),))

    assert placed(SetRequest("set", (0, 1), constraint=constraint), [1, 2, 1], paths) == [0, 2]


def exclusive(name: str, first: int, count: int, held: Sequence[int] | None = None) -> SetRequest:
    constraint = LevelConstraint(required=RACK, exclusive=True)
    return SetRequest(
        name,
        tuple(range(first, first + count)),
        constraint=constraint,
        held=None if held is None else np.array(held),
    )


def test_exclusive_sets_share_no_domain_with_one_another_or_with_others() -> None:
    children = (exclusive("a", 0, 2), exclusive("b", 2, 1), SetRequest("loose", (3,)))
    rows = placed(SetRequest("all", children=children, constraint=PREFERRED_RACK), [5] * 6)

    racks = [BLOCKS[row][1] for row in rows]
    assert racks[0] == racks[1]
    assert len(set(racks[1:])) == 3


def test_an_exclusive_set_keeps_out_of_domains_where_others_run() -> None:
    others, own = np.array([1, 0, 0, 0, 0, 0]), [0, 0, 1, 0, 0, 0]
    children = (exclusive("a", 0, 1), exclusive("b", 1, 1, own))
    held = others + np.array(own)

    assert placed(SetRequest("all", children=children, held=held), [5, 5, 5, 5, 1, 1]) == [4, 2]


def test_sets_with_another_order_than_the_greedy_one_are_found() -> None:
    """The largest set must not take the block that only it and another one fit into together."""
    paths = [("b1", "r1"), ("b1", "r1"), ("b2", "r2"), ("b2", "r2"), ("b2", "r2")]
    children = tuple(
        SetRequest(name, tuple(range(first, first + count)), constraint=LevelConstraint(required=BLOCK))
        for name, first, count in (("a", 0, 2), ("b", 2, 2), ("c", 4, 1))
    )
    rows = placed(SetRequest("all", children=children), [1] * 5, paths)

    assert len(set(rows)) == 5


def test_a_leader_takes_the_node_that_leaves_room_for_its_workers() -> None:
    # CPUs and GPUs: the leader wants 2 CPUs, a worker 1 CPU and 1 GPU; only the last node has both to spare.
    room = MemoryRoom(np.array([[2, 2], [2, 2], [4, 2]]), np.array([[2, 0], [1, 1]]), [0] + [1] * 6)
    tree = tree_of([("b", "r")] * 3)
    rows = rows_of(search(SetRequest("set", tuple(range(7)), constraint=REQUIRED_RACK), tree, room))

    assert rows[0] == 2


def test_a_preference_goes_beyond_the_topology_and_a_requirement_does_not() -> None:
    paths = [("b", "r"), ("b",), ()]
    free = [0, 0, 3]

    assert placed(SetRequest("set", (0, 1), constraint=PREFERRED_RACK), free, paths) == [2, 2]
    for constraint in (REQUIRED_RACK, LevelConstraint(required=BLOCK), LevelConstraint(unconstrained=True)):
        found = search(SetRequest("set", (0,), constraint=constraint), tree_of(paths), room_of(free, 1))
        assert isinstance(found, Refused)


def test_a_node_without_a_rack_counts_for_its_block_alone() -> None:
    paths = [("b", "r"), ("b",)]

    assert placed(SetRequest("set", (0, 1), constraint=LevelConstraint(required=BLOCK)), [1, 1], paths) == [0, 1]
    found = search(SetRequest("set", (0, 1), constraint=REQUIRED_RACK), tree_of(paths), room_of([1, 5], 2))
    assert found == Refused("set", RACK, wanted=2, fitting=1, domain=0, tried=0, domains=1, pods=2)


def test_nodes_that_take_fewer_pods_than_they_count_are_worked_around() -> None:
    room = room_of([4, 4, 2, 2, 4, 4], 4, shy=frozenset({2}))
    found = search(SetRequest("set", tuple(range(4)), constraint=REQUIRED_RACK), tree_of(BLOCKS), room)

    assert rows_of(found) == [4, 4, 4, 4], "of the racks that are left, the one in the block with the least room"


@pytest.mark.parametrize(
    ("wide", "rows"),
    [(LevelConstraint(required=BLOCK), [0, 0, 2]), (LevelConstraint(required=BLOCK, preferred=RACK), [2, 2, 3])],
    ids=["before the room of racks that nothing asks for", "after that of racks that are preferred"],
)
def test_preferences_come_before_packing_below_what_is_asked_for(wide: LevelConstraint, rows: list[int]) -> None:
    room = room_of([2, 0, 2, 1, 0, 0], 3, preferences={0: [9, 0, 5, 0, 0, 0]})
    assert rows_of(search(SetRequest("set", (0, 1, 2), constraint=wide), tree_of(BLOCKS), room)) == rows


def test_an_exact_fit_of_pods_of_two_classes_comes_before_a_larger_domain() -> None:
    """A small pod fills a third of the first rack, and a large one counts as all of it, for two find no room."""
    room = MemoryRoom(np.array([3, 0, 4, 0]), np.array([1, 2]), (0, 1))
    paths = [("b1", "r1"), ("b1", "r1"), ("b1", "r2"), ("b1", "r2")]
    assert rows_of(search(SetRequest("set", (0, 1), constraint=REQUIRED_RACK), tree_of(paths), room)) == [0, 0]


def test_a_domain_that_two_classes_overfill_comes_last() -> None:
    room = MemoryRoom(np.array([2, 0, 4, 0]), np.array([1, 2]), (0, 1))
    paths = [("b1", "r1"), ("b1", "r1"), ("b1", "r2"), ("b1", "r2")]
    assert rows_of(search(SetRequest("set", (0, 1), constraint=REQUIRED_RACK), tree_of(paths), room)) == [2, 2]


@pytest.mark.parametrize(
    ("strategy", "row"),
    [(TopologyStrategy.BEST_FIT, 4), (TopologyStrategy.OFFER_SLOTS, 4), (TopologyStrategy.SPREAD, 0)],
)
def test_of_equal_racks_the_one_in_the_block_with_less_room_comes_first(strategy: TopologyStrategy, row: int) -> None:
    request = SetRequest("set", (0, 1), constraint=REQUIRED_RACK)
    assert set(placed(request, [2, 0, 2, 0, 2, 0], strategy=strategy)) == {row}


def test_a_refusal_tells_of_the_trial_that_came_farthest() -> None:
    room = room_of([2, 2, 3, 1, 1, 1], 4, shy=frozenset({0, 3}))
    before = room.free.copy()
    found = search(SetRequest("set", tuple(range(4)), constraint=REQUIRED_RACK), tree_of(BLOCKS), room)

    assert isinstance(found, Refused)
    assert found == Refused("set", RACK, wanted=4, fitting=3, domain=1, tried=2, domains=3, pods=4)
    assert (room.free == before).all()


def test_a_refusal_of_two_classes_tells_how_many_pods_fit_beside_each_other() -> None:
    room = MemoryRoom(np.array([4, 4]), np.array([2, 1]), [0] + [1] * 7)
    request = SetRequest("set", tuple(range(8)), constraint=REQUIRED_RACK)
    found = search(request, tree_of([("b", "r")] * 2), room)

    assert found == Refused("set", RACK, wanted=8, fitting=7, domain=0, tried=1, domains=1, pods=8)


def test_a_refusal_names_the_set_in_a_set_that_found_no_place() -> None:
    children = (
        SetRequest("fits", (0,), constraint=REQUIRED_RACK),
        SetRequest("large", tuple(range(1, 5)), constraint=REQUIRED_RACK),
    )
    found = search(SetRequest("all", children=children), tree_of(BLOCKS), room_of([1] * 6, 5))

    assert isinstance(found, Refused)
    assert (found.set_name, found.level, found.wanted, found.fitting) == ("large", RACK, 4, 2)


def test_spreading_evens_pods_out_over_the_nodes_of_the_emptiest_rack() -> None:
    assert placed(
        SetRequest("set", tuple(range(4)), constraint=REQUIRED_RACK),
        [4, 4, 5, 5, 3, 3],
        strategy=TopologyStrategy.SPREAD,
    ) == [2, 2, 3, 3]


def test_no_pods_are_placed_at_once() -> None:
    children = (SetRequest("none", ()), SetRequest("one", (0,), constraint=REQUIRED_RACK))

    assert search(SetRequest("set", ()), tree_of([]), room_of([], 0)) == Placed({}, {})
    assert placed(SetRequest("all", children=children), [0, 0, 1, 0, 0, 0]) == [2]


def test_without_nodes_pods_are_refused() -> None:
    found = search(SetRequest("set", (0,), constraint=REQUIRED_RACK), tree_of([], least_levels=2), room_of([], 1))

    assert found == Refused("set", RACK, wanted=1, fitting=0, domain=-1, tried=0, domains=0, pods=1)
