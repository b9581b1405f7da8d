"""What the roles of a log's database may do: append by functions, read, and nothing else."""

from collections.abc import AsyncIterator

import psycopg
import pytest
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.audit import verify
from kaicore.ledger.log.port import Snapshot
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import UnitOutcome

from tests.conftest import as_role
from tests.new_events import new_event, unit

C = "cluster-a"
TABLES = ("event", "event_default", "event_id", "stream", "log_head", "seal", "kept_snapshot")


@pytest.fixture
async def log(database_url: str) -> AsyncIterator[PostgresLog]:
    async with await PostgresLog.open(database_url) as opened:
        yield opened


@pytest.fixture
def reader_url(superuser_url: str) -> str:
    return as_role(superuser_url, "kai_read")


def refused(url: str, statement: str, *parameters: object) -> str:
    """The state with which the server refuses a statement."""
    with psycopg.connect(url) as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute(statement.encode(), parameters)
    return str(caught.value.sqlstate)


async def test_appending_role_can_append_read_snapshot_and_make_months(log: PostgresLog) -> None:
    assert await log.append(C, [unit(), unit(n1=0)]) == [UnitOutcome((1,)), UnitOutcome((2,))]
    assert [event.position for event in await log.read(C)] == [1, 2]
    for position in (1, 2):
        await log.save_snapshot(C, Snapshot("state", position, "1", b"x"))
    assert await log.load_snapshot(C, name="state", schema="1") == Snapshot("state", 2, "1", b"x")
    await log.make_months()
    assert (await verify(log, C)).ok
    assert await log.wait_beyond(C, 1, timeout_s=30) == 2


@pytest.mark.parametrize("role", ["kai_append", "kai_read"])
@pytest.mark.parametrize("table", TABLES)
async def test_nothing_that_is_recorded_can_be_written_past_the_functions(
    log: PostgresLog, superuser_url: str, role: str, table: str
) -> None:
    await log.append(C, [unit()])
    url = as_role(superuser_url, role)
    for statement in (
        f"UPDATE {table} SET cluster = 'x'",
        f"DELETE FROM {table}",
        f"TRUNCATE {table}",
        f"INSERT INTO {table} SELECT * FROM {table}",
        f"DROP TABLE {table}",
        f"ALTER TABLE {table} DISABLE TRIGGER ALL",
        f"SELECT * FROM {table} FOR UPDATE",
    ):
        assert refused(url, statement) == "42501", statement
    # What lets a superuser pass the triggers.
    assert refused(url, "SET session_replication_role = replica") == "42501"
    assert refused(url, "CREATE TABLE mine (x int)") == "42501"


async def test_appending_role_cannot_move_the_head_back_leave_a_gap_or_lower_a_version(
    log: PostgresLog, database_url: str
) -> None:
    await log.append(C, [unit(), unit(), unit()])
    head = await log.head(C)
    row = (
        '{{"position":{position},"stream":"node/n1","version":{version},"type":"x","schema":1,'
        '"id":"00000000-0000-0000-0000-0000000000{position:02}","actor":"mallory","occurred_at":0,"subject":"",'
        '"correlation":"","body":"{{}}","hash":"AAAA"}}'
    )
    call = "SELECT kai_append(%s, %s::json, %s, %s, %s)"
    for rows, position, recorded_at in (
        ([], 1, head.recorded_at),
        ([], 3, head.recorded_at),
        ([], 4, head.recorded_at),
        ([row.format(position=2, version=4)], 2, head.recorded_at),
        ([row.format(position=3, version=4)], 3, head.recorded_at),
        ([row.format(position=5, version=4)], 5, head.recorded_at),
        ([row.format(position=4, version=4), row.format(position=6, version=5)], 6, head.recorded_at),
        ([row.format(position=4, version=4)], 9, head.recorded_at),
        ([row.format(position=4, version=4)], 4, head.recorded_at - 1),
        ([row.format(position=4, version=3)], 4, head.recorded_at),
    ):
        code = refused(database_url, call, C, f"[{','.join(rows)}]", position, b"\0" * 32, recorded_at)
        assert code == "23514", (rows, position)
    assert await log.head(C) == head
    assert (await verify(log, C)).ok


