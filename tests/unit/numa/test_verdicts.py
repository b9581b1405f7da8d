"""The kubelet's verdicts (Kubernetes v1.36, `pkg/kubelet/cm`), as a table."""

from typing import Any

import pytest
from kaicore.rules.model.pod import ContainerKind, Pod, QosClass

from tests.given.cluster.factory import GPU, Cluster, amounts, container, pod

INIT, SIDECAR = ContainerKind.INIT, ContainerKind.SIDECAR


def placed(cluster: Cluster, one: Pod) -> dict[str, dict[str, int]] | None:
    """Run one cycle for one pod: its amounts per zone, or None when it is not placed."""
    cluster.add_pod(one)
    decisions = cluster.cycle().placements
    if not decisions:
        return None
    placement = decisions[0].placement
    return {zone.zone: zone.amount for zone in placement.zone_amounts()} if placement else {}


FOUR = amounts(cpu=16, gpu=4)

RESTRICTED_TABLE = [
    # The worked examples of KAI-Scheduler v0.17, docs/developer/designs/numa-topology/README.md.
    pytest.param([FOUR, FOUR], {"gpu": 6, "cpu": 10}, None, id="6 GPU + 10 CPU: GPU needs two zones, CPU one"),
    pytest.param(
        [FOUR, FOUR],
        {"gpu": 6, "cpu": 24},
        {"node-0": {"cpu": 16000, GPU: 4}, "node-1": {"cpu": 8000, GPU: 2}},
        id="6 GPU + 24 CPU: both need two",
    ),
    pytest.param([amounts(cpu=64, gpu=2)] * 2, {"gpu": 4, "cpu": 1}, None, id="the footgun: 4 GPU + 1 CPU"),
    # One zone suffices: the lowest is taken.
    pytest.param([FOUR, FOUR], {"gpu": 2, "cpu": 4}, {"node-0": {"cpu": 4000, GPU: 2}}, id="lowest zone"),
    pytest.param([amounts(cpu=16, gpu=1), FOUR], {"gpu": 2}, {"node-1": {GPU: 2}}, id="the only zone with enough"),
    # An explicit 0 is a hint for one zone.
    pytest.param([FOUR, FOUR], {"gpu": 0, "cpu": 24}, None, id="0 GPUs want one zone, the CPUs two"),
    # Memory and hugepages have one width together.
    pytest.param(
        [amounts(cpu=16, memory=10, **{"hugepages-2Mi": 8})] * 2,
        {"memory": 15, "hugepages-2Mi": 4},
        {"node-0": {"hugepages-2Mi": 4, "memory": 10 * 2**30}, "node-1": {"memory": 5 * 2**30}},
        id="hugepages fit one zone, memory needs two: both get two",
    ),
]


@pytest.mark.parametrize(("zones", "request_", "expected"), RESTRICTED_TABLE)
def test_restricted_rejects_what_more_zones_than_needed_would_hold(
    zones: list[Any], request_: dict[str, int], expected: Any
) -> None:
    assert placed(Cluster().add_node("n1", *zones, policy="restricted"), pod("p", **request_)) == expected


def test_width_counts_reserved_cpus() -> None:
    """16 CPUs a zone, one reserved: 16 have width one, but no zone has 16 to give."""
    cluster = Cluster()
    zone = amounts(cpu=15)
    cluster.add_node("n1", zone, zone, policy="restricted", capacity=amounts(cpu=16))
    assert placed(cluster, pod("p", cpu=16)) is None
    assert placed(cluster, pod("q", cpu=17)) == {"node-0": {"cpu": 15000}, "node-1": {"cpu": 2000}}


def test_single_numa_node_wants_one_zone_for_everything() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=16, gpu=0), amounts(cpu=4, gpu=4))
    assert placed(cluster, pod("too-much", cpu=8, gpu=1)) is None
    assert placed(cluster, pod("fits", cpu=4, gpu=1)) == {"node-1": {"cpu": 4000, GPU: 1}}


@pytest.mark.parametrize("qos", [QosClass.BURSTABLE, QosClass.BEST_EFFORT])
def test_devices_are_aligned_for_every_qos_class(qos: QosClass) -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=16, gpu=2), amounts(cpu=16, gpu=2))
    assert placed(cluster, pod("p", qos=qos, gpu=3, cpu=20)) is None
    assert placed(cluster, pod("q", qos=qos, gpu=2, cpu=20)) == {"node-0": {GPU: 2}}


