"""Remedies for a waiting pod, as an answer: changes that were tried, within a bounded time."""

import time

from kaicore.analysis.counterfactuals.asked import Asked
from kaicore.analysis.counterfactuals.checking import Helpful, check
from kaicore.analysis.inquiry.json_spelling import time_text
from kaicore.analysis.inquiry.why_answers import RemediesAnswer, RemedyAnswer
from kaicore.rules.model.quantity import format_amount

#: Seconds of CPU after which no further change is tried.
TRIAL_S = 0.5
#: Stands for the name of a node that would be added.
NEW_NODE = "the new node"


def remedies(asked: Asked, *, seconds: float) -> RemediesAnswer:
    """Return what would make a pod start.

    Args:
        asked: the pod.
        seconds: of CPU, after which no further change is tried.
    """
    end = time.process_time() + seconds
    checked, uid = check(asked, go_on=lambda: time.process_time() < end), asked.pod.uid
    return RemediesAnswer(
        pod=asked.pod.subject,
        next_cycle="" if checked.as_it_is is None else checked.as_it_is.nodes[uid],
        remedies=[_remedy(asked, one) for one in checked.helpful],
        tried=checked.tried,
        untried=checked.untried,
    )


def _remedy(asked: Asked, helpful: Helpful) -> RemedyAnswer:
    amendment = helpful.amendment
    node = helpful.start.nodes[asked.pod.uid]
    return RemedyAnswer(
        kind=amendment.kind,
        message=amendment.message,
        resource=amendment.resource,
        amount=format_amount(amendment.resource, amendment.amount) if amendment.amount else "",
        place=amendment.place,
        until=time_text(amendment.until) if amendment.until else "",
        node=node if node in asked.state.columns.rows else NEW_NODE,
        evicts=list(helpful.start.evicted),
    )
