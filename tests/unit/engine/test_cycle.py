"""The decisions of a cycle, and the reasons that it gives."""

import pytest
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons.numa import NumaZoneShort
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.node import Taint
from kaicore.rules.model.pod import QosClass, Toleration
from kaicore.rules.model.selector import Requirement

from tests.given.cluster.factory import GPU, Cluster, amounts, node, pod


def reasons_of(cluster: Cluster, config: EngineConfig | None = None) -> dict[str, Reason]:
    """Run a cycle that must leave one class pending; its reasons by code."""
    (pending,) = cluster.cycle(config).pending
    return {reason.code: reason for reason in pending.reasons}


def test_one_cycle_never_over_commits_a_zone() -> None:
    """3 + 3 + 2 cores on 2 zones of 4 fit the node, but exactly two are placed."""
    cluster = Cluster().add_node("n1", amounts(cpu=4), amounts(cpu=4))
    for name, cpu in (("a", 3), ("b", 3), ("c", 2)):
        cluster.add_pod(pod(name, cpu=cpu))
    result = cluster.cycle()
    assert [decision.name for decision in result.placements] == ["a", "b"]
    reason = result.pending[0].reasons[0]
    assert reason == NumaZoneShort(
        nodes=1,
        example="n1",
        resource="cpu",
        zone="node-0",
        requested=2000,
        free=1000,
        explanation="no zone has enough free",
        rejection="TopologyAffinityError",
    )
    texts = "1 node with no zone that fits: cpu: 2 needed, 1 free on zone node-0 (such as n1: TopologyAffinityError)"
    assert str(reason) == texts
    assert [decision.name for decision in cluster.cycle(EngineConfig(numa=False)).placements] == ["c"]


def test_of_nodes_that_are_short_the_one_that_comes_closest_is_named() -> None:
    cluster = Cluster().add_node("cpu-0", amounts(cpu=64))
    cluster.add_node("gpu-0", amounts(cpu=64, gpu=4))
    cluster.add_node("gpu-1", amounts(cpu=64, gpu=8))
    cluster.add_node("gpu-2", amounts(cpu=64, gpu=8))
    for name, gpus, on in (("a", 3, "gpu-1"), ("b", 2, "gpu-2"), ("huge", 99, ""), ("big", 7, "")):
        cluster.add_pod(pod(name, cpu=1, gpu=gpus, node_name=on))
    texts = [[str(reason) for reason in one.reasons] for one in cluster.cycle().pending]
    assert ["4 nodes too small: nvidia.com/gpu: 99 needed, at most 8 in all (such as gpu-1)"] in texts
    assert [
        "2 nodes short of nvidia.com/gpu: 7 needed, at most 6 free (such as gpu-2)",
        "2 nodes too small: nvidia.com/gpu: 7 needed, at most 4 in all (such as gpu-0)",
    ] in texts


def test_order_is_priority_then_age_then_name() -> None:
    cluster = Cluster().add_node("n1", cpu=4)
    cluster.add_pod(pod("young", cpu=1, created_at=2))
    cluster.add_pod(pod("b", cpu=1, created_at=1))
    cluster.add_pod(pod("a", cpu=1, created_at=1))
    cluster.add_pod(pod("vip", cpu=1, created_at=3, priority=10))
    assert [decision.name for decision in cluster.cycle().placements] == ["vip", "a", "b", "young"]


def test_node_rules_name_what_is_wrong() -> None:
    cluster = Cluster()
    cluster.record("node/a", payloads.NodeObserved(node("a", ready=False, cpu=8)))
    cluster.record("node/b", payloads.NodeObserved(node("b", unschedulable=True, cpu=8)))
    cluster.record("node/c", payloads.NodeObserved(node("c", cpu=8, labels={"pool": "other"})))
    cluster.record("node/d", payloads.NodeObserved(node("d", cpu=8, labels={"pool": "x"})))
    tainted = node("e", cpu=8, labels={"pool": "x", "zone": "z"}, taints=(Taint("k", "NoSchedule", "v"),))
    cluster.record("node/e", payloads.NodeObserved(tainted))
    cluster.record("node/f", payloads.NodeObserved(node("f", cpu=1, labels={"pool": "x", "zone": "z"})))
    required = ((Requirement("zone", "In", ("z",)),),)
    cluster.add_pod(pod("p", cpu=2, node_selector={"pool": "x"}, node_affinity=required))
    reasons = reasons_of(cluster)
    assert {code: (reason.nodes, reason.example) for code, reason in reasons.items()} == {
        "NodeNotReady": (1, "a"),
        "NodeUnschedulable": (1, "b"),
        "NodeSelectorMismatch": (1, "c"),
        "NodeAffinityMismatch": (1, "d"),
        "UntoleratedTaint": (1, "e"),
        "NodeTooSmall": (1, "f"),
    }
    assert reasons["UntoleratedTaint"].taint == "k=v:NoSchedule"
    cluster.add_pod(pod("q", cpu=2, node_selector={"zone": "z"}, tolerations=(Toleration("k", "Exists"),)))
    assert [decision.node for decision in cluster.cycle().placements] == ["e"]


