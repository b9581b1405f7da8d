"""What the log says is left to do: decisions and evictions without an outcome, placements and statuses to be written.

Folded from events and nothing else, so that a binder that starts knows what the one before it had left to do.
"""

from typing import Self
from uuid import UUID

import msgspec
from kaicore.ledger.log.port import Snapshot
from kaicore.rules.engine.victims.job_failures import failures_text
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.placement import encode_annotation
from kaicore.rules.reasons.reason import Reason

from kai_binder import group_statuses, queue_statuses, waiting_pods
from kai_binder.group_statuses import GroupStatuses
from kai_binder.queue_statuses import QueueStatuses
from kai_binder.waiting_pods import WaitingPods

SNAPSHOT_NAME = "binder"

#: Raised with every change of what a snapshot consists of.
SNAPSHOT_SCHEMA = "binder-9"

#: The events that matter here.
EVENT_TYPES = tuple(
    sorted(
        {
            "BindFailed",
            "EvictionDecided",
            "EvictionFailed",
            "HealRequested",
            "NominationCleared",
            "PlacementObserved",
            "PodBound",
            "PodDeleted",
            "PodEvicted",
            "PodNominated",
            "PodPlaced",
            *group_statuses.EVENT_TYPES,
            *queue_statuses.EVENT_TYPES,
            *waiting_pods.EVENT_TYPES,
        }
    )
)


