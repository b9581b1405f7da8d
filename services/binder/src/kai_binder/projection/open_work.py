"""Fold of the work that is left: open bindings and evictions, dispatches, and placements and statuses to be written.

It is folded from events and nothing else. So a binder that starts knows what the one before it had left to do. Pods
belong to a dispatch by the mark that they carry.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Generic, Self, TypeGuard, TypeVar, cast
from uuid import UUID

import msgspec
from kaicore.ledger.log.port import Snapshot
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_decision, names_in_logs
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import Payload
from kaicore.rules.events.quarantine import folding, is_passed_over
from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.hub.cluster_side import DISPATCH_MARK, Term
from kaicore.rules.model.placement import encode_annotation
from kaicore.rules.topology.book import EVENT_TYPES as TOPOLOGY_EVENTS

from kai_binder.projection import gpu_groups, group_statuses, topology_statuses, waiting_pods
from kai_binder.projection.gpu_groups import GpuGroups, GpuGroupsRecord
from kai_binder.projection.group_statuses import GroupStatuses
from kai_binder.projection.topology_statuses import QueueStatuses, TopologyStatuses, TopologyStatusesRecord
from kai_binder.projection.waiting_pods import WaitingPods

_ENDED = frozenset({"Succeeded", "Failed"})


class PodTerms:
    """The pods of dispatches, by uid; those of others cost nothing."""

    def __init__(self, terms: Mapping[str, str] | None = None) -> None:
        """Args: terms: what `record` gave."""
        self._terms = dict(terms or {})
        self._counts = Counter(self._terms.values())
        self._ended: set[str] = set()

    def fold(self, payload: Payload) -> None:
        """Take in an event."""
        if isinstance(payload, payloads.PodObserved):
            pod = payload.pod
            mark = pod.annotations.get(DISPATCH_MARK, "")
            if mark and pod.uid not in self._terms:
                self._terms[pod.uid] = mark
                self._counts[mark] += 1
            if mark and pod.phase in _ENDED:
                self._ended.add(mark)
        elif isinstance(payload, payloads.PodDeleted) and payload.uid in self._terms:
            mark = self._terms.pop(payload.uid)
            self._counts[mark] -= 1
            self._ended.add(mark)
            if not self._counts[mark]:
                del self._counts[mark]

    def of_pod(self, uid: str) -> str:
        """Return the mark of a pod; empty for one of no dispatch."""
        return self._terms.get(uid, "")

    def count(self, term: Term) -> int:
        """Return how many pods of a term there are."""
        return self._counts[str(term)]

    def ended(self) -> set[str]:
        """Return the marks of which pods have ended or are gone since this was asked last."""
        ended, self._ended = self._ended, set()
        return ended

    def record(self) -> dict[str, str]:
        """Return all of it as plain data."""
        return dict(self._terms)


SNAPSHOT_NAME = "binder"

#: Raised with every change of what a snapshot consists of.
SNAPSHOT_SCHEMA = "binder-20"

#: What a scheduler decides in a cycle and the binder carries out.
_DECISIONS = (
    payloads.PodPlaced,
    payloads.EvictionDecided,
    payloads.RepairRequested,
    payloads.GpuOpened,
    payloads.PodNominated,
    payloads.NominationCleared,
    payloads.ProvisioningRequested,
    payloads.ProvisioningWithdrawn,
)

#: What has an outcome.
Decision = (
    payloads.PodPlaced
    | payloads.EvictionDecided
    | payloads.RepairRequested
    | payloads.ProvisioningRequested
    | payloads.ProvisioningWithdrawn
)
D_co = TypeVar("D_co", bound=Decision, covariant=True)

#: The events that matter here.
EVENT_TYPES = names_in_logs(
    {
        "BindFailed",
        "EvictionDecided",
        "EvictionFailed",
        "NominationCleared",
        "PlacementObserved",
        "PodBound",
        "PodDeleted",
        "PodEvicted",
        "PodNominated",
        "PodPlaced",
        "ProvisioningRequestCreated",
        "ProvisioningRequestRefused",
        "ProvisioningRequestRemoved",
        "ProvisioningRequested",
        "ProvisioningWithdrawn",
        "RepairRequested",
        *gpu_groups.EVENT_TYPES,
        *group_statuses.EVENT_TYPES,
        *topology_statuses.EVENT_TYPES,
        *TOPOLOGY_EVENTS,
        *waiting_pods.EVENT_TYPES,
    }
)


class Task(msgspec.Struct, Generic[D_co], frozen=True):
    """A decision that is to be carried out.

    Attributes:
        event_id: of the decision's event; outcomes name it as their cause.
        position: of the event; decisions of one node are bound in this order.
        recorded_at: of the event, microseconds since the epoch.
        decision: the event's payload.
    """

    event_id: UUID
    position: int
    recorded_at: int
    decision: D_co

    @property
    def subject(self) -> str:
        """`namespace/name` of the pod or ProvisioningRequest."""
        return f"{self.decision.namespace}/{self.decision.name}"

    @property
    def stream(self) -> str:
        """Stream of its outcome."""
        match self.decision:
            case payloads.ProvisioningRequested() | payloads.ProvisioningWithdrawn():
                return f"provisioning/{self.subject}"
            case pod:
                return f"pod/{pod.uid}"

    @property
    def key(self) -> str:
        """The task's key: its subject and its kind; a later task with the same key takes its place."""
        return f"{'bind' if isinstance(self.decision, payloads.PodPlaced) else 'end'} {self.stream}"


