"""The work that is left by the log."""

import msgspec
import pytest
from kai_binder.binder import reason_on_pod
from kai_binder.projection.open_work import (
    SNAPSHOT_SCHEMA,
    BinderProjection,
    Decision,
    NominatedNode,
    Observation,
    PodBinding,
    Task,
    is_binding,
    is_eviction,
)
from kaicore.errors import UnknownEvent
from kaicore.ledger.log.port import Snapshot
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.observation import binding_annotations
from kaicore.rules.events.payloads import (
    BindFailed,
    EvictionDecided,
    Payload,
    PlacementObserved,
    PodBound,
    PodDeleted,
    PodObserved,
    PodPlaced,
)
from kaicore.rules.model.placement import (
    PREDICTED_ANNOTATION,
    ContainerPlacement,
    Placement,
    Provenance,
    ZoneAmount,
)

from tests.given.cluster.factory import pod
from tests.given.logs.ledger import Ledger
from tests.given.logs.new_events import cycle_unit

ZONES = (ZoneAmount(zone="node-0", amount={"cpu": 8000}),)
PLACEMENT = Placement(Provenance.PREDICTED, (ContainerPlacement("main", ("node-0",), ZONES),))
TEXT = '[{"zone":"node-0","amount":{"cpu":"8"}}]'


