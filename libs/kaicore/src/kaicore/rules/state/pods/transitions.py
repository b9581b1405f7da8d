"""The table of stages and events: the change of a pod's entry by each event.

A change is a small function that changes the entry and nothing else. The indexes (`PodIndexes`) are derived from the
entry before and after. An event that the table does not have for a stage changes nothing.
`docs/reference/pod-stages.md` prints the table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from operator import methodcaller
from sys import intern
from typing import Any

import msgspec

from kaicore.errors import InvalidObject
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.work.workload import Nomination
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Event
from kaicore.rules.groups.labels import NO_RANK
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Pod, is_kubelet_rejection
from kaicore.rules.numa.explain import impossible_holding, most_held, zone_limits
from kaicore.rules.state.pods.agreement import Agreement, compare
from kaicore.rules.state.pods.pod_entry import (
    EMPTY,
    Eviction,
    KubeletRejection,
    PodEntry,
    Remembered,
    Stage,
    share_containers,
    share_parts,
    shared,
)


class Trigger(Enum):
    """An event about a pod; a `PodObserved` is one of four, by what it shows."""

    SEEN_WITHOUT_NODE = "PodObserved without a node"
    SEEN_ON_NODE = "PodObserved on a node"
    SEEN_FINISHED = "PodObserved succeeded or failed"
    SEEN_REJECTED = "PodObserved rejected by its kubelet"
    DELETED = "PodDeleted"
    REJECTED = "PodRejected"
    PLACEMENT_OBSERVED = "PlacementObserved"
    PLACED = "PodPlaced"
    BOUND = "PodBound"
    BIND_FAILED = "BindFailed"
    NOMINATED = "PodNominated"
    NOMINATION_CLEARED = "NominationCleared"
    EVICTION_DECIDED = "EvictionDecided"
    REPAIR_REQUESTED = "RepairRequested"
    EVICTION_FAILED = "EvictionFailed"
    LEFT_WAITING = "PodsLeftWaiting"

    # Triggers are keys of the table, which is asked for every event; by identity that is twice as fast.
    __hash__ = object.__hash__


_TRIGGERS: dict[type, Trigger] = {
    payloads.PodDeleted: Trigger.DELETED,
    payloads.PodRejected: Trigger.REJECTED,
    payloads.PlacementObserved: Trigger.PLACEMENT_OBSERVED,
    payloads.PodPlaced: Trigger.PLACED,
    payloads.PodBound: Trigger.BOUND,
    payloads.BindFailed: Trigger.BIND_FAILED,
    payloads.PodNominated: Trigger.NOMINATED,
    payloads.NominationCleared: Trigger.NOMINATION_CLEARED,
    payloads.EvictionDecided: Trigger.EVICTION_DECIDED,
    payloads.RepairRequested: Trigger.REPAIR_REQUESTED,
    payloads.EvictionFailed: Trigger.EVICTION_FAILED,
    payloads.WaitingPod: Trigger.LEFT_WAITING,
}


def trigger_of(payload: Any) -> Trigger | None:
    """Return what a payload is in the table; None if it is not about one pod."""
    if type(payload) is not payloads.PodObserved:
        return _TRIGGERS.get(type(payload))
    if payload.pod.finished:
        return Trigger.SEEN_REJECTED if is_kubelet_rejection(payload.pod) else Trigger.SEEN_FINISHED
    return Trigger.SEEN_ON_NODE if payload.pod.node_name else Trigger.SEEN_WITHOUT_NODE


class FoldContext:
    """The context of a change, beside the entry and the payload.

    Attributes:
        position: of the event.
        recorded_at, occurred_at: its times, microseconds since the epoch.
        last_cycles: by shard, the last recorded cycle and the position that it knew.
    """

    __slots__ = ("_columns", "_compared", "_possible", "last_cycles", "occurred_at", "position", "recorded_at")

    def __init__(self, columns: NodeColumns) -> None:
        """Args: columns: of the state."""
        self.position = 0
        self.recorded_at = 0
        self.occurred_at = 0
        self.last_cycles: dict[str, tuple[str, int]] = {}
        self._columns = columns
        #: Observations of which pods can hold all, by these, their containers, and the shape of the node's zones.
        self._possible: Remembered[bool] = Remembered()
        #: Comparisons, by the prediction and by what was observed.
        self._compared: Remembered[Agreement] = Remembered()

    def advance(self, event: Event) -> None:
        """Go on to the next event."""
        self.position, self.recorded_at, self.occurred_at = event.position, event.recorded_at, event.occurred_at

    @property
    def clock(self) -> tuple[int, int, int]:
        """The position and the times, for `turn_back`."""
        return self.position, self.recorded_at, self.occurred_at

    def turn_back(self, clock: tuple[int, int, int]) -> None:
        """Go back to an earlier event."""
        self.position, self.recorded_at, self.occurred_at = clock

    def impossible(self, pod: Pod, node: str, observed: Placement) -> InvalidObject | None:
        """Return what a pod was observed to hold that it, or a zone, cannot hold; None if nothing."""
        row = self._columns.rows.get(node)
        topology = None if row is None else self._columns.topologies[row]
        shape = (0 if row is None or topology is None else int(self._columns.zones.shape[row]),)
        parts = pod.containers, observed.containers
        if pod.pod_resources is None and self._possible.get(shape, parts):
            return None
        problem = impossible_holding(
            observed,
            subject=f"Pod {pod.subject}",
            most=most_held(pod),
            zones=zone_limits(topology) if topology is not None else {},
        )
        if problem is None and pod.pod_resources is None:
            self._possible.put(shape, parts, value=True)
        return problem

    def compared(self, predicted: Placement, observed: Placement) -> Agreement:
        """Compare an observed placement with the predicted one."""
        if observed.init:
            return compare(predicted, observed)
        parts = predicted, observed.containers
        return self._compared.get((), parts) or self._compared.put((), parts, compare(predicted, observed))

    def input_position(self, cycle: str) -> int:
        """Return the position that a cycle knew; that of the event itself if the cycle is not recorded."""
        for name, position in self.last_cycles.values():
            if name == cycle:
                return position
        return self.position


class Release(StrEnum):
    """The way in which a pod lets go of its node.

    Attributes:
        ENDED: its kubelet had it, and may have freed what it held some time before the API server showed its end.
        NOT_BOUND: its kubelet never had it.
        REJECTED: its kubelet refused it; the node is as it was, and rejects such pods again.
    """

    ENDED = "ended"
    NOT_BOUND = "not bound"
    REJECTED = "rejected"


Change = Callable[[PodEntry, Any, FoldContext], None]
Condition = Callable[[PodEntry, Any], bool]


@dataclass(frozen=True, slots=True)
class Transition:
    """The change that an event makes in a pod of one stage.

    Attributes:
        to: the stage afterwards.
        change: changes the entry; the stage is set already.
        when: the event changes nothing unless this holds.
        release: how the pod lets go of its node, if it had one and has it no more.
        only_noted: nothing that an index is derived from changes, of a pod without a part in a shared GPU.
    """

    to: Stage
    change: Change
    when: Condition | None = None
    release: Release | None = None
    only_noted: bool = False

    def apply(self, entry: PodEntry, payload: Any, context: FoldContext) -> None:
        """Change an entry."""
        entry.stage = self.to
        self.change(entry, payload, context)


# Conditions.


def _names_its_node(entry: PodEntry, payload: payloads.BindFailed | payloads.PlacementObserved) -> bool:
    """The event names the pod's node."""
    return entry.node == payload.node