@pytest.mark.parametrize(
    ("requirement", "nodes"),
    [
        (Requirement("size", "In", ("3", "5")), {"n3", "n5"}),
        (Requirement("size", "NotIn", ("3",)), {"n5", "n7", "bare"}),
        (Requirement("size", "Exists"), {"n3", "n5", "n7"}),
        (Requirement("size", "DoesNotExist"), {"bare"}),
        (Requirement("size", "Gt", ("4",)), {"n5", "n7"}),
        (Requirement("size", "Lt", ("5",)), {"n3"}),
        (Requirement("metadata.name", "In", ("n7",), field=True), {"n7"}),
        (Requirement("metadata.name", "NotIn", ("n7",), field=True), {"n3", "n5", "bare"}),
    ],
)
def test_node_affinity_operators_select_as_in_kubernetes(requirement: Requirement, nodes: set[str]) -> None:
    cluster = Cluster()
    for name, labels in {"n3": {"size": "3"}, "n5": {"size": "5"}, "n7": {"size": "7"}, "bare": {}}.items():
        cluster.record(f"node/{name}", payloads.NodeObserved(node(name, cpu=1, labels=labels)))
    for number in range(4):
        cluster.add_pod(pod(f"p{number}", cpu=1, node_affinity=((requirement,),)))
    assert {decision.node for decision in cluster.cycle().placements} == nodes


def test_cordoned_node_takes_pods_that_tolerate_it() -> None:
    cluster = Cluster()
    cluster.record("node/a", payloads.NodeObserved(node("a", unschedulable=True, cpu=8)))
    cluster.add_pod(pod("p", cpu=1))
    cluster.add_pod(pod("q", cpu=1, tolerations=(Toleration("node.kubernetes.io/unschedulable", "Exists"),)))
    assert [decision.name for decision in cluster.cycle().placements] == ["q"]


def test_pod_slots_and_unknown_resources_are_resources() -> None:
    cluster = Cluster().add_node("n1", cpu=8, pods=1)
    cluster.add_pod(pod("a", cpu=1))
    cluster.add_pod(pod("b", cpu=1))
    result = cluster.cycle()
    assert len(result.placements) == 1
    assert result.pending[0].reasons[0].resource == "pods"
    cluster.add_pod(pod("fpga", **{"example.com/fpga": 1}))
    fpga = next(item for item in cluster.cycle().pending if item.reasons[0].resource != "pods")
    assert fpga.reasons[0].code == "NodeTooSmall"


def test_pods_of_others_count_as_usage() -> None:
    cluster = Cluster().add_node("n1", cpu=8)
    cluster.add_pod(pod("foreign", cpu=6, scheduler_name="default-scheduler", node_name="n1", phase="Running"))
    cluster.add_pod(pod("theirs", cpu=1, scheduler_name="default-scheduler"))
    cluster.add_pod(pod("p", cpu=4))
    assert reasons_of(cluster)["InsufficientResource"].free == 2000


def test_a_terminating_pod_holds_what_it_holds() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=4), amounts(cpu=4))
    going = pod("going", cpu=3)
    cluster.add_pod(going)
    cluster.cycle()
    cluster.add_pod(pod("going", cpu=3, node_name="n1", phase="Running", deletion_at=5))
    cluster.add_pod(pod("small", cpu=1, created_at=1))
    cluster.add_pod(pod("p", cpu=4, created_at=2))
    cluster.add_pod(pod("q", cpu=4, created_at=3))
    assert {decision.name for decision in cluster.cycle().placements} == {"small", "p"}
    cluster.delete_pod(going)
    assert cluster.cycle().placements == (), "one CPU of zone 0 is taken"


