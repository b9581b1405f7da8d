"""Read models in Postgres: exactly once, made anew beside those that are read, by a role that writes nothing else."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from copy import deepcopy
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import psycopg
import pyarrow.parquet as pq
import pytest
from kai_api.pages.charts import Months
from kai_cli.history import parquet
from kai_projector.main import Parts, ProjectorMetrics, follow
from kaicore.analysis.ask.hours.account import ACCOUNT_SCHEMA, Account, Period, by_month
from kaicore.analysis.ask.hours.kept import CountedHours, KeptHours, keep_hours, kept_hours_of
from kaicore.analysis.ask.hours.report import Accounted, ReportQuestion, report_of, usage_report
from kaicore.analysis.ask.projections import building
from kaicore.analysis.ask.projections.building import Builder, FoldedRows, GenerationStore
from kaicore.analysis.ask.projections.jobs import JobQuestion
from kaicore.analysis.ask.projections.projection import HOUR_US, MINUTE_US, PROJECTION_SCHEMA
from kaicore.analysis.ask.projections.questions import ReadModels, folded_jobs
from kaicore.analysis.ask.projections.rows import DecisionsHour, PodHistory, QueueHour, RowChanges
from kaicore.analysis.ask.projections.store import OF_GENERATIONS, POD_HISTORY, Superseded, ViewStore
from kaicore.analysis.replay.samples import SampleDifference
from kaicore.errors import ConfigurationError, LogUnavailable
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.snapshots import read_state, take_state
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event, NewEvent, Unit
from kaicore.rules.events.payloads import DifferenceFound
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.service import Health, ServiceContext, get_logger
from prometheus_client import CollectorRegistry

from tests.conftest import as_role
from tests.given.logs.projected import projected, story
from tests.given.logs.recorded_history import log_of
from tests.given.processes.service_process import ready, service_process
from tests.given.processes.waiting import eventually
from tests.integration.test_api_access import Client, serving
from tests.simulation.views import MemoryViews
from tests.unit.hours.test_report import story as hours_story

CopyOf = Callable[[str], AbstractContextManager[str]]


@pytest.fixture(scope="module")
def with_story(module_database_url: str, copy_of: CopyOf) -> Iterator[str]:
    """A database with a log of the story of `tests.given.logs.projected`."""
    yield from _filled(module_database_url, copy_of, story())


@pytest.fixture(scope="module")
def with_hours(module_database_url: str, copy_of: CopyOf) -> Iterator[str]:
    """A database with a log of some hours in a month that is over: a log's clock is its server's."""
    yield from _filled(module_database_url, copy_of, _hours())


def _filled(empty: str, copy_of: CopyOf, events: list[Event]) -> Iterator[str]:
    with copy_of(empty) as url:
        asyncio.run(copy(as_role(url, "kai_append"), events, "c1"))
        yield url


def _hours() -> list[Event]:
    return hours_story(int(datetime(2025, 11, 30, 22, tzinfo=UTC).timestamp()))


@pytest.fixture
def superuser_url(request: pytest.FixtureRequest, copy_of: CopyOf) -> Iterator[str]:
    """A database of the test's own, with the log that it names: an append for each event takes longer than a copy."""
    named = {"shown": "with_story", "hours": "with_hours"}
    filled = next((of for name, of in named.items() if name in request.fixturenames), "module_database_url")
    with copy_of(request.getfixturevalue(filled)) as url:
        yield url


@pytest.fixture
def hours() -> list[Event]:
    """The log of `with_hours`."""
    return _hours()


@pytest.fixture
async def store(superuser_url: str) -> AsyncIterator[ViewStore]:
    """The read models, for the role that writes them."""
    async with await ViewStore.open(as_role(superuser_url, "kai_project"), application="test") as opened:
        yield opened


async def copy(log_url: str, events: list[Event], cluster: str) -> None:
    """Append events of a story, each at its own time."""
    now = 0
    async with await PostgresLog.open(log_url, clock=lambda: now) as log:
        for event in events:
            now = event.recorded_at
            new = NewEvent(event.id, event.stream, decode_payload(event), event.actor, event.occurred_at, event.subject)
            await log.append(cluster, [Unit((new,))])


