"""`kai priority`: the order of waiting groups and its reasons, as `sprio` has them."""

import asyncio

from kaicore.analysis.ask.standings import PriorityAnswer, StandingRow
from kaicore.errors import ConfigurationError

from kai_cli.output import OutputFlag, print_answers, rows_text, table
from kai_cli.sources.answers import open_answers
from kai_cli.sources.source import AnswerSource, AtFlag, SourceFlags


def priority(
    queue: str = "", /, *, at: AtFlag = "", source: SourceFlags | None = None, output: OutputFlag = "table"
) -> int:
    """Say in which order groups wait, and what puts each before the next.

    Args:
        queue: only groups of this queue, or of one below it; by default of all.
        at: as of a moment: a position, a time (2026-11-22T02:55:00Z, 02:55Z), or a time before the log's end (-5m).
    """
    answers = asyncio.run(_priority(source or AnswerSource(), queue, at))
    if output != "table":
        print_answers(answers, output)
        return 0
    print("\n\n".join(map(priority_text, answers)))
    return 0


async def _priority(source: AnswerSource, queue: str, at: str) -> list[PriorityAnswer]:
    async with open_answers(source, at) as (answers, clusters):
        if not clusters:
            raise ConfigurationError("the log is empty")
        return [await answers.priority(cluster, queue=queue, at=at) for cluster in clusters]


def priority_text(answer: PriorityAnswer) -> str:
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


def _cells(row: StandingRow) -> list[str]:
    figures = (row.priority, row.gained, row.rank)
    since = row.created_at.partition(".")[0]
    held = f"held: {row.held}" if row.held else ""
    notes = filter(None, (row.before_next, held, "room is reserved" if row.reserved else ""))
    about = [str(row.place), row.namespace, row.name, row.queue, *map(str, figures), since]
    return [*about, str(row.waiting), row.gpus, "; ".join(notes)]
