"""Reasons in KAI's words, as its PodGroups' scheduling conditions tell them.

Source: KAI-Scheduler v0.17, `UnschedulableExplanation` in `pkg/apis/scheduling/v2alpha2/podgroup_types.go`.
"""

from collections.abc import Iterable
from typing import Any

from kaicore.rules.engine.explain.reasons import Code, render
from kaicore.rules.groups.status import POD_SCHEDULING_ERRORS
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import canonical_quantity
from kaicore.rules.queues.refusals import QueueRefusal
from kaicore.rules.queues.resources import GPU
from kaicore.rules.reasons.reason import Reason

Document = dict[str, Any]

#: Reasons that KAI has a word of its own for; they are called the same here.
_KAI_REASONS = frozenset(
    {
        QueueRefusal.DOES_NOT_EXIST,
        QueueRefusal.OVER_LIMIT,
        QueueRefusal.NON_PREEMPTIBLE_OVER_QUOTA,
        Code.PREEMPTION_DELAY,
    }
)

#: So many reasons of one kind are told; the first ones are of most nodes.
_MOST_MESSAGES = 3

#: Where KAI tells what a group asked for, by reason.
_REQUESTED = {
    str(QueueRefusal.OVER_LIMIT): "podGroupRequestedResources",
    str(QueueRefusal.NON_PREEMPTIBLE_OVER_QUOTA): "podGroupRequestedNonPreemptibleResources",
}


def explanations(reasons: Iterable[Reason]) -> list[Document]:
    """Return reasons as KAI explains them: each of its own kinds once by queue, then all others as one."""
    asked: dict[tuple[str, str], Amounts] = {}
    messages: dict[tuple[str, str], list[str]] = {}
    for reason in reasons:
        kind = (reason.code, reason.queue) if reason.code in _KAI_REASONS else (POD_SCHEDULING_ERRORS, "")
        said = messages.setdefault(kind, [])
        if (text := render(reason)) not in said:
            said.append(text)
        if reason.resource and kind[0] in _REQUESTED:
            asked.setdefault(kind, {})[reason.resource] = reason.need
    found = []
    for code, queue in sorted(messages, key=lambda kind: kind[0] == POD_SCHEDULING_ERRORS):
        told: Document = {"reason": code, "message": "; ".join(messages[code, queue][:_MOST_MESSAGES])}
        if code in _REQUESTED:
            requested = _resource_list(asked.get((code, queue), {}))
            told["details"] = {"queueDetails": {"name": queue, _REQUESTED[code]: requested}}
        found.append(told)
    return found


def _resource_list(amounts: Amounts) -> dict[str, str]:
    return {
        "nvidia.com/gpu" if resource == GPU else resource: canonical_quantity(resource, amount)
        for resource, amount in sorted(amounts.items())
    }
