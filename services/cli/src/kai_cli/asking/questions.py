"""`kai why` and `kai get`: questions that the API answers where one runs, and the log itself otherwise.

With `--watch` a list goes on: printed once, and then what is new, has changed or is gone, as kubectl does.
`kai priority` lists the order of waiting groups and its reasons, as `sprio` has them. A subject is written as `NAME`,
`NAMESPACE/NAME`, `job/NAME`, `queue/NAME`, …; an unknown one is reported, as kubectl does.
"""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, cast, get_args

import msgspec
from cyclopts import Parameter, Token
from cyclopts.validators import Number
from kaicore.analysis.ask.answers import (
    KIND_CALLED,
    CycleRow,
    GpuHolders,
    GroupRow,
    Listing,
    PodRow,
    QueueClaim,
    Row,
    RowSelection,
    Why,
    inapplicable_filters,
)
from kaicore.errors import ConfigurationError, UnknownSubject
from kaicore.spelling import did_you_mean

from kai_cli.asking.why_page import why_text
from kai_cli.output import (
    Output,
    OutputFlag,
    as_of,
    dispatch_lines,
    dispatches_text,
    listing_text,
    print_answer,
    print_answers,
    print_data,
    print_each,
    rows_text,
    table,
)
from kai_cli.sources.answers import Answers, ApiAnswers, ask_each, open_answers
from kai_cli.sources.source import ANY_ANSWER, GIVEN, AnswerSource, AtFlag, SourceFlags

#: Kinds with objects outside namespaces.
_CLUSTER_WIDE = frozenset({"Queue", "ClusterQueue", "Cohort", "Node", "Dispatch"})


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a question; `namespace` is empty for objects without one."""

    kind: str
    namespace: str
    name: str


def read_subject(text: str, namespace: str | None) -> Subject:
    """Read what a question is about.

    If the part before `/` is a kind, it is read as a kind (`job/train`, as in kubectl, with or without its API group);
    any other is a namespace. Raises ConfigurationError: there is no such kind, or too much or nothing is named.

    Args:
        text: `NAME`, `NAMESPACE/NAME`, `KIND/NAME` or `KIND/NAMESPACE/NAME`.
        namespace: as named by its flag; then no part of `text` is one.
    """
    *before, name = text.split("/")
    kind = "Pod"
    if before and (before[0].partition(".")[0].lower() in KIND_CALLED):
        kind = KIND_CALLED[before.pop(0).partition(".")[0].lower()]
    elif len(before) > 1:
        raise ConfigurationError(
            f"{text}: no kind {before[0]!r} is known{did_you_mean(before[0].lower(), KIND_CALLED)}"
        )
    elif before and namespace is not None:
        raise ConfigurationError(f"{text}: is in namespace {before[0]!r}, and --namespace says {namespace!r}")
    if not name or len(before) > 1 or not all(before):
        raise ConfigurationError(f"{text!r}: name NAMESPACE/NAME, or KIND/NAME such as job/train or queue/team-a")
    if kind in _CLUSTER_WIDE:
        if before and kind == "Queue":
            # As the model names Kueue's: `ClusterQueue/x`, `ns/x`.
            return Subject(kind, "", "/".join((*before, name)))
        if before:
            raise ConfigurationError(f"{text}: a {kind} is in no namespace")
        return Subject(kind, "", name)
    return Subject(kind, before[0] if before else namespace or "default", name)


async def check_subjects(
    answers: Answers, clusters: Sequence[str], kind: str, wanted: RowSelection, *, at: str = ""
) -> None:
    """Look whether what a selection names is there: the thing itself, its queue, its node.

    A queue or node that is gone, or never was, but that pods name, is no stranger.
    Raises UnknownSubject: in none of the clusters.

    Args:
        at: as of which moment; empty for the log's end.
    """
    if wanted.name:
        await _check(answers, clusters, kind, wanted.name, RowSelection(namespace=wanted.namespace), at=at)
    if wanted.queue and not await _any(answers, clusters, "pods", RowSelection(queue=wanted.queue, limit=1), at=at):
        await _check(answers, clusters, "queues", wanted.queue, RowSelection(), at=at)
    if wanted.node and not await _any(answers, clusters, "pods", RowSelection(node=wanted.node, limit=1), at=at):
        await _check(answers, clusters, "nodes", wanted.node, RowSelection(), at=at)


async def _any(answers: Answers, clusters: Sequence[str], kind: str, wanted: RowSelection, *, at: str) -> bool:
    for cluster in clusters:
        if (await answers.listing(cluster, kind, wanted, at=at)).total:
            return True
    return False


async def _check(
    answers: Answers, clusters: Sequence[str], kind: str, name: str, among: RowSelection, *, at: str
) -> None:
    if await _any(answers, clusters, kind, RowSelection(namespace=among.namespace, name=name, limit=1), at=at):
        return
    rows = [row for cluster in clusters for row in (await answers.listing(cluster, kind, among, at=at)).rows]
    names = {row.cycle if isinstance(row, CycleRow) else row.name for row in rows}
    where = f" in namespace {among.namespace!r}" if among.namespace else ""
    raise UnknownSubject(f"{kind[:-1]} {name!r} not found{where}{did_you_mean(name, names)}")


#: Seconds that one wait for news lasts.
_WAIT_S = 30.0


async def watch_listings(
    answers: Answers, clusters: Sequence[str], kind: str, wanted: RowSelection, *, output: Output
) -> None:
    """Print lists of clusters and what becomes of them, until cancelled."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for cluster in clusters:
                tasks.create_task(_watch(answers, cluster, kind, wanted, output=output, several=len(clusters) > 1))
    except ExceptionGroup as errors:
        # All ask the same, so one is as good as another.
        raise errors.exceptions[0] from None