class Decision(msgspec.Struct, frozen=True):
    """A pod is to be bound to a node.

    Attributes:
        event_id: of the `PodPlaced`; outcomes name it as their cause.
        position: of the `PodPlaced`; decisions of one node are bound in this order.
        recorded_at: of the `PodPlaced`, microseconds since the epoch.
        placement: the predicted zones as an annotation's text, empty when nothing of the pod is aligned.
        claims: names of the pod's claims that are to be provisioned for the node first.
        volumes: volumes that other claims of it are to be bound to first, by the claim's name.
    """

    event_id: UUID
    position: int
    recorded_at: int
    uid: str
    namespace: str
    name: str
    node: str
    cycle: str
    placement: str = ""
    claims: tuple[str, ...] = ()
    volumes: dict[str, str] = {}

    @property
    def subject(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class Eviction(msgspec.Struct, frozen=True):
    """A pod is to be evicted.

    Attributes:
        event_id: of the `HealRequested` or `EvictionDecided`; outcomes name it as their cause.
        condition: what is said on the pod of why it is evicted.
    """

    event_id: UUID
    uid: str
    namespace: str
    name: str
    node: str
    cycle: str
    condition: str = ""

    @property
    def subject(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class Nomination(msgspec.Struct, frozen=True):
    """For which node a waiting pod is nominated, to be written on it; none if `node` is empty."""

    uid: str
    namespace: str
    name: str
    node: str


class Observation(msgspec.Struct, frozen=True):
    """What an exporter saw of a pod, to be written on it; `placement` is the annotation's text."""

    uid: str
    namespace: str
    name: str
    placement: str


class _Record(msgspec.Struct):
    decisions: list[Decision]
    observations: list[Observation]
    evictions: list[Eviction]
    groups: group_statuses.Record
    queues: list[payloads.QueueFigures]
    nominations: list[Nomination]
    waiting: waiting_pods.Record


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Record)


class Projection:
    """What is left to do, by the pod's uid."""

    def __init__(self, *, empty_groups: bool = False) -> None:
        """Args: empty_groups: whether PodGroups without any pods are ours too."""
        #: The pods that schedulers left waiting, and why.
        self.waiting = WaitingPods()
        #: How PodGroups fare.
        self.groups = GroupStatuses(self._reasons_of_group, empty_groups=empty_groups)
        #: How queues stand.
        self.queues = QueueStatuses()
        #: Decisions without an outcome.
        self.decisions: dict[str, Decision] = {}
        #: Observations that may not be on their pods yet.
        self.observations: dict[str, Observation] = {}
        #: Evictions without an outcome.
        self.evictions: dict[str, Eviction] = {}
        #: Nominations that may not be on their pods yet.
        self.nominations: dict[str, Nomination] = {}
        #: Of the last event folded.
        self.position = 0

    def fold(self, event: Event) -> Decision | Eviction | Nomination | Observation | None:
        """Take in an event; return what it gives to do, if anything."""
        self.position = event.position
        if event.type not in EVENT_TYPES:
            return None
        payload = decode_payload(event)
        if event.type in waiting_pods.EVENT_TYPES:
            changed = self.waiting.fold(payload, position=event.position, recorded_at=event.recorded_at)
            self.groups.reasons_changed(changed)
        if event.type in group_statuses.EVENT_TYPES:
            self.groups.fold(payload, recorded_at=event.recorded_at)
        if event.type in queue_statuses.EVENT_TYPES:
            self.queues.fold(payload)
        match payload:
            case payloads.PodPlaced() as placed:
                self.nominations.pop(placed.uid, None)
                decision = self.decisions[placed.uid] = _decision(event, placed)
                return decision
            case payloads.PodBound(uid) | payloads.BindFailed(uid):
                before = self.decisions.get(uid)
                if before is not None and before.event_id == event.cause:
                    del self.decisions[uid]
            case payloads.HealRequested() as asked:
                eviction = self.evictions[asked.uid] = Eviction(
                    event.id, asked.uid, asked.namespace, asked.name, asked.node, asked.cycle
                )
                return eviction
            case payloads.EvictionDecided() as decided:
                eviction = self.evictions[decided.uid] = Eviction(
                    event.id,
                    decided.uid,
                    decided.namespace,
                    decided.name,
                    decided.node,
                    decided.cycle,
                    condition=_condition(decided),
                )
                return eviction
            case payloads.PodNominated(uid, namespace, name, node):
                nomination = self.nominations[uid] = Nomination(uid, namespace, name, node)
                return nomination
            case payloads.NominationCleared(uid, namespace, name):
                nomination = self.nominations[uid] = Nomination(uid, namespace, name, "")
                return nomination
            case payloads.PodEvicted(uid) | payloads.EvictionFailed(uid):
                asked_before = self.evictions.get(uid)
                if asked_before is not None and asked_before.event_id == event.cause:
                    del self.evictions[uid]
            case payloads.PodDeleted(uid):
                self.decisions.pop(uid, None)
                self.evictions.pop(uid, None)
                self.nominations.pop(uid, None)
                self.observations.pop(uid, None)
            case payloads.PlacementObserved(source="exporter") as seen:
                if record := encode_annotation(seen.placement):
                    observation = Observation(seen.uid, seen.namespace, seen.name, record)
                    self.observations[seen.uid] = observation
                    return observation
            case _:
                pass
        return None

    def is_open(self, work: Decision | Eviction) -> bool:
        """Whether a decision or eviction has no outcome yet, its pod is there, and there is no later one."""
        return work is (self.decisions if isinstance(work, Decision) else self.evictions).get(work.uid)

    def is_last(self, written: Observation | Nomination) -> bool:
        """Whether an observation or nomination is the last one of a pod that is there, and may not be on it yet."""
        if isinstance(written, Nomination):
            return self.nominations.get(written.uid) is written
        return self.observations.get(written.uid) is written

    def written(self, written: Observation | Nomination) -> None:
        """Take note that an observation or nomination is on its pod, or never will be."""
        if self.is_last(written) and isinstance(written, Nomination):
            del self.nominations[written.uid]
        elif self.is_last(written):
            del self.observations[written.uid]

    def _reasons_of_group(self, group: str) -> list[Reason]:
        return self.waiting.reasons_of_group(group)

    def snapshot(self) -> Snapshot:
        """Return all of it as a snapshot."""
        record = _Record(
            list(self.decisions.values()),
            list(self.observations.values()),
            list(self.evictions.values()),
            self.groups.record(),
            self.queues.record(),
            list(self.nominations.values()),
            self.waiting.record(),
        )
        return Snapshot(SNAPSHOT_NAME, self.position, SNAPSHOT_SCHEMA, _encoder.encode(record))

    @classmethod
    def restored(cls, snapshot: Snapshot, *, empty_groups: bool = False) -> Self:
        """Return what a snapshot holds.

        Raises:
            msgspec.DecodeError: its bytes are none of ours.
        """
        record = _decoder.decode(snapshot.body)
        projection = cls(empty_groups=empty_groups)
        projection.decisions = {decision.uid: decision for decision in record.decisions}
        projection.observations = {observation.uid: observation for observation in record.observations}
        projection.evictions = {eviction.uid: eviction for eviction in record.evictions}
        projection.waiting = WaitingPods.restored(record.waiting)
        projection.groups = GroupStatuses.restored(
            record.groups, projection._reasons_of_group, empty_groups=empty_groups
        )
        projection.queues = QueueStatuses(record.queues)
        projection.nominations = {nomination.uid: nomination for nomination in record.nominations}
        projection.position = snapshot.position
        return projection


def _condition(decided: payloads.EvictionDecided) -> str:
    """Say on a victim why it is evicted."""
    counted = failures_text(decided.failures_left)
    if not decided.preemptor:
        return f"kai-ledger: {decided.reason}: its group was below its minimum for too long{counted}"
    what = "the group goes on without it" if decided.shrinks else "its group ends as a whole"
    return f"kai-ledger: {decided.reason}: makes way for {decided.preemptor}; {what}{counted}; cycle {decided.cycle}"


def _decision(event: Event, placed: payloads.PodPlaced) -> Decision:
    return Decision(
        event_id=event.id,
        position=event.position,
        recorded_at=event.recorded_at,
        uid=placed.uid,
        namespace=placed.namespace,
        name=placed.name,
        node=placed.node,
        cycle=placed.cycle,
        placement=encode_annotation(placed.placement) if placed.placement is not None else "",
        claims=placed.claims,
        volumes=placed.volumes,
    )
