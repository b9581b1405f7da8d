"""`kai audit placements`, `kai audit node` and `kai audit group`: who decided what, and whether it came to be so."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kaicore.analysis.inquiry.audit_answers import GroupAudit, NodeAudit, PlacementAudit, Span
from kaicore.errors import ConfigurationError, UnknownSubject

from kai_cli.answers import Answers, open_answers
from kai_cli.audit_tables import group_text, node_text, placements_text
from kai_cli.printing import Output, OutputFlag, print_answers
from kai_cli.source import AnswerSource, FromFlag, SourceFlags, ToFlag

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
    since: FromFlag = "",
    until: ToFlag = "",
    source: SourceFlags | None = None,
    output: OutputFlag = "table",
) -> int:
    """List everything that held a node: when, how much of which zone, by which record, and on whose decision.

    Args:
        name: of the node.
        since: begin here: a position, a time (2026-11-22T02:55:00Z, 02:55Z), or a time before the log's end (-24h).
        until: end here, likewise.
        source: where to ask.
        output: table, json or yaml.
    """
    span = Span(since=since, until=until)
    _print(
        asyncio.run(_ask(source, span, lambda answers, cluster: answers.audit_node(cluster, name, span))),
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
