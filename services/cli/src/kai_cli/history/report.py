"""`kai report`: GPU-hours by who held them, by right or borrowed, and what there was besides: docs/how-to/report.md."""

import asyncio
import csv
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from kaicore.analysis.ask.hours.report import (
    CapacityHours,
    OwnerRow,
    ReportQuestion,
    UsageReport,
    read_prices,
    usage_report,
)
from kaicore.analysis.ask.hours.sealing import MonthCheck, seal_month, verify_month
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.seals.anchors import read_file
from kaicore.rules.hub.hub_state import without_hub

from kai_cli.output import OutputFlag, Progress, print_answer, table, warn
from kai_cli.sources.answers import named_api
from kai_cli.sources.log_access import open_cluster_log, open_log_as_owner
from kai_cli.sources.source import (
    ANY_ANSWER,
    ANY_LOG,
    AnswerSource,
    FromFlag,
    LogSourceFlags,
    SourceFlags,
    ToFlag,
    one_cluster,
)

ReportOutput = Annotated[
    Literal["table", "json", "yaml", "csv", "parquet"],
    Parameter(name=["--output", "-o"], help="table, json, yaml, csv or parquet."),
]


def show(
    *,
    by: str = "queue",
    month: str = "",
    since: FromFlag = "",
    until: ToFlag = "",
    prices: Path | None = None,
    source: SourceFlags = ANY_ANSWER,
    output: ReportOutput = "table",
) -> None:
    """Say who held how many GPU-hours, by right or borrowed, and what of them was idle or lost.

    Args:
        by: team, user, namespace, queue, model, or label:KEY of pods.
        month: a month, by UTC, such as 2026-11.
        since: where it begins: a position, a time, or a time before the log's end, such as -7d; by default where the
            log begins.
        until: where it ends; by default where the log ends.
        prices: a CSV file with lines MODEL,PRICE of a GPU-hour; the model * is for all others.
    """
    question = ReportQuestion(by, month, since, until, {} if prices is None else read_prices(_pairs(prices)))
    question.check()
    answer = asyncio.run(report_from(source, question))
    if answer.unpriced:
        models = ", ".join(model or "GPUs without a model" for model in answer.unpriced)
        warn([f"no price for {models}: what held them has no cost"])
    print_report(answer, output, lambda: report_text(answer), lambda: report_rows(answer))


def _pairs(path: Path) -> list[tuple[str, str]]:
    """Return the lines of a file of prices; a head is passed over.

    Raises ConfigurationError: a line has not two fields.
    """
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(csv.reader(read_file(path).decode(errors="replace").splitlines()), start=1):
        if not line or (number == 1 and line[0].strip().lower() == "model"):
            continue
        if len(line) != 2:
            raise ConfigurationError(f"{path}: line {number}: is not MODEL,PRICE")
        pairs.append((line[0].strip(), line[1]))
    return pairs


async def report_from(source: AnswerSource, question: ReportQuestion) -> UsageReport:
    """Return the report, from the API that is named, else counted here."""
    if source.api_named:
        api, clusters = await named_api(source)
        asked = {"by": question.by, "month": question.month, "from": question.since, "to": question.until}
        prices = [f"{model}={price}" for model, price in question.prices.items()]
        return await api.usage_report(one_cluster(source, clusters), {**asked, "price": prices})
    async with open_cluster_log(source) as (log, cluster):
        with Progress("counting") as progress:
            return await usage_report(log, cluster, question, progress=progress)


async def seal(*, month: str, correct: str = "", source: LogSourceFlags = ANY_LOG) -> None:
    """Seal the account of a month that is over: its figures and digest become an event.

    Args:
        month: by UTC, such as 2026-11.
        correct: why an earlier seal is corrected; it is recorded.
        source: which log; with --database-url, as the role that owns it (kai_migrate).
    """
    async with open_log_as_owner(source) as log:
        cluster = one_cluster(source, without_hub(await log.clusters()))
        with Progress("counting") as progress:
            sealed, position = await seal_month(
                log, cluster, month, now=time.time_ns() // 1000, reason=correct, progress=progress
            )
    held = sealed.figures.get("held", 0) / 3_600_000
    print(f"cluster {cluster}: {month} is sealed by event {position}: {held:,.2f} GPU-hours held, {sealed.digest}")


async def verify(*, month: str, source: LogSourceFlags = ANY_LOG, output: OutputFlag = "table") -> int:
    """Count a sealed month again, and compare; exit 1 if it is not the same.

    Args:
        month: by UTC, such as 2026-11.
    """
    async with open_cluster_log(source) as (log, cluster):
        with Progress("counting") as progress:
            answer = await verify_month(log, cluster, month, progress=progress)
    print_answer(answer, output, lambda: check_text(answer))
    return 0 if answer.same else 1