def _waits(entry: PodEntry, _: object) -> bool:
    """The pod is not being deleted."""
    return entry.waiting


def _has_nomination(entry: PodEntry, _: object) -> bool:
    """Room is kept for the pod."""
    return entry.nomination is not None


def _stays(entry: PodEntry, payload: payloads.EvictionFailed) -> bool:
    """An eviction of the pod was decided, and the pod is still there."""
    return not payload.gone and (entry.eviction is not None or entry.repairing)


# Changes.


def _see(entry: PodEntry, payload: payloads.PodObserved, context: FoldContext) -> None:
    """Take over the pod, and what its status says of a nomination."""
    pod, named_before, nomination = payload.pod, entry.pod.nominated_node, entry.nomination
    if pod is entry.pod or pod.containers is not entry.pod.containers:
        share_parts(pod, entry.pod)
    entry.pod = pod
    if pod.phase == "Running" and not entry.started_at:
        entry.started_at = context.recorded_at
    named = pod.nominated_node
    if nomination is not None and nomination.foreign and named_before != named:
        nomination = entry.nomination = None
    if named_before and not named:
        entry.nominated_for = ""
    if not entry.waiting:
        _stop_waiting(entry)
    elif named and named != entry.nominated_for and nomination is None:
        entry.nomination, entry.nominated_for = Nomination(named, at=context.recorded_at, foreign=True), named


#: Copies a struct; `copy.copy` looks for the way first, which takes as long again.
copied: Any = methodcaller("__copy__")


def with_status_of(before: Pod, pod: Pod) -> Pod | None:
    """Return a pod with the parts that it had before, if nothing but its status is new; else None."""
    again, put = copied(before), msgspec.structs.force_setattr
    put(again, "resource_version", pod.resource_version)
    put(again, "phase", intern(pod.phase))
    put(again, "node_name", pod.node_name)
    put(again, "start_time", pod.start_time)
    put(again, "deletion_at", pod.deletion_at)
    put(again, "reason", pod.reason)
    put(again, "message", pod.message)
    put(again, "unready", pod.unready)
    return again if again == pod else None


