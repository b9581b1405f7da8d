"""The pod that a report means, by the log."""

from typing import Any

import pytest
from kai_ingest.known_pod import Miss, Unresolved
from kai_ingest.projection import IngestProjection
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.placement import OBSERVED_ANNOTATION, ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.rules.model.pod import MIRROR_ANNOTATION, Pod

from tests.given.cluster.factory import Cluster, amounts, pod

SECOND = 1_000_000
HELD = Placement(Provenance.OBSERVED, (ContainerPlacement("main", zones=(ZoneAmount("node-0", {"cpu": 1000}),)),))
PREDICTED = Placement(Provenance.PREDICTED, HELD.containers)


class Story(Cluster):
    """A cluster with events that go into a projection as they happen."""

    def __init__(self) -> None:
        super().__init__()
        self._projection = IngestProjection()
        self._seen = 0

    @property
    def projection(self) -> IngestProjection:
        for event in self.events[self._seen :]:
            self._projection.apply(event)
        self._seen = len(self.events)
        return self._projection

    def place(self, one: Pod, node: str, placement: Placement | None = PREDICTED) -> Event:
        payload = payloads.PodPlaced(one.uid, one.namespace, one.name, node, "c/1", "class", placement)
        return self.record(f"pod/{one.uid}", payload, subject=one.subject)

    def bind(self, one: Pod, node: str) -> Event:
        return self.record(f"pod/{one.uid}", payloads.PodBound(one.uid, one.namespace, one.name, node))

    def fail_to_bind(self, one: Pod, node: str) -> None:
        self.record(f"pod/{one.uid}", payloads.BindFailed(one.uid, one.namespace, one.name, node, 409, "Conflict"))

    def observe(self, one: Pod, node: str, placement: Placement = HELD, source: str = "exporter") -> Event:
        payload = payloads.PlacementObserved(one.uid, one.namespace, one.name, node, placement, source)
        return self.record(f"pod/{one.uid}", payload)

    def meant(self, name: str, *, node: str = "n1", uid: str = "", observed_at: int = 2**60) -> str:
        """Uid of the pod that is meant, or why none is."""
        try:
            known_pod = self.projection.resolve("default", name, node=node, uid=uid, observed_at=observed_at)
        except Unresolved as error:
            return error.miss
        return known_pod.uid


@pytest.fixture
def story() -> Story:
    return Story()


def on_node(name: str, node: str = "n1", **fields: Any) -> Pod:
    return pod(name, cpu=1, node_name=node, **fields)


def test_report_of_a_pod_that_is_not_known_on_a_node_or_gone_is_unresolved(story: Story) -> None:
    assert story.meant("a") == Miss.UNKNOWN
    story.add_pod(pod("a", cpu=1))
    assert story.meant("a") == Miss.UNKNOWN
    story.delete_pod(story.add_pod(on_node("a", scheduler_name="default-scheduler")))
    assert story.meant("a") == Miss.UNKNOWN
    story.add_pod(on_node("b", scheduler_name="default-scheduler"))
    assert story.meant("b") == "uid-b", "another scheduler's"


def test_pod_is_resolved_from_its_decision_on(story: Story) -> None:
    """The kubelet may have it before the log has heard of the binding."""
    waiting = story.add_pod(pod("a", cpu=1))
    story.place(waiting, "n1")
    assert story.meant("a") == "uid-a"
    story.add_pod(waiting)
    story.bind(waiting, "n1")
    story.add_pod(on_node("a"))
    assert story.meant("a") == "uid-a"


def test_pod_whose_decision_failed_is_not_resolved_unless_it_is_bound(story: Story) -> None:
    waiting = story.add_pod(pod("a", cpu=1))
    story.place(waiting, "n1")
    story.fail_to_bind(waiting, "n1")
    assert story.meant("a") == Miss.UNKNOWN
    story.place(waiting, "n2")
    assert story.meant("a", node="n2") == "uid-a"
    story.bind(waiting, "n2")
    story.fail_to_bind(waiting, "n2")
    assert story.meant("a", node="n2") == "uid-a"


