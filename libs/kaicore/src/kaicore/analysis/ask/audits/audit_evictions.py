"""Audit of evictions: those of a part of a log, with reason, cost and what would have spared the pod."""

from collections import Counter

from kaicore.analysis.ask.audits.audit_answers import DecidedEviction, EvictionAudit, SpanAnswer
from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.replay.log_states import events_of
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.deciding.why import choice_text
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.events.codec import decode_payload, names_in_logs
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import EvictionDecided, RepairRequested
from kaicore.rules.groups.membership import display_key

#: Reason of an eviction by which a pod was to get the zones that it had missed.
_REPAIRED = "Repaired"

#: What spares a pod the next such eviction, by its reason.
_REMEDIES = {
    EvictionReason.CONSOLIDATED: "make it non-preemptible, or set consolidate_groups to 0",
    EvictionReason.RECLAIMED: "raise its queue's quota, or make it non-preemptible within the quota",
    EvictionReason.PREEMPTED: "give it a higher PriorityClass, or make it non-preemptible within its queue's quota",
    EvictionReason.STALE_GANG: "lower its gang's minimum, or find why the gang lost pods",
    EvictionReason.NODE_FAILED: "nothing: its node failed",
    EvictionReason.NO_REPLACEMENT: "nothing: a node failed, and its gang had no room elsewhere",
    _REPAIRED: "nothing: its kubelet gave it other zones than predicted",
}

_TYPES = names_in_logs((EvictionDecided.__name__, RepairRequested.__name__))


async def audit_evictions(log: EventLog, cluster: str, span: SpanAnswer, *, namespace: str = "") -> EvictionAudit:
    """Return every eviction that was decided in a part of a log, the oldest first.

    Args:
        namespace: only of pods in this one; empty for all.
    """
    where = Filter(types=_TYPES)
    evictions = [
        answer
        async for event in events_of(log, cluster, after=span.first - 1, upto=span.last, where=where)
        if (answer := _answer(event)) is not None and namespace in ("", answer.pod.partition("/")[0])
    ]
    return EvictionAudit(
        cluster=cluster,
        span=span,
        reasons=dict(Counter(one.reason for one in evictions).most_common()),
        lost_gpu_seconds=sum(one.lost_gpu_seconds for one in evictions),
        evictions=evictions,
    )


def _answer(event: Event) -> DecidedEviction | None:
    payload = decode_payload(event)
    match payload:
        case EvictionDecided():
            reason, choice = payload.reason, choice_text(payload).removeprefix("; ")
            made_way_for, lost = display_key(payload.preemptor) if payload.preemptor else "", payload.lost_gpu_seconds
        case RepairRequested():
            reason, choice, made_way_for, lost = _REPAIRED, f"missed: {payload.missed}", "", 0
        case _:
            return None
    return DecidedEviction(
        position=event.position,
        recorded_at=time_text(event.recorded_at),
        pod=event.subject,
        node=payload.node,
        group=display_key(payload.group) if isinstance(payload, EvictionDecided) else "",
        reason=reason,
        made_way_for=made_way_for,
        choice=choice,
        lost_gpu_seconds=lost,
        cycle=payload.cycle,
        spared_by=_REMEDIES.get(reason, ""),
    )
