"""`kai audit`: whether the log still says what it said; who decided what, and whether it came to be so."""

import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import Parameter
from kaicore.analysis.ask.audits.audit_answers import (
    AgreementCounts,
    DecidedEviction,
    DecisionAnswer,
    EvictionAudit,
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
from kaicore.analysis.replay.log_states import folded
from kaicore.analysis.replay.replay import Audit, audit_answer, audit_log
from kaicore.errors import ConfigurationError, CorruptLog, InvalidObject
from kaicore.ledger.log.seals.anchors import Anchor, Key, anchor_line, hashes_of, read_anchors, read_file
from kaicore.ledger.log.seals.audit import verify
from kaicore.ledger.log.seals.deposits import Deposit, closing, open_deposit
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import EventSetAside, Undecodable
from kaicore.rules.events.reasons.base import gpu_hours_text, plural
from kaicore.rules.model.quantity import readable_amount
from kaicore.rules.state.promises import OverCommitOrigin, PromiseReport

from kai_cli.asking.questions import NamespaceFlag
from kai_cli.output import Output, OutputFlag, print_answers, table
from kai_cli.sources.answers import Answers, ask_each
from kai_cli.sources.log_access import open_log, open_log_as_owner
from kai_cli.sources.source import ANY_ANSWER, ANY_LOG, AnswerSource, BeginFlag, EndFlag, LogSourceFlags, SourceFlags

Anchors = Mapping[str, Mapping[int, bytes]]

#: What it means that a fact brought more to a zone or node than it has.
_MEANINGS = {
    OverCommitOrigin.OBSERVED: "its kubelet gave the pod another pod's resources, mostly freed before the API said so",
    OverCommitOrigin.FOREIGN: "a pod came there without a decision",
    OverCommitOrigin.SHRUNK: "the node has less than before",
}


async def audit_verify(
    *,
    against: Annotated[Sequence[str], Parameter(name="--against")] = (),
    key: Path | None = None,
    token_file: Path | None = None,
    chain_only: bool = False,
    source: LogSourceFlags = ANY_LOG,
    output: OutputFlag = "table",
) -> int:
    """Recompute the hash chain, and check that nothing was promised twice; exit 1 if anything is broken.

    Args:
        against: a file or http(s):// address where seals were handed in, by `kai audit seal` or by the relay: what they
            vouch for must be in the log. May be given again.
        key: a file with the key that seals must be signed with: an Ed25519 key in PEM, or a secret.
        token_file: a file with the bearer token for http(s):// addresses.
        chain_only: leave out the check of decisions, which folds the whole log.
    """
    deposits = [open_deposit(address, token=_token(token_file)) for address in against]
    anchors = await _anchors(deposits, _key(key))
    async with open_log(source) as log:
        there_are = sorted({*await log.clusters(), *anchors})
        audits = [
            await audit_log(log, cluster, anchors=anchors.get(cluster, {}), chain_only=chain_only)
            for cluster in source.clusters(there_are)
        ]
    answers = [audit_answer(one) for one in audits]
    print_answers(answers, output, lambda: "\n".join(map(_text, audits)) or "the log is empty")
    return 0 if all(one.ok for one in audits) else 1


def _text(audit: Audit) -> str:
    """Return what was checked, the events that say nothing, what cycles leave out and why, and the promises."""
    lines = [
        str(audit.report),
        *(
            f"quarantined: event {event.position} ({event.type} on {event.stream}, by {event.actor}): {event.error}"
            for event in audit.quarantined
        ),
        *(f"set aside: event {event.position} (on {event.stream}): {event.reason}" for event in audit.set_aside),
        *(f"left out of cycles: {one}" for one in audit.left_out),
    ]
    return "\n".join(lines if audit.promises is None else [*lines, _promises_text(audit.promises)])


def _promises_text(promises: PromiseReport) -> str:
    counts = {str(origin): count for origin, count in sorted(promises.counts.items())}
    twice = counts.pop("promised", 0)
    lines = [f"{promises.decisions} decisions: {twice or 'nothing'} promised twice", *map(str, promises.twice)]
    if counts:
        facts = ", ".join(f"{count} {origin}" for origin, count in counts.items())
        lines.append(f"over-use that the scheduler did not cause: {facts}; such as")
        examples = {one.origin: one for one in reversed(promises.brought)}
        lines += [f"  {examples[origin]}: {meaning}" for origin, meaning in _MEANINGS.items() if origin in examples]
    return "\n".join(lines)


async def audit_seal(
    address: str,
    /,
    *,
    key: Path | None = None,
    token_file: Path | None = None,
    source: LogSourceFlags = ANY_LOG,
) -> int:
    """Verify the log, and write down where it stands, to be compared later; exit 1 if it is broken.

    Keep what is written where the log's writers cannot write. A broken log is not written down.

    Args:
        address: a file, or the http(s):// address of a folder that takes PUT, to which a line per cluster is added;
            what is there already must be in the log.
        key: a file with the key to sign with: a private Ed25519 key in PEM, or a secret.
        token_file: a file with the bearer token for an http(s):// address.
    """
    deposit, signed_by = open_deposit(address, token=_token(token_file)), _key(key)
    async with closing(deposit):
        with _findings():
            lines = await deposit.lines()
            anchors = hashes_of(read_anchors("\n".join(lines), name=deposit.address, key=signed_by))
        async with open_log(source) as log:
            clusters = source.clusters(sorted({*await log.clusters(), *anchors}))
            reports = [await verify(log, cluster, anchors=anchors.get(cluster, {})) for cluster in clusters]
        if not all(report.ok for report in reports):
            for report in reports:
                print(report)
            sys.stderr.write(f"kai: nothing was written to {deposit.address}\n")
            return 1
        for report in reports:
            before = lines[-1] if lines else ""
            now = time.time_ns() // 1000
            line = anchor_line(
                report.cluster, report.head, seals=report.seals, sealed_at=now, before=before, key=signed_by
            )
            await deposit.add(line, number=len(lines) + 1)
            lines.append(line)
            print(f"cluster {report.cluster}: sealed at {report.head.position} {report.head.hash.hex()}")
    return 0


async def audit_set_aside(position: int, /, *, reason: str, source: LogSourceFlags = ANY_LOG) -> None:
    """Set aside an event that cannot be decoded or folded: from then on it counts as if it said nothing.

    The event stays where it is, and an `EventSetAside` says which it was and why. Services decide about its node or pod
    again. The scheduler's /readyz and log say which events those are, and who appended them.

    Args:
        position: of the event.
        reason: why it is there and may be left out; it is recorded.
        source: which log; with --database-url, as the role that owns it (kai_migrate).
    """
    async with open_log_as_owner(source) as log:
        clusters = source.clusters(await log.clusters())
        if len(clusters) != 1:
            raise ConfigurationError(f"--cluster: which one? There are: {', '.join(clusters) or '-'}")
        (cluster,) = clusters
        events = await log.read(cluster, after=position - 1, upto=position, limit=1) if position > 0 else []
        if not events:
            raise ConfigurationError(f"cluster {cluster}: there is no event {position}")
        (event,) = events
        payload = decode_payload(event)
        if isinstance(payload, Undecodable):
            error = payload.error
        elif (found := (await folded(log, cluster)).quarantined.get(position)) is not None:
            error = found.error
        else:
            raise ConfigurationError(
                f"cluster {cluster}: event {position} ({event.type} on {event.stream}) can be decoded and folded: "
                "it stays what it is"
            )
        record = NewEvent(
            id=derived_id(cluster, "EventSetAside", str(position)),
            stream=f"quarantine/{position}",
            payload=EventSetAside(position, event.stream, event.hash.hex(), reason),
            actor="kai audit",
            occurred_at=time.time_ns() // 1000,
            subject=event.subject,
            cause=event.id,
        )
        (outcome,) = await log.append(cluster, [Unit((record,))])
    print(
        f"cluster {cluster}: event {position} ({event.type} on {event.stream}, by {event.actor}: {error}) "
        f"is set aside by event {outcome.positions[0]}"
    )


async def _anchors(deposits: Sequence[Deposit], key: Key | None) -> Anchors:
    anchors: list[Anchor] = []
    with _findings():
        for deposit in deposits:
            async with closing(deposit):
                lines = await deposit.lines()
            if not lines:
                raise ConfigurationError(f"{deposit.address}: holds no seals, or is not there")
            anchors += read_anchors("\n".join(lines), name=deposit.address, key=key)
        return hashes_of(anchors)


@contextmanager
def _findings() -> Iterator[None]:
    """Seals that were changed are what an audit looks for, and no mistake of its words (exit code 1, not 2)."""
    try:
        yield
    except InvalidObject as error:
        raise CorruptLog(str(error)) from error


def _key(file: Path | None) -> Key | None:
    return None if file is None else Key.read(read_file(file), name=str(file))


def _token(file: Path | None) -> str:
    return "" if file is None else read_file(file).decode(errors="replace").strip()


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


def _gpu_name(gpu: str) -> str:
    return f"GPU {gpu}" if gpu.isdecimal() else gpu


def _unnamed(audit: NodeAudit) -> Iterator[str]:
    """Say that no record names the GPU that was asked for."""
    parts = [part for one in audit.holdings for part in one.gpus]
    if audit.gpu and not any(part.gpu == audit.gpu or part.group[:8] == audit.gpu[:8] for part in parts):
        yield f"no record names {_gpu_name(audit.gpu)} of {audit.node}; `kai get nodes` names those that are shared"


def node_text(audit: NodeAudit) -> str:
    """Write everything that held a node."""
    head: tuple[str, ...] = ("POD", "FROM", "TO", "ENDED", "DECIDED BY", "ZONES")
    rows = [_holding_row(one) for one in audit.holdings]
    asked, unsure = (f"{_gpu_name(audit.gpu)} of ", " or may have") if audit.gpu else ("", "")
    if any(one.gpus for one in audit.holdings):
        head = (*head[:-1], "GPUS", head[-1])
        gpus = [", ".join(part.text for part in one.gpus) for one in audit.holdings]
        rows = [[*row[:-1], text, row[-1]] for row, text in zip(rows, gpus, strict=True)]
    parts = [
        f"{asked}node {audit.node}, {_span_text(audit.span)}: {len(audit.holdings)} pods held it{unsure}, "
        f"{len(audit.rejections)} rejected, zones unknown {plural(len(audit.gaps), 'time')}",
        *_unnamed(audit),
        "",
        table(head, rows),
    ]
    if audit.suspicions:
        parts += ["", *audit.suspicions]
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
        f"queue {audit.queue or '-'}, priority {audit.priority}, {preemptible}, {len(audit.pods)} pods",
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


def evictions_text(audit: EvictionAudit) -> str:
    """Write the evictions of a part of a log."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in audit.reasons.items()) or "none"
    lost = f"; {gpu_hours_text(audit.lost_gpu_seconds)} of work lost" if audit.lost_gpu_seconds else ""
    head = ("POSITION", "TIME", "POD", "NODE", "REASON", "FOR", "SPARED BY")
    rows = [_eviction_row(one) for one in audit.evictions]
    parts = [f"{_span_text(audit.span)}: {len(rows)} evictions ({reasons}){lost}"]
    return "\n".join([*parts, "", _cut_table(head, rows)] if rows else parts)


def _eviction_row(one: DecidedEviction) -> list[str]:
    at = [str(one.position), one.recorded_at]
    return [*at, one.pod, one.node, one.reason, one.made_way_for or "-", one.spared_by or "-"]


_AuditT = TypeVar("_AuditT", PlacementAudit, NodeAudit, GroupAudit, EvictionAudit)


async def audit_placements(
    *,
    node: str = "",
    since: BeginFlag = "",
    until: EndFlag = "",
    source: SourceFlags = ANY_ANSWER,
    output: OutputFlag = "table",
) -> int:
    """Compare predicted placements with observed ones; exit 1 if an exporter is silent or a kubelet disagrees.

    Args:
        node: only of this one.
    """
    span = Span(since=since, until=until)
    audits = await _ask(source, span, lambda answers, cluster: answers.audit_placements(cluster, span, node=node))
    _print(audits, placements_text, output)
    return 0 if all(audit.ok for audit in audits) else 1


async def audit_node(
    name: str,
    /,
    *,
    gpu: str = "",
    since: BeginFlag = "",
    until: EndFlag = "",
    source: SourceFlags = ANY_ANSWER,
    output: OutputFlag = "table",
) -> None:
    """List everything that held a node: when, how much of which zone, by which record, and by which decision.

    Args:
        name: of the node.
        gpu: only what held this GPU, by index, UUID or group, or may have: no record names the whole GPUs of a pod.
    """
    span = Span(since=since, until=until)
    audits = await _ask(source, span, lambda answers, cluster: answers.audit_node(cluster, name, span, gpu=gpu))
    _print(audits, node_text, output)


async def audit_group(
    name: str,
    /,
    *,
    since: BeginFlag = "",
    until: EndFlag = "",
    source: SourceFlags = ANY_ANSWER,
    output: OutputFlag = "table",
) -> None:
    """List what was decided about a group: placements, evictions and why, by which cycle and which rules.

    Args:
        name: NAMESPACE/NAME of a PodGroup, Job or other owner of pods, or of a pod that has none.
    """
    namespace, slash, plain = name.partition("/")
    if not slash or not namespace or not plain or "/" in plain:
        raise ConfigurationError(f"{name!r}: is no group: NAMESPACE/NAME")
    span = Span(since=since, until=until)
    audits = await _ask(source, span, lambda answers, cluster: answers.audit_group(cluster, namespace, plain, span))
    _print(audits, group_text, output)


async def audit_evictions(
    *,
    namespace: NamespaceFlag = None,
    since: BeginFlag = "",
    until: EndFlag = "",
    source: SourceFlags = ANY_ANSWER,
    output: OutputFlag = "table",
) -> None:
    """List all evictions: of which pod, for whom, why, and what would spare it the next time.

    Args:
        namespace: only of pods in this one.
    """
    span = Span(since=since, until=until)

    wanted = namespace or ""
    audits = await _ask(source, span, lambda one, cluster: one.audit_evictions(cluster, span, namespace=wanted))
    _print(audits, evictions_text, output)


async def _ask(source: AnswerSource, span: Span, ask: Callable[[Answers, str], Awaitable[_AuditT]]) -> list[_AuditT]:
    return await ask_each(source, span.until, ask, since=span.since)


def _print(audits: list[_AuditT], text: Callable[[_AuditT], str], output: Output) -> None:
    head = "cluster {}:\n" if len(audits) > 1 else ""
    print_answers(audits, output, lambda: "\n".join(head.format(audit.cluster) + text(audit) for audit in audits))