async def test_functions_use_the_logs_own_names_whatever_path_the_caller_sets(
    log: PostgresLog, superuser_url: str, database_url: str
) -> None:
    with psycopg.connect(superuser_url) as connection:
        connection.execute("CREATE SCHEMA foreign_names")
        connection.execute("GRANT USAGE ON SCHEMA foreign_names TO PUBLIC")
        for kind in ("text", "bigint"):
            for operator, procedure in (("=", "equal"), ("<", "less"), ("<=", "no_more")):
                connection.execute(
                    f"CREATE FUNCTION foreign_names.{procedure}({kind}, {kind}) RETURNS boolean LANGUAGE plpgsql AS "
                    "$$ BEGIN RAISE EXCEPTION 'not ours'; END $$"
                )
                connection.execute(
                    f"CREATE OPERATOR foreign_names.{operator} "
                    f"(LEFTARG = {kind}, RIGHTARG = {kind}, FUNCTION = foreign_names.{procedure})"
                )
        connection.execute(
            "CREATE FUNCTION foreign_names.decode(text, text) RETURNS bytea LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'not ours'; END $$"
        )
    row = (
        '[{"stream":"node/n1","version":1,"type":"x","schema":1,"id":"00000000-0000-0000-0000-000000000001",'
        '"actor":"a","occurred_at":0,"subject":"","correlation":"","body":"{}","hash":"AAAA"}]'
    )
    with psycopg.connect(database_url) as connection:
        connection.execute("SET search_path = pg_temp, foreign_names, pg_catalog, public")
        for table in ("log_head", "event", "event_id", "stream"):
            connection.execute(f"CREATE TEMPORARY TABLE {table} AS SELECT * FROM public.{table} WITH NO DATA")
        assert connection.execute("SELECT _position FROM public.kai_lock_head(%s)", [C]).fetchall() == [(0,)]
        connection.execute("SELECT public.kai_append(%s, %s::json, 1, %s, 1)", [C, row, b"\0" * 32])
        assert connection.execute("SELECT * FROM pg_temp.event").fetchall() == []
        assert connection.execute("SELECT public.kai_make_month(2031, 1)").fetchall() == [(True,)]
    assert [event.stream for event in await log.read(C)] == ["node/n1"]


async def test_reading_role_reads_and_audits_and_writes_nothing(log: PostgresLog, reader_url: str) -> None:
    await log.append(C, [unit()])
    await log.save_snapshot(C, Snapshot("state", 1, "1", b"x"))
    async with await PostgresLog.open(reader_url) as reader:
        assert len(await reader.read(C)) == 1
        assert (await verify(reader, C)).ok
        assert await reader.load_snapshot(C, name="state", schema="1") is not None
        with pytest.raises(ConfigurationError, match="role may not"):
            await reader.append(C, [unit(new_event())])
        with pytest.raises(ConfigurationError, match="role may not"):
            await reader.save_snapshot(C, Snapshot("state", 2, "1", b"y"))
        assert (await reader.head(C)).position == 1


@pytest.mark.parametrize("role", ["kai_append", "kai_read"])
async def test_only_the_owner_can_retire(log: PostgresLog, superuser_url: str, role: str) -> None:
    await log.append(C, [unit()])
    month = (await log.months())[0]
    later = (month + 2).start
    async with await PostgresLog.open(as_role(superuser_url, role), clock=lambda: later) as opened:
        with pytest.raises(ConfigurationError, match="role may not"):
            await opened.detach_month(month, without_snapshot=True)
    assert len(await log.read(C)) == 1


async def test_no_role_of_a_service_is_a_superuser_or_member_of_the_owner(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "SELECT rolname, rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls, "
            "pg_has_role(rolname, (SELECT relowner FROM pg_class WHERE relname = 'event'), 'MEMBER') "
            "FROM pg_roles WHERE rolname IN ('kai_append', 'kai_project', 'kai_read') ORDER BY rolname"
        ).fetchall()
    assert rows == [("kai_append", False, False), ("kai_project", False, False), ("kai_read", False, False)]
