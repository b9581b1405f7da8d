"""The recorded reasons that apply to a waiting pod, and their wording in the pod's condition and events."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kaicore.rules.events.payloads import ClassPending, GroupPending
from kaicore.rules.reasons.group import SchedulingGated
from kaicore.rules.reasons.reason import Reason

#: The reason of the condition PodScheduled for which autoscalers look: another node could take the pod.
UNSCHEDULABLE = "Unschedulable"

#: The reason that an API server itself gives to pods with scheduling gates.
SCHEDULING_GATED = SchedulingGated.__name__

#: So many reasons are told; the first ones are of most nodes.
_MOST_REASONS = 3


class SingleStartKind(NamedTuple):
    """What pods that start one by one have in common, as `AlonePending` has it."""

    queue: str
    priority: int


def waiting_reasons(
    by_group: Mapping[str, GroupPending], by_class: Mapping[str, ClassPending], *, alone: SingleStartKind | None
) -> list[Reason]:
    """Return why a pod waits: what was last recorded for its group, or for those like it, and for its class.

    What alone decides comes first, then what other nodes would not remove.

    Args:
        by_group: what was recorded for the pod's group, by shard.
        by_class: what was recorded for the pod's class, by shard.
        alone: the kind of a pod that starts without others of its group; None for a member of a gang.
    """
    reasons: list[Reason] = []
    for shard in sorted(by_group):
        reasons += by_group[shard].reasons
    if not by_group and alone is not None:
        for shard in sorted(by_class):
            likewise = [item for item in by_class[shard].alone if (item.queue, item.priority) == alone]
            reasons += [reason for item in likewise for reason in item.reasons]
    for shard in sorted(by_class):
        reasons += [reason for reason in by_class[shard].reasons if reason not in reasons]
    return sorted(reasons, key=weight)


def weight(reason: Reason) -> tuple[bool, bool]:
    """Order reasons: what alone decides, then what other nodes would not remove, then the rest."""
    return not reason.decisive, reason.of_nodes


def condition_reason(reasons: Sequence[Reason]) -> str:
    """Return the reason of the condition PodScheduled of a pod that waits.

    `SchedulingGated`; our own code of the first reason that other nodes would not remove; else `Unschedulable`.
    """
    if any(isinstance(reason, SchedulingGated) for reason in reasons):
        return SCHEDULING_GATED
    return next((reason.code for reason in reasons if not reason.of_nodes), UNSCHEDULABLE)


def reasons_in_short(reasons: Sequence[Reason]) -> str:
    """Say the first reasons in one line, and how many there are more."""
    shown = "; ".join(map(str, reasons[:_MOST_REASONS]))
    more = len(reasons) - _MOST_REASONS
    return f"{shown}; and {more} more reason{'' if more == 1 else 's'}" if more > 0 else shown
