"""The status of a group, and its form in the PodGroup of each dialect.

Sources: Volcano 1.12 (`pkg/scheduler/framework/session.go`, `pkg/scheduler/plugins/gang`), Koordinator 1.8
(`pkg/scheduler/plugins/coscheduling/controller`), scheduler-plugins 0.31 (`pkg/controllers`), KAI-Scheduler 0.17
(`pkg/scheduler/cache/status_updater`), Kubernetes 1.36 and 1.37 (`staging/src/k8s.io/api/scheduling/v1alpha2` and
`v1beta1`, KEP-4671).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kaicore.rules.groups import labels
from kaicore.rules.model.group import Group, leaves, min_pods, satisfied

SCHEDULED = "Scheduled"
NOT_ENOUGH_PODS = "NotEnoughPods"
UNSCHEDULABLE = "Unschedulable"
INVALID = "Invalid"

#: Kinds of Kubernetes itself: once scheduled, they stay so in their status.
NATIVE = frozenset({labels.NATIVE_POD_GROUP, labels.COMPOSITE_POD_GROUP})

_FIRST_NATIVE_VERSION = "v1alpha2"
_COMPOSITE_SCHEDULED = "CompositePodGroupInitiallyScheduled"
_NATIVE_SCHEDULED, _INITIALLY_SCHEDULED = "PodGroupScheduled", "PodGroupInitiallyScheduled"

#: KAI's word for reasons that lie with nodes and pods.
POD_SCHEDULING_ERRORS = "PodSchedulingErrors"

#: In which node pool a group cannot be scheduled: KAI's word for a cluster that has none.
NODE_POOL = "default"

Document = dict[str, Any]


class PodState(NamedTuple):
    """A pod of a group (`placed`: whether it has a node, or one was decided for it)."""

    pod_set: str
    phase: str
    placed: bool


@dataclass(slots=True)
class Census:
    """The pods of a group, counted.

    Attributes:
        present: pods that are there and have not failed, by set.
        placed: those of them that have a node or have done their work, by set.
        waiting: pods without a node.
        scheduled: pods with a node, those that ended included.
    """

    present: dict[str, int] = field(default_factory=dict)
    placed: dict[str, int] = field(default_factory=dict)
    waiting: int = 0
    scheduled: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0


def census(pods: Iterable[PodState]) -> Census:
    """Count the pods of a group."""
    counts = Census()
    for pod in pods:
        counts.scheduled += pod.placed
        if pod.phase == "Failed":
            counts.failed += 1
            continue
        done = pod.phase == "Succeeded"
        counts.succeeded += done
        counts.running += pod.phase == "Running"
        counts.waiting += not (pod.placed or done)
        counts.present[pod.pod_set] = counts.present.get(pod.pod_set, 0) + 1
        if pod.placed or done:
            counts.placed[pod.pod_set] = counts.placed.get(pod.pod_set, 0) + 1
    return counts


class Verdict(NamedTuple):
    """True if a group has what it asks for; `reason` is one of this module's, `message` is for people."""

    scheduled: bool
    reason: str
    message: str


def verdict(group: Group, pods: Census, *, why: str, problem: str = "") -> Verdict:
    """Tell whether a group has what it asks for, and if not, what it waits for.

    Args:
        why: why its pods that wait were not placed, as the last cycle said; empty where none has yet.
        problem: why it is not known which pods one of its pods starts with; empty where it is known of all.
    """
    present, placed = sum(pods.present.values()), sum(pods.placed.values())
    least = min_pods(group.sets)
    if placed and satisfied(group.sets, pods.placed):
        return Verdict(True, SCHEDULED, f"{placed} of {present} pods have a node; {least} must have one")
    having = f"{placed} of them have a node; " if placed else ""
    if not present or not satisfied(group.sets, pods.present):
        lacking = _lacking(group, pods.present)
        why_unknown = f": {problem}" if problem else ""
        return Verdict(
            False,
            NOT_ENOUGH_PODS,
            f"{having}{present} pods are there, {least} must start together{lacking}{why_unknown}",
        )
    waiting = problem or why or "no cycle has decided on them yet"
    return Verdict(False, UNSCHEDULABLE, f"{having}{pods.waiting} wait, {least} must start together: {waiting}")


def _lacking(group: Group, present: Mapping[str, int]) -> str:
    if len(group.sets) == 1:
        return ""
    short = [
        f"{one.name}: {present.get(one.name, 0)} of {one.min_pods}"
        for one in leaves(group.sets)
        if present.get(one.name, 0) < one.min_pods
    ]
    return f" ({', '.join(short)})" if short else ""


class Disruption(NamedTuple):
    """That a native PodGroup is about to end as a whole for others' sake; `since` as Kubernetes writes times."""

    message: str
    since: str


def initially_scheduled() -> Verdict:
    """Return the verdict on a native PodGroup that was once scheduled: it stands, whatever becomes of its pods."""
    return Verdict(True, SCHEDULED, "all pods that must start together were placed")