def keeps_place(entry: PodEntry, pod: Pod) -> bool:
    """Tell whether a pod of which only the status is new keeps its node or its end, and holds what it held."""
    before = entry.pod
    if entry.nomination is not None:
        return False
    if entry.stage is Stage.BOUND:
        # Once its containers run, the memory of its init containers is free.
        as_held = pod.phase == before.phase or not before.has_init
        return pod.node_name == entry.node and not pod.finished and pod.deletion_at == before.deletion_at and as_held
    ended = entry.stage is Stage.FINISHED and pod.phase == before.phase and pod.finished
    return ended and pod.node_name in ("", entry.node)


def see_again(entry: PodEntry, pod: Pod, context: "FoldContext") -> None:
    """Take over a pod for which `keeps_place` holds."""
    entry.pod, entry.reported = pod, None
    if entry.stage is Stage.BOUND:
        entry.bound_at = entry.bound_at or context.recorded_at
        if pod.phase == "Running" and not entry.started_at:
            entry.started_at = context.recorded_at


def _see_on_node(entry: PodEntry, payload: payloads.PodObserved, context: FoldContext) -> None:
    """Take over the pod and its node, to which it is bound."""
    entry.node, entry.bound_at = intern(payload.pod.node_name), entry.bound_at or context.recorded_at
    _see(entry, payload, context)


def _see_on_its_node(entry: PodEntry, payload: payloads.PodObserved, context: FoldContext) -> None:
    """Take over the pod and its node; another node than before voids all records of its placement."""
    if entry.node != payload.pod.node_name:
        entry.bound_at = 0
        entry.predicted = entry.observed = None
        entry.implausible, entry.volumes, entry.devices, entry.gpus = "", {}, {}, ()
    _see_on_node(entry, payload, context)


def _see_finished(entry: PodEntry, payload: payloads.PodObserved, context: FoldContext) -> None:
    """Take over the pod and its node, if it had one."""
    entry.node = payload.pod.node_name or entry.node
    _see(entry, payload, context)


def _delete(entry: PodEntry, payload: payloads.PodDeleted, context: FoldContext) -> None:
    """Forget the pod."""
    _stop_waiting(entry)


def _reject(entry: PodEntry, payload: payloads.PodRejected, context: FoldContext) -> None:
    """Note which kubelet rejected the pod, and why."""
    entry.node = payload.node
    entry.rejection = KubeletRejection(payload.node, payload.reason, context.position)
    _stop_waiting(entry)


def _observe_placement(entry: PodEntry, payload: payloads.PlacementObserved, context: FoldContext) -> None:
    """Take over the observed zones, unless they are more than the pod or a zone can hold."""
    observed = share_containers(payload.placement)
    problem = context.impossible(entry.pod, payload.node, observed)
    entry.implausible = str(problem or "")
    if problem is not None:
        entry.implausible_reports += 1
        return
    entry.exporter_reports += payload.source == "exporter"
    entry.observed = observed
    if entry.predicted is not None and entry.predicts_zones:
        entry.agreement = context.compared(entry.predicted, observed)


def _place(entry: PodEntry, payload: payloads.PodPlaced, context: FoldContext) -> None:
    """Take over the node, the predicted zones, all that it gets there, and the rank; no room is kept any more."""
    entry.node, entry.predicted, entry.agreement = intern(payload.node), shared(payload.placement), None
    entry.volumes, entry.devices = payload.volumes or EMPTY, payload.devices or EMPTY
    entry.rank, entry.gpus = payload.rank, payload.gpus
    entry.cycle, entry.placed_at, entry.bound_at = intern(payload.cycle), context.occurred_at, 0
    entry.decided_at = context.input_position(payload.cycle)
    _stop_waiting(entry)


def _bind(entry: PodEntry, payload: payloads.PodBound, context: FoldContext) -> None:
    """Note when."""
    entry.bound_at = context.recorded_at


#: Codes by which admission refuses: webhooks by the first two, policies by the last.
_ADMISSION = (400, 403, 422)


def _fail_to_bind(entry: PodEntry, payload: payloads.BindFailed, context: FoldContext) -> None:
    """Forget the node and all that the decision gave it there; count the failure; note if the pod is gone."""
    entry.node, entry.predicted, entry.volumes, entry.rank = "", None, {}, NO_RANK
    entry.devices, entry.gpus = {}, ()
    # Nothing was posted: it did not get its volumes, devices or parts of GPUs there.
    if payload.attempts == 0 or payload.code in _ADMISSION:
        entry.failed_on = tuple(sorted({*entry.failed_on, payload.node}))
    entry.bind_failures += 1
    entry.failed_at = context.recorded_at
    entry.gone = payload.gone