#: A pod is to be bound to a node; a pod is to be evicted, for others' sake or its own; a ProvisioningRequest is to be
#: made or deleted.
PodBinding = Task[payloads.PodPlaced]
PodEviction = Task[payloads.EvictionDecided | payloads.RepairRequested]
Provisioning = Task[payloads.ProvisioningRequested | payloads.ProvisioningWithdrawn]


def is_binding(work: object) -> TypeGuard[PodBinding]:
    """True if a pod is to be bound."""
    return isinstance(work, Task) and isinstance(work.decision, payloads.PodPlaced)


def is_eviction(work: object) -> TypeGuard[PodEviction]:
    """True if a pod is to be evicted."""
    return isinstance(work, Task) and isinstance(work.decision, payloads.EvictionDecided | payloads.RepairRequested)


def is_provisioning(work: object) -> TypeGuard[Provisioning]:
    """True if a ProvisioningRequest is to be made or deleted."""
    return isinstance(work, Task) and work.stream.startswith("provisioning/")


class NominatedNode(msgspec.Struct, frozen=True):
    """For which node a waiting pod is nominated, to be written on it; none if `node` is empty."""

    uid: str
    namespace: str
    name: str
    node: str


class Observation(msgspec.Struct, frozen=True):
    """An exporter's observation, to be written on the pod; `placement` is the annotation's text."""

    uid: str
    namespace: str
    name: str
    placement: str


class DecidedCycle(msgspec.Struct):
    """The cycle that was recorded last, and how many of its decisions are still to come; all are in one append.

    Attributes:
        event_id: of its `CycleCompleted`, which each of its decisions has as its cause.
        placed: how many pods it placed that were not reported yet.
        evicted: how many evictions it decided that were not reported yet.
    """

    event_id: UUID
    placed: int
    evicted: int


class _Record(msgspec.Struct):
    placed: list[Task[payloads.PodPlaced]]
    evicted: list[Task[payloads.EvictionDecided]]
    repaired: list[Task[payloads.RepairRequested]]
    requested: list[Task[payloads.ProvisioningRequested]]
    withdrawn: list[Task[payloads.ProvisioningWithdrawn]]
    observations: list[Observation]
    groups: group_statuses.GroupStatusesRecord
    queues: list[payloads.QueueFigures]
    nominations: list[NominatedNode]
    waiting: waiting_pods.WaitingPodsRecord
    topologies: TopologyStatusesRecord
    terms: dict[str, str]
    gpus: GpuGroupsRecord
    cycle: DecidedCycle | None

    @property
    def tasks(self) -> dict[str, Task[Decision]]:
        """All tasks, by key."""
        tasks: tuple[Task[Decision], ...] = (
            *self.placed,
            *self.evicted,
            *self.repaired,
            *self.requested,
            *self.withdrawn,
        )
        return {task.key: task for task in tasks}


_OUTCOMES = (payloads.PodBound, payloads.BindFailed, payloads.PodEvicted, payloads.EvictionFailed)

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(_Record)


