"""A month of generated life: hours of the account kept, `kai report` from them, and the log as Parquet.

`make bench ARGS=report`; `python -m tests.bench.report 10000000` makes a month of so many events (by default 200,000).
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from kaicore.analysis.hours.kept import keep_hours
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.runtime.embedded import EmbeddedPostgres

from tests.bench.cluster_life import ClusterLife
from tests.bench.figures import Figure, figure
from tests.bench.history import make_log
from tests.bench.questions import cpu_seconds
from tests.servers import scratch_directory

SIZE = 200_000
RUNS = 3
_NODES, _GANGS = 200, 40
_MONTH_US = 30 * 24 * 3_600_000_000


def figures() -> Iterator[Figure]:
    """Measure."""
    yield from _measured(SIZE)


def _measured(size: int) -> Iterator[Figure]:
    with scratch_directory() as directory:
        yield from asyncio.run(_with_server(directory, size))


async def _with_server(directory: Path, size: int) -> list[Figure]:
    life = ClusterLife("month", nodes=_NODES, gangs=_GANGS, step_us=_MONTH_US // size)
    async with EmbeddedPostgres(directory / "server") as server:
        end = await asyncio.to_thread(make_log, server.url, life, size)
        async with await PostgresLog.open(server.url) as log:
            began = time.process_time()
            hours = await keep_hours(log, life.cluster)
            measured = [figure("hours of the account kept: CPU", [end / (time.process_time() - began)], "events/s")]
        about = f"{end} events in 30 days, {hours} hours kept"
        for name, asked in {
            "by user": ("--by", "user"),
            "by queue, the last week": ("--from=-7d",),
        }.items():
            runs = [await asyncio.to_thread(_took, server.url, "report", *asked) for _ in range(RUNS)]
            measured += [
                figure(f"kai report {name}, {about}: CPU", [cpu for cpu, _ in runs], "s"),
                figure(f"kai report {name}, {about}: wall", [wall for _, wall in runs], "s"),
            ]
        out = str(directory / "tables")
        cpu, wall = await asyncio.to_thread(_took, server.url, "export", out, "--format", "parquet")
        return [
            *measured,
            figure(f"kai export --format parquet, {end} events: CPU", [cpu], "s"),
            figure(f"kai export --format parquet, {end} events: wall", [wall], "s"),
        ]


def _took(url: str, *question: str) -> tuple[float, float]:
    """CPU and wall seconds of a command."""
    began = time.perf_counter()
    cpu = cpu_seconds(*question, "--database-url", url)
    return cpu, time.perf_counter() - began


if __name__ == "__main__":
    for one in _measured(int(sys.argv[1]) if len(sys.argv) > 1 else SIZE):
        print(one.line(), flush=True)