def _nominate(entry: PodEntry, payload: payloads.PodNominated, context: FoldContext) -> None:
    """Keep room for the pod on a node."""
    entry.nomination = Nomination(payload.node, payload.placement, at=context.recorded_at)
    entry.nominated_for = payload.node


def _clear_nomination(entry: PodEntry, payload: payloads.NominationCleared, context: FoldContext) -> None:
    """Keep no more room for the pod."""
    entry.nomination, entry.nominated_for = None, payload.node


def _decide_eviction(entry: PodEntry, payload: payloads.EvictionDecided, context: FoldContext) -> None:
    """Note that the pod is to be evicted for another group's sake, and why."""
    entry.eviction = Eviction(payload.reason, context.recorded_at, payload.fits_on)


def _request_repair(entry: PodEntry, payload: payloads.RepairRequested, context: FoldContext) -> None:
    """Note that the pod is to be evicted because of its own NUMA policy."""
    entry.repairing = True


def _fail_to_evict(entry: PodEntry, payload: payloads.EvictionFailed, context: FoldContext) -> None:
    """The pod stays after all; count the failure if it was to be evicted because of its own NUMA policy."""
    entry.eviction = None
    if entry.repairing:
        entry.repairing = False
        entry.repair_failures += 1
        entry.repair_failed_at = context.recorded_at


def _leave_waiting(entry: PodEntry, payload: payloads.WaitingPod, context: FoldContext) -> None:
    """Note as what the pod was recorded to be left waiting."""
    entry.reported = payload


def _stop_waiting(entry: PodEntry) -> None:
    entry.nomination = entry.reported = None


def _table() -> dict[tuple[Stage, Trigger], Transition]:
    table: dict[tuple[Stage, Trigger], Transition] = {}

    def row(trigger: Trigger, to: Stage | None, change: Change, *stages: Stage, **more: Any) -> None:
        for stage in stages:
            table[stage, trigger] = Transition(stage if to is None else to, change, **more)

    absent, waiting, placed, bound, finished = Stage
    ended, rejected = {"release": Release.ENDED}, {"release": Release.REJECTED}
    row(Trigger.SEEN_WITHOUT_NODE, waiting, _see, absent)
    row(Trigger.SEEN_WITHOUT_NODE, None, _see, waiting, placed, bound, finished)
    row(Trigger.SEEN_ON_NODE, bound, _see_on_node, absent, waiting, finished)
    row(Trigger.SEEN_ON_NODE, bound, _see_on_its_node, placed, bound, release=Release.NOT_BOUND)
    row(Trigger.SEEN_FINISHED, finished, _see_finished, absent, waiting, finished)
    row(Trigger.SEEN_FINISHED, finished, _see_finished, placed, bound, **ended)
    row(Trigger.SEEN_REJECTED, finished, _see_finished, absent, waiting, finished)
    row(Trigger.SEEN_REJECTED, finished, _see_finished, placed, bound, **rejected)
    row(Trigger.DELETED, absent, _delete, waiting, finished)
    row(Trigger.DELETED, absent, _delete, placed, bound, **ended)
    row(Trigger.REJECTED, finished, _reject, waiting, finished)
    row(Trigger.REJECTED, finished, _reject, placed, bound, **rejected)
    row(Trigger.PLACEMENT_OBSERVED, None, _observe_placement, waiting)
    row(Trigger.PLACEMENT_OBSERVED, None, _observe_placement, placed, bound, when=_names_its_node)
    row(Trigger.PLACED, placed, _place, waiting)
    row(Trigger.BOUND, bound, _bind, placed, only_noted=True)
    row(Trigger.BIND_FAILED, waiting, _fail_to_bind, placed, when=_names_its_node, release=Release.NOT_BOUND)
    row(Trigger.NOMINATED, None, _nominate, waiting)
    row(Trigger.NOMINATION_CLEARED, None, _clear_nomination, waiting, when=_has_nomination)
    row(Trigger.EVICTION_DECIDED, None, _decide_eviction, placed, bound)
    row(Trigger.REPAIR_REQUESTED, None, _request_repair, placed, bound)
    row(Trigger.EVICTION_FAILED, None, _fail_to_evict, waiting, placed, bound, finished, when=_stays)
    row(Trigger.LEFT_WAITING, None, _leave_waiting, waiting, when=_waits, only_noted=True)
    return table


#: What each event changes in a pod of each stage.
TRANSITIONS = _table()


def transition_of(entry: PodEntry, payload: Any) -> Transition | None:
    """Return what a payload changes in an entry, None for nothing."""
    kind = type(payload)
    trigger = trigger_of(payload) if kind is payloads.PodObserved else _TRIGGERS.get(kind)
    transition = None if trigger is None else TRANSITIONS.get((entry.stage, trigger))
    if transition is None or (transition.when is not None and not transition.when(entry, payload)):
        return None
    return transition
