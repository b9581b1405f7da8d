"""A month of generated life: hours of the account kept, `kai report` from them, the log as Parquet, and the pages.

`make bench ARGS=report` makes 200,000 events; `make bench ARGS=month` ten millions, which takes 20 GB and some minutes.
What a projector keeps is made of the first events, and repeated for the others as the log itself is: the same rows
under other names and at other times.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import psycopg
from kaicore.analysis.ask.hours.account import HOUR_US, month_of
from kaicore.analysis.ask.hours.kept import LABELS, counted_hours, kept_hours_of
from kaicore.analysis.ask.projections.projection import MINUTE_US, Projection
from kaicore.analysis.ask.projections.store import OCCUPANCY, POD_HISTORY, ReadModelTable, ViewStore
from kaicore.analysis.json_spelling import time_text
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.embedded import EmbeddedPostgres

from tests.e2e.browser.dashboard import browser, chromium
from tests.given.processes.service_process import ready, service_process
from tests.given.servers.servers import scratch_directory
from tests.measured.bench.cluster_life import ClusterLife
from tests.measured.bench.dashboard import answered, first_paint
from tests.measured.bench.figures import Figure, figure
from tests.measured.bench.history import make_log
from tests.measured.bench.questions import cpu_seconds

SIZE = 200_000
RUNS = 3
_FOLDED = 200_000
_NODES, _GANGS = 200, 40
_PAGES = (
    "",
    "/map",
    "/queues",
    "/waiting",
    "/jobs",
    "/pods",
    "/nodes",
    "/charts?span=1d",
    "/charts?span=90d",
    "/cycles",
    "/predictions",
    "/reports",
    "/who?queue=default",
    "/search?q=never",
    "/stories/Pod/default/never",
)
_MONTH_US, _WEEK_US = 30 * 24 * 3_600_000_000, 7 * 24 * 3_600_000_000


def figures() -> Iterator[Figure]:
    yield from measured(SIZE)


def measured(size: int) -> Iterator[Figure]:
    """Measure a month of so many events."""
    with scratch_directory() as directory:
        yield from asyncio.run(_with_server(directory, size))


def life_of(size: int) -> ClusterLife:
    return ClusterLife("month", nodes=_NODES, gangs=_GANGS, step_us=_MONTH_US // size)


async def _with_server(directory: Path, size: int) -> list[Figure]:
    life = life_of(size)
    async with EmbeddedPostgres(directory / "server") as server:
        await asyncio.to_thread(make_log, server.url, life, size)
        return [
            *await keep(server.url, life, size),
            *await asked(server.url, life, life.end(life.waves_for(size)), directory),
            *await looked_at(server.url, life, life.end(life.waves_for(size))),
        ]


async def asked(url: str, life: ClusterLife, end: int, directory: Path) -> list[Figure]:
    """Measure what commands take."""
    answers = []
    # A week of whole days: a range that begins within an hour folds up to there from a state of the trail.
    week = ("--from", f"{time_text(life.recorded_at(end) - _WEEK_US)[:10]}T00:00:00Z")
    for name, question in {"by user": ("--by", "user"), "by queue, the last week": week}.items():
        runs = [await asyncio.to_thread(_took, url, "report", *question) for _ in range(RUNS)]
        answers += [
            figure(f"kai report {name}, {end} events in 30 days: CPU", [cpu for cpu, _ in runs], "s"),
            figure(f"kai report {name}, {end} events in 30 days: wall", [wall for _, wall in runs], "s"),
        ]
    cpu, wall = await asyncio.to_thread(_took, url, "export", str(directory / "tables"), "--format", "parquet")
    return [
        *answers,
        figure(f"kai export --format parquet, {end} events: CPU", [cpu], "s"),
        figure(f"kai export --format parquet, {end} events: wall", [wall], "s"),
    ]


async def looked_at(url: str, life: ClusterLife, end: int) -> list[Figure]:
    """Measure the dashboard's pages, each after it was looked at once."""
    async with service_process("kai_api.main", {"KAI_DATABASE_URL": url, "KAI_ANONYMOUS": "loopback"}) as address:
        await ready(address)
        return await asyncio.to_thread(_pages, f"http://{address}/clusters/{life.cluster}", end)


