"""The chaos tests' judgement of rejections: which of them the log could have avoided."""

import pytest
from kaicore.rules.events import payloads
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount

from tests.chaos.rejections import rejections_of
from tests.given.cluster.factory import Cluster, amounts, pod

SEEN = Placement(Provenance.OBSERVED, (ContainerPlacement("main", zones=(ZoneAmount("node-1", amounts(cpu=6)),)),))
SECOND = 1_000_000


@pytest.fixture
def node() -> Cluster:
    node = Cluster().add_node("n1", amounts(cpu=8), amounts(cpu=8))
    node.add_pod(pod("earlier", cpu=1, node_name="n2"))
    node.record("pod/uid-earlier", payloads.PlacementObserved("uid-earlier", "default", "earlier", "n2", SEEN))
    return node


def placed(node: Cluster, name: str) -> tuple[str, str, str, str]:
    node.add_pod(pod(name, cpu=1))
    node.cycle()
    return f"uid-{name}", "default", name, "n1"


def runs(node: Cluster, name: str, *, seconds: int) -> None:
    node.add_pod(pod(name, cpu=1, node_name="n1", phase="Running"))
    node.now += seconds * SECOND


def rejected(node: Cluster, name: str) -> None:
    node.record(f"pod/uid-{name}", payloads.PodRejected(f"uid-{name}", "default", name, "n1", "TopologyAffinityError"))


def counts(node: Cluster) -> tuple[bool, int]:
    rejections = rejections_of(node.events)
    return bool(rejections.avoidable), rejections.unavoidable


def test_a_rejection_where_all_others_were_known_could_have_been_avoided(node: Cluster) -> None:
    node.record("pod/uid-other", payloads.PlacementObserved(*placed(node, "other"), SEEN))
    placed(node, "late")
    rejected(node, "late")
    assert counts(node) == (True, 0)


@pytest.mark.parametrize(("seconds", "could_be_avoided"), [(4, True), (6, False)])
def test_one_beside_an_unobserved_pod_could_not_once_that_had_run_for_a_while(
    node: Cluster, seconds: int, *, could_be_avoided: bool
) -> None:
    other = placed(node, "other")
    runs(node, "other", seconds=seconds)
    placed(node, "late")
    rejected(node, "late")
    node.record("pod/uid-other", payloads.PlacementObserved(*other, SEEN))
    assert counts(node) == (could_be_avoided, int(not could_be_avoided))


def test_one_beside_a_pod_that_was_seen_elsewhere_only_afterwards_could_have_been_avoided(node: Cluster) -> None:
    other = placed(node, "other")
    placed(node, "late")
    rejected(node, "late")
    node.record("pod/uid-other", payloads.PlacementObserved(*other, SEEN))
    assert counts(node) == (True, 0)


@pytest.mark.parametrize(("ran_s", "later_s", "could_be_avoided"), [(61, 2, False), (61, 4, True), (10, 2, True)])
def test_one_beside_a_pod_whose_end_was_told_soon_after_could_not_if_that_had_run_for_long(
    node: Cluster, ran_s: int, later_s: int, *, could_be_avoided: bool
) -> None:
    node.record("pod/uid-other", payloads.PlacementObserved(*placed(node, "other"), SEEN))
    runs(node, "other", seconds=ran_s)
    placed(node, "late")
    rejected(node, "late")
    node.now += later_s * SECOND
    node.add_pod(pod("other", cpu=1, node_name="n1", phase="Succeeded"))
    assert counts(node)[0] is could_be_avoided


def test_one_that_was_decided_on_before_any_exporter_reported_could_not() -> None:
    node = Cluster().add_node("n1", amounts(cpu=8), amounts(cpu=8))
    placed(node, "gone")
    runs(node, "gone", seconds=1)
    placed(node, "heir")
    node.add_pod(pod("gone", cpu=1, node_name="n1", phase="Succeeded"))
    placed(node, "late")
    rejected(node, "late")
    (one,) = rejections_of(node.events).all
    assert not one.avoidable
    assert one.because == (
        f"when it was decided on (event {_position(node, 'late')}) no exporter had reported anything",
        f"default/heir may have the room of default/gone, later reported as ended (event {_position(node, 'gone')})",
        "default/heir, predicted zones node-0 (cpu 1), was not observed",
    )


def test_one_that_was_bound_after_a_pod_that_was_decided_on_later_says_so(node: Cluster) -> None:
    late, other = placed(node, "late"), placed(node, "other")
    node.record("pod/uid-other", payloads.PodBound(*other))
    node.record("pod/uid-late", payloads.PodBound(*late))
    rejected(node, "late")
    (one,) = rejections_of(node.events).all
    assert "default/other was decided on after it and bound before it" in str(one)


def _position(node: Cluster, name: str) -> int:
    """Of the decision about a pod, or of its end."""
    of_pod = [event for event in node.events if event.stream == f"pod/uid-{name}"]
    ends = [event.position for event in of_pod if b"Succeeded" in bytes(event.body)]
    return ends[0] if ends else next(event.position for event in of_pod if event.type == "PodPlaced")