def test_cpus_of_a_container_are_aligned_only_when_whole() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=4, memory=8), amounts(cpu=4, memory=8))
    assert placed(cluster, pod("p", cpu=6.5, memory=4)) == {"node-0": {"memory": 4 * 2**30}}


def test_pod_level_resources_are_not_aligned() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=4), amounts(cpu=4))
    assert placed(cluster, pod("p", cpu=6, pod_resources=amounts(cpu=6))) == {}


def test_resources_that_no_zone_reports_are_not_aligned() -> None:
    """CPU manager none: no CPUs in the zones, so the pod may span."""
    cluster = Cluster()
    cluster.add_node("n1", amounts(gpu=4), amounts(gpu=4), allocatable=amounts(cpu=64, gpu=8) | {"pods": 10})
    assert placed(cluster, pod("p", cpu=48, gpu=2)) == {"node-0": {GPU: 2}}


def test_containers_are_allocated_one_after_another() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=4), amounts(cpu=4))
    one = pod("p", container("a", cpu=3), container("b", cpu=3))
    assert placed(cluster, one) == {"node-0": {"cpu": 3000}, "node-1": {"cpu": 3000}}
    assert placed(cluster, pod("q", cpu=2)) is None


def test_pod_scope_wants_one_zone_for_all_containers() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=4), amounts(cpu=4), scope="pod")
    assert placed(cluster, pod("p", container("a", cpu=3), container("b", cpu=3))) is None
    assert placed(cluster, pod("q", container("a", cpu=2), container("b", cpu=2))) == {"node-0": {"cpu": 4000}}


def test_an_init_container_fixes_the_zone_and_lends_what_it_holds() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=8, gpu=0), amounts(cpu=8, gpu=2))
    init = container("setup", INIT, cpu=2)
    assert placed(cluster, pod("p", init, container("main", cpu=4, gpu=1))) is None, "init sits on zone 0, GPUs on 1"
    one = pod("q", container("setup", INIT, cpu=6), container("main", cpu=4))
    assert placed(cluster, one) == {"node-0": {"cpu": 6000}}, "two CPUs of the init container stay with the pod"


def test_a_sidecar_keeps_what_it_holds() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=8), amounts(cpu=8))
    one = pod("p", container("proxy", SIDECAR, cpu=6), container("main", cpu=6))
    assert placed(cluster, one) == {"node-0": {"cpu": 6000}, "node-1": {"cpu": 6000}}


def test_memory_groups_block_zones() -> None:
    """A pod on two zones' memory bars single-zone memory there, and the other way round."""
    zone = amounts(cpu=32, memory=100)
    cluster = Cluster().add_node("n1", zone, zone, policy="restricted")
    wide = pod("wide", cpu=40, memory=110)
    assert placed(cluster, wide) is not None
    assert placed(cluster, pod("small", cpu=1, memory=1)) is None
    cluster.delete_pod(wide)
    assert placed(cluster, pod("small-2", cpu=1, memory=1)) is not None
    assert placed(cluster, pod("wide-2", cpu=40, memory=110)) is None


def test_equally_wide_masks_smallest_number_first() -> None:
    """{1,2} is 0b0110 and beats {0,3}, 0b1001."""
    full, empty = amounts(cpu=4, gpu=2), amounts(cpu=4, gpu=1)
    cluster = Cluster().add_node("n1", full, empty, full, full, policy="restricted")
    cluster.add_pod(pod("first", gpu=2))
    assert cluster.cycle().placements[0].placement is not None
    assert placed(cluster, pod("p", gpu=3)) == {"node-1": {GPU: 1}, "node-2": {GPU: 2}}


@pytest.mark.parametrize("policy", ["none", "best-effort"])
def test_a_static_memory_manager_rejects_under_every_policy(policy: str) -> None:
    zone = amounts(cpu=32, memory=100)
    cluster = Cluster().add_node("n1", zone, zone, policy=policy)
    assert placed(cluster, pod("small", cpu=1, memory=10)) is not None
    assert placed(cluster, pod("wide", cpu=1, memory=150)) is None, "zone 0 serves single zones only"
    other = placed(cluster, pod("other", cpu=1, memory=95))
    assert other is not None
    assert {zone: amount.get("memory", 0) for zone, amount in other.items()}["node-1"] == 95 * 2**30


def test_node_without_a_topology_lets_every_pod_pass() -> None:
    assert placed(Cluster().add_node("n1", cpu=64, gpu=8), pod("p", cpu=3, gpu=7)) == {}