def test_kubernetes_knows_better_than_a_decision_and_the_wrong_node_names_the_right_one(story: Story) -> None:
    story.place(story.add_pod(pod("a", cpu=1)), "n1")
    story.add_pod(on_node("a", "n2"))
    assert story.meant("a", node="n1") == Miss.ELSEWHERE
    assert story.meant("a", node="n2") == "uid-a"
    with pytest.raises(Unresolved, match="Pod default/a: node: 'n1': the log has it on n2"):
        story.projection.resolve("default", "a", node="n1", uid="", observed_at=2**60)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "rejected"])
def test_report_of_a_finished_or_rejected_pod_is_unresolved(story: Story, phase: str) -> None:
    one = story.add_pod(on_node("a"))
    if phase == "rejected":
        story.record("pod/uid-a", payloads.PodRejected(one.uid, "default", "a", "n1", "TopologyAffinityError"))
    else:
        story.add_pod(on_node("a", phase=phase))
    assert story.meant("a") == Miss.FINISHED
    story.add_pod(on_node("a"))
    assert story.meant("a") == Miss.FINISHED, "no pod comes back from there"


def test_a_uid_that_is_given_counts_and_of_a_static_pod_also_the_one_that_its_kubelet_gave_it(story: Story) -> None:
    story.add_pod(on_node("a"))
    assert story.meant("a", uid="uid-a") == "uid-a"
    assert story.meant("a", uid="uid-b") == Miss.UNKNOWN
    story.add_pod(on_node("b", annotations={MIRROR_ANNOTATION: "0f1e2d"}))
    assert (story.meant("b", uid="0f1e2d"), story.meant("b", uid="uid-b")) == ("uid-b", "uid-b")
    assert story.meant("b", uid="other") == Miss.UNKNOWN


def test_two_live_pods_of_one_name_on_one_node_are_ambiguous(story: Story) -> None:
    """The watcher has not heard of the end of one of them."""
    story.add_pod(on_node("a", uid="u1"))
    story.add_pod(on_node("a", uid="u2"))
    assert story.meant("a") == Miss.AMBIGUOUS
    assert story.meant("a", uid="u2") == "u2"


def test_a_successor_on_another_node_is_no_ambiguity(story: Story) -> None:
    story.add_pod(on_node("a", uid="u1"))
    story.add_pod(on_node("a", "n2", uid="u2"))
    assert story.meant("a") == "u1"
    assert story.meant("a", node="n2") == "u2"


def test_a_report_from_before_the_successor_is_not_about_it(story: Story) -> None:
    story.delete_pod(story.add_pod(on_node("a", uid="u1")))
    placed = story.place(story.add_pod(pod("a", cpu=1, uid="u2")), "n1")
    assert story.meant("a", observed_at=placed.occurred_at - 1) == Miss.AMBIGUOUS
    assert story.meant("a", observed_at=placed.occurred_at) == "u2"


def test_successor_of_a_finished_pod_is_resolved(story: Story) -> None:
    story.add_pod(on_node("a", uid="u1", phase="Failed"))
    story.add_pod(on_node("a", uid="u2", created_at=2000))
    assert story.meant("a", observed_at=2000 * SECOND) == Miss.AMBIGUOUS, "creation times are cut off to seconds"
    assert story.meant("a", observed_at=2001 * SECOND) == "u2"


def test_a_predecessor_is_forgotten_after_a_while(story: Story) -> None:
    story.delete_pod(story.add_pod(on_node("a", uid="u1")))
    story.now += 601 * SECOND
    story.delete_pod(story.add_pod(on_node("b")))
    story.add_pod(on_node("a", uid="u2", created_at=2000))
    assert story.meant("a", observed_at=1999 * SECOND) == "u2"


def test_a_clock_that_is_a_little_behind_is_forgiven_where_nothing_can_be_confused(story: Story) -> None:
    placed = story.place(story.add_pod(pod("a", cpu=1)), "n1")
    assert story.meant("a", observed_at=placed.occurred_at - 5 * SECOND) == "uid-a"
    assert story.meant("a", observed_at=placed.occurred_at - 6 * SECOND) == Miss.AMBIGUOUS


