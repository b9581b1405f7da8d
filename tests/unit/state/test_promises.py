"""A log's account of its decisions: promises made twice, and over-use by facts."""

import msgspec
from kaicore.rules.events import payloads
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.promises import OverCommitOrigin, PromiseCheck, PromiseReport

from tests.given.cluster.factory import Cluster, amounts, on_zone, pod, topology


def cluster_of(*names: str, cpu: int = 3) -> Cluster:
    """One node of two zones of four CPUs, and pods on it."""
    cluster = Cluster().add_node("n1", amounts(cpu=4, memory=32), amounts(cpu=4, memory=32))
    for name in names:
        cluster.add_pod(pod(name, cpu=cpu, memory=1))
        cluster.cycle()
        cluster.record(f"pod/uid-{name}", payloads.PodBound(f"uid-{name}", "default", name, "n1"))
    return cluster


def place(cluster: Cluster, name: str, zone: str, cpu: int) -> int:
    """Record a decision that no cycle took; return its position."""
    held = (ZoneAmount(zone, amounts(cpu=cpu)),)
    planned = Placement(Provenance.PREDICTED, (ContainerPlacement("main", (zone,), held),))
    placed = payloads.PodPlaced(f"uid-{name}", "default", name, "n1", "x/1", "class", planned)
    return cluster.record(f"pod/uid-{name}", placed, subject=f"default/{name}").position


def report(cluster: Cluster) -> PromiseReport:
    check = PromiseCheck(ClusterState("test"))
    for event in cluster:
        check.take(event)
    return check.report


def test_decisions_that_keep_to_the_account_are_in_order() -> None:
    in_order = report(cluster_of("a", "b"))
    assert in_order.ok
    assert (in_order.decisions, in_order.counts) == (2, {})


def test_a_zone_that_the_log_knew_to_be_full_is_named_with_all_that_it_takes_to_look_it_up() -> None:
    cluster = cluster_of("a")
    cluster.add_pod(pod("late", cpu=3, memory=1))
    position = place(cluster, "late", "node-0", 3)
    full_zone = report(cluster)
    (twice,) = full_zone.twice
    assert not full_zone.ok
    assert (twice.position, twice.pod, twice.node, twice.zone, twice.resource, twice.used, twice.allocatable) == (
        position,
        "default/late",
        "n1",
        "node-0",
        "cpu",
        6000,
        4000,
    )
    assert str(twice) == f"position {position}: pod default/late: node n1: zone node-0: cpu: 6 of 4 held (promised)"


def test_a_whole_node_is_promised_twice_too() -> None:
    cluster = cluster_of("a", "b")
    cluster.add_pod(pod("late", cpu=3, memory=1))
    place(cluster, "late", "node-9", 3)
    (twice,) = report(cluster).twice
    assert (twice.zone, twice.resource, twice.used, twice.allocatable) == ("", "cpu", 9000, 8000)


def test_what_a_kubelet_did_is_told_apart_and_a_decision_beside_it_is_in_order() -> None:
    """It freed a zone before the API reported it: that could not be known; the pod after it takes the other zone."""
    cluster = cluster_of("a", "b")
    seen = on_zone("node-0", amounts(cpu=3))
    cluster.report(pod("a"), seen)
    position = cluster.report(pod("b"), seen).position
    cluster.add_pod(pod("c", cpu=2, memory=1))
    assert len(cluster.cycle().placements) == 1
    told_apart = report(cluster)
    assert told_apart.ok
    (brought,) = told_apart.brought
    assert (brought.origin, brought.position, brought.pod, brought.zone) == (
        OverCommitOrigin.OBSERVED,
        position,
        "default/b",
        "node-0",
    )


def test_a_decision_for_a_zone_that_was_over_already_is_none_to_excuse() -> None:
    cluster = cluster_of("a", "b")
    cluster.report(pod("b"), on_zone("node-0", amounts(cpu=3)))
    cluster.add_pod(pod("late", cpu=1, memory=1))
    place(cluster, "late", "node-0", 1)
    over_already = report(cluster)
    assert [(item.pod, item.zone) for item in over_already.twice] == [("default/late", "node-0")]
    assert over_already.counts == {OverCommitOrigin.OBSERVED: 1, OverCommitOrigin.PROMISED: 1}


def test_pods_of_others_and_nodes_that_shrink_are_told_apart() -> None:
    cluster = cluster_of("a", "b")
    cluster.add_pod(pod("foreign", cpu=4, scheduler_name="other", node_name="n1"))
    smaller = topology("n1", amounts(cpu=2, memory=32), amounts(cpu=4, memory=32))
    cluster.record("nrt/n1", payloads.TopologyObserved(smaller))
    told_apart = report(cluster)
    assert told_apart.ok
    assert [(item.origin, item.pod, item.zone) for item in told_apart.brought] == [
        (OverCommitOrigin.FOREIGN, "default/foreign", ""),
        (OverCommitOrigin.SHRUNK, "", "node-0"),
    ]


def test_what_was_decided_without_looking_at_zones_is_not_held_to_them() -> None:
    cluster = cluster_of("a")
    cluster.add_pod(pod("late", cpu=3, memory=1))
    cluster.cycle(msgspec.structs.replace(cluster.state.config(), reconstruct_available=False))
    cluster.add_pod(pod("later", cpu=2, memory=1))
    place(cluster, "later", "node-0", 2)
    assert report(cluster).ok
