"""`kai who`: who has the GPUs that a queue is owed, by which rule, since when, and what another rule would say."""

import asyncio
from typing import Annotated

from cyclopts import Parameter
from kaicore.analysis.ask.answers import GpuHolders, QueueClaim

from kai_cli.output import Output, OutputFlag, print_each, table
from kai_cli.sources.answers import Answers, ApiAnswers, ask_each
from kai_cli.sources.source import AnswerSource, AtFlag, SourceFlags


def who(
    queue: str,
    /,
    *,
    settings: Annotated[list[str] | None, Parameter(name="--set")] = None,
    at: AtFlag = "",
    source: SourceFlags | None = None,
    output: OutputFlag = "table",
) -> int:
    """Say who has the GPUs that a queue is owed: by which rule, since when, until when, and by another rule.

    Args:
        queue: its name, or NAMESPACE/NAME of a group or pod of it.
        settings: KEY=VALUE of the scheduler's settings, such as fair_share.k_milli=0: the other rule.
        at: as of a moment: a position, a time (2026-11-22T02:55:00Z, 02:55Z), or a time before the log's end (-5m).
    """
    return asyncio.run(_who(source or AnswerSource(), queue, settings or [], output, at=at))


async def _who(source: AnswerSource, queue: str, settings: list[str], output: Output, *, at: str) -> int:
    async def ask(asked: Answers, cluster: str) -> GpuHolders:
        change = None
        if settings and not isinstance(asked, ApiAnswers):
            # The engine's settings; an API has them itself.
            from kaicore.analysis.trial.history.alternative import other_rule  # noqa: PLC0415

            change = other_rule(settings)
        return await asked.who(cluster, queue, at=at, settings=settings, change=change)

    print_each(await ask_each(source, at, ask), output, _text, at=at)
    return 0


def _text(answer: GpuHolders) -> str:
    """Return an answer for people."""
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
