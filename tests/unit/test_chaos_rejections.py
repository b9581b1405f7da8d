"""The chaos tests' judgement of rejections: which of them the log could have avoided."""

import pytest
from kaicore.rules.events import payloads
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount

from tests.chaos.rejections import rejections_of
from tests.factory import Cluster, amounts, pod

SEEN = Placement(Provenance.OBSERVED, (ContainerPlacement("main", zones=(ZoneAmount("node-1", amounts(cpu=6)),)),))


@pytest.fixture
def node() -> Cluster:
    node = Cluster()
    node.add_node("n1", amounts(cpu=8), amounts(cpu=8))
    return node


def placed(node: Cluster, name: str, *, created_at: int = 0) -> tuple[str, str, str, str]:
    node.add_pod(pod(name, cpu=1, created_at=created_at))
    node.cycle()
    return f"uid-{name}", "default", name, "n1"


def counts(node: Cluster) -> tuple[bool, int]:
    found = rejections_of(node.events)
    return bool(found.avoidable), found.unavoidable


def rejected(node: Cluster, name: str) -> None:
    node.record(f"pod/uid-{name}", payloads.PodRejected(f"uid-{name}", "default", name, "n1", "TopologyAffinityError"))


def test_a_rejection_where_all_others_were_known_could_have_been_avoided(node: Cluster) -> None:
    other = placed(node, "other")
    node.record("pod/uid-other", payloads.PlacementObserved(*other, SEEN))
    placed(node, "late")
    rejected(node, "late")
    assert counts(node) == (True, 0)


def test_one_beside_a_pod_that_nobody_ever_observed_could_not(node: Cluster) -> None:
    placed(node, "other")
    placed(node, "late")
    rejected(node, "late")
    assert counts(node) == (False, 1)


def test_one_beside_a_pod_that_was_seen_elsewhere_only_afterwards_could_not(node: Cluster) -> None:
    other = placed(node, "other")
    placed(node, "late")
    rejected(node, "late")
    node.record("pod/uid-other", payloads.PlacementObserved(*other, SEEN))
    missed = payloads.PredictionMissed(*other, "restricted", "zones", node.state.pods["uid-other"].predicted, SEEN)
    node.record("pod/uid-other", missed)
    assert counts(node) == (False, 1)


def test_one_overtaken_by_an_older_pod_could_not(node: Cluster) -> None:
    placed(node, "young", created_at=20)
    older = placed(node, "old", created_at=10)
    rejected(node, "young")
    node.record("pod/uid-old", payloads.PlacementObserved(*older, SEEN))
    assert counts(node) == (False, 1)


@pytest.mark.parametrize(("later_s", "could_be_avoided"), [(2, False), (4, True)])
def test_one_beside_a_pod_whose_end_was_told_soon_after_could_not(
    node: Cluster, later_s: int, *, could_be_avoided: bool
) -> None:
    other = placed(node, "other")
    node.record("pod/uid-other", payloads.PlacementObserved(*other, SEEN))
    placed(node, "late")
    rejected(node, "late")
    node.now += later_s * 1_000_000
    node.add_pod(pod("other", cpu=1, node_name="n1", phase="Succeeded"))
    assert counts(node)[0] is could_be_avoided