def test_pods_that_are_held_back_have_their_reason() -> None:
    cluster = Cluster().add_node("n1", cpu=8)
    cluster.add_pod(pod("gated", cpu=1, scheduling_gates=("team/quota",)))
    assert reasons_of(cluster)["SchedulingGated"].gates == "team/quota"
    cluster.add_pod(pod("gated", cpu=1))
    assert len(cluster.cycle().placements) == 1
    cluster.add_pod(pod("spread", cpu=1, unsupported=("topologySpreadConstraints",)))
    assert reasons_of(cluster)["Unsupported"].features == "topologySpreadConstraints"


def test_reason_without_nodes_is_no_nodes() -> None:
    cluster = Cluster()
    cluster.add_pod(pod("p", cpu=1))
    assert "NoNodes" in reasons_of(cluster)


def test_ignored_resources_are_not_aligned() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=4, memory=10), amounts(cpu=4, memory=10))
    cluster.add_pod(pod("p", cpu=2, memory=15))
    assert "NumaNeverFits" in reasons_of(cluster)
    assert [decision.name for decision in cluster.cycle(EngineConfig(ignore_list=("memory",))).placements] == ["p"]


def test_stale_available_is_ignored_unless_trusted() -> None:
    """The exporter's free amounts are late in both directions."""
    full, empty = amounts(cpu=4), amounts(cpu=0)
    cluster = Cluster().add_node("n1", full, full, available=(empty, full))
    cluster.add_pod(pod("p", cpu=3))
    trusting = EngineConfig(reconstruct_available=False)
    placement = cluster.cycle(trusting).placements[0].placement
    assert placement is not None
    assert placement.containers[0].mask == ("node-1",)
    cluster.add_pod(pod("q", cpu=3))
    assert cluster.cycle(trusting).placements == (), "the decision of before is taken off what was published"
    placement = cluster.cycle().placements[0].placement
    assert placement is not None
    assert placement.containers[0].mask == ("node-0",)


def test_a_pod_that_can_never_fit_names_resource_and_zone() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=32, gpu=4), amounts(cpu=32, gpu=4))
    cluster.add_pod(pod("p", qos=QosClass.BURSTABLE, cpu=1, gpu=5))
    reason = reasons_of(cluster)["NumaNeverFits"]
    assert (reason.resource, reason.zone, reason.requested, reason.installed) == (GPU, "node-0", 5, 4)
    assert "5 needed, 4 in the largest zone (node-0)" in str(reason)


def test_restricted_names_the_widths_that_differ() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=16, gpu=4), amounts(cpu=16, gpu=4), policy="restricted")
    cluster.add_pod(pod("p", cpu=10, gpu=6))
    reason = reasons_of(cluster)["NumaWidthsDiffer"]
    assert f"restricted wants {GPU} on 2 zones but cpu on 1 zone" in str(reason)


def test_amounts_free_on_different_zones_are_reported_as_such() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=4, gpu=2), amounts(cpu=4, gpu=2))
    first = cluster.add_pod(pod("cpus-of-zone-0", cpu=4))
    cluster.cycle()
    cluster.add_pod(pod("cpus-of-zone-1", cpu=4))
    cluster.add_pod(pod("gpus-of-zone-0", gpu=2))
    cluster.cycle()
    cluster.delete_pod(first)
    cluster.add_pod(pod("p", cpu=2, gpu=1))
    reason = reasons_of(cluster)["NumaZonesApart"]
    assert reason.explanation == "cpu and nvidia.com/gpu are free, but not on the same zones"


def test_request_that_no_empty_node_has_together_never_fits() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=4, gpu=0), amounts(cpu=1, gpu=4))
    cluster.add_pod(pod("busy", cpu=1, gpu=4))
    cluster.cycle()
    cluster.add_pod(pod("p", cpu=4, gpu=1))
    reason = reasons_of(cluster)["NumaNeverFits"]
    assert "can never align it: cpu and nvidia.com/gpu are free, but not on the same zones" in str(reason)
