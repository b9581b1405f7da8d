"""Explanation of a waiting pod: what is short and where, who would have to leave, what would make it start."""

from typing import Any

from kaicore.analysis.counterfactuals.asked import Asked
from kaicore.analysis.counterfactuals.blockers import Blocker, blockers
from kaicore.analysis.inquiry.listing import reason_answer
from kaicore.analysis.inquiry.remedies import TRIAL_S, remedies
from kaicore.analysis.inquiry.shortfalls import domain_shortfalls, node_shortfalls, queue_rows
from kaicore.analysis.inquiry.why_answers import BlockerAnswer
from kaicore.rules.groups.membership import display_key
from kaicore.rules.reasons.queue import BoundReason
from kaicore.rules.reasons.reason import Reason

#: Nodes that are named of one group.
_MOST_NODES = 5


def why_waiting(asked: Asked) -> dict[str, Any]:
    """Return fields of `Why` about a pod that waits: nodes, domains, queues, blockers, schedulable_if, starts_if."""
    of_nodes = any(reason.of_nodes for reason in asked.reasons)
    of_queue = any(reason.queue_name for reason in asked.reasons)
    held_up = of_nodes or any(isinstance(reason, BoundReason) for reason in asked.reasons)
    return {
        "nodes": node_shortfalls(asked) if of_nodes else [],
        "domains": domain_shortfalls(asked),
        "queues": queue_rows(asked) if of_queue else [],
        "blockers": [_blocker(asked, one) for one in blockers(asked)] if held_up else [],
        "schedulable_if": [reason_answer(reason) for reason in _fits(asked)],
        "starts_if": remedies(asked, seconds=TRIAL_S),
    }


def _fits(asked: Asked) -> tuple[Reason, ...]:
    """Return when the pod would fit; nothing where pods of another kind of its group go before it."""
    if asked.entry.group_problem is not None or asked.pod_class.key not in asked.remedy.classes:
        return ()
    return asked.remedy.reasons


def _blocker(asked: Asked, blocker: Blocker) -> BlockerAnswer:
    workload = blocker.workload
    members = [*workload.active.values(), *workload.leaving.values()]
    return BlockerAnswer(
        group=display_key(workload.group.key),
        nodes=sorted({member.node for member in members})[:_MOST_NODES],
        pods=len(members),
        frees=blocker.frees,
        queue=asked.session.accounts.queue_of(workload.group),
        priority=workload.group.priority,
        suffices=blocker.suffices,
        may_leave=blocker.may_leave,
        because=list(blocker.because),
    )