class BinderProjection:
    """The tasks that are left."""

    def __init__(self, *, empty_groups: bool = False) -> None:
        """Args: empty_groups: whether PodGroups without any pods are ours too."""
        #: The pods that schedulers left waiting, and why.
        self.waiting = WaitingPods()
        #: How PodGroups fare.
        self.groups = GroupStatuses(self._reasons_of_group, empty_groups=empty_groups)
        #: How queues stand.
        self.queues = QueueStatuses()
        #: How topologies turn out.
        self.topologies = TopologyStatuses()
        #: Decisions without an outcome, by `Task.key`.
        self.tasks: dict[str, Task[Decision]] = {}
        #: Observations that may not be on their pods yet.
        self.observations: dict[str, Observation] = {}
        #: Nominations that may not be on their pods yet.
        self.nominations: dict[str, NominatedNode] = {}
        #: Of which dispatches pods are.
        self.terms = PodTerms()
        #: The GPUs that are opened for shares.
        self.gpus = GpuGroups()
        #: The cycle that was recorded last.
        self.cycle: DecidedCycle | None = None
        #: Decisions that no recorded cycle made; they are not carried out. Whoever reads them takes them away.
        self.refused: list[Event] = []
        #: Of the last event folded.
        self.position = 0

    def fold(self, event: Event) -> Task[Decision] | NominatedNode | Observation | None:
        """Take in an event; return what it gives to do, if anything.

        Raises:
            UnfoldableEvent: it is half taken in; this is to be made anew, and the event is passed over then.
        """
        self.position = event.position
        if event.type not in EVENT_TYPES or is_passed_over(event, SNAPSHOT_NAME):
            return None
        with folding(event, SNAPSHOT_NAME):
            return self._take(event)

    def _take(self, event: Event) -> Task[Decision] | NominatedNode | Observation | None:
        payload = decode_decision(event)
        if isinstance(payload, payloads.Undecodable) or not self._is_decided(event, payload):
            return None
        if event.type in waiting_pods.EVENT_TYPES:
            changed = self.waiting.fold(payload, position=event.position, recorded_at=event.recorded_at)
            self.groups.reasons_changed(changed)
        if event.type in group_statuses.EVENT_TYPES:
            self.groups.fold(payload, recorded_at=event.recorded_at)
        if event.type in topology_statuses.EVENT_TYPES:
            self.queues.fold(payload)
        self.terms.fold(payload)
        self.gpus.fold(payload)
        if event.type in TOPOLOGY_EVENTS:
            self.topologies.fold(payload, recorded_at=event.recorded_at)
        match payload:
            case _ if isinstance(payload, Decision):
                if isinstance(payload, payloads.PodPlaced):
                    self.nominations.pop(payload.uid, None)
                task = Task(event.id, event.position, event.recorded_at, payload)
                self.tasks[task.key] = task
                return task
            case payloads.PodBound() | payloads.BindFailed():
                self._close(f"bind {event.stream}", event)
            case (
                payloads.PodEvicted()
                | payloads.EvictionFailed()
                | payloads.ProvisioningRequestCreated()
                | payloads.ProvisioningRequestRefused()
                | payloads.ProvisioningRequestRemoved()
            ):
                self._close(f"end {event.stream}", event)
            case payloads.PodNominated(uid, namespace, name, node):
                nomination = self.nominations[uid] = NominatedNode(uid, namespace, name, node)
                return nomination
            case payloads.NominationCleared(uid, namespace, name):
                nomination = self.nominations[uid] = NominatedNode(uid, namespace, name, "")
                return nomination
            case payloads.PodDeleted(uid):
                self.tasks.pop(f"bind pod/{uid}", None)
                self.tasks.pop(f"end pod/{uid}", None)
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

    def _is_decided(self, event: Event, payload: Payload) -> bool:
        """Tell whether an event is no decision, or one of those that the cycle recorded last counts."""
        if isinstance(payload, payloads.CycleCompleted):
            self.cycle = DecidedCycle(event.id, payload.placed, payload.evicted)
        if not isinstance(payload, _DECISIONS):
            return True
        left = -1
        cycle = self.cycle
        if cycle is not None and event.cause == cycle.event_id:
            cycle.placed -= isinstance(payload, payloads.PodPlaced)
            cycle.evicted -= isinstance(payload, payloads.EvictionDecided)
            left = min(cycle.placed, cycle.evicted)
        if left < 0:
            self.refused.append(event)
        return left >= 0

    def _close(self, key: str, outcome: Event) -> None:
        task = self.tasks.get(key)
        if task is not None and task.event_id == outcome.cause:
            del self.tasks[key]

    def is_open(self, task: Task[Decision]) -> bool:
        """True if a task has no outcome yet, its pod is there, and no later task replaces it."""
        return task == self.tasks.get(task.key)

    def is_last(self, written: Observation | NominatedNode) -> bool:
        """True if an observation or nomination is its pod's last one, and may not be written on the pod yet."""
        if isinstance(written, NominatedNode):
            return self.nominations.get(written.uid) is written
        return self.observations.get(written.uid) is written

    def written(self, written: Observation | NominatedNode) -> None:
        """Take note that an observation or nomination is on its pod, or never will be."""
        if self.is_last(written) and isinstance(written, NominatedNode):
            del self.nominations[written.uid]
        elif self.is_last(written):
            del self.observations[written.uid]

    def _reasons_of_group(self, group: str) -> list[CodedReason]:
        return self.waiting.reasons_of_group(group)

    def _tasks_of(self, kind: type[D_co]) -> list[Task[D_co]]:
        return cast("list[Task[D_co]]", [task for task in self.tasks.values() if isinstance(task.decision, kind)])

    def open_of_pods(self) -> dict[str, set[UUID]]:
        """Return the ids of the open decisions about each pod that has any."""
        found: dict[str, set[UUID]] = {}
        for task in self.tasks.values():
            if task.stream.startswith("pod/"):
                found.setdefault(task.stream.removeprefix("pod/"), set()).add(task.event_id)
        return found

    def snapshot(self) -> Snapshot:
        """Return all of it as a snapshot."""
        record = _Record(
            placed=self._tasks_of(payloads.PodPlaced),
            evicted=self._tasks_of(payloads.EvictionDecided),
            repaired=self._tasks_of(payloads.RepairRequested),
            requested=self._tasks_of(payloads.ProvisioningRequested),
            withdrawn=self._tasks_of(payloads.ProvisioningWithdrawn),
            observations=list(self.observations.values()),
            groups=self.groups.record(),
            queues=self.queues.record(),
            nominations=list(self.nominations.values()),
            waiting=self.waiting.record(),
            topologies=self.topologies.record(),
            terms=self.terms.record(),
            gpus=self.gpus.record(),
            cycle=self.cycle,
        )
        return Snapshot(SNAPSHOT_NAME, self.position, SNAPSHOT_SCHEMA, _encoder.encode(record))

    @classmethod
    def restored(cls, snapshot: Snapshot, *, empty_groups: bool = False) -> Self:
        """Return what a snapshot holds. Raises msgspec.DecodeError: its bytes are none of ours."""
        record = _decoder.decode(snapshot.body)
        projection = cls(empty_groups=empty_groups)
        projection.tasks = record.tasks
        projection.observations = {observation.uid: observation for observation in record.observations}
        projection.waiting = WaitingPods.restored(record.waiting)
        projection.groups = GroupStatuses.restored(
            record.groups, projection._reasons_of_group, empty_groups=empty_groups
        )
        projection.queues = QueueStatuses(record.queues)
        projection.topologies = TopologyStatuses.restored(record.topologies)
        projection.nominations = {nomination.uid: nomination for nomination in record.nominations}
        projection.terms = PodTerms(record.terms)
        projection.gpus = GpuGroups(record.gpus)
        projection.cycle = record.cycle
        projection.position = snapshot.position
        return projection


def decided_part(body: bytes) -> bytes:
    """Return what decisions and facts alone make of a snapshot's body: what was written since is left out."""
    record = _decoder.decode(body)
    return _encoder.encode({"tasks": record.tasks, "terms": record.terms, "gpus": record.gpus, "cycle": record.cycle})


def open_decisions(events: Sequence[Event]) -> set[UUID]:
    """Return the ids of the decisions about a pod that its own events leave open."""
    open_: dict[bool, UUID] = {}
    for event in events:
        payload = decode_decision(event)
        binds = isinstance(payload, payloads.PodPlaced | payloads.PodBound | payloads.BindFailed)
        if isinstance(payload, payloads.PodDeleted):
            open_.clear()
        elif isinstance(payload, Decision):
            open_[binds] = event.id
        elif isinstance(payload, _OUTCOMES) and open_.get(binds) == event.cause:
            open_.pop(binds, None)
    return set(open_.values())
