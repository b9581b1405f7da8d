"""Subjects of questions, as people write them: `NAME`, `NAMESPACE/NAME`, `job/NAME`, `queue/NAME`, …

An unknown name is reported, as kubectl does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kaicore.analysis.ask.answers import KIND_CALLED, CycleRow, RowSelection
from kaicore.errors import ConfigurationError, UnknownSubject
from kaicore.spelling import did_you_mean

from kai_cli.sources.answers import Answers

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
