"""`kai what-if --from A --to B`: a window of the log simulated again, as it was and as it might be.

The runs stand side by side, then who gains and who loses.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from kaicore.analysis.life.waits import signed_wait_text
from kaicore.analysis.trial.history.alternative import BEST_POLICIES, HistoryQuestion, PatchText
from kaicore.analysis.trial.history.comparison import Fares, HistoryComparison, compare_history
from kaicore.analysis.trial.history.results import waits_by_size
from kaicore.analysis.trial.simulation.kubelets import find_kubelets
from kaicore.errors import ConfigurationError
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook

from kai_cli.output import Output, OutputFlag, Progress, print_answer, table, warn
from kai_cli.sources.log_access import open_cluster_log
from kai_cli.sources.source import ANY_LOG, FromFlag, LogSource, LogSourceFlags, ToFlag

_ORDER = (Fares.LOSES, Fares.MIXED, Fares.GAINS, Fares.SAME)


def comparison_text(comparison: HistoryComparison) -> str:
    """Return the answer for people."""
    parts = [_head(comparison), _figures(comparison), _sizes(comparison)]
    for alternative in comparison.alternatives:
        rows = [
            (
                one.fares.value,
                one.queue,
                f"{one.started:+d}",
                signed_wait_text(one.wait_p50),
                signed_wait_text(one.wait_p99),
                f"{one.gpu_hours:+.2f}",
            )
            for one in sorted(alternative.queues, key=lambda one: (_ORDER.index(one.fares), one.queue))
        ]
        head = ("", "QUEUE", "STARTED", "WAIT P50", "WAIT P99", "GPU HOURS")
        parts.append(f"{alternative.name}, by queue, against the baseline:\n{table(head, rows)}")
    return "\n\n".join(part for part in parts if part)


def _head(comparison: HistoryComparison) -> str:
    assumed, validity = comparison.assumptions, comparison.validity
    lines = [
        f"cluster {comparison.cluster}: {comparison.begin} to {comparison.end}, "
        f"{comparison.events:,} events, {comparison.cycles:,} cycles recorded",
        f"the baseline is as recorded for {validity.same_waits:.0%} of the waiting times; "
        f"of what started in both, {validity.same_nodes:.0%} did so on the same node",
    ]
    guessed = [
        f"{count} {what}"
        for count, what in (
            (assumed.estimated, "by survival of their kind"),
            (assumed.unbounded, "to the end of the window (no run-time data)"),
        )
        if count
    ]
    if guessed:
        lines.append(f"{assumed.observed} runs ended in the log; assumed to run on: {', '.join(guessed)}")
    return "\n".join(lines)


def _sizes(comparison: HistoryComparison) -> str:
    sizes = waits_by_size([run.waiting_times for run in comparison.runs])
    rows = [(gpus, str(jobs), *waits) for gpus, jobs, waits in sizes]
    if not rows:
        return ""
    head = ("GPUS", "JOBS", *(result.name for result in comparison.runs))
    return f"waiting times of jobs by their GPUs (JWTD), p50 / p99:\n{table(head, rows)}"


def policies_text(comparison: HistoryComparison) -> str:
    """Return the report of the best policies for people: the runs side by side, then the waits of each queue."""
    named = [f"{policy.name}: {policy.meaning}" for policy in BEST_POLICIES]
    return "\n\n".join((_head(comparison), "\n".join(named), _figures(comparison), queues_text(comparison)))


def _figures(comparison: HistoryComparison) -> str:
    return table(("", *(run.name for run in comparison.runs)), comparison.tables()["figures"])


def queues_text(comparison: HistoryComparison) -> str:
    """Return the waits and GPU-hours of each queue, the runs side by side."""
    head = ("QUEUE", *(run.name for run in comparison.runs))
    _, *of_queues = comparison.tables().items()
    return "\n\n".join(f"{name}:\n{table(head, rows)}" for name, rows in of_queues)


def history(
    *,
    since: FromFlag = "",
    until: ToFlag = "",
    settings: Annotated[list[str] | None, Parameter(name="--set")] = None,
    patch: list[Path] | None = None,
    html: Path | None = None,
    source: LogSourceFlags = ANY_LOG,
    output: OutputFlag = "table",
) -> None:
    """Simulate history again with other settings, nodes, queues or priorities, and compare what comes of it.

    Args:
        since: the window's first event: a position, a time, or a time before the log's end, such as -6h.
        until: its last event; by default the log's last one.
        settings: KEY=VALUE of the scheduler's settings, such as numa=false; of every alternative.
        patch: a file that says what is to be different; each file is an alternative of its own.
        html: write a report with plots to this file, too.
    """
    question = HistoryQuestion(
        since=since,
        until=until,
        settings=tuple(settings or ()),
        patches=tuple(PatchText(name=path.stem, text=_read(path)) for path in patch or ()),
    )
    answer_history(source, question, comparison_text, html, output)


def policies(
    *,
    since: FromFlag = "",
    until: ToFlag = "",
    html: Path | None = None,
    source: LogSourceFlags = ANY_LOG,
    output: OutputFlag = "table",
) -> None:
    """Simulate history again with each of the three best policies: GPUs allocated, waits of each queue, evictions.

    Args:
        since: the window's first event: a position, a time, or a time before the log's end, such as -168h.
        until: its last event; by default the log's last one.
        html: write a report with plots to this file, too.
    """
    answer_history(source, HistoryQuestion(since=since, until=until, policies=True), policies_text, html, output)


def answer_history(
    source: LogSource,
    question: HistoryQuestion,
    text: Callable[[HistoryComparison], str],
    html: Path | None,
    output: Output,
    *,
    policies: PolicyBook = NO_POLICIES,
) -> None:
    """Answer a question about history, and print the answer.

    Args:
        html: write a report with plots to this file, too; None for none.
        policies: the code of those that the settings name.
    """
    comparison = asyncio.run(compared_history(source, question, policies))
    warn(comparison.notes)
    if html is not None:
        # Templates take a while to load, and a table needs none.
        from kaicore.analysis.trial.history.page import page  # noqa: PLC0415

        write_page(html, page(comparison))
    print_answer(comparison, output, lambda: text(comparison))


async def compared_history(
    source: LogSource, question: HistoryQuestion, policies: PolicyBook = NO_POLICIES
) -> HistoryComparison:
    """Return history simulated again, of the one cluster that is meant."""
    async with open_cluster_log(source) as (log, cluster):
        with Progress("simulating history") as progress:
            return await compare_history(log, cluster, question, find_kubelets, policies=policies, progress=progress)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "is no text"
        raise ConfigurationError(f"{path}: {problem}") from error


def write_page(path: Path, text: str) -> None:
    """Write a report of `--html`. Raises ConfigurationError: it cannot be written."""
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigurationError(f"--html {path}: {error.strerror}") from error
