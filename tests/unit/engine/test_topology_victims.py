"""Victims for groups on network topologies: the cheapest domain as a whole, and nothing evicted that is not proven."""

from collections.abc import Sequence

import pytest
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.model.group import PodSet, SliceLayer
from kaicore.rules.model.node import HOSTNAME

from tests.given.cluster.racks import INDEX, Racks, asks


def run(cluster: Racks, result: CycleResult) -> None:
    cluster.run(*[cluster.state.pods[one.uid].pod for one in result.placements])


def started(cluster: Racks, result: CycleResult) -> dict[str, str]:
    """The nodes of nominated pods, by name, once their victims are gone: all of them start there."""
    nominated = cluster.nominated(result)
    cluster.go(result)
    placed = cluster.placed(cluster.cycle())
    assert {name: node for name, node in placed.items() if name in nominated} == nominated
    return placed


def packed(cluster: Racks, priorities: Sequence[int | None]) -> None:
    """A pod on every node, of these priorities; none where there is no priority."""
    for number, priority in enumerate(priorities):
        if priority is not None:
            on_node = {HOSTNAME: f"n{number}"}
            cluster.group(f"low{number}", 1, priority=priority, node_selector=on_node)
    run(cluster, cluster.cycle())


@pytest.mark.parametrize(
    ("priorities", "gone"),
    [
        pytest.param([1, 1, 0, 1, 0, 0, 1, 0], {"low4-0", "low5-0"}, id="the rack that costs least is emptied"),
        pytest.param([0, 0, 0, 0, 0, None, 0, 0], {"low4-0"}, id="a rack with room left needs fewer victims"),
        pytest.param([0, 9, 0, 9, 0, 9, 0, 9], set(), id="no rack would do"),
    ],
)
def test_pods_of_one_rack_make_way_if_that_is_enough(priorities: Sequence[int | None], gone: set[str]) -> None:
    cluster = Racks()
    packed(cluster, priorities)
    cluster.group("g", 2, asks("rack"), priority=5)
    result = cluster.cycle()
    assert cluster.evicted(result) == dict.fromkeys(gone, "Preempted")
    assert set(started(cluster, result).values()) == ({"n4", "n5"} if gone else set())


def test_sub_groups_get_racks_of_their_own_from_one_block() -> None:
    cluster = Racks()
    packed(cluster, [0, 0, 0, 9, 0, 0, 0, 0])
    sets = (PodSet(topology=asks("block")), *(PodSet(name, min_pods=2, topology=asks("rack")) for name in "ab"))
    cluster.group("g", sets=sets)
    for name in "ab":
        cluster.pods_of("g", range(2), subgroup=name, priority=5)
    result = cluster.cycle()
    assert set(cluster.evicted(result)) == {"low4-0", "low5-0", "low6-0", "low7-0"}
    placed = started(cluster, result)
    assert {placed["g-a-0"], placed["g-a-1"]} in ({"n4", "n5"}, {"n6", "n7"})
    assert {placed["g-b-0"], placed["g-b-1"]} in ({"n4", "n5"}, {"n6", "n7"})


def test_slices_share_racks_after_evictions_too() -> None:
    cluster = Racks()
    packed(cluster, [0, 9, 0, 0, 9, 0, 0, 0])
    cluster.group("g", 4, asks(slices=(SliceLayer(2, "rack"),)), rank=INDEX, priority=5)
    result = cluster.cycle()
    assert set(cluster.evicted(result)) == {"low2-0", "low3-0", "low6-0", "low7-0"}
    assert started(cluster, result) == {"g-0": "n2", "g-1": "n3", "g-2": "n6", "g-3": "n7"}


def test_pods_above_the_minimum_have_victims_where_their_group_runs_only() -> None:
    cluster = Racks(4)
    cluster.group("g", 1, asks("rack"), least=1, priority=5, node_selector={HOSTNAME: "n0"})
    run(cluster, cluster.cycle())
    packed(cluster, [None, 3, 0, 0])
    cluster.pods_of("g", [1], priority=5)
    result = cluster.cycle()
    assert cluster.evicted(result) == {"low1-0": "Preempted"}
    assert started(cluster, result) == {"g-1": "n1"}


def consolidated(free: dict[str, int]) -> CycleResult:
    """A cycle in which two pods of one GPU on n0 could make way for one of eight; other nodes have so much free."""
    cluster = Racks(6, gpu=8)
    fillers = {f"n{number}": 8 - free.get(f"n{number}", 0) for number in range(1, 6)}
    for name in fillers:
        cluster.group(f"all-{name}", 1, gpu=8, node_selector={HOSTNAME: name}, priority=9)
    run(cluster, cluster.cycle())
    cluster.group("pair", 2, asks(preferred="rack"), gpu=1)
    run(cluster, cluster.cycle())
    for name, gpu in fillers.items():
        cluster.delete_pod(cluster.state.pods[f"uid-all-{name}-0"].pod)
        cluster.group(f"part-{name}", 1, gpu=gpu, node_selector={HOSTNAME: name}, priority=9)
    run(cluster, cluster.cycle())
    assert {cluster.state.pods[f"uid-pair-{number}"].node for number in range(2)} == {"n0"}
    cluster.group("large", 1, gpu=8, node_selector={HOSTNAME: "n0"})
    return cluster.cycle()


@pytest.mark.parametrize(("free", "to"), [({"n3": 2}, "n3"), ({"n2": 1, "n3": 1}, ""), ({"n2": 1, "n4": 1}, "")])
def test_pods_that_share_a_node_are_moved_to_one_and_to_no_wider_domain(free: dict[str, int], to: str) -> None:
    result = consolidated(free)
    assert {one.name: one.fits_on for one in result.evictions} == ({"pair-0": to, "pair-1": to} if to else {})
