"""`kai state` and `kai diff`: a cluster as it was, and what has changed since."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal, cast, get_args

from cyclopts import Parameter, Token
from cyclopts.validators import Number
from kaicore.analysis.ask.answers import KINDS, ClusterSummary, DiffAnswer, DiffQuestion, RowChange, RowSelection
from kaicore.errors import ConfigurationError, UnknownSubject
from kaicore.spelling import did_you_mean

from kai_cli.asking.questions import WORDS, Kind, NamespaceFlag, check_subjects, get
from kai_cli.output import OutputFlag, as_of, print_answers
from kai_cli.sources.answers import open_answers
from kai_cli.sources.source import ANY_ANSWER, GIVEN, AnswerSource, AtFlag, SourceFlags
from kai_cli.topology.show import show

StateKind = Literal["nodes", "zones", "pods", "groups", "queues", "topology"]
#: `-5m` is no option.
MomentArgument = Annotated[str, Parameter(allow_leading_hyphen=True), GIVEN]

#: Changes that are printed of a kind where nothing is said.
_MOST_CHANGES = 50
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def _kind(_: object, tokens: Sequence[Token]) -> StateKind:
    word = tokens[0].value.lower()
    kinds = get_args(StateKind)
    kind = "topology" if word == "topologies" else WORDS.get(word, word)
    if kind not in kinds:
        raise ValueError(f"{word!r} is no part of a state; there are: {', '.join(kinds)}{did_you_mean(word, kinds)}")
    return cast("StateKind", kind)


KindArgument = Annotated[StateKind | None, Parameter(converter=_kind)]


def state(
    kind: KindArgument = None,
    name: str = "",
    /,
    *,
    at: AtFlag = "end",
    namespace: NamespaceFlag = None,
    queue: str = "",
    node: str = "",
    limit: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    source: SourceFlags = ANY_ANSWER,
    output: OutputFlag = "table",
) -> int:
    """Show a cluster as it was at a moment: nodes, zones, pods, groups, queues or topology; or in figures.

    Args:
        kind: what to show; without it the cluster in figures.
        name: only the one of this name.
        namespace: only of this namespace; by default of all.
        queue: only pods and groups of this queue, or of one below it.
        node: only pods on this node, or zones of it.
        limit: how many rows at most, 0 for all.
    """
    moment = at or "end"
    if kind == "topology":
        if namespace or queue or node or limit is not None:
            raise ConfigurationError("topology cannot be filtered; `kai topology --at` can look at parts of it")
        return show(topology=name, at=moment, source=source, output="tree" if output == "table" else output)
    if kind is None:
        asyncio.run(_figures(source, moment, output))
    else:
        asked = cast("Kind", kind)
        get(
            asked,
            name,
            namespace=namespace,
            queue=queue,
            node=node,
            limit=limit,
            at=moment,
            source=source,
            output=output,
        )
    return 0


async def _figures(source: AnswerSource, at: str, output: OutputFlag) -> None:
    async with open_answers(source, at) as (answers, clusters):
        summaries = [await answers.cluster(cluster, at=at) for cluster in clusters]
    if not summaries:
        raise UnknownSubject("the log is empty")
    print_answers(summaries, output, lambda: "\n".join(map(_summary_text, summaries)))


def _summary_text(summary: ClusterSummary) -> str:
    pods = ", ".join(f"{count} {stage}" for stage, count in summary.pods.items())
    counts = {"nodes": summary.nodes, "queues": summary.queues, "groups": summary.groups, "pods": pods}
    head = f"cluster {summary.name}: {as_of(summary.position, summary.recorded_at)}"
    return "\n  ".join([head, *(f"{name}: {count}" for name, count in counts.items())])


async def diff(
    before: MomentArgument,
    after: MomentArgument = "end",
    /,
    *,
    kind: str = "",
    namespace: NamespaceFlag = None,
    queue: str = "",
    node: str = "",
    limit: Annotated[int, Parameter(validator=Number(gte=0))] = _MOST_CHANGES,
    source: SourceFlags = ANY_ANSWER,
    output: OutputFlag = "table",
) -> None:
    """Say what is different between two moments: what is new, gone or changed, field by field.

    Args:
        before: the earlier moment: a position, a time (2026-11-22T02:55:00Z, 02:55Z), or -5m before the log's end.
        after: the later one; by default the log's end.
        kind: only nodes, topology, queues, groups, pods or zones.
        namespace: only pods and groups of this namespace.
        queue: only this queue, and pods and groups of it.
        node: only this node, its zones, and the pods that are on it at one of both moments.
        limit: how many changes of each kind are printed at most; 0 for all. JSON and YAML have all.
    """
    word = WORDS.get(kind.lower(), kind.lower())
    wanted = DiffQuestion(kind=word, namespace=namespace or "", queue=queue, node=node)
    async with open_answers(source, before, after) as (answers, clusters):
        selection = RowSelection(node=node, queue=queue)
        try:
            await check_subjects(answers, clusters, "pods", selection, at=after)
        except UnknownSubject:
            # It may be gone since.
            await check_subjects(answers, clusters, "pods", selection, at=before)
        differences = [await answers.diff(cluster, before, after, wanted) for cluster in clusters]
    if not differences:
        raise UnknownSubject("the log is empty")
    lines = (line for answer in differences for line in _diff_lines(answer, limit))
    print_answers(differences, output, lambda: "\n".join(lines))


def _diff_lines(answer: DiffAnswer, limit: int) -> list[str]:
    before, after = answer.before, answer.after
    events = abs(after.position - before.position)
    lines = [
        f"cluster {answer.cluster}: from position {before.position} ({before.recorded_at or 'before the first event'}) "
        f"to position {after.position} ({after.recorded_at or 'before the first event'}), {events} events"
    ]
    for kind in KINDS:
        if (counts := answer.counts.get(kind)) is None:
            continue
        lines.append(f"{kind}: {', '.join(f'{count} {change}' for change, count in counts.items() if count)}")
        changes = [change for change in answer.changes if change.kind == kind]
        shown = changes[:limit] if limit else changes
        for change in shown:
            lines += _change_lines(change)
        if len(shown) < len(changes):
            lines.append(f"  … and {len(changes) - len(shown)} more (--limit 0 prints all)")
    return lines if answer.changes else [*lines, "nothing is different"]


def _change_lines(change: RowChange) -> list[str]:
    sign = _SIGNS[change.change]
    if change.change == "changed":
        return [
            f"  {sign} {change.name}",
            *(f"      {one.field}: {one.before or '-'} → {one.after or '-'}" for one in change.fields),
        ]
    # Of what is new or gone a line says enough: what else it has is in the JSON.
    facts = {one.field: one.after or one.before for one in change.fields}
    words = [f"{field} {facts[field]}" for field in ("status", "node", "queue", "level", "nodes") if facts.get(field)]
    return [f"  {sign} {change.name}{': ' if words else ''}{', '.join(words)}"]
