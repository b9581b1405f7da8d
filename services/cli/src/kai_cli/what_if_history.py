"""`kai what-if --from A --to B`: a window of the log simulated again, as it was and as it might be."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from kaicore.analysis.history.comparison import HistoryComparison, compare_history
from kaicore.analysis.history.question import HistoryQuestion, PatchText
from kaicore.analysis.simulation.kubelets import find_kubelets
from kaicore.errors import ConfigurationError
from kaicore.rules.hub.hub_state import without_hub

from kai_cli.current_cluster import one_cluster
from kai_cli.log_access import open_log
from kai_cli.printing import OutputFlag, print_data
from kai_cli.progress import Progress
from kai_cli.source import FromFlag, LogSource, LogSourceFlags, ToFlag
from kai_cli.what_if_table import comparison_text


def history(
    *,
    since: FromFlag = "",
    until: ToFlag = "",
    settings: Annotated[list[str] | None, Parameter(name="--set")] = None,
    patch: list[Path] | None = None,
    html: Path | None = None,
    source: LogSourceFlags | None = None,
    output: OutputFlag = "table",
) -> int:
    """Simulate history again with other settings, nodes, queues or priorities, and compare what comes of it.

    Args:
        since: the window's first event: a position, a time, or a time before the log's end, such as -6h.
        until: its last event; by default the log's last one.
        settings: KEY=VALUE of the scheduler's settings, such as numa=false; of every alternative.
        patch: a file that says what is to be different; each file is an alternative of its own.
        html: write a report with plots to this file, too.
        source: where to ask.
        output: table, json or yaml.
    """
    question = HistoryQuestion(
        since=since,
        until=until,
        settings=tuple(settings or ()),
        patches=tuple(PatchText(name=path.stem, text=_read(path)) for path in patch or ()),
    )
    comparison = asyncio.run(_compare(source or LogSource(), question))
    for note in comparison.notes:
        sys.stderr.write(f"kai: warning: {note}\n")
    if html is not None:
        _write(html, comparison)
    if output == "table":
        print(comparison_text(comparison))
    else:
        print_data(comparison, output)
    return 0


async def _compare(source: LogSource, question: HistoryQuestion) -> HistoryComparison:
    async with open_log(source) as log:
        there_are = without_hub(await log.clusters())
        if not there_are:
            raise ConfigurationError("the log is empty: there is no history")
        cluster = one_cluster(source, there_are)
        with Progress("simulating history") as progress:
            return await compare_history(log, cluster, question, find_kubelets, progress=progress)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "is no text"
        raise ConfigurationError(f"{path}: {problem}") from error


def _write(path: Path, comparison: HistoryComparison) -> None:
    # Templates take a while to load, and a table needs none.
    from kaicore.analysis.history.page import page  # noqa: PLC0415

    try:
        path.write_text(page(comparison))
    except OSError as error:
        raise ConfigurationError(f"--html {path}: {error.strerror}") from error
