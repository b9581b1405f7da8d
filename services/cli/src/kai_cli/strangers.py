"""Check of the names that a list is asked for: as kubectl does, an unknown name is reported."""

from collections.abc import Sequence

from kaicore.analysis.ask.answers import (
    ClusterRow,
    CycleRow,
    GroupRow,
    NodeRow,
    PodRow,
    QueueRow,
    Row,
    RowSelection,
    ZoneRow,
)
from kaicore.errors import UnknownSubject
from kaicore.spelling import did_you_mean

from kai_cli.answers import Answers


async def check_subjects(
    answers: Answers, clusters: Sequence[str], kind: str, wanted: RowSelection, *, at: str = ""
) -> None:
    """Look whether what a selection names is there: the thing itself, its queue, its node.

    A queue or node that is gone, or never was, but that pods name, is no stranger.

    Args:
        answers: who is asked.
        clusters: which are meant.
        kind: of the list.
        wanted: the selection.
        at: as of which moment; empty for the log's end.

    Raises:
        UnknownSubject: in none of the clusters.
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
    names = {_name(row) for cluster in clusters for row in (await answers.listing(cluster, kind, among, at=at)).rows}
    where = f" in namespace {among.namespace!r}" if among.namespace else ""
    raise UnknownSubject(f"{kind[:-1]} {name!r} not found{where}{did_you_mean(name, names)}")


def _name(row: Row | ClusterRow) -> str:
    match row:
        case PodRow() | GroupRow() | QueueRow() | NodeRow() | ZoneRow() | ClusterRow():
            return row.name
        case CycleRow():
            return row.cycle