def native_conditions(status: Document, version: str) -> Document:
    """Return the status of a native PodGroup with its conditions called as a version calls them.

    What is `PodGroupScheduled` in v1alpha2 is `PodGroupInitiallyScheduled` in all later versions.
    """
    if version == _FIRST_NATIVE_VERSION:
        return status
    conditions = [
        one | {"type": _INITIALLY_SCHEDULED} if one["type"] == _NATIVE_SCHEDULED else one
        for one in status["conditions"]
    ]
    return status | {"conditions": conditions}


def status_document(
    group: Group,
    pods: Census,
    judged: Verdict,
    *,
    since: str,
    explanations: Sequence[Document] = (),
    disruption: Disruption | None = None,
) -> Document:
    """Return the status of a group in its dialect; all of it that is ours to say.

    Args:
        group: the group, made from a PodGroup of any dialect.
        since: when it last came to have, or not to have, what it asks for, as Kubernetes writes times.
        explanations: KAI's `UnschedulableExplanation`s, the first of which is the condition's own reason.
    """
    least = min_pods(group.sets)
    counts = {"running": pods.running, "succeeded": pods.succeeded, "failed": pods.failed}
    condition = _condition(SCHEDULED, judged.reason, judged.message, since, met=judged.scheduled)
    match group.origin:
        case labels.NATIVE_POD_GROUP | labels.COMPOSITE_POD_GROUP:
            composite = group.origin == labels.COMPOSITE_POD_GROUP
            conditions = [condition | {"type": _COMPOSITE_SCHEDULED if composite else _NATIVE_SCHEDULED}]
            if disruption is not None:
                ended = _condition("DisruptionTarget", "PreemptionByScheduler", disruption.message, disruption.since)
                conditions.append(ended)
            return {"conditions": conditions}
        case labels.KAI_POD_GROUP:
            return {
                "phase": _kai_phase(pods, least),
                "pending": pods.waiting,
                **counts,
                "conditions": [condition],
                "schedulingConditions": _kai_conditions(judged, since, explanations),
            }
        case labels.VOLCANO_POD_GROUP:
            return {"phase": _volcano_phase(pods, least), **counts, "conditions": [_volcano_condition(judged, since)]}
        case labels.SIGS_POD_GROUP | labels.X_POD_GROUP:
            old = group.origin == labels.SIGS_POD_GROUP
            phase = _sigs_phase(pods, least, old=old)
            scheduled = {"scheduled": pods.scheduled} if old else {}
            return {"phase": phase, **scheduled, **counts, "conditions": [condition]}
        case _:
            return {}


def _condition(kind: str, reason: str, message: str, since: str, *, met: bool = True) -> Document:
    status = "True" if met else "False"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def _kai_phase(pods: Census, least: int) -> str:
    if pods.succeeded and pods.succeeded == sum(pods.present.values()):
        return "Succeeded"
    return "Running" if pods.running and pods.running + pods.succeeded >= least else "Pending"


def _kai_conditions(judged: Verdict, since: str, explanations: Sequence[Document]) -> list[Document]:
    if judged.reason != UNSCHEDULABLE:
        return []
    reasons = [*explanations] or [{"reason": POD_SCHEDULING_ERRORS, "message": judged.message}]
    condition = _condition("UnschedulableOnNodePool", reasons[0]["reason"], judged.message, since)
    return [condition | {"nodePool": NODE_POOL, "reasons": reasons}]


def _volcano_phase(pods: Census, least: int) -> str:
    if pods.succeeded and pods.succeeded == sum(pods.present.values()):
        return "Completed"
    if pods.running and pods.running + pods.succeeded >= least:
        return "Running"
    # Volcano's own jobs make their pods when their group is let in.
    return "Unknown" if pods.running else "Inqueue"


def _volcano_condition(judged: Verdict, since: str) -> Document:
    reasons = {SCHEDULED: "tasks in gang are ready to be scheduled", NOT_ENOUGH_PODS: "NotEnoughTasks"}
    kind = "Scheduled" if judged.scheduled else "Unschedulable"
    return _condition(kind, reasons.get(judged.reason, "NotEnoughResources"), judged.message, since)


def _sigs_phase(pods: Census, least: int, *, old: bool) -> str:
    present = sum(pods.present.values()) + pods.failed
    if not present:
        return "Pending"
    if pods.succeeded and pods.succeeded >= least:
        return "Finished"
    if pods.failed and pods.failed + pods.running + pods.succeeded >= least:
        return "Failed"
    if pods.running and pods.running + pods.succeeded >= least:
        return "Running"
    if pods.scheduled and pods.scheduled >= least:
        return "Scheduled" if old else "Scheduling"
    if present < least:
        return "Pending"
    return "PreScheduling" if old and not pods.scheduled else "Scheduling"
