"""`kai audit placements`, `kai audit node` and `kai audit group`: who decided what, and whether it came to be so."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from kaicore.analysis.ask.audits.audit_answers import (
    AgreementCounts,
    DecisionAnswer,
    GroupAudit,
    GroupEvent,
    HoldingAnswer,
    NodeAgreement,
    NodeAudit,
    PlacementAudit,
    Span,
    SpanAnswer,
    ZoneRecord,
)
from kaicore.errors import ConfigurationError, UnknownSubject
from kaicore.rules.model.quantity import readable_amount

from kai_cli.output.printing import Output, OutputFlag, print_answers, table
from kai_cli.sources.answers import Answers, open_answers
from kai_cli.sources.source import AnswerSource, FromFlag, SourceFlags, ToFlag

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
    head: tuple[str, ...] = ("POD", "FROM", "TO", "ENDED", "DECIDED BY", "ZONES")
    rows = [_holding_row(one) for one in audit.holdings]
    asked, unsure = (f"GPU {audit.gpu} of ", " or may have") if audit.gpu else ("", "")
    if any(one.gpus for one in audit.holdings):
        head = (*head[:-1], "GPUS", head[-1])
        gpus = [", ".join(part.text for part in one.gpus) for one in audit.holdings]
        rows = [[*row[:-1], text, row[-1]] for row, text in zip(rows, gpus, strict=True)]
    parts = [
        f"{asked}node {audit.node}, {_span_text(audit.span)}: {len(audit.holdings)} pods held it{unsure}, "
        f"{len(audit.rejections)} rejected, {len(audit.gaps)} times not known what of its zones",
        "",
        table(head, rows),
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


_AuditT = TypeVar("_AuditT", PlacementAudit, NodeAudit, GroupAudit)


def audit_placements(
    *,
    node: str = "",
    since: FromFlag = "",
    until: ToFlag = "",
    source: SourceFlags | None = None,
    output: OutputFlag = "table",
) -> int:
    """Compare predicted placements with observed ones; exit 1 if an exporter is silent or a kubelet disagrees.

    Args:
        node: only of this one.
        since: begin here: a position, a time (2026-11-22T02:55:00Z, 02:55Z), or a time before the log's end (-24h).
        until: end here, likewise.
        source: where to ask.
        output: table, json or yaml.
    """
    span = Span(since=since, until=until)
    audits = asyncio.run(
        _ask(source, span, lambda answers, cluster: answers.audit_placements(cluster, span, node=node))
    )
    _print(audits, placements_text, output)
    return 0 if all(audit.ok for audit in audits) else 1


def audit_node(
    name: str,
    /,
    *,
    gpu: str = "",
    since: FromFlag = "",
    until: ToFlag = "",
    source: SourceFlags | None = None,
    output: OutputFlag = "table",
) -> int:
    """List everything that held a node: when, how much of which zone, by which record, and by which decision.

    Args:
        name: of the node.
        gpu: only what held this GPU, by index or UUID, or may have: which whole GPUs a pod got no record tells.
        since: begin here: a position, a time (2026-11-22T02:55:00Z, 02:55Z), or a time before the log's end (-24h).
        until: end here, likewise.
        source: where to ask.
        output: table, json or yaml.
    """
    span = Span(since=since, until=until)
    _print(
        asyncio.run(_ask(source, span, lambda answers, cluster: answers.audit_node(cluster, name, span, gpu=gpu))),
        node_text,
        output,
    )
    return 0


def audit_group(
    name: str,
    /,
    *,
    since: FromFlag = "",
    until: ToFlag = "",
    source: SourceFlags | None = None,
    output: OutputFlag = "table",
) -> int:
    """List what was decided about a group: placements, evictions and why, by which cycle and which rules.

    Args:
        name: NAMESPACE/NAME of a PodGroup, Job or other owner of pods, or of a pod that has none.
        since: begin here: a position, a time (2026-11-22T02:55:00Z, 02:55Z), or a time before the log's end (-24h).
        until: end here, likewise.
        source: where to ask.
        output: table, json or yaml.
    """
    namespace, slash, plain = name.partition("/")
    if not slash or not namespace or not plain or "/" in plain:
        raise ConfigurationError(f"{name!r}: is no group: NAMESPACE/NAME")
    span = Span(since=since, until=until)
    audits = asyncio.run(
        _ask(source, span, lambda answers, cluster: answers.audit_group(cluster, namespace, plain, span))
    )
    _print(audits, group_text, output)
    return 0


async def _ask(
    source: AnswerSource | None, span: Span, ask: Callable[[Answers, str], Awaitable[_AuditT]]
) -> list[_AuditT]:
    """Ask about each cluster that is meant; one that knows nothing of it is left out if another does."""
    audits: list[_AuditT] = []
    unknown: UnknownSubject | None = None
    async with open_answers(source or AnswerSource(), span.until, since=span.since) as (answers, clusters):
        for cluster in clusters:
            try:
                audits.append(await ask(answers, cluster))
            except UnknownSubject as error:
                unknown = error
    if not audits:
        raise unknown or UnknownSubject("the log is empty")
    return audits


def _print(audits: list[_AuditT], text: Callable[[_AuditT], str], output: Output) -> None:
    if output != "table":
        print_answers(audits, output)
        return
    for audit in audits:
        if len(audits) > 1:
            print(f"cluster {audit.cluster}:")
        print(text(audit))