def check_text(answer: MonthCheck) -> str:
    """Return what became of a sealed month, for people."""
    corrected = f", the last of {answer.seals}" if answer.seals > 1 else ""
    seal = f"cluster {answer.cluster}: {answer.month} as sealed by event {answer.seal}{corrected}: "
    if answer.same:
        return f"{seal}the same"
    rows = [
        (figure.name, f"{figure.sealed / 3_600_000:,.4f}", f"{figure.counted / 3_600_000:,.4f}")
        for figure in answer.figures
        if figure.sealed != figure.counted
    ]
    return f"{seal}NOT the same\n{table(('GPU-HOURS', 'SEALED', 'COUNTED'), rows) if rows else 'by less than a second'}"


def report_text(answer: UsageReport) -> str:
    """Return the report for people."""
    with_cost = any(row.cost is not None for row in answer.owners)
    head = ("MONTH", answer.by.removeprefix("label:").upper(), "GPU-HOURS", "BY RIGHT", "BORROWED", "IDLE", "EVICTED")
    head = (*head, "FAILED", "CPU-HOURS", "GIB-HOURS", "WAITED", "P50", "P99", *(("COST",) if with_cost else ()))
    rows = [_owner_cells(row, with_cost=with_cost) for row in answer.owners]
    parts = [f"cluster {answer.cluster}: {answer.begin} to {answer.end}, up to position {answer.position}"]
    parts.append(table(head, rows) if rows else "nothing was held")
    models = [
        (row.month, row.model or "-", kind, *_capacity_cells(hours))
        for row in answer.models
        for kind, hours in (("GPU", row.gpu), ("CPU", row.cpu), ("memory, GiB", row.memory))
        if hours.capacity
    ]
    capacity_head = ("MONTH", "MODEL", "HOURS OF", "CAPACITY", "HELD", "FREE", "FREE BUT STRANDED", "OUT OF SERVICE")
    if models:
        parts.append(table(capacity_head, models))
    return "\n\n".join(parts)


def _owner_cells(row: OwnerRow, *, with_cost: bool) -> list[str]:
    gpu = row.gpu
    hours = (gpu.held, gpu.by_right, gpu.borrowed, gpu.idle, gpu.evicted, gpu.failed, row.cpu.held, row.memory.held)
    waits = [_seconds(row.waits.p50), _seconds(row.waits.p99)]
    cost = ["-" if row.cost is None else f"{row.cost:,.2f}"] if with_cost else []
    return [row.month, row.name or "-", *map(_hours, hours), str(row.waits.count), *waits, *cost]


def _capacity_cells(hours: CapacityHours) -> list[str]:
    figures = (hours.capacity, hours.held, hours.free, hours.stranded, hours.out_of_service)
    return [_hours(figure) for figure in figures]


def _hours(hours: float) -> str:
    return f"{hours:,.2f}"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.0f} s"


def print_report(
    answer: object,
    output: ReportOutput,
    text: Callable[[], str],
    rows: Callable[[], tuple[list[str], list[list[object]]]],
) -> None:
    """Print a report as `print_answer` does; or its rows below their head, as CSV or as a Parquet file.

    Raises ConfigurationError: what Parquet is written with is not installed, or a terminal would get it.
    """
    match output:
        case "table" | "json" | "yaml":
            print_answer(answer, output, text)
            return
    head, found = rows()
    if output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(found)
        return
    try:
        # Other reports do without the package.
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError("pyarrow is not installed: pip install 'kai-ledger[parquet]'") from error
    if sys.stdout.isatty():
        raise ConfigurationError("-o parquet: a terminal does not show it: > FILE.parquet")
    columns = dict(zip(head, zip(*found, strict=True), strict=True)) if found else dict.fromkeys(head, ())
    pq.write_table(pa.table({name: list(column) for name, column in columns.items()}), pa.PythonFile(sys.stdout.buffer))


def report_rows(answer: UsageReport) -> tuple[list[str], list[list[object]]]:
    """Return the head and the rows of what owners held, with hours in full."""
    kinds = [(kind, name) for kind in ("gpu", "cpu", "memory") for name in _FIGURES]
    figures = [f"{kind}_{name}{'_gib' if kind == 'memory' else ''}_hours" for kind, name in kinds]
    rows: list[list[object]] = []
    for row in answer.owners:
        hours = [getattr(getattr(row, kind), name) for kind, name in kinds]
        rows.append([row.month, row.name, *hours, row.waits.count, row.waits.p50, row.waits.p99, row.cost])
    return ["month", answer.by, *figures, "waited", "wait_p50_s", "wait_p99_s", "cost"], rows


_FIGURES = ("held", "by_right", "borrowed", "idle", "evicted", "failed")
