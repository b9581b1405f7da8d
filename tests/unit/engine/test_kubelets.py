"""Facts about kubelets besides their publications, and unknown holdings of their pods."""

from typing import Any

import pytest
from kaicore.rules.engine.config import EngineConfig, Evaluator, KubeletOverride
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.node import TopologyPolicy
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.rules.model.pod import ContainerKind, Pod, QosClass
from kaicore.rules.numa.kubelet.settings import MULTITHREADING_LABEL, infer_settings
from kaicore.rules.numa.kubelet.versions import versioned_model
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import GPU, Cluster, amounts, container, node, pod, topology

SMT = {MULTITHREADING_LABEL: "true", "pool": "hpc"}


def reason_of(cluster: Cluster, config: EngineConfig) -> Reason:
    (pending,) = cluster.cycle(config).pending
    return pending.reasons[0]


def test_settings_follow_from_what_zones_publish() -> None:
    zone = amounts(cpu=4, memory=8, gpu=1)
    every = infer_settings(topology("n1", zone, policy="restricted", scope="pod"), node("n1", labels=SMT))
    assert (every.static_cpu, every.static_memory, every.threads_per_core) == (True, True, 2)
    assert (every.policy, every.pod_scope) == (TopologyPolicy.RESTRICTED, True)
    devices_only = infer_settings(topology("n1", amounts(gpu=1) | {"cpu": 0}), None)
    assert (devices_only.static_cpu, devices_only.static_memory) == (False, False)


@pytest.mark.parametrize(
    ("version", "minor"), [("v1.36.2", 36), ("v1.34.0-gke.100", 34), ("1.31+", 31), ("", 36), ("odd", 36)]
)
def test_settings_follow_the_kubelets_minor_version(version: str, minor: int) -> None:
    assert versioned_model(version).minor == minor


def test_devices_of_no_zone_are_hinted_by_older_kubelets_only() -> None:
    """An explicit 0 of a device that only zone 1 has: since 1.36 its hints are zone 1's alone."""
    for version, placed in (("v1.35.1", True), ("v1.36.0", False)):
        cluster = Cluster()
        labels = {"allocatable": amounts(cpu=8, gpu=2) | {"pods": 9}}
        cluster.record("node/n1", payloads.NodeObserved(node("n1", kubelet_version=version, **labels)))
        zones = (amounts(cpu=6, gpu=0), amounts(cpu=2, gpu=2))
        cluster.record("nrt/n1", payloads.TopologyObserved(topology("n1", *zones)))
        cluster.add_pod(pod("p", cpu=4, gpu=0))
        assert bool(cluster.cycle().placements) is placed


def test_whole_cores_only_is_configured_by_label_and_named_as_reason() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=8), amounts(cpu=8), labels=SMT)
    cluster.add_pod(pod("odd", cpu=3))
    config = EngineConfig(kubelets=(KubeletOverride(match_labels={"pool": "hpc"}, cpu_options=("full-pcpus-only",)),))
    reason = reason_of(cluster, config)
    assert (reason.code, reason.rejection) == ("NumaNeverFits", "SMTAlignmentError")
    assert "requested 3 cpus not multiple cpus per core = 2" in str(reason)
    elsewhere = EngineConfig(kubelets=(KubeletOverride(match_labels={"pool": "x"}, cpu_options=("full-pcpus-only",)),))
    assert cluster.cycle(elsewhere).placements


def test_an_override_beats_what_is_published() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=4, memory=4), amounts(cpu=4, memory=4), policy="none")
    cluster.add_pod(pod("p", cpu=6, memory=6))
    strict = EngineConfig(kubelets=(KubeletOverride(topology_policy=TopologyPolicy.SINGLE_NUMA_NODE),))
    assert reason_of(cluster, strict).rejection == "TopologyAffinityError"
    loose = EngineConfig(kubelets=(*strict.kubelets, KubeletOverride(cpu_manager=False, memory_manager=False)))
    assert cluster.cycle(loose).placements


def test_the_seeds_rule_can_be_chosen() -> None:
    """It never looks at pods that are not Guaranteed."""
    cluster = Cluster().add_node("n1", amounts(cpu=8, gpu=2), amounts(cpu=8, gpu=2))
    cluster.add_pod(pod("p", qos=QosClass.BURSTABLE, cpu=1, gpu=3))
    assert cluster.cycle().placements == ()
    assert cluster.cycle(EngineConfig(evaluator=Evaluator.COUNTING)).placements


def foreign(name: str, **fields: Any) -> Pod:
    return pod(name, scheduler_name="other", node_name="n1", phase="Running", **fields)


def observe(cluster: Cluster, name: str, amount: dict[str, int], zone: str = "node-0") -> None:
    held = ContainerPlacement("main", zones=(ZoneAmount(zone, amount),))
    placement = Placement(Provenance.OBSERVED, (held,))
    cluster.record(f"pod/uid-{name}", payloads.PlacementObserved(f"uid-{name}", "default", name, "n1", placement))


