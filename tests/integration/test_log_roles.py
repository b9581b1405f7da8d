"""The rights of the roles of a log's database: append by functions, read, and nothing else."""

from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import msgspec
import psycopg
import pytest
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.chain import GENESIS
from kaicore.ledger.log.port import Head, Snapshot
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify
from kaicore.rules.events.codec import FORMER_NAMES, event_types, schema_version
from kaicore.rules.events.envelope import UnitOutcome

from tests.conftest import as_role
from tests.given.logs.new_events import attempt, forged, new_event, signed, unit

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
    with psycopg.connect(url) as connection:
        return refused_on(connection, statement, *parameters)


def refused_on(connection: psycopg.Connection[Any], statement: str, *parameters: object) -> str:
    with pytest.raises(psycopg.Error) as caught, connection.transaction():
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
async def test_nothing_that_is_recorded_can_be_written_past_the_functions(
    log: PostgresLog, superuser_url: str, role: str
) -> None:
    await log.append(C, [unit()])
    statements = [
        statement.format(table)
        for table in TABLES
        for statement in (
            "UPDATE {} SET cluster = 'x'",
            "DELETE FROM {}",
            "TRUNCATE {}",
            "INSERT INTO {0} SELECT * FROM {0}",
            "DROP TABLE {}",
            "ALTER TABLE {} DISABLE TRIGGER ALL",
            "SELECT * FROM {} FOR UPDATE",
        )
    ]
    # What lets a superuser pass the triggers.
    statements += ["SET session_replication_role = replica", "CREATE TABLE mine (x int)"]
    with psycopg.connect(as_role(superuser_url, role), autocommit=True) as connection:
        assert {one: code for one in statements if (code := refused_on(connection, one)) != "42501"} == {}


async def test_appending_role_cannot_move_the_head_back_leave_a_gap_or_lower_a_version(
    log: PostgresLog, database_url: str
) -> None:
    await log.append(C, [unit(), unit(), unit()])
    head = await log.head(C)
    row = (
        '{{"position":{position},"stream":"node/n1","version":{version},"type":"NodeDeleted","schema":1,'
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
    rows, head = signed(C, Head(0, GENESIS, 1), forged())
    with psycopg.connect(database_url) as connection:
        connection.execute("SET search_path = pg_temp, foreign_names, pg_catalog, public")
        for table in ("log_head", "event", "event_id", "stream"):
            connection.execute(f"CREATE TEMPORARY TABLE {table} AS SELECT * FROM public.{table} WITH NO DATA")
        assert connection.execute("SELECT _position FROM public.kai_lock_head(%s)", [C]).fetchall() == [(0,)]
        connection.execute("SELECT public.kai_append(%s, %s::json, 1, %s, 1)", [C, rows, head.hash])
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


async def test_event_with_another_hash_than_its_own_is_refused(log: PostgresLog, database_url: str) -> None:
    await log.append(C, [unit()])
    head = await log.head(C)
    assert "hash or version is not that of its event" in await attempt(database_url, C, forged(version=2**63 - 1))
    sound, end = signed(C, head, forged(version=2), forged(version=3))
    call = "SELECT kai_append(%s, %s::json, %s, %s, %s)"
    first, second = msgspec.json.decode(sound)
    wrong = "A" * 43 + "="
    for rows, hash_ in (
        ([{**first, "hash": wrong}, second], end.hash),
        ([first, {**second, "hash": wrong}], end.hash),
        ([first, second], b"\0" * 32),
        *(
            ([{**first, name: value}, second], end.hash)
            for name, value in (
                ("stream", "node/n2"),
                ("version", 4),
                ("type", "NodeObserved"),
                ("occurred_at", 1),
                ("actor", "ingest"),
                ("id", str(uuid4())),
                ("subject", "n1"),
                ("correlation", "c"),
                ("cause", str(uuid4())),
                ("body", "{ }"),
                ("shape", 7),
            )
        ),
    ):
        text = msgspec.json.encode(rows).decode()
        assert refused(database_url, call, C, text, end.position, hash_, head.recorded_at) == "23514", rows
    assert await log.head(C) == head
    with psycopg.connect(database_url) as connection:
        connection.execute(call, [C, sound, end.position, end.hash, head.recorded_at])
    assert (await verify(log, C)).ok


async def test_event_recorded_ahead_of_the_clock_is_refused(log: PostgresLog, database_url: str) -> None:
    await log.append(C, [unit()])
    day_us = 24 * 3600 * 1_000_000
    assert "recorded_at is ahead of the clock" in await attempt(database_url, C, forged(version=2), ahead_us=day_us)
    assert await attempt(database_url, C, forged(version=2)) == ""
    # What follows is not recorded in a year to come, as it would be after an event of that year.
    assert [outcome.positions for outcome in await log.append(C, [unit()])] == [(3,)]


@pytest.fixture
def admitted_url(superuser_url: str) -> Callable[..., str]:
    """Make a role of a service, or of the spoke of a cluster, in the test's own server; return its url."""

    def admit(role: str, *, spoke_of: str = "") -> str:
        with psycopg.connect(superuser_url) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('kai tests: roles'))")
            there = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).rowcount
            verb = "ALTER" if there else "CREATE"
            connection.execute(f"{verb} ROLE {role} LOGIN PASSWORD 'x'")
            if spoke_of:
                connection.execute("SELECT kai_admit_spoke(%s, %s)", [role, spoke_of])
            connection.execute("SELECT kai_admit_roles()")
        return as_role(superuser_url, role)

    return admit


