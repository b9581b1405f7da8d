"""Why a queue does not let work start, or not have others evicted: codes, with queue, resource and amounts as data.

A refusal is a `kaicore.rules.reasons.reason.Reason`: `queue` names the queue (for bounds: the ancestor that has the
bound), `need` is what the work asks for, `free` what is left below the bound (negative where it is exceeded already);
so it is `need - free` over.
"""

from enum import StrEnum

from kaicore.rules.model.quantity import MEMORY, format_amount
from kaicore.rules.reasons.reason import Reason


class QueueRefusal(StrEnum):
    """Reasons of queues; where KAI has a word for one, it is KAI's."""

    DOES_NOT_EXIST = "QueueDoesNotExist"
    INVALID = "QueueInvalid"
    NOT_A_LEAF = "QueueNotLeaf"
    STOPPED = "QueueStopped"
    OTHER_NAMESPACE = "NamespaceNotSelected"
    UNSUPPORTED = "QueueUnsupported"
    NOT_COVERED = "ResourceNotCovered"
    OVER_LIMIT = "OverLimit"
    NON_PREEMPTIBLE_OVER_QUOTA = "NonPreemptibleOverQuota"
    OVER_FAIR_SHARE = "OverFairShare"
    VICTIM_WITHIN_SHARE = "VictimWithinShare"
    MAY_NOT_RECLAIM = "QueueMayNotReclaim"
    MAY_NOT_PREEMPT = "QueueMayNotPreempt"


_BOUNDS = {
    QueueRefusal.OVER_LIMIT: "limit",
    QueueRefusal.NON_PREEMPTIBLE_OVER_QUOTA: "quota",
    QueueRefusal.OVER_FAIR_SHARE: "fair share",
}


def render_refusal(reason: Reason) -> str | None:
    """Say a queue's reason in words; None when it is none of a queue's."""
    match reason.code:
        case QueueRefusal.DOES_NOT_EXIST if not reason.queue:
            return "names no queue, and there is no default one"
        case QueueRefusal.DOES_NOT_EXIST:
            return f"queue {reason.queue} does not exist"
        case QueueRefusal.INVALID:
            return f"queue {reason.queue} cannot be used: {reason.detail}"
        case QueueRefusal.NOT_A_LEAF:
            return f"queue {reason.queue} has queues below it and takes no work itself"
        case QueueRefusal.STOPPED:
            return f"queue {reason.queue} is stopped"
        case QueueRefusal.OTHER_NAMESPACE:
            return f"queue {reason.queue} is not for work of the namespace {reason.detail}"
        case QueueRefusal.MAY_NOT_RECLAIM:
            return f"queue {reason.queue} takes nothing from other queues"
        case QueueRefusal.MAY_NOT_PREEMPT:
            return f"queue {reason.queue} has none of its own work evicted for other work of it"
        case QueueRefusal.UNSUPPORTED:
            return f"queue {reason.queue} has what kai-ledger cannot honour yet: {reason.detail}"
        case QueueRefusal.NOT_COVERED:
            return f"queue {reason.queue} is not for work that asks for {reason.resource}"
        case QueueRefusal.OVER_LIMIT | QueueRefusal.NON_PREEMPTIBLE_OVER_QUOTA | QueueRefusal.OVER_FAIR_SHARE as code:
            return f"queue {reason.queue} would be {_amount(reason, reason.need - reason.free)} over its " + _rest(
                reason, QueueRefusal(code)
            )
        case QueueRefusal.VICTIM_WITHIN_SHARE:
            return f"queue {reason.queue} uses no more than it is owed"
        case _:
            return None


def _rest(reason: Reason, code: QueueRefusal) -> str:
    whose = " with work that cannot be preempted" if code is QueueRefusal.NON_PREEMPTIBLE_OVER_QUOTA else ""
    need, free = _amount(reason, reason.need), format_amount(reason.resource, reason.free)
    return f"{_BOUNDS[code]}{whose}: {need} asked for, {free} left"


def _amount(reason: Reason, amount: int) -> str:
    text = format_amount(reason.resource, amount)
    return f"{text} memory" if reason.resource == MEMORY else f"{text} {reason.resource}"