def test_zones_are_checked_where_the_node_has_told_them(story: Story) -> None:
    story.add_pod(on_node("a"))
    pod_a = story.projection.pods["uid-a"]
    story.projection.check_zones(pod_a, ["node-7"])
    story.add_node("n1", amounts(cpu=4), amounts(cpu=4))
    story.projection.check_zones(pod_a, ["node-1"])
    with pytest.raises(Unresolved, match="Pod default/a: zone: Node n1 has node-0, node-1: 'node-7'"):
        story.projection.check_zones(pod_a, ["node-1", "node-7"])
    story.record("nrt/n1", payloads.TopologyDeleted("n1"))
    story.projection.check_zones(pod_a, ["node-7"])


def test_the_last_observation_is_known(story: Story) -> None:
    one = story.add_pod(on_node("a"))
    event = story.observe(one, "n1")
    record = story.projection.pods["uid-a"].record
    assert record is not None
    assert (record.position, record.id, record.exporter, record.empty) == (event.position, event.id, True, False)
    story.observe(one, "n2")
    assert story.projection.pods["uid-a"].record == record, "of a node where it is not"


def test_an_observation_ends_with_the_node_it_was_made_on(story: Story) -> None:
    waiting = story.add_pod(pod("a", cpu=1))
    story.place(waiting, "n1")
    story.observe(waiting, "n1")
    story.add_pod(on_node("a", "n2"))
    assert story.projection.pods["uid-a"].record is None


def test_new_annotations_are_looked_at_once(story: Story) -> None:
    story.add_pod(on_node("a", annotations={OBSERVED_ANNOTATION: "x"}))
    story.add_pod(on_node("b"))
    assert story.projection.annotated == {"uid-a"}
    story.projection.annotated.clear()
    story.add_pod(on_node("a", annotations={OBSERVED_ANNOTATION: "x"}, labels={"new": "label"}))
    assert not story.projection.annotated, "the same is not looked at again"
    story.add_pod(on_node("a", annotations={OBSERVED_ANNOTATION: "y"}))
    assert story.projection.annotated == {"uid-a"}
    story.delete_pod(on_node("a"))
    assert not story.projection.annotated


def test_annotation_about_unknown_zones_is_looked_at_again(story: Story) -> None:
    story.add_pod(on_node("a", annotations={OBSERVED_ANNOTATION: "x"}))
    story.projection.await_zones(story.projection.pods["uid-a"])
    story.projection.annotated.clear()
    story.add_node("n2", amounts(cpu=4))
    assert not story.projection.annotated
    story.add_node("n1", amounts(cpu=4))
    assert story.projection.annotated == {"uid-a"}


def test_pods_without_an_observation_are_counted(story: Story) -> None:
    for name in "abcd":
        story.place(story.add_pod(pod(name, cpu=1)), "n1", None if name == "d" else PREDICTED)
    bound = [story.bind(pod(name), "n1") for name in "abd"]
    story.observe(pod("a"), "n1")
    assert story.projection.unobserved(before=bound[-1].recorded_at + 1) == 1
    assert story.projection.unobserved(before=bound[0].recorded_at) == 0


def test_a_snapshot_is_the_same_again(story: Story) -> None:
    story.add_node("n1", amounts(cpu=4))
    story.delete_pod(story.add_pod(on_node("a", uid="u1")))
    one = story.add_pod(on_node("a", uid="u2", created_at=2000, annotations={OBSERVED_ANNOTATION: "x"}))
    story.observe(one, "n1")
    before = story.projection
    after = IngestProjection.load(before.dump(), position=before.position)
    assert after.pods == before.pods
    assert (after.topologies, after.position, after.annotated) == (before.topologies, before.position, before.annotated)
    assert after.charges(after.pods["u2"], HELD) == before.charges(before.pods["u2"], HELD)
    with pytest.raises(Unresolved):
        after.resolve("default", "a", node="n1", uid="", observed_at=2000 * SECOND)
    assert after.resolve("default", "a", node="n1", uid="", observed_at=2001 * SECOND).uid == "u2"
    after.apply(story.record("pod/u2", payloads.PodDeleted("u2", "default", "a")))
    assert not after.pods
