"""`kai replay`: the whole log, run again."""

import asyncio

from kaicore.analysis.inquiry.replay import replay_log
from kaicore.analysis.inquiry.reports import replay_answer

from kai_cli.log_access import open_log
from kai_cli.printing import Output, OutputFlag, print_answers
from kai_cli.progress import Progress
from kai_cli.source import LogSource, LogSourceFlags


def replay(*, source: LogSourceFlags | None = None, output: OutputFlag = "table") -> int:
    """Fold the log again, run every recorded cycle again, and compare; exit 1 if there is a difference.

    Args:
        source: where to ask; without --cluster all clusters of the log.
        output: table, json or yaml.
    """
    return asyncio.run(_replay(source or LogSource(), output))


async def _replay(source: LogSource, output: Output) -> int:
    async with open_log(source) as log:
        clusters = source.clusters(await log.clusters())
        with Progress("replaying events") as progress:
            reports = [await replay_log(log, cluster, progress=progress) for cluster in clusters]
    if output != "table":
        print_answers([replay_answer(report) for report in reports], output)
    else:
        if not reports:
            print("the log is empty")
        for report in reports:
            print(
                f"cluster {report.cluster}: {report.position} events, {report.cycles} cycles, "
                f"{report.decisions} decisions replayed, {report.late} more were stale: "
                f"{len(report.differences)} differences"
            )
            if report.other_engine:
                print(f"  {report.other_engine} cycles were decided by another engine version")
            if report.differences:
                print(f"  first: {report.differences[0]}")
    return 1 if any(report.differences for report in reports) else 0
