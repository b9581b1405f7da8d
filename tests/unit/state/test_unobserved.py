"""Pods without an observation: nodes that are left alone until then, and exporters that do not report."""

import msgspec
from kaicore.rules.deciding.cycle_input import is_unobserved
from kaicore.rules.deciding.why import notes
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.model.pod import Pod, QosClass

from tests.given.cluster.factory import Cluster, amounts, pod

WAITING = EngineConfig(wait_for_observation=True)


def with_stranger() -> tuple[Cluster, Pod]:
    """A node on which another scheduler's pod holds CPUs of an unknown zone."""
    cluster = Cluster().add_node("n1", amounts(cpu=8), amounts(cpu=8))
    theirs = pod("theirs", cpu=6, scheduler_name="default-scheduler", node_name="n1", phase="Running")
    return cluster, cluster.add_pod(theirs)


def test_sensitive_pods_wait_for_the_observation_where_that_is_asked_for() -> None:
    cluster, theirs = with_stranger()
    cluster.add_pod(pod("p", cpu=4))
    (pending,) = cluster.cycle(WAITING).pending
    (reason,) = pending.reasons
    assert reason.code == "HistoryIncomplete"
    cluster.add_pod(pod("shared", cpu=1, qos=QosClass.BURSTABLE))
    assert [decision.name for decision in cluster.cycle(WAITING).placements] == ["shared"], "of it nothing is aligned"
    revision = cluster.state.revision
    cluster.report(theirs)
    assert cluster.state.revision > revision
    assert [decision.name for decision in cluster.cycle(WAITING).placements] == ["p"]


def test_sensitive_pod_does_not_wait_for_the_observation_by_default() -> None:
    cluster, _ = with_stranger()
    cluster.add_pod(pod("p", cpu=4))
    assert len(cluster.cycle().placements) == 1


def test_predicted_pods_and_ended_pods_delay_no_other_pod() -> None:
    cluster, theirs = with_stranger()
    cluster.delete_pod(theirs)
    for name in ("p", "q"):
        cluster.add_pod(pod(name, cpu=4))
    assert len(cluster.cycle(WAITING).placements) == 2
    cluster.add_pod(pod("r", cpu=4))
    assert len(cluster.cycle(WAITING).placements) == 1


def test_a_pod_unobserved_for_long_points_at_its_exporter() -> None:
    cluster, theirs = with_stranger()
    entry = cluster.state.pods[theirs.uid]
    assert is_unobserved(cluster.state, entry)
    assert notes(entry, cluster.state) == []
    cluster.now += 180_000_000
    cluster.add_pod(msgspec.structs.replace(theirs, resource_version="2"))
    assert notes(entry, cluster.state) == [
        "runs for 180 s and no exporter observed its zones: check the exporter on n1",
    ]
    cluster.report(theirs)
    assert notes(entry, cluster.state) == []
