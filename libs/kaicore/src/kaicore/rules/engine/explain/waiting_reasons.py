"""Which of the recorded reasons hold for a pod that waits, and how a pod's condition and events say them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kaicore.rules.engine.explain.reasons import Code, render
from kaicore.rules.events.payloads import ClassPending, GroupPending
from kaicore.rules.groups.problems import GroupProblem
from kaicore.rules.queues.refusals import QueueRefusal
from kaicore.rules.reasons.reason import Reason

#: The reason of the condition PodScheduled for which autoscalers look: other nodes would help.
UNSCHEDULABLE = "Unschedulable"

#: The reason that an API server itself gives to pods with scheduling gates.
SCHEDULING_GATED = "SchedulingGated"

#: So many reasons are told; the first ones are of most nodes.
_MOST_REASONS = 3

#: Reasons with which a pod waits whatever nodes there are. An autoscaler that added nodes for such a pod would do so in
#: vain, so the condition does not say `Unschedulable`.
_NOT_OF_NODES = frozenset(
    {
        Code.UNSUPPORTED,
        Code.MALFORMED,
        Code.FLAVOR_UNKNOWN,
        Code.VOLUME_IN_USE,
        Code.VOLUME_NOT_READY,
        Code.GANG_INCOMPLETE,
        Code.GANG_GROUP,
        Code.BIND_BACKOFF,
        Code.WAITS_FOR_VICTIMS,
        *GroupProblem,
        *QueueRefusal,
    }
    - {
        # These say why nobody makes way, not why no node has room.
        QueueRefusal.OVER_FAIR_SHARE,
        QueueRefusal.VICTIM_WITHIN_SHARE,
        QueueRefusal.MAY_NOT_RECLAIM,
        QueueRefusal.MAY_NOT_PREEMPT,
    }
)


class Kind(NamedTuple):
    """What pods that start one by one have in common, as `AlonePending` has it."""

    queue: str
    priority: int


def waiting_reasons(
    by_group: Mapping[str, GroupPending], by_class: Mapping[str, ClassPending], *, alone: Kind | None
) -> list[Reason]:
    """Return why a pod waits: what was last recorded for its group, or for those like it, and for its class.

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
    return reasons


def condition_reason(reasons: Sequence[Reason]) -> str:
    """Return the reason of the condition PodScheduled of a pod that waits.

    `SchedulingGated`; our own code of the first reason that other nodes would not remove; else `Unschedulable`.
    """
    codes = [reason.code for reason in reasons]
    if Code.SCHEDULING_GATED in codes:
        return SCHEDULING_GATED
    return next((str(code) for code in codes if code in _NOT_OF_NODES), UNSCHEDULABLE)


def reasons_in_short(reasons: Sequence[Reason]) -> str:
    """Say the first reasons in one line, and how many there are more."""
    said = "; ".join(map(render, reasons[:_MOST_REASONS]))
    more = len(reasons) - _MOST_REASONS
    return f"{said}; and {more} more reason{'' if more == 1 else 's'}" if more > 0 else said