@pytest.fixture
def shown() -> str:
    """The name of the cluster of `with_story`."""
    return "c1"


async def kept(store: ViewStore, cluster: str) -> dict[str, PodHistory]:
    live = await store.live(cluster)
    assert live is not None
    rows = await store.rows(POD_HISTORY, cluster, live.number, limit=100)
    return {row.uid: row for row in rows}


async def placed(log: EventLog, store: ViewStore, cluster: str) -> int:
    """How many pods were placed, by the read models."""
    return sum(hour.placed for hour in (await ReadModels(log, store).decisions(cluster)).items)


async def test_rows_are_those_of_the_events_however_often_building_is_broken_off(
    postgres_log: EventLog, store: ViewStore, shown: str, superuser_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "_BATCH", 3)
    while await (await Builder.resume(postgres_log, store, shown)).step():
        pass
    assert await kept(store, shown) == projected(story()).pods
    live = await store.live(shown)
    assert live is not None
    assert live.position == (await postgres_log.head(shown)).position
    builder = await Builder.resume(postgres_log, store, shown)
    assert await builder.stored_differs(0, live.position) is None
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        connection.execute("UPDATE views.pod_history SET node = 'n9' WHERE name = 'b'")
    found = await builder.stored_differs(0, live.position)
    assert found is not None
    assert [part.rpartition("-")[2] for part in found.parts] == ["b"]