@pytest.mark.parametrize("role", ["kai_ingest", "kai_watcher", "kai_binder"])
async def test_role_that_does_not_decide_appends_no_decision(
    log: PostgresLog, admitted_url: Callable[..., str], role: str
) -> None:
    await log.append(C, [unit()])
    url = admitted_url(role)
    for type_ in ("PodPlaced", "CycleCompleted", "EvictionDecided"):
        said = await attempt(url, C, forged("pod/u1", type_))
        assert said.startswith("42501")
        assert f"role {role} may not append {type_}" in said
    assert (await log.head(C)).position == 1


@pytest.mark.parametrize(
    ("role", "type_"),
    [
        ("kai_ingest", "PlacementObserved"),
        ("kai_watcher", "PodObserved"),
        ("kai_binder", "PodBound"),
        ("kai_scheduler", "PodPlaced"),
    ],
)
async def test_role_of_a_service_appends_what_is_its_own_and_not_to_the_hubs_log(
    admitted_url: Callable[..., str], role: str, type_: str
) -> None:
    url = admitted_url(role)
    assert await attempt(url, C, forged("pod/u1", type_)) == ""
    assert (await attempt(url, "hub", forged("pod/u1", type_))).startswith("42501")
    newer = schema_version(type_) + 1
    assert (await attempt(url, C, forged("pod/u2", type_, schema=newer))).startswith("42501")


async def test_spoke_appends_to_its_own_cluster_and_speaks_for_it_alone(
    log: PostgresLog, admitted_url: Callable[..., str], superuser_url: str
) -> None:
    west = admitted_url("kai_spoke_west", spoke_of="west")
    assert await attempt(west, "west", forged("pod/u1", "PodObserved")) == ""
    assert (await attempt(west, "west", forged("pod/u1", "PodPlaced", version=2))).startswith("42501")
    await log.append("east", [unit()])
    assert "may append nothing to cluster east" in await attempt(west, "east", forged("pod/u1", "PodObserved"))
    for cluster, taken in (("west", True), ("east", False)):
        lease = f'{{"cluster":"{cluster}","holder":"x","lease_us":1}}'
        assert (await attempt(west, "hub", forged(f"lease/{cluster}", "LeaseRenewed", body=lease)) == "") is taken
    assert (await attempt(west, "hub", forged("cluster/west", "ClusterRemoved"))).startswith("42501")
    with psycopg.connect(superuser_url) as connection, pytest.raises(psycopg.errors.InvalidParameterValue):
        connection.execute("SELECT kai_admit_spoke('kai_spoke_west', '*')")


async def test_role_of_a_service_saves_its_own_snapshots_and_gives_itself_no_rights(
    admitted_url: Callable[..., str],
) -> None:
    url = admitted_url("kai_ingest")
    async with await PostgresLog.open(url) as ingest:
        await ingest.save_snapshot(C, Snapshot("ingest", 1, "1", b"x"))
        await ingest.save_snapshot(C, Snapshot("ingest", 2, "1", b"y"))
        for name in ("state", "binder", "hub"):
            with pytest.raises(ConfigurationError, match="role may not"):
                await ingest.save_snapshot(C, Snapshot(name, 1, "1", b"forged"))
    for statement in (
        "SELECT kai_admit('kai_ingest', '*', 'scheduler')",
        "SELECT kai_admit_spoke('kai_ingest', 'west')",
        "INSERT INTO append_grant VALUES ('kai_ingest', '*', 'scheduler')",
        "INSERT INTO state_trail VALUES ('c', '1', 1, 1, '', '')",
        "SET SESSION AUTHORIZATION kai_scheduler",
    ):
        assert refused(url, statement) == "42501", statement


def test_every_event_type_has_a_writer_at_its_newest_schema(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        known = dict(connection.execute("SELECT type, max(schema) FROM writer_type GROUP BY type").fetchall())
    # A new type, or a new schema of one, gets its line in a migration (`0008_append_rights.py` says which).
    # An older scheduler goes on beside a newer one, so a former name stays.
    assert known == {name: schema_version(name) for name in (*event_types(), *FORMER_NAMES)}


async def test_session_that_keeps_the_head_is_ended(
    log: PostgresLog, database_url: str, superuser_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append(C, [unit()])
    with psycopg.connect(database_url) as stalled:
        stalled.execute("SET idle_in_transaction_session_timeout = 0")
        stalled.execute("SELECT FROM kai_lock_head(%s)", [C])
        assert [outcome.positions for outcome in await log.append(C, [unit()])] == [(2,)]
        with pytest.raises(psycopg.OperationalError):
            stalled.execute("SELECT 1")
