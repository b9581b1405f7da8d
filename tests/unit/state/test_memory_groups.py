"""Memory of pods with groups of zones that exclude each other: what was drawn in one order is given back in any."""

from itertools import permutations

import pytest
from kaicore.rules.events import payloads
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, SpanAmount
from kaicore.rules.model.pod import Pod
from kaicore.rules.numa.kubelet.masks import mask_table
from kaicore.rules.numa.kubelet.memory_manager import MemoryZones, open_masks

from tests.given.cluster.factory import GI, Cluster, amounts, pod
from tests.given.logs.invariants import differences
from tests.given.work.workloads import Workloads

#: Zones and GiB of pods that a kubelet would not hold together.
HELD = {"a": ((0,), 1), "b": ((0, 1), 60), "c": ((1,), 2), "d": ((0, 1), 3)}


def place(cluster: Cluster, name: str) -> None:
    one = cluster.add_pod(pod(name, cpu=1, memory=HELD[name][1]))
    zones, size = HELD[name]
    block = SpanAmount(tuple(f"node-{zone}" for zone in zones), {"memory": size * GI})
    placement = Placement(Provenance.PREDICTED, (ContainerPlacement("main", blocks=(block,)),))
    cluster.record(f"pod/{one.uid}", payloads.PodPlaced(one.uid, "default", name, "n1", "c/1", "", placement=placement))


def fail_to_bind(cluster: Cluster, name: str) -> None:
    cluster.record(f"pod/uid-{name}", payloads.BindFailed(f"uid-{name}", "default", name, "n1", 500, "InternalError"))


def memory(cluster: Cluster) -> tuple[list[int], list[int], list[int]]:
    """GiB used, blocks and group of each zone."""
    zones = cluster.state.columns.zones
    row = cluster.state.columns.rows["n1"]
    used = zones.used[row, :2, zones.resources["memory"]] // GI
    return used.tolist(), zones.assignments[row, :2].tolist(), zones.cells[row, :2].tolist()


def node() -> Workloads:
    return Workloads().add_node("n1", amounts(cpu=16, memory=59), amounts(cpu=16, memory=43), policy="none")


def with_small_pod() -> tuple[Workloads, Pod]:
    cluster = node()
    small = cluster.add_pod(pod("small", cpu=1, memory=1))
    cluster.cycle()
    cluster.run(small)
    return cluster, small


@pytest.mark.parametrize("order", list(permutations(HELD)))
def test_pods_of_excluding_groups_that_end_in_any_order_leave_what_the_others_draw_alone(
    order: tuple[str, ...],
) -> None:
    cluster = node()
    for name in HELD:
        place(cluster, name)
    for number, name in enumerate(order):
        fail_to_bind(cluster, name)
        assert differences(cluster.state) == []
        alone = node()
        for other in sorted(order[number + 1 :]):
            place(alone, other)
        if {"a", "c"} & set(order[number:]) and {"b", "d"} & set(order[number:]):
            assert memory(cluster) == memory(alone)
    assert memory(cluster) == ([0, 0], [0, 0], [0, 0])


def test_pod_that_is_nominated_for_a_group_of_zones_waits_until_their_own_memory_is_free() -> None:
    cluster, small = with_small_pod()
    assert memory(cluster) == ([1, 0], [1, 0], [1, 0])
    cluster.add_pod(pod("wide", cpu=1, memory=60, priority=1))
    cluster.cycle()
    assert cluster.state.pods["uid-wide"].nomination is not None
    assert cluster.cycle().placements == ()
    cluster.delete_pod(small)
    cluster.cycle()
    assert memory(cluster) == ([59, 1], [1, 1], [3, 3])


def test_a_group_of_zones_that_is_reserved_over_a_leaving_pod_is_no_others_before_that_pod_is_gone() -> None:
    """A kubelet would give `late` the second zone alone, and then `wide` could not have both."""
    cluster, small = with_small_pod()
    cluster.add_pod(pod("wide", cpu=1, memory=60, priority=1))
    cluster.cycle()
    cluster.add_pod(pod("late", cpu=1, memory=30, priority=1, created_at=1))
    assert cluster.cycle().placements == ()
    cluster.delete_pod(small)
    masks = {
        one.name: one.placement.containers[0].blocks[0].zones for one in cluster.cycle().placements if one.placement
    }
    assert masks == {"wide": ("node-0", "node-1"), "late": ("node-0", "node-1")}
    assert memory(cluster) == ([59, 31], [2, 2], [3, 3])


def test_a_zone_that_is_held_in_two_ways_serves_no_request_until_the_first_pods_are_gone() -> None:
    zones = MemoryZones({"memory": [8, 8]}, {"memory": [8, 8]}, [0, 0], [0, 0])
    table = mask_table(2)

    def wide_or_alone() -> list[int]:
        return [mask for mask in (1, 2, 3) if open_masks(zones.cells, table) >> table.places[mask] & 1]

    zones.draw("memory", 1, 2)
    zones.draw("memory", 1, 2)
    zones.draw("memory", 3, 6)
    assert wide_or_alone() == []
    zones.give_back("memory", 1, 2)
    assert wide_or_alone() == []
    zones.give_back("memory", 1, 2)
    assert wide_or_alone() == [3]
    zones.give_back("memory", 3, 6)
    assert (zones.free, zones.assignments, zones.cells) == ({"memory": [8, 8]}, [0, 0], [0, 0])
