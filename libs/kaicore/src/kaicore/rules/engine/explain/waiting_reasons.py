"""The recorded reasons that apply to a waiting pod, and their wording in the pod's condition and events.

A reason is recorded for a class, for the pods of a class that start one by one, or for a group. Thousands of pods that
start alone wait for the same reasons, so these are recorded once (decision 0003).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kaicore.rules.engine.work.workload import Workload
from kaicore.rules.events.payloads import AlonePending, ClassPending, GroupPending
from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.events.reasons.group import GangDoesNotFit, SchedulingGated, Unsupported
from kaicore.rules.events.reasons.making_room import (
    PromiseGivenUp,
    ProvisioningRetried,
    RoomPromised,
    WaitsForProvisioning,
)
from kaicore.rules.events.reasons.reason import Reason

Reasons = tuple[Reason, ...]
#: Class, queue and priority.
_Kind = tuple[str, str, int]


class GroupLeftWaiting(NamedTuple):
    """A group of which a cycle left pods waiting.

    Attributes:
        classes: keys of their classes.
        reasons: why; those of the class of what was to start next included.
        alike: the keys, which come later, of groups of its queue and priority of which all this is true as well.
    """

    workload: Workload
    classes: tuple[str, ...]
    pods: int
    reasons: Reasons
    alike: Sequence[str] = ()

    def pending(self) -> Iterator[GroupPending]:
        """Yield the record of each group."""
        for key in (self.workload.group.key, *self.alike):
            yield GroupPending(group=key, pods=self.pods, reasons=self.reasons)


def summarize(
    groups_left: Sequence[GroupLeftWaiting], pods: Mapping[str, int], class_reasons: Mapping[str, Reasons]
) -> tuple[tuple[ClassPending, ...], tuple[GroupPending, ...]]:
    """Record each reason as few times as it takes.

    A gang has its own reasons. Pods that start one by one, are of one class and wait in one queue with one priority
    mostly wait for the same reasons. These go with the class, and only groups with other reasons have their own.

    Args:
        groups_left: in order of their keys.
        pods: how many were left, by class.
        class_reasons: why no node is for them, by class, where any pod was tried.
    """
    groups: list[GroupPending] = []
    kinds: dict[_Kind, dict[int, list[GroupLeftWaiting]]] = {}
    number_of: dict[Reasons, int] = {}
    number_of_ids: dict[tuple[int, ...], int] = {}
    #: By id of the reasons' tuple: their number, and whether they cannot be those of another group.
    known: dict[int, tuple[int, bool]] = {}
    for one in groups_left:
        group = one.workload.group
        if not one.reasons:
            continue
        number, of_one_group = 0, one.workload.is_gang or len(one.classes) > 1
        if not of_one_group:
            # Reasons are mostly the very same objects, and comparing them is costly.
            if id(one.reasons) not in known:
                ids = tuple(map(id, one.reasons))
                if ids not in number_of_ids:
                    number_of_ids[ids] = number_of.setdefault(one.reasons, len(number_of))
                known[id(one.reasons)] = number_of_ids[ids], any(map(_is_of_one_group, one.reasons))
            number, of_one_group = known[id(one.reasons)]
        if of_one_group:
            groups += one.pending()
            continue
        kinds.setdefault((one.classes[0], group.queue, group.priority), {}).setdefault(number, []).append(one)
    alone: dict[str, list[AlonePending]] = {}
    for (pod_class, queue, priority), by_number in sorted(kinds.items(), key=lambda item: item[0]):
        most = max(by_number, key=lambda number: sum(1 + len(one.alike) for one in by_number[number]))
        reasons = by_number.pop(most)[0].reasons
        if not set(reasons) <= set(class_reasons.get(pod_class, ())):
            alone.setdefault(pod_class, []).append(AlonePending(queue, priority, reasons))
        for others in by_number.values():
            groups += [pending for one in others for pending in one.pending()]
    classes = tuple(
        ClassPending(pod_class=key, pods=pods[key], reasons=class_reasons.get(key, ()), alone=tuple(alone.get(key, ())))
        for key in sorted(pods)
    )
    return classes, tuple(sorted(groups, key=lambda item: item.group))


def _is_of_one_group(reason: CodedReason) -> bool:
    """Tell whether a reason cannot be that of another group."""
    if isinstance(reason, Unsupported):
        return bool(reason.group)
    return isinstance(reason, WaitsForProvisioning | ProvisioningRetried | RoomPromised | PromiseGivenUp)


#: The reason of the condition PodScheduled for which autoscalers look: another node could take the pod.
UNSCHEDULABLE = "Unschedulable"

#: The reason that an API server itself gives to pods with scheduling gates.
SCHEDULING_GATED = SchedulingGated.__name__

#: So many reasons are shown; the first ones are of most nodes.
_MOST_REASONS = 3


class SingleStartKind(NamedTuple):
    """The kind of pods that start one by one: all that they have in common, as `AlonePending` has it."""

    queue: str
    priority: int


def single_start_kind(workload: Workload | None) -> SingleStartKind | None:
    """Return the kind of a group's pods; None for those of a gang or of no known group."""
    if workload is None or workload.is_gang:
        return None
    return SingleStartKind(workload.group.queue, workload.group.priority)


def waiting_reasons(
    by_group: Mapping[str, GroupPending], by_class: Mapping[str, ClassPending], *, alone: SingleStartKind | None
) -> list[CodedReason]:
    """Return why a pod waits: what was last recorded for its group, or for those like it, and for its class.

    What alone decides comes first, then what other nodes would not remove.

    Args:
        by_group: what was recorded for the pod's group, by shard.
        by_class: what was recorded for the pod's class, by shard.
        alone: the kind of a pod that starts without others of its group; None for a member of a gang.
    """
    reasons: list[CodedReason] = []
    for shard in sorted(by_group):
        reasons += by_group[shard].reasons
    if not by_group and alone is not None:
        for shard in sorted(by_class):
            likewise = [item for item in by_class[shard].alone if (item.queue, item.priority) == alone]
            reasons += [reason for item in likewise for reason in item.reasons]
    for shard in sorted(by_class):
        reasons += [reason for reason in by_class[shard].reasons if reason not in reasons]
    return sorted(reasons, key=weight)


def weight(reason: CodedReason) -> tuple[bool, bool]:
    """Order reasons: what alone decides, then what other nodes would not remove, then the rest."""
    return not reason.decisive, reason.of_nodes


def are_lasting(reasons: Iterable[CodedReason]) -> bool:
    """Tell whether no pod's end removes what is in a group's way; that a gang does not fit follows from the rest."""
    causes = [reason for reason in reasons if not isinstance(reason, GangDoesNotFit)]
    return any(reason.decisive for reason in causes) or (bool(causes) and all(reason.lasting for reason in causes))


def condition_reason(reasons: Sequence[CodedReason]) -> str:
    """Return the reason of the condition PodScheduled of a pod that waits.

    `SchedulingGated`; our own code of the first reason that other nodes would not remove; else `Unschedulable`.
    """
    if any(isinstance(reason, SchedulingGated) for reason in reasons):
        return SCHEDULING_GATED
    return next((reason.code for reason in reasons if not reason.of_nodes), UNSCHEDULABLE)


def reasons_in_short(reasons: Sequence[CodedReason]) -> str:
    """Say the first reasons in one line, and how many there are more."""
    shown = "; ".join(map(str, reasons[:_MOST_REASONS]))
    more = len(reasons) - _MOST_REASONS
    return f"{shown}; and {more} more reason{'' if more == 1 else 's'}" if more > 0 else shown