async def test_charts_get_the_end_of_each_step_and_how_it_stood_before(
    postgres_log: EventLog, store: ViewStore, shown: str
) -> None:
    while await (await Builder.resume(postgres_log, store, shown)).step():
        pass
    models, tables = ReadModels(postgres_log, store), projected(story())
    minutes = sorted(tables.occupancy)
    every = await models.occupancy_rows(shown, since=minutes[0], until=minutes[-1], step=MINUTE_US)
    assert [row.at for row in every] == minutes
    by_hour = await models.occupancy_rows(shown, since=minutes[1], until=minutes[-1], step=HOUR_US)
    ends = {at // HOUR_US: at for at in minutes if at > minutes[1]}
    assert [row.at for row in by_hour] == sorted({minutes[1], *ends.values()})
    hours = await models.queue_rows(shown, ["team"], "gpu", since=minutes[0], until=minutes[-1], step=HOUR_US)
    assert [row.at for row in hours] == sorted(
        at for at, queue, resource in tables.queues if (queue, resource) == ("team", "gpu")
    )


async def test_two_builders_of_one_generation_count_nothing_twice(
    postgres_log: EventLog, database_url: str, store: ViewStore, shown: str
) -> None:
    first = await Builder.resume(postgres_log, store, shown)
    second = await Builder.resume(postgres_log, store, shown)
    # Those that wrote the very same thing are both right.
    await first.step()
    await second.step()
    assert await placed(postgres_log, store, shown) == 3
    behind = await Builder.resume(postgres_log, store, shown)
    await store.go_live(shown, (await Builder.anew(postgres_log, store, shown)).generation.number)
    await copy_more(database_url, shown)
    with pytest.raises(Superseded, match="is not at"):
        await behind.step()


@pytest.mark.parametrize("steps", [1, 3])
async def test_a_builder_that_trails_another_goes_on_where_that_one_ended(
    postgres_log: EventLog,
    database_url: str,
    store: ViewStore,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    steps: int,
) -> None:
    monkeypatch.setattr(building, "_BATCH", 3)
    assert await Builder.beside(postgres_log, store, shown) is None, "what stands by begins nothing"
    first = await Builder.resume(postgres_log, store, shown)
    second = await Builder.beside(postgres_log, store, shown)
    assert second is not None
    for _ in range(steps):
        await first.step()
        await first.step()
        await second.trail()
        assert second.generation == first.generation
        assert second.state.position == first.generation.position
    await second.catch_up()
    assert await kept(store, shown) == projected(story()).pods
    assert await placed(postgres_log, store, shown) == 3
    await copy_more(database_url, shown)
    await second.step()
    await first.trail()
    assert first.generation == second.generation
    await store.go_live(shown, (await Builder.anew(postgres_log, store, shown)).generation.number)
    with pytest.raises(Superseded, match="built by another one"):
        await first.trail()


@pytest.mark.parametrize("written", [False, True])
async def test_a_step_whose_saving_failed_is_saved_by_the_next(
    postgres_log: EventLog, store: ViewStore, shown: str, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    monkeypatch.setattr(building, "_BATCH", 3)
    builder = await Builder.resume(postgres_log, store, shown)
    save = store.save

    async def fails(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(store, "save", save)
        if written:
            await save(*arguments, **named)
        raise LogUnavailable("gone for a moment")

    await builder.step()
    monkeypatch.setattr(store, "save", fails)
    with pytest.raises(LogUnavailable):
        await builder.step()
    await builder.catch_up()
    assert await kept(store, shown) == projected(story()).pods
    assert await placed(postgres_log, store, shown) == 3


@pytest.fixture(params=["postgres", "memory"])
def generations(request: pytest.FixtureRequest) -> GenerationStore:
    """The store, and what the simulation has in its place."""
    chosen: GenerationStore = request.getfixturevalue("store") if request.param == "postgres" else MemoryViews()
    return chosen


async def test_a_generation_takes_each_step_once_and_none_when_it_is_elsewhere_or_gone(
    generations: GenerationStore,
) -> None:
    first = await generations.begin("c9", position=0, recorded_at=0)
    second = await generations.begin("c9", position=0, recorded_at=0)
    assert (first.number, first.live, second.number, second.live) == (1, True, 2, False)
    rows = [PodHistory(uid=uid, namespace="n", name=uid, gone_at=gone_at) for uid, gone_at in (("a", 0), ("b", 5))]
    queues = [
        QueueHour(at=at, queue="q", resource="cpu", seconds=1, allocated=at, requested=0, fair_share=0)
        for at in (10, 20, 20, 30)
    ]
    decisions = [DecisionsHour(at=20, cycles=2)]
    changes = RowChanges(pods=rows, queues=queues[:2], decisions=decisions)
    for _ in range(2):
        await generations.save("c9", first, changes, position=2, recorded_at=20)
    await generations.save("c9", first._replace(position=2), RowChanges(queues=queues[2:]), position=3, recorded_at=30)
    hours = await generations.over_time("c9", 1, minutes=(0, 99), hours=(20, 30))
    assert hours == [queues[1].plus(queues[2]), *decisions]
    assert [row.uid for row in await generations.there("c9", 1)] == ["a"]
    assert [(one.number, one.position) for one in await generations.generations("c9")] == [(1, 3), (2, 0)]
    with pytest.raises(Superseded, match="generation 1 is not at 0 any more"):
        await generations.save("c9", first, RowChanges(), position=4, recorded_at=40)
    await generations.go_live("c9", 2)
    assert [(one.number, one.live) for one in await generations.generations("c9")] == [(2, True)]
    with pytest.raises(Superseded):
        await generations.save("c9", first._replace(position=3), RowChanges(), position=4, recorded_at=40)
    assert await generations.there("c9", 1) == []


async def copy_more(log_url: str, cluster: str) -> None:
    """Append an event a minute after the story: years later there would be a row for each hour of them."""
    first, *_, last = story()
    async with await PostgresLog.open(log_url, clock=lambda: last.recorded_at + 60_000_000) as log:
        new = NewEvent(first.id.__class__(int=7), "node/x", decode_payload(first), "test", 0)
        await log.append(cluster, [Unit((new,))])


async def test_a_rebuild_is_read_only_when_it_has_caught_up_and_leaves_nothing_of_the_old_rows(
    postgres_log: EventLog, store: ViewStore, shown: str, superuser_url: str
) -> None:
    await (await Builder.resume(postgres_log, store, shown)).catch_up()
    before = await kept(store, shown)
    rebuild = await Builder.anew(postgres_log, store, shown)
    assert await kept(store, shown) == before, "the old generation is read until the new one is whole"
    await rebuild.catch_up()
    assert await kept(store, shown) == before
    assert [one.number for one in await store.generations(shown)] == [rebuild.generation.number]
    with psycopg.connect(superuser_url) as connection:
        for table in ("views.progress", *(f"views.{one.name}" for one in OF_GENERATIONS)):
            rows = connection.execute(f"SELECT DISTINCT generation FROM {table}").fetchall()
            assert rows == [(rebuild.generation.number,)], table


def test_the_migration_makes_the_tables_that_the_code_has(superuser_url: str) -> None:
    with psycopg.connect(superuser_url) as connection:
        there = connection.execute(
            "SELECT table_name, column_name, is_nullable FROM information_schema.columns WHERE table_schema = 'views' "
            "AND table_name NOT IN ('account_hour', 'progress')"
        ).fetchall()
    expected = {(table.name, column, "NO") for table in OF_GENERATIONS for column in table.columns}
    assert set(there) == expected


async def test_a_report_sums_kept_hours_counts_the_rest_and_is_the_one_of_the_log(
    hours: list[Event], superuser_url: str, tmp_path: Path
) -> None:
    memory = await log_of(hours)
    async with keeping(superuser_url) as (log, kept):
        with pytest.MonkeyPatch.context() as older:
            older.setattr("kaicore.analysis.ask.hours.kept.ACCOUNT_SCHEMA", 1)
            assert await keep_hours(log, "c1") == 5
        assert (await keep_hours(log, "c1"), await keep_hours(log, "c1")) == (5, 0)
        assert await kept._rows("SELECT DISTINCT schema FROM views.account_hour", []) == [(ACCOUNT_SCHEMA,)]
        assert await keep_hours(log, "c1", anew=True) == 5
        for asked in (
            {"by": "user"},
            {"by": "label:project"},
            {"by": "label:other", "since": "2025-11-30T22:30:00Z"},
            {"month": "2025-11"},
            {"since": "2025-11-30T22:30:00Z", "until": "2025-12-01T01:00:00Z"},
        ):
            question = msgspec.convert(asked, ReportQuestion)
            assert await usage_report(log, "c1", question) == await usage_report(memory, "c1", question), asked
        async with await ViewStore.open(as_role(superuser_url, "kai_project"), application="test") as store:
            await (await Builder.resume(log, store, "c1")).catch_up()
            for wanted in (
                JobQuestion(),
                JobQuestion(name="ann"),
                JobQuestion(user="bob"),
                JobQuestion(state="failed"),
            ):
                assert await ReadModels(log, store).jobs("c1", wanted) == await folded_jobs(memory, "c1", wanted)
            await _check_tables(log, hours, tmp_path)
            async with serving(log, anonymous="loopback", views=store) as client:
                (bob,) = (await client.get("/v1/clusters/c1/history/jobs?name=bob"))["items"]
                assert (bob["state"], bob["waitedS"], len(bob["pods"])) == ("deleted", 1800, 1)
                text = await client.get("/clusters/c1/reports?by=user&month=2025-11")
                assert all(shown in text for shown in (">bob<", "4.00", "A100"))
                assert "2025-12" in await client.get("/clusters/c1/reports")
                await _check_months(log)
                assert (await client.get("/v1/clusters/c1/priority"))["groups"] == []
        ends = [hour.end // HOUR_US % 24 for hour in await kept.read("c1", 0, 1 << 62, labels=("project",))]
        assert ends == [23, 0, 1, 2, 3]
        assert not await kept.read("c1", 0, 1 << 62, labels=("other",))


@asynccontextmanager
async def keeping(superuser_url: str) -> AsyncIterator[tuple[PostgresLog, KeptHours]]:
    """The log, for the role that keeps its hours, and these."""
    async with await PostgresLog.open(as_role(superuser_url, "kai_project")) as log:
        kept = kept_hours_of(log)
        assert kept is not None
        yield log, kept


class _Folding:
    """A check's folds of a log, one after the other."""

    def __init__(self, log: EventLog, *, begin: ClusterState) -> None:
        self._state, self._hours = begin, CountedHours(log, "c1", labels=("project",))
        self._rows = FoldedRows(log, self._hours)

    async def to(self, *positions: int) -> SampleDifference | None:
        """Fold on, each time with a state of its own; return what differs then."""
        for position in positions:
            await self._rows.fold(self._state, position)
            self._state = read_state("c1", take_state(self._state))
        return await self._hours.differ()


@pytest.mark.parametrize("begin", [0, 7])
async def test_kept_hours_are_those_that_folds_count_wherever_these_begin_and_one_that_differs_is_kept_anew(
    hours: list[Event], superuser_url: str, *, begin: int
) -> None:
    async with keeping(superuser_url) as (log, kept):
        assert await keep_hours(log, "c1", labels=("project",)) == 5
        right = await kept.every("c1", 0, 1 << 62, labels=("project",))
        state = ClusterState("c1").fold_all(hours[:begin])
        assert (
            await _Folding(log, begin=read_state("c1", take_state(state))).to(begin + 2, begin + 3, len(hours)) is None
        )
        # The last hour that is whole in the folds is spoilt, and the one before is lost.
        _, _, _, lost, spoilt = right.values()
        assert spoilt is not None
        assert lost is not None
        next(iter(spoilt.owners.values())).held[0] += 1
        await kept.save("c1", [spoilt], labels=("project",))
        with psycopg.connect(superuser_url, autocommit=True) as connection:
            connection.execute("DELETE FROM views.account_hour WHERE begin_at = %s", [lost.begin])
        found = await _Folding(log, begin=read_state("c1", take_state(state))).to(len(hours))
        assert found is not None
        assert found.parts == (f"/account_hour/{lost.begin}", f"/account_hour/{spoilt.begin}")
        assert hours[found.after - 1].recorded_at < lost.begin <= hours[found.after].recorded_at
        next(iter(spoilt.owners.values())).held[0] -= 1
        assert await kept.every("c1", 0, 1 << 62, labels=("project",)) == right
        # Hours with other labels of owners are another question's.
        await kept.save("c1", [spoilt], labels=())
        assert await _Folding(log, begin=state).to(len(hours)) is None


async def test_hours_without_an_event_that_were_kept_each_alone_are_the_same_and_are_kept_anew_as_one(
    database_url: str, superuser_url: str
) -> None:
    events = hours_story(int(datetime(2025, 11, 30, 22, tzinfo=UTC).timestamp()), end=100)
    await copy(database_url, events, "c1")
    async with keeping(superuser_url) as (log, kept):
        with pytest.MonkeyPatch.context() as older:
            older.setattr(Account, "_equal_hours", lambda *_: 0)
            assert await keep_hours(log, "c1", labels=("project",)) == 100
        report = await usage_report(log, "c1", ReportQuestion(by="user"))
        assert await _Folding(log, begin=ClusterState("c1")).to(7, len(events)) is None
        assert await keep_hours(log, "c1", labels=("project",), anew=True) == 6
        assert await kept._rows("SELECT count(*) FROM views.account_hour", []) == [(6,)]
        assert await usage_report(log, "c1", ReportQuestion(by="user")) == report


async def test_a_spoilt_hour_of_the_account_is_an_event_and_is_kept_anew_by_the_projector(
    hours: list[Event], database_url: str, superuser_url: str
) -> None:
    opened = PostgresLog.open(as_role(superuser_url, "kai_project"), clock=lambda: hours[-1].recorded_at)
    async with (
        await opened as log,
        await ViewStore.open(as_role(superuser_url, "kai_project"), application="test") as store,
    ):
        kept = kept_hours_of(log)
        assert kept is not None
        await keep_hours(log, "c1", labels=("project",))
        hour, *_ = right = await kept.read("c1", 0, 1 << 62, labels=("project",))
        spoilt = deepcopy(hour)
        next(iter(spoilt.owners.values())).held[0] += 1
        await kept.save("c1", [spoilt], labels=("project",))
        context = ServiceContext("projector", Health("log"), get_logger())
        metrics = ProjectorMetrics(registry=CollectorRegistry())
        parts = Parts(context, log, store, metrics, labels=("project",), check_s=0.001)
        parts.leads.set()
        projecting = asyncio.create_task(follow(parts, "c1", tried=asyncio.Event()))
        try:
            position = len(hours)
            async with asyncio.timeout(60):
                while not (found := await log.read("c1", where=Filter(types=("DifferenceFound",)))):
                    await copy(database_url, [msgspec.structs.replace(hours[-1], id=uuid4())], "c1")
                    position = await log.wait_beyond("c1", position, timeout_s=1)
        finally:
            projecting.cancel()
            await asyncio.gather(projecting, return_exceptions=True)
        (payload,) = map(decode_payload, found)
        assert isinstance(payload, DifferenceFound)
        assert (payload.check, payload.after, payload.parts) == ("projector", 0, (f"/account_hour/{hour.begin}",))
        assert await kept.read("c1", 0, 1 << 62, labels=("project",)) == right


async def _check_months(log: EventLog) -> None:
    """A month's page has the sum of its hours, also where they come one by one."""
    kept = kept_hours_of(log)
    assert kept is not None
    *before, last = await kept.read("c1", 0, 1 << 62)
    summed, months = list[Period](), Months(kept)
    for hour in (*before, last):
        summed.append(hour)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(kept, "read", partial(_read_some, list(summed)))
            report = await months.report("c1", "user", hour.month, ended=hour.end)
        by_hand = by_month(one for one in summed if one.month == hour.month)
        assert report == report_of(Accounted("c1", by_hand[0].begin, hour.end, hour.position, by_hand), by="user")


async def _read_some(hours: list[Period], cluster: str, begin: int, end: int) -> list[Period]:
    return deepcopy([hour for hour in hours if begin <= hour.begin and hour.end <= end])


async def _check_tables(log: EventLog, events: Sequence[Event], directory: Path) -> None:

    async def some(*types: str) -> AsyncIterator[Event]:
        for event in events:
            if not types or event.type in types:
                yield event

    async with parquet.up_to_date(log, "c1") as models:
        assert models is not None
        counts = await parquet.write_tables(directory / "kept", some(*parquet.TYPES), None, {}, models=models)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parquet, "_BATCH", 3)
        assert await parquet.write_tables(directory / "folded", some(), ClusterState("c1"), {}) == counts
    assert counts["usage"]
    for name in counts:
        kept, folded = (pq.read_table(directory / way / f"{name}.parquet") for way in ("kept", "folded"))
        assert sorted(map(repr, kept.to_pylist())) == sorted(map(repr, folded.to_pylist())), name


async def test_the_projectors_role_writes_read_models_and_the_apis_role_nothing(
    database_url: str, superuser_url: str
) -> None:
    writing = {
        "INSERT INTO event_id VALUES ('c', gen_random_uuid(), 1, '')": (False, False),
        "UPDATE log_head SET position = 0": (False, False),
        # To say what it found of itself; it can append nothing else.
        "SELECT kai_lock_head('c')": (True, False),
        "DELETE FROM state_trail": (False, False),
        "DELETE FROM views.progress": (True, False),
        "CREATE TABLE views.mine (a int)": (False, False),
    }
    for place, role in enumerate(("kai_project", "kai_read")):
        with psycopg.connect(as_role(superuser_url, role)) as connection:
            for statement, may in writing.items():
                try:
                    with connection.transaction(force_rollback=True):
                        connection.execute(statement)
                    done = True
                except psycopg.errors.InsufficientPrivilege:
                    done = False
                assert done == may[place], f"{role}: {statement}"
    async with await ViewStore.open(as_role(superuser_url, "kai_read"), application="test") as reading:
        with pytest.raises(ConfigurationError, match="may not do this"):
            await reading.begin("c1", position=0, recorded_at=0)


async def test_the_api_answers_from_what_the_projector_keeps(
    postgres_log: EventLog, superuser_url: str, shown: str
) -> None:
    environment = {"KAI_DATABASE_URL": as_role(superuser_url, "kai_project")}
    async with (
        await ViewStore.open(as_role(superuser_url, "kai_read"), application="test") as views,
        serving(postgres_log, anonymous="loopback", views=views) as client,
    ):
        here = f"/v1/clusters/{shown}"
        assert (await client.get(f"{here}/history/pods"))["items"] == [], "before there is a projector"
        async with service_process("kai_projector.main", environment) as address:
            await ready(address)
            head = (await postgres_log.head(shown)).position
            asked = partial(client.get, f"{here}/series/decisions")
            await eventually(asked, lambda series: series["position"] >= head, every_s=0.05)
            metrics = await Client(f"http://{address}", client._session).get("/metrics")
            assert f'kai_projector_position{{cluster="{shown}"}} {head}.0' in metrics
        await _check_answers(client, here)


async def _check_answers(client: Client, here: str) -> None:
    names: list[str] = []
    after = ""
    while True:
        page: dict[str, Any] = await client.get(f"{here}/history/pods?limit=3&after={after}")
        names += [row["name"] for row in page["items"]]
        if not (after := page["next"]):
            break
    assert sorted(names) == ["a", "b", "c", "never"]
    (ended,) = (await client.get(f"{here}/history/pods?name=a"))["items"]
    assert (ended["outcome"], ended["queue"], ended["goneAt"] >= ended["finishedAt"]) == ("Succeeded", "team", True)
    points = (await client.get(f"{here}/series/occupancy"))["items"]
    hours = (await client.get(f"{here}/series/occupancy?step=1h"))["items"]
    assert len(hours) < len(points)
    assert points[-1]["gpus"] == hours[-1]["gpus"] == 4
    later = await client.get(f"{here}/series/occupancy?from={points[1]['at']}")
    assert later["items"] == points[1:]
    use = (await client.get(f"{here}/series/queues?queue=team"))["items"]
    assert {"2", "2.35"} == {one["allocated"] for one in use if one["resource"] == "gpu" and one["seconds"] == 3600}
    assert "shorter than a minute" in (await client.get(f"{here}/series/occupancy?step=1s", status=400))["error"]
    assert "is no moment" in (await client.get(f"{here}/series/queues?from=x", status=400))["error"]
    assert "not the `next`" in (await client.get(f"{here}/history/pods?after=x", status=400))["error"]


@pytest.mark.parametrize(("schema", "counted", "answer"), [(3, 2, 2), (PROJECTION_SCHEMA, 2300, 2.3)])
async def test_gpus_of_rows_that_an_older_program_made_are_whole_ones(
    postgres_log: EventLog,
    store: ViewStore,
    monkeypatch: pytest.MonkeyPatch,
    *,
    schema: int,
    counted: int,
    answer: float,
) -> None:
    monkeypatch.setattr("kaicore.analysis.ask.projections.store.PROJECTION_SCHEMA", schema)
    made = await store.begin("c7", position=0, recorded_at=0)
    pods = [PodHistory(uid="a", namespace="n", name="a", gpus=counted)]
    queues = [
        QueueHour(at=0, queue="q", resource=name, seconds=2, allocated=2 * counted, requested=0, fair_share=0)
        for name in ("gpu", "pods")
    ]
    await store.save("c7", made, RowChanges(pods=pods, queues=queues), position=3, recorded_at=30)
    history = ReadModels(postgres_log, store)
    (pod,) = (await history.pods("c7")).items
    assert (pod.gpus, msgspec.json.encode(pod.gpus)) == (answer, f"{answer}".encode())
    used = {use.resource: use.allocated for use in (await history.queues("c7")).items}
    assert used == {"gpu": f"{answer}", "pods": f"{counted}"}
