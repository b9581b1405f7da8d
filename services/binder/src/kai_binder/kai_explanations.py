"""Reasons in KAI's words, as its PodGroups' scheduling conditions have them.

Source: KAI-Scheduler v0.17, `UnschedulableExplanation` in `pkg/apis/scheduling/v2alpha2/podgroup_types.go`.
"""

from collections.abc import Iterable
from typing import Any

from kaicore.rules.groups.status import POD_SCHEDULING_ERRORS
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import canonical_quantity
from kaicore.rules.queues.resources import GPU
from kaicore.rules.reasons.eviction import PreemptionDelayNotElapsed
from kaicore.rules.reasons.queue import NonPreemptibleOverQuota, OverLimit, QueueDoesNotExist
from kaicore.rules.reasons.reason import Reason

Document = dict[str, Any]

#: Reasons that KAI has a word of its own for; they are called the same here.
_KAI_REASONS = (QueueDoesNotExist, OverLimit, NonPreemptibleOverQuota, PreemptionDelayNotElapsed)

#: So many reasons of one kind are told; the first ones are of most nodes.
_MOST_MESSAGES = 3

#: Where KAI tells what a group asked for, by reason.
_REQUESTED = {
    OverLimit.__name__: "podGroupRequestedResources",
    NonPreemptibleOverQuota.__name__: "podGroupRequestedNonPreemptibleResources",
}


def explanations(reasons: Iterable[Reason]) -> list[Document]:
    """Return reasons as KAI explains them: each of its own kinds once by queue, then all others as one."""
    requested: dict[tuple[str, str], Amounts] = {}
    messages: dict[tuple[str, str], list[str]] = {}
    for reason in reasons:
        kai = isinstance(reason, _KAI_REASONS)
        kind = (reason.code, reason.queue_name) if kai else (POD_SCHEDULING_ERRORS, "")
        texts = messages.setdefault(kind, [])
        if (text := str(reason)) not in texts:
            texts.append(text)
        if isinstance(reason, (OverLimit, NonPreemptibleOverQuota)):
            requested.setdefault(kind, {})[reason.resource] = reason.requested
    documents = []
    for code, queue in sorted(messages, key=lambda kind: kind[0] == POD_SCHEDULING_ERRORS):
        document: Document = {"reason": code, "message": "; ".join(messages[code, queue][:_MOST_MESSAGES])}
        if code in _REQUESTED:
            resources = _resource_list(requested.get((code, queue), {}))
            document["details"] = {"queueDetails": {"name": queue, _REQUESTED[code]: resources}}
        documents.append(document)
    return documents


def _resource_list(amounts: Amounts) -> dict[str, str]:
    return {
        "nvidia.com/gpu" if resource == GPU else resource: canonical_quantity(resource, amount)
        for resource, amount in sorted(amounts.items())
    }
