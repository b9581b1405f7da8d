"""Audit of placements: predicted against observed ones, over a part of a log.

The log is folded from the beginning of the part to its end. Only the state shows whether an observation is accepted,
and what explains a miss. Predictions made within the part are counted, by `kaicore.rules.state.counters`.

Audit of evictions: those of a part of a log, with reason, cost and what would have spared the pod.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kaicore.analysis.ask.audits.audit_answers import (
    AgreementCounts,
    DecidedEviction,
    EvictionAudit,
    HourAgreement,
    MissRow,
    NodeAgreement,
    PlacementAudit,
    PolicyAgreement,
    SpanAnswer,
)
from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.replay.log_states import events_of
from kaicore.errors import UnknownSubject
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.deciding.cycle_input import is_unobserved
from kaicore.rules.deciding.why import choice_text
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.events.codec import decode_payload, names_in_logs
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import EvictionDecided, PlacementObserved, PodRejected, RepairRequested
from kaicore.rules.groups.membership import display_key
from kaicore.rules.state.accuracy import fold_counting
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.agreement import NO_FAULT, Agreement
from kaicore.rules.state.views import FleetView, LogView
from kaicore.spelling import did_you_mean

StateAt = Callable[[int], Awaitable[ClusterState]]

_TYPES = {PlacementObserved.__name__, PodRejected.__name__}
_HOUR_US = 3600 * 1_000_000

_FIELDS = {Agreement.EXACT: "exact", Agreement.SAME_ZONES: "same_zones", Agreement.DIFFERENT: "different"}

#: Misses by node, policy and cause.
Misses = Counter[tuple[str, str, str]]


@dataclass(slots=True)
class _Tally:
    """Predictions of the span by node and by hour (microseconds since the epoch); of one node where one is named."""

    only: str = ""
    by_node: dict[str, Counter[str]] = field(default_factory=dict)
    by_hour: dict[int, Counter[str]] = field(default_factory=dict)
    last_observed: dict[str, int] = field(default_factory=dict)
    #: Pods that were placed in the span.
    _placed: set[str] = field(default_factory=set)

    def fold(self, state: ClusterState, event: Event) -> None:
        """Fold an event of the span, and count it."""
        change = fold_counting(state, event)
        if change is not None and change.predicted:
            self._placed.add(change.uid)
        if change is not None and change.uid in self._placed:
            counts = {"predicted": change.predicted, "observed": change.observed}
            counts |= {_FIELDS[kind]: by for kind, by in change.agreement.items()}
            self._count(change.node, change.decided_at, counts)
        if event.type not in _TYPES:
            return
        payload = decode_payload(event)
        if isinstance(payload, PodRejected):
            self._count(payload.node, event.recorded_at, {"rejected": 1})
        elif isinstance(payload, PlacementObserved):
            self.last_observed[payload.node] = event.recorded_at

    def _count(self, node: str, at: int, counts: Mapping[str, int]) -> None:
        if self.only not in ("", node):
            return
        # Counter.update adds.
        self.by_node.setdefault(node, Counter()).update(counts)
        self.by_hour.setdefault(at // _HOUR_US * _HOUR_US, Counter()).update(counts)


async def audit_placements(
    log: EventLog, cluster: str, span: SpanAnswer, *, state_at: StateAt, node: str = ""
) -> PlacementAudit:
    """Compare predictions with observations. Raises UnknownSubject: there never was a node of that name.

    Args:
        state_at: returns the state at a position, which is then folded on.
        node: only of this one; empty for all.
    """
    state = await state_at(span.first - 1)
    misses_before, tally = _misses(state), _Tally(node)
    async for event in events_of(log, cluster, after=span.first - 1, upto=span.last):
        tally.fold(state, event)
    if node and node not in (*state.columns.rows, *tally.by_node):
        close = did_you_mean(node, state.columns.rows)
        raise UnknownSubject(f"cluster {cluster}: the log knows of no node {node}{close}")
    misses = _misses_since(misses_before, _misses(state))
    return _answer(state, span, tally, misses)


def _answer(state: FleetView, span: SpanAnswer, tally: _Tally, misses: Misses) -> PlacementAudit:
    only = tally.only
    rows = [row for row in _rows(misses) if only in ("", row.node)]
    names = {only} if only else {*tally.by_node, *tally.last_observed, *(row.node for row in rows), *_nodes(state)}
    nodes = [_node(state, name, tally, rows) for name in sorted(names)]
    by_policy: dict[str, Counter[str]] = {}
    for one in nodes:
        by_policy.setdefault(one.policy, Counter()).update(tally.by_node.get(one.node, Counter()))
    total = sum((tally.by_node.get(one.node, Counter()) for one in nodes), Counter[str]())
    return PlacementAudit(
        cluster=state.cluster,
        span=span,
        counts=_counts(total),
        nodes=nodes,
        policies=[PolicyAgreement(policy=name, counts=_counts(counts)) for name, counts in sorted(by_policy.items())],
        misses=rows,
        hours=[HourAgreement(hour=time_text(hour), counts=_counts(one)) for hour, one in sorted(tally.by_hour.items())],
        open_misses=sum(only in ("", miss.node) for miss in state.misses.open.values()),
        silent=[one.node for one in nodes if one.silent],
        disagreeing=[one.node for one in nodes if one.disagrees],
    )


def _node(state: FleetView, name: str, tally: _Tally, rows: Iterable[MissRow]) -> NodeAgreement:
    patience_us = state.config().unobserved_after_us
    overdue = [
        entry.started_at
        for entry in state.charges.held_on(name)
        if is_unobserved(state, entry) and state.recorded_at - entry.started_at > patience_us
    ]
    row = state.columns.rows.get(name)
    topology = None if row is None else state.columns.topologies[row]
    of_node = [one for one in rows if one.node == name]
    observed = tally.last_observed.get(name)
    return NodeAgreement(
        node=name,
        policy=str(topology.policy.value) if topology is not None else next((one.policy for one in of_node), ""),
        counts=_counts(tally.by_node.get(name, Counter())),
        last_observed="" if observed is None else time_text(observed),
        unobserved=len(overdue),
        unobserved_since=time_text(min(overdue)) if overdue else "",
        unexplained=sum(one.count for one in of_node if not one.explained),
    )


def _nodes(state: FleetView) -> list[str]:
    columns = state.columns
    return [name for name, row in columns.rows.items() if columns.topologies[row] is not None]


def _misses(state: LogView) -> Misses:
    misses: Misses = Counter()
    for node, counts in state.counters.misses.items():
        for name, count in counts.items():
            policy, _, cause = name.partition("/")
            misses[node, policy, cause] += count
    return misses


def _misses_since(before: Misses, after: Misses) -> Misses:
    """Return what has been counted in between; the counts of a node that was deleted began anew."""
    anew = {node for (node, policy, cause), count in before.items() if after[node, policy, cause] < count}
    return Counter({key: count - (0 if key[0] in anew else before[key]) for key, count in after.items()})


def _rows(misses: Misses) -> list[MissRow]:
    return [
        MissRow(node=node, policy=policy, cause=cause, count=count, explained=cause in NO_FAULT)
        for (node, policy, cause), count in sorted(misses.items())
        if count
    ]


def _counts(counts: Counter[str]) -> AgreementCounts:
    return AgreementCounts(**{name: counts[name] for name in AgreementCounts.__struct_fields__})


#: Reason of an eviction by which a pod was to get the zones that it had missed.
_REPAIRED = "Repaired"

#: What spares a pod the next such eviction, by its reason.
_REMEDIES = {
    EvictionReason.CONSOLIDATED: "make it non-preemptible, or set consolidate_groups to 0",
    EvictionReason.RECLAIMED: "raise its queue's quota, or make it non-preemptible within the quota",
    EvictionReason.PREEMPTED: "give it a higher PriorityClass, or make it non-preemptible within its queue's quota",
    EvictionReason.PREEMPTED_BY_RULE: "change the rule, or the labels that it goes by",
    EvictionReason.STALE_GANG: "lower its gang's minimum, or find why the gang lost pods",
    EvictionReason.NODE_FAILED: "nothing: its node failed",
    EvictionReason.DRAINED: "nothing: its node was drained",
    EvictionReason.NO_REPLACEMENT: "nothing: a node failed, and its gang had no room elsewhere",
    EvictionReason.TOO_MANY_FAILED_NODES: "nothing: more of its gang's nodes failed at once than it bears",
    _REPAIRED: "nothing: its kubelet gave it other zones than predicted",
}

_EVICTION_TYPES = names_in_logs((EvictionDecided.__name__, RepairRequested.__name__))


async def audit_evictions(log: EventLog, cluster: str, span: SpanAnswer, *, namespace: str = "") -> EvictionAudit:
    """Return every eviction that was decided in a part of a log, the oldest first.

    Args:
        namespace: only of pods in this one; empty for all.
    """
    where = Filter(types=_EVICTION_TYPES)
    evictions = [
        answer
        async for event in events_of(log, cluster, after=span.first - 1, upto=span.last, where=where)
        if (answer := _decided_eviction(event)) is not None and namespace in ("", answer.pod.partition("/")[0])
    ]
    return EvictionAudit(
        cluster=cluster,
        span=span,
        reasons=dict(Counter(one.reason for one in evictions).most_common()),
        lost_gpu_seconds=sum(one.lost_gpu_seconds for one in evictions),
        evictions=evictions,
    )


def _decided_eviction(event: Event) -> DecidedEviction | None:
    payload = decode_payload(event)
    match payload:
        case EvictionDecided():
            rule = f"; by preemption config {payload.rule}" if payload.rule else ""
            reason, choice = payload.reason, (rule + choice_text(payload)).removeprefix("; ")
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