@pytest.mark.parametrize(("shown", "left_out"), [({"cpu": 3}, True), ({"cpu": 3, "memory": 2}, False)])
def test_a_record_of_kai_that_leaves_memory_out_leaves_the_history_incomplete(
    shown: dict[str, int], *, left_out: bool
) -> None:
    cluster = Cluster()
    zone = amounts(cpu=4, memory=8)
    cluster.add_node("n1", zone, zone, available=(amounts(cpu=1, memory=0), zone))
    one = cluster.add_pod(pod("before", cpu=3, memory=2, node_name="n1", scheduler_name="other"))
    record = ContainerPlacement("", zones=(ZoneAmount("node-0", amounts(**shown)),))
    observed = payloads.PlacementObserved(
        one.uid, "default", "before", "n1", Placement(Provenance.OBSERVED, (record,)), "annotation"
    )
    cluster.record(f"pod/{one.uid}", observed)
    assert bool(cluster.partly_unknown("n1")) == left_out
    cluster.add_pod(pod("p", cpu=1, memory=6))
    (placed,) = cluster.cycle(EngineConfig()).placements
    assert placed.placement is not None
    zones = [zone.zone for zone in placed.placement.containers[0].zones]
    assert zones == (["node-1"] if left_out else ["node-0"]), "what the node publishes counts where records say nothing"


def test_an_unknown_history_is_said_and_the_exporter_believed_meanwhile() -> None:
    cluster = Cluster()
    full, left = amounts(cpu=4), amounts(cpu=0)
    cluster.add_node("n1", full, full, available=(full, left))
    cluster.add_pod(foreign("before", cpu=3))
    cluster.add_pod(pod("p", cpu=3))
    cluster.add_pod(pod("q", cpu=2, created_at=1))
    (unknown,) = cluster.partly_unknown("n1")
    assert unknown.unrecorded
    again = decode_state(encode_state(cluster.state))
    assert again.charges.partly_unknown(again.pods[unknown.pod.uid])
    result = cluster.cycle(EngineConfig())
    assert [decision.name for decision in result.placements] == ["p"], (
        "zone 1 is taken, though no record says by which pod"
    )
    assert f"history incomplete since position {unknown.charged_at}:" in result.pending[0].reasons[0].explanation
    observe(cluster, "before", amounts(cpu=3), "node-1")
    assert not cluster.partly_unknown("n1")


@pytest.mark.parametrize(("policy", "open_to_the_kubelet"), [("restricted", False), ("none", True)])
def test_what_init_containers_left_before_is_unknown_only_where_the_policy_leaves_it_open(
    policy: str, *, open_to_the_kubelet: bool
) -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=4), amounts(cpu=4), policy=policy)
    setup = container("setup", ContainerKind.INIT, cpu=2)
    cluster.add_pod(foreign("before", containers=(setup, container(cpu=1))))
    observe(cluster, "before", amounts(cpu=1))
    unknown = cluster.partly_unknown("n1")
    assert [entry.unrecorded for entry in unknown] == ([False] if open_to_the_kubelet else [])
    zones = cluster.state.columns.zones
    used = zones.used[cluster.state.columns.row("n1"), :, zones.resources["cpu"]].tolist()
    assert used == ([2000, 2000] if open_to_the_kubelet else [2000, 0])


def test_sensitive_pod_waits_for_the_observation_if_configured() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=4, gpu=1), amounts(cpu=4))
    cluster.add_pod(foreign("before", cpu=1, gpu=1))
    cluster.add_pod(pod("p", cpu=1))
    waiting = EngineConfig(wait_for_observation=True)
    assert reason_of(cluster, waiting).code == "HistoryIncomplete"
    cluster.add_pod(pod("indifferent", qos=QosClass.BURSTABLE, cpu=1))
    assert [decision.name for decision in cluster.cycle(waiting).placements] == ["indifferent"]
    observe(cluster, "before", amounts(cpu=1, gpu=1))
    assert [decision.name for decision in cluster.cycle(waiting).placements] == ["p"]
    assert GPU in cluster.state.columns.zones.resources


def test_memory_of_init_containers_is_free_once_the_pod_runs() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=8, memory=10), amounts(cpu=8, memory=10))
    setup = container("setup", ContainerKind.INIT, cpu=1, memory=8)
    one = cluster.add_pod(pod("p", setup, container(cpu=1, memory=2)))
    assert cluster.cycle().placements
    fields = {name: getattr(one, name) for name in one.__struct_fields__}
    cluster.add_pod(type(one)(**(fields | {"node_name": "n1"})))
    zones = cluster.state.columns.zones
    column = zones.resources["memory"]
    assert zones.used[0, :2, column].tolist() == [8 * 2**30, 0]
    cluster.add_pod(type(one)(**(fields | {"node_name": "n1", "phase": "Running"})))
    assert zones.used[0, :2, column].tolist() == [2 * 2**30, 0]
