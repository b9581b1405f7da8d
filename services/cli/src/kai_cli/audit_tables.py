"""Audits as people read them in a terminal."""

from collections.abc import Sequence

from kaicore.analysis.inquiry.audit_answers import (
    AgreementCounts,
    DecisionAnswer,
    GroupAudit,
    GroupEvent,
    HoldingAnswer,
    NodeAgreement,
    NodeAudit,
    PlacementAudit,
    SpanAnswer,
    ZoneRecord,
)
from kaicore.rules.model.quantity import readable_amount

from kai_cli.printing import table

_COUNTS = ("PREDICTED", "OBSERVED", "EXACT", "SAME ZONES", "DIFFERENT", "REJECTED")
#: Lines of a table that grows with a cluster's size or age; -o json has all.
_MOST_ROWS = 50


def placements_text(audit: PlacementAudit) -> str:
    """Write an audit of placements."""
    counts = audit.counts
    parts = [
        _span_text(audit.span),
        f"{counts.predicted} placements predicted, {counts.observed} observed: "
        f"{_percent(counts.exact, counts.observed)} exactly so, "
        f"{_percent(counts.exact + counts.same_zones, counts.observed)} on the predicted zones; "
        f"{counts.rejected} pods rejected by kubelets",
    ]
    if audit.silent:
        parts.append(f"silent exporters: {_names(audit.silent)}")
    if audit.disagreeing:
        parts.append(f"kubelets that disagree for no known cause: {_names(audit.disagreeing)}")
    # What is to be looked at comes first.
    nodes = sorted(audit.nodes, key=lambda one: (not one.silent, -one.unexplained, one.node))
    parts += [
        "",
        _cut_table(("NODE", "POLICY", *_COUNTS, "UNEXPLAINED", "EXPORTER"), [_node_row(one) for one in nodes]),
    ]
    policies = [[one.policy or "-", *_counts_row(one.counts)] for one in audit.policies]
    parts += ["", table(("POLICY", *_COUNTS), policies)]
    if audit.misses:
        misses = [[one.node, one.policy, one.cause, str(one.count), _yes(one.explained)] for one in audit.misses]
        parts += ["", _cut_table(("NODE", "POLICY", "CAUSE OF MISSES", "COUNT", "EXPLAINED"), misses)]
    hours = [[one.hour, *_counts_row(one.counts)] for one in audit.hours[-_MOST_ROWS:]]
    return "\n".join([*parts, "", table(("HOUR", *_COUNTS), hours)])


def node_text(audit: NodeAudit) -> str:
    """Write everything that held a node."""
    rows = [_holding_row(one) for one in audit.holdings]
    parts = [
        f"node {audit.node}, {_span_text(audit.span)}: {len(audit.holdings)} pods held it, "
        f"{len(audit.rejections)} rejected, {len(audit.gaps)} times not known what of its zones",
        "",
        table(("POD", "FROM", "TO", "ENDED", "DECIDED BY", "ZONES"), rows),
    ]
    if audit.rejections:
        rejections = [
            [one.pod, f"{one.position} {one.recorded_at}", one.reason, _decided(one.decided), one.message]
            for one in audit.rejections
        ]
        parts += ["", table(("REJECTED POD", "AT", "REASON", "DECIDED BY", "MESSAGE"), rejections)]
    if audit.gaps:
        gaps = [
            [one.pod, f"{one.since} {one.since_time}", f"{one.until} {one.until_time}" if one.until else "still"]
            for one in audit.gaps
        ]
        parts += ["", table(("NOT KNOWN OF", "FROM", "TO"), gaps)]
    return "\n".join(parts)


def group_text(audit: GroupAudit) -> str:
    """Write what was decided about a group."""
    preemptible = "preemptible" if audit.preemptible else "not preemptible"
    parts = [
        f"group {audit.group}, {_span_text(audit.span)}",
        f"queue {audit.queue or 'default'}, priority {audit.priority}, {preemptible}, {len(audit.pods)} pods",
        f"configuration {', '.join(audit.configs) or '-'}; engine {', '.join(audit.engines) or '-'}",
        "",
        table(("POSITION", "TIME", "POD", "DECIDED BY", "WHAT"), [_event_row(one) for one in audit.events]),
    ]
    if audit.evicted_for_it:
        head = ("POSITION", "TIME", "EVICTED FOR IT", "DECIDED BY", "WHAT")
        parts += ["", table(head, [_event_row(one) for one in audit.evicted_for_it])]
    return "\n".join(parts)


def _span_text(span: SpanAnswer) -> str:
    retired = f" (events up to {span.retired} are retired)" if span.retired else ""
    return f"positions {span.first} to {span.last}, {span.from_time} to {span.to_time}{retired}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "-"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"


def _cut_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    more = f"\n({_MOST_ROWS} of {len(rows)}; -o json has all)" if len(rows) > _MOST_ROWS else ""
    return table(head, rows[:_MOST_ROWS]) + more


def _counts_row(counts: AgreementCounts) -> list[str]:
    return [str(getattr(counts, name)) for name in AgreementCounts.__struct_fields__]


def _node_row(one: NodeAgreement) -> list[str]:
    exporter = f"last {one.last_observed}" if one.last_observed else "-"
    if one.silent:
        exporter = f"silent: {one.unobserved} pods unobserved since {one.unobserved_since}"
    return [one.node, one.policy or "-", *_counts_row(one.counts), str(one.unexplained), exporter]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _holding_row(one: HoldingAnswer) -> list[str]:
    until = f"{one.until} {one.until_time}" if one.until else "-"
    zones = "; ".join(map(_record_text, one.records)) or "-"
    return [one.pod, f"{one.since} {one.since_time}", until, one.ended or "-", _decided(one.decided), zones]


def _record_text(record: ZoneRecord) -> str:
    zones = ", ".join(
        f"{zone} ({', '.join(f'{name} {readable_amount(name, amount)}' for name, amount in amounts.items())})"
        for zone, amounts in record.zones.items()
    )
    agreement = f", {record.agreement}" if record.agreement else ""
    return f"{record.provenance} at {record.position}{agreement}: {zones or 'none'}"


def _decided(decided: DecisionAnswer | None) -> str:
    return "-" if decided is None else f"{decided.cycle or decided.actor} at {decided.position}"


def _event_row(one: GroupEvent) -> list[str]:
    return [str(one.position), one.recorded_at, one.pod, _decided(one.decided), one.text or one.what]
