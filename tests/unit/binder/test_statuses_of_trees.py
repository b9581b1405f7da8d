"""Statuses of CompositePodGroups and of the PodGroups in them: each object has its own condition."""

from kai_binder.projection.group_statuses import GroupStatuses
from kai_binder.writes.side_writes import group_status
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload

from tests.given.work.groups import documents, read_pod, source_of
from tests.unit.groups.test_composite import composite, pod, pod_group

TREE = [composite("r", 2), pod_group("a", 2, parent="r"), pod_group("b", 1, parent="r")]
PODS = [pod("a-0", "a"), pod("a-1", "a"), pod("b-0", "b")]


class Statuses(GroupStatuses):
    """What is written, by the name of the object."""

    def __init__(self, *texts: str) -> None:
        super().__init__(lambda key: [])
        config = EngineConfig(scheduler_name="kai-ledger")
        self.now = 0
        self.add(payloads.ConfigRecorded(config.digest(), "default", config.document()))
        for document in documents("---\n".join(texts)):
            of_pod = document["kind"] == "Pod"
            self.add(
                payloads.PodObserved(read_pod(document))
                if of_pod
                else payloads.GroupSourceObserved(source_of(document))
            )

    def add(self, payload: Payload) -> None:
        self.now += 1_000_000
        self.fold(payload, recorded_at=self.now)

    def place(self, *names: str) -> None:
        for name in names:
            group = name.partition("-")[0]
            self.add(payloads.PodPlaced(f"uid-{name}", "default", name, "n1", group, "default"))

    def written(self) -> dict[str, tuple[str, ...]]:
        found = {}
        for status in [*self.news()]:
            self.mark_written(status)
            write = group_status(status, then=lambda: None)
            (one, *others) = write.body["status"]["conditions"]
            found[status.name] = one["type"], one["status"], one["reason"], *(other["type"] for other in others)
        assert not [*self.news()], "each is written once"
        return found


def test_each_object_of_a_tree_has_the_condition_of_its_part() -> None:
    composite_type, type_ = "CompositePodGroupInitiallyScheduled", "PodGroupInitiallyScheduled"
    statuses = Statuses(*TREE, *PODS[1:])
    assert statuses.written() == {
        "r": (composite_type, "False", "NotEnoughPods"),
        "a": (type_, "False", "NotEnoughPods"),
        "b": (type_, "False", "Unschedulable"),
    }
    statuses.add(payloads.PodObserved(read_pod(documents(PODS[0])[0])))
    statuses.place("b-0")
    assert statuses.written() == {
        "r": (composite_type, "False", "Unschedulable"),
        "a": (type_, "False", "Unschedulable"),
        "b": (type_, "True", "Scheduled"),
    }
    statuses.place("a-0", "a-1")
    assert statuses.written() == {
        "r": (composite_type, "True", "Scheduled"),
        "a": (type_, "True", "Scheduled"),
    }
    # It stays so, also when an object is seen again and when pods are gone.
    statuses.add(payloads.GroupSourceObserved(source_of(documents(TREE[1])[0])))
    statuses.add(payloads.PodDeleted("uid-a-0", "default", "a-0"))
    assert statuses.written() == {}


def test_objects_where_no_tree_may_be_are_invalid_and_the_others_are_not() -> None:
    basic = pod_group("c", parent="r")
    statuses = Statuses(*TREE, basic, *PODS, pod("c-0", "c"))
    assert {name: reason for name, (_, _, reason) in statuses.written().items()} == {
        "r": "Unschedulable",
        "a": "Unschedulable",
        "b": "Unschedulable",
        "c": "Invalid",
    }
    round_about = [composite("s", 1, parent="t"), composite("t", 1, parent="s"), pod_group("d", 1, parent="s")]
    statuses = Statuses(*round_about, pod("d-0", "d"))
    assert {reason for _, _, reason in statuses.written().values()} == {"Invalid"}