def _pages(root: str, end: int) -> list[Figure]:
    figures = []
    for path in _PAGES:
        answered(root + path)
        took = [answered(root + path)[0] for _ in range(RUNS)]
        figures.append(figure(f"page {path or '/'}, {end} events: until answered", took, "ms"))
    if chromium():
        with browser() as started:
            page = started.new_page(viewport={"width": 1280, "height": 800})
            for path in _PAGES:
                painted = [first_paint(page, root + path) for _ in range(RUNS)]
                figures.append(figure(f"page {path or '/'}, {end} events: first paint", painted, "ms"))
    return figures


def _took(url: str, *question: str) -> tuple[float, float]:
    """CPU and wall seconds of a command."""
    began = time.perf_counter()
    cpu = cpu_seconds(*question, "--database-url", url)
    return cpu, time.perf_counter() - began


async def keep(url: str, life: ClusterLife, size: int) -> list[Figure]:
    """Have a database the read models and hours of a log; return how fast they are made."""
    waves = life.waves_for(size)
    folded = min(life.waves_for(_FOLDED), waves)
    async with await PostgresLog.open(url) as log, await ViewStore.open(url, application="bench") as store:
        began = time.process_time()
        projection = Projection(ClusterState(life.cluster), ())
        for event in life.events(range(folded)):
            projection.take(event)
        generation = await store.begin(life.cluster, position=0, recorded_at=0)
        at, changes = projection.state.recorded_at, projection.changes()
        await store.save(life.cluster, generation, changes, position=life.end(folded), recorded_at=at)
        rates = [figure("read models made: CPU", [life.end(folded) / (time.process_time() - began)], "events/s")]
        kept, over, began = kept_hours_of(log), at // HOUR_US * HOUR_US, time.process_time()
        assert kept is not None
        counting = counted_hours(log, ClusterState(life.cluster), life.recorded_at(1), over, labels=LABELS)
        hours = [hour async for hour in counting]
        rate = hours[-1].position / (time.process_time() - began)
        rates.append(figure("hours of the account kept: CPU", [rate], "events/s"))
        of_an_hour = hours[-1].position - hours[-2].position
        while (begin := hours[-1].end) + HOUR_US <= life.recorded_at(life.end(waves)):
            like = hours[1 + len(hours) % (len(hours) - 1)]
            position = hours[-1].position + of_an_hour
            hours.append(replace(like, month=month_of(begin), begin=begin, end=begin + HOUR_US, position=position))
        await kept.save(life.cluster, hours, labels=LABELS)
    await asyncio.to_thread(_repeat, url, life, folded, waves)
    return rates


def _repeat(url: str, life: ClusterLife, folded: int, waves: int) -> None:
    """Repeat the rows of the waves that were folded for all others, and say that all are counted."""
    events = life.end(folded) - life.end(folded - 1)
    end, step = life.end(waves), life.recorded_at(1) - life.recorded_at(0)
    minutes = (life.recorded_at(life.end(folded)) - life.recorded_at(0)) // MINUTE_US
    with psycopg.connect(url, autocommit=True) as connection:
        for table, where, more, by, shift_us in (
            (POD_HISTORY, "name LIKE 'w00000001-%%'", (folded, waves - 1), f"(n - 1) * {events}", events * step),
            (OCCUPANCY, "TRUE", (1, waves // folded), f"n * {life.end(folded)}", minutes * MINUTE_US),
        ):
            times = "n - 1" if table is POD_HISTORY else "n"
            columns = ", ".join(f'"{column}"' for column in table.columns)
            connection.execute(
                f"INSERT INTO views.{table.name} ({columns}) SELECT {_shifted(table, by, f'({times}) * {shift_us}')} "
                f"FROM views.{table.name}, generate_series({more[0]}::bigint, {more[1]}) AS n WHERE {where} "
                "ON CONFLICT DO NOTHING"
            )
        connection.execute("UPDATE views.progress SET position = %s, recorded_at = %s", [end, life.recorded_at(end)])
        connection.execute("ANALYZE")


def _shifted(table: ReadModelTable[msgspec.Struct], positions: str, microseconds: str) -> str:
    """Return a row's columns as they are so much later."""
    made, texts = [], {one.name for one in msgspec.structs.fields(table.row) if one.type is str}
    for column in table.columns:
        name = f'"{column}"'
        if column == "position":
            name = f"{name} + {positions}"
        elif column == "at" or column.endswith("_at"):
            name = f"CASE WHEN {name} > 0 THEN {name} + {microseconds} ELSE 0 END"
        elif column in texts - {"namespace"}:
            name = f"replace({name}, 'w00000001', 'w' || lpad(n::text, 8, '0'))"
        made.append(name)
    return ", ".join(made)