async def _watch(
    answers: Answers, cluster: str, kind: str, wanted: RowSelection, *, output: Output, several: bool
) -> None:
    before: dict[str, Row] = {}
    columns: list[str] = []
    while True:
        listing = await answers.listing(cluster, kind, wanted, now=time.time_ns() // 1000)
        now = {_key(row): row for row in listing.rows}
        changed = [row for key, row in now.items() if key not in before or _news(before[key]) != _news(row)]
        gone = [row for key, row in before.items() if key not in now]
        if several and output == "table" and (changed or gone):
            print(f"cluster {cluster}:")
        columns = print_changes(kind, changed, gone, output=output, columns=columns)
        before = now
        while await answers.wait_beyond(cluster, listing.position, timeout_s=_WAIT_S) <= listing.position:
            pass


def _news(row: Row) -> Row:
    """Return of a row what is news when it changes: each forecast is another one."""
    return msgspec.structs.replace(row, expected_start="", expected_from="") if isinstance(row, GroupRow) else row


def print_changes(
    kind: str, changed: Sequence[Row], gone: Sequence[Row], *, output: Output, columns: list[str]
) -> list[str]:
    """Print rows that are new or have changed, and those that are gone.

    Args:
        changed: rows as they are now; a table has a head where its columns are others than before.
        gone: rows as they were.
        columns: words of the head that was printed last.

    Returns:
        the words of the head that is the last one now.
    """
    if output != "table":
        for row in changed:
            print_data(row, output)
        for row in gone:
            print_data({**msgspec.to_builtins(row), "gone": True}, output)
        sys.stdout.flush()
        return columns
    if changed:
        text = rows_text(kind, changed)
        head, _, lines = text.partition("\n")
        print(lines if head.split() == columns else text, flush=True)
        columns = head.split()
    for row in gone:
        print(f"{_key(row)} is gone from this list", flush=True)
    return columns


def _key(row: Row) -> str:
    match row:
        case PodRow():
            return f"{row.namespace}/{row.name} {row.uid}"
        case GroupRow():
            return row.key
        case CycleRow():
            return f"{row.cycle} {row.position}"
        case _:
            return row.name


if TYPE_CHECKING:
    from kaicore.analysis.ask.standings import PriorityAnswer, StandingRow
    from kaicore.analysis.trial.submission.start_forecasts import StartForecasts

NamespaceFlag = Annotated[str | None, Parameter(name=["--namespace", "-n"])]
WatchFlag = Annotated[bool, Parameter(name=["--watch", "-w"])]
Kind = Literal["pods", "groups", "queues", "nodes", "zones", "cycles", "clusters", "dispatches"]

#: Other words for kinds, as kubectl has them.
WORDS: dict[str, Kind] = {
    **dict.fromkeys(("pod", "po"), "pods"),
    **dict.fromkeys(("group", "podgroup", "podgroups", "pg"), "groups"),
    **dict.fromkeys(("queue", "q"), "queues"),
    **dict.fromkeys(("node", "no"), "nodes"),
    "zone": "zones",
    "cycle": "cycles",
    "cluster": "clusters",
    "dispatch": "dispatches",
}


def _kind(_: object, tokens: Sequence[Token]) -> Kind:
    word = tokens[0].value.lower()
    for kind in get_args(Kind):
        if kind == WORDS.get(word, word):
            return cast("Kind", kind)
    close = did_you_mean(word, (*get_args(Kind), *WORDS))
    raise ValueError(f"{word!r} cannot be listed; there are: {', '.join(get_args(Kind))}{close}")


KindArgument = Annotated[Kind, Parameter(converter=_kind)]

#: Kinds that are not of one cluster.
_OF_HUB = frozenset({"clusters", "dispatches"})
#: Kinds with rows in a namespace.
_NAMESPACED = frozenset({"pods", "groups"})

#: Cycles that are listed where no limit is given.
_CYCLES = 20


async def why(
    subject: str,
    /,
    *,
    namespace: NamespaceFlag = None,
    at: AtFlag = "",
    source: SourceFlags = ANY_ANSWER,
    output: OutputFlag = "table",
) -> None:
    """Explain why a pod is where it is or waits; or the pods of a Job, group, queue or node.

    Args:
        subject: NAMESPACE/NAME or NAME of a pod; or KIND/NAME, such as job/train, podgroup/gang, deployment/web,
            queue/team-a, node/gpu-0, dispatch/train.
        namespace: where the subject names none; by default default.
    """
    about = read_subject(subject, namespace)
    if about.kind == "Dispatch":
        if at:
            raise ConfigurationError(f"--at {at}: a dispatch is explained as of now; its story tells the past")
        async with open_answers(source) as (answers, _):
            found = await answers.why_dispatch(about.name)
        print_answer(found, output, lambda: "\n".join(dispatch_lines(found)))
        return

    now = time_of(source, at)

    async def ask(answers: Answers, cluster: str) -> Why:
        asked = with_forecasts(answers)
        return await asked.why(cluster, about.kind, about.namespace, about.name, at=at, now=now)

    print_each(await ask_each(source, at, ask), output, why_text, at=at)


def time_of(source: AnswerSource, at: str) -> int:
    """Return the time, microseconds since the epoch, where a log goes on: it may be silent while windows begin.

    It is 0 for the past, and for a file, which goes on no more.
    """
    return 0 if at or source.file is not None else time.time_ns() // 1000


def with_forecasts(answers: Answers) -> "ApiAnswers | StartForecasts":
    """Return answers with forecasts of starts: an API has them itself."""
    if isinstance(answers, ApiAnswers):
        return answers
    # Folding needs the engine, NumPy and the database's driver.
    from kaicore.analysis.trial.submission.start_forecasts import StartForecasts  # noqa: PLC0415

    return StartForecasts(answers)


def get(
    kind: KindArgument,
    name: str = "",
    /,
    *,
    namespace: NamespaceFlag = None,
    queue: str = "",
    node: str = "",
    pending: bool = False,
    rejected: bool = False,
    limit: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    at: AtFlag = "",
    watch: WatchFlag = False,
    source: SourceFlags = ANY_ANSWER,
    output: OutputFlag = "table",
) -> None:
    """List pods, groups, queues, nodes, zones, cycles, clusters or dispatches.

    Args:
        kind: what to list; also pod, po, node, no, queue, q, group, pg.
        name: only the one of this name; of a pod or a group also NAMESPACE/NAME.
        namespace: only of this namespace; by default of all.
        queue: only pods and groups of this queue, or of one below it.
        node: only pods on this node, or zones of it.
        pending: only what waits, or has pods that wait.
        rejected: only pods that a kubelet rejected, or nodes with a kubelet that has rejected some.
        limit: how many rows at most, 0 for all; of cycles the last ones, by default 20.
        watch: go on, and print what is new or has changed, until Ctrl-C.
    """
    if kind in _NAMESPACED and "/" in name:
        there, _, name = name.partition("/")
        if namespace not in (None, there):
            raise ConfigurationError(f"{there}/{name}: is in namespace {there!r}, and --namespace says {namespace!r}")
        namespace = there
    wanted = RowSelection(
        namespace=namespace or "",
        name=name,
        queue=queue,
        node=node,
        pending=pending,
        rejected=rejected,
        limit=limit if limit is not None else _CYCLES if kind == "cycles" else 0,
    )
    if wrong := inapplicable_filters(kind, wanted):
        raise ConfigurationError(f"{kind} cannot be filtered by --{', --'.join(wrong)}")
    if at and (watch or kind in _OF_HUB):
        raise ConfigurationError(f"--at {at}: the past does not change" if watch else f"{kind} have no past: no --at")
    asyncio.run(_get(source, kind, wanted, at=at, watch=watch, output=output))


async def _get(source: AnswerSource, kind: Kind, wanted: RowSelection, *, at: str, watch: bool, output: Output) -> None:
    async with open_answers(source, at) as (answers, clusters):
        if kind == "clusters":
            rows = [row for row in await answers.clusters() if row.name in clusters and wanted.name in ("", row.name)]
            if wanted.name and not rows:
                raise UnknownSubject(f"no cluster {wanted.name!r} in the log{did_you_mean(wanted.name, clusters)}")
            print_answer(rows, output, lambda: rows_text(kind, rows))
            return
        if kind == "dispatches":
            dispatches = [
                row for row in await answers.dispatches(pending=wanted.pending) if wanted.name in ("", row.name)
            ]
            print_answer(dispatches, output, lambda: dispatches_text(dispatches) if dispatches else "no dispatches")
            return
        await check_subjects(answers, clusters, kind, wanted, at=at)
        if watch:
            await watch_listings(answers, clusters, kind, wanted, output=output)
        listed = with_forecasts(answers) if kind == "groups" else answers
        now = time_of(source, at)
        listings = [await listed.listing(cluster, kind, wanted, at=at, now=now) for cluster in clusters]
    print_answers(listings, output, lambda: "\n".join(_lines(listings, past=bool(at))) or "the log is empty")


def _lines(listings: list[Listing], *, past: bool) -> Iterator[str]:
    for listing in listings:
        if len(listings) > 1:
            yield f"cluster {listing.cluster}:"
        if past:
            why = f"; WHY as the last cycle found it at position {listing.reasons_position}"
            yield as_of(listing.position, listing.recorded_at) + (why if listing.reasons_position else "")
        yield listing_text(listing)


async def priority(
    queue: str = "", /, *, at: AtFlag = "", source: SourceFlags = ANY_ANSWER, output: OutputFlag = "table"
) -> None:
    """Say in which order groups wait, and what puts each before the next.

    Args:
        queue: only groups of this queue, or of one below it; by default of all.
    """
    async with open_answers(source, at) as (asked, clusters):
        if not clusters:
            raise ConfigurationError("the log is empty")
        answers = [await asked.priority(cluster, queue=queue, at=at) for cluster in clusters]
    print_answers(answers, output, lambda: "\n\n".join(map(priority_text, answers)))


def priority_text(answer: "PriorityAnswer") -> str:
    """Return the order for people."""
    parts = [f"cluster {answer.cluster}: as of position {answer.position}, {answer.recorded_at}"]
    if answer.policies_left_out:
        parts.append(f"without policies that could not be asked: {', '.join(answer.policies_left_out)}")
    if answer.queues:
        parts.append(rows_text("queues", answer.queues))
    head = ("PLACE", "NAMESPACE", "NAME", "QUEUE", "PRIORITY", "GAINED", "RANK", "SINCE", "PODS", "GPUS")
    rows = [_cells(row) for row in answer.groups]
    parts.append(table((*head, "BEFORE THE NEXT BY"), rows) if rows else "nothing waits")
    return "\n\n".join(parts)


def _cells(row: "StandingRow") -> list[str]:
    figures = (row.priority, row.gained, row.rank)
    since = row.created_at.partition(".")[0]
    held = f"held: {row.held}" if row.held else ""
    notes = filter(None, (row.before_next, held, "room is reserved" if row.reserved else ""))
    about = [str(row.place), row.namespace, row.name, row.queue, *map(str, figures), since]
    return [*about, str(row.waiting), row.gpus, "; ".join(notes)]


async def who(
    queue: Annotated[str, GIVEN],
    /,
    *,
    settings: Annotated[list[str] | None, Parameter(name="--set")] = None,
    at: AtFlag = "",
    source: SourceFlags = ANY_ANSWER,
    output: OutputFlag = "table",
) -> None:
    """Say who has the GPUs that a queue is owed: by which rule, since when, until when; --set compares another rule.

    Args:
        queue: its name, or NAMESPACE/NAME of a group or pod of it.
        settings: KEY=VALUE of the scheduler's settings, such as fair_share.k_milli=0: the other rule.
    """

    async def ask(asked: Answers, cluster: str) -> GpuHolders:
        change = None
        if settings and not isinstance(asked, ApiAnswers):
            # The engine's settings; an API has them itself.
            from kaicore.analysis.trial.history.alternative import other_rule  # noqa: PLC0415

            change = other_rule(settings)
        return await asked.who(cluster, queue, at=at, settings=settings or (), change=change)

    print_each(await ask_each(source, at, ask), output, _text, at=at)


def _text(answer: GpuHolders) -> str:
    claims = [("as it is", answer.claim)]
    if answer.other is not None:
        claims.append((", ".join(answer.settings), answer.other))
    head = ("RULE", "QUOTA", "DESERVES", "HOLDS", "ASKS", "OWED", "MAY TAKE", "WHY NOT")
    lines = [answer.verdict, "", table(head, [_claim(name, one) for name, one in claims])]
    lines += [f"{name}: deserves {after} instead of {before}" for name, (before, after) in answer.moved.items()]
    if answer.other is not None and not answer.moved:
        lines.append("no queue deserves anything else by the other rule")
    rows = [
        (
            *(one.gpus, one.standing.value, one.group, one.queue, one.user, one.since, one.ends),
            one.rule + (f" until {one.protected_until}" if one.protected_until else ""),
        )
        for one in answer.holders
    ]
    return "\n".join(
        [*lines, "", table(("GPUS", "STANDING", "GROUP", "QUEUE", "USER", "SINCE", "ENDS BY", "RULE"), rows)]
        if rows
        else [*lines, "", "nobody holds GPUs"]
    )


def _claim(name: str, one: QueueClaim) -> tuple[str, ...]:
    return name, one.quota, one.fair_share, one.holds, one.asks, one.owed, one.may_take, one.refused