class Story(Ledger):
    """A log with words for what matters to a binder, and a projection that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = BinderProjection()

    def tell(self, event: Event) -> Task[Decision] | NominatedNode | Observation | None:
        return self.projection.fold(event)

    def see(self, name: str) -> None:
        assert self.tell(self.record(f"pod/uid-{name}", PodObserved(pod(name)))) is None

    def place(self, name: str, node: str = "n1", placement: Placement | None = PLACEMENT) -> PodBinding:
        payload = PodPlaced(f"uid-{name}", "default", name, node, "default/1", "class", placement)
        binding = self.decided(f"pod/uid-{name}", payload)
        assert is_binding(binding)
        return binding

    def decided(self, stream: str, payload: Payload) -> Task[Decision] | NominatedNode | Observation | None:
        """A cycle that made one decision, and this decision."""
        (cycle,) = cycle_unit("c", len(self.events), payload)
        recorded = self.record("cycle/default", cycle.events[0].payload)
        self.tell(recorded)
        return self.tell(msgspec.structs.replace(self.record(stream, payload), cause=recorded.id))

    def outcome(self, name: str, payload: PodBound | BindFailed, *, of: PodBinding) -> None:
        event = msgspec.structs.replace(self.record(f"pod/uid-{name}", payload), cause=of.event_id)
        assert self.tell(event) is None

    def observe(self, name: str, *, source: str = "exporter", placement: Placement = PLACEMENT) -> object:
        payload = PlacementObserved(f"uid-{name}", "default", name, "n1", placement, source)
        return self.tell(self.record(f"pod/uid-{name}", payload))

    def delete(self, name: str) -> None:
        self.tell(self.record(f"pod/uid-{name}", PodDeleted(f"uid-{name}", "default", name)))


def bound(name: str) -> PodBound:
    return PodBound(f"uid-{name}", "default", name, "n1")


def failed(name: str) -> BindFailed:
    return BindFailed(f"uid-{name}", "default", name, "n1", 409, "Conflict")


def test_a_decision_is_open_until_its_outcome() -> None:
    story = Story()
    story.see("a")
    one, two, three = story.place("a"), story.place("b", placement=None), story.place("c")
    assert (binding_annotations(one.decision), binding_annotations(two.decision)) == ({PREDICTED_ANNOTATION: TEXT}, {})
    assert all(map(story.projection.is_open, (one, two, three)))
    story.outcome("a", bound("a"), of=one)
    story.outcome("b", failed("b"), of=two)
    story.delete("c")
    assert not any(map(story.projection.is_open, (one, two, three)))
    assert story.projection.tasks == {}


def test_decisions_of_a_newer_scheduler_are_open_though_its_reasons_are_not_known() -> None:
    story = Story()
    placed = PodPlaced("uid-a", "default", "a", "n1", "default/1", "class", PLACEMENT)
    (unit,) = cycle_unit("c", 1, placed)
    cycle = story.record("cycle/default", unit.events[0].payload)
    body = msgspec.json.decode(cycle.body) | {"pending": [{"reasons": [{"type": "NotYetKnown"}]}], "also": 1}
    newer = msgspec.structs.replace(cycle, schema=cycle.schema + 1, body=msgspec.Raw(msgspec.json.encode(body)))
    assert story.tell(newer) is None
    binding = story.tell(msgspec.structs.replace(story.record("pod/uid-a", placed), cause=newer.id))
    assert is_binding(binding)
    assert story.projection.is_open(binding)
    # Decisions themselves are read as they are meant, or not at all.
    with pytest.raises(UnknownEvent):
        story.tell(msgspec.structs.replace(story.record("pod/uid-b", placed), schema=99))


def test_an_outcome_closes_only_its_own_decision() -> None:
    story = Story()
    first = story.place("a")
    story.outcome("a", failed("a"), of=first)
    second = story.place("a", "n2")
    story.outcome("a", bound("a"), of=first)
    assert not story.projection.is_open(first)
    assert story.projection.is_open(second)


def test_the_last_observation_of_an_exporter_is_to_be_written() -> None:
    story = Story()
    assert story.observe("a", source="annotation") is None
    assert story.observe("a", placement=Placement(Provenance.OBSERVED)) is None
    first = story.observe("a")
    assert first == Observation("uid-a", "default", "a", TEXT)
    second = story.observe("a")
    assert isinstance(first, Observation)
    assert isinstance(second, Observation)
    assert not story.projection.is_last(first)
    story.projection.written(first)
    assert story.projection.is_last(second)
    story.projection.written(second)
    assert story.projection.observations == {}
    story.observe("b")
    story.delete("b")
    assert story.projection.observations == {}


def test_a_snapshot_gives_back_what_was_left() -> None:
    story = Story()
    story.outcome("a", bound("a"), of=story.place("a"))
    story.place("b")
    story.observe("a")
    snapshot = story.projection.snapshot()
    restored = BinderProjection.restored(snapshot)
    assert restored.tasks == story.projection.tasks
    assert restored.observations == story.projection.observations
    assert restored.position == story.projection.position == snapshot.position
    assert restored.is_open(restored.tasks["bind pod/uid-b"])


def test_a_snapshot_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        BinderProjection.restored(Snapshot("binder", 7, SNAPSHOT_SCHEMA, b"nonsense"))


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (None, "its group ends as a whole; cycle default/1"),
        (2, "its group ends as a whole; its Job counts that as a failure and bears 2 more; cycle default/1"),
        (-1, "its group ends as a whole; its Job counts that as a failure, bears no more and fails; cycle default/1"),
    ],
)
def test_a_victim_is_told_what_its_eviction_is_to_its_job(left: int | None, expected: str) -> None:
    story = Story()
    story.see("a")
    decided = EvictionDecided(
        *("uid-a", "default", "a", "n1"),
        cycle="default/1",
        group="Job.batch/default/train",
        reason="Preempted",
        preemptor="Pod/default/high",
        failures_left=left,
    )
    story.decided("pod/uid-a", decided)
    (eviction,) = story.projection.tasks.values()
    assert is_eviction(eviction)
    assert reason_on_pod(eviction) == f"kai-ledger: Preempted: makes way for Pod/default/high; {expected}"


def test_more_decisions_than_the_cycle_made_and_those_of_no_cycle_are_refused() -> None:
    story = Story()
    for name in "abc":
        story.see(name)
    binding = story.place("a")
    (cycle,) = (event for event in story.events if event.type == "CycleCompleted")
    for name, cause in (("b", cycle.id), ("b", None), ("c", story.events[0].id), ("c", binding.event_id)):
        payload = PodPlaced(f"uid-{name}", "default", name, "n1", "default/1", "class", PLACEMENT)
        forged = story.record(f"pod/uid-{name}", payload)
        assert story.tell(msgspec.structs.replace(forged, cause=cause)) is None
    assert len(story.projection.refused) == 4
    assert list(story.projection.tasks) == ["bind pod/uid-a"]
    assert BinderProjection.restored(story.projection.snapshot()).cycle == story.projection.cycle
