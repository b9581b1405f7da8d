import asyncio
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from kaicore.errors import ConfigurationError, LogError, LogUnavailable, NotMigrated
from kaicore.ledger.log import migrate as migrate_module
from kaicore.ledger.log.chain import GENESIS
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.port import Filter, Head
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from tests.conftest import as_role
from tests.given.logs.new_events import forged, new_event, signed, unit


def test_several_at_once_migrate_once(empty_database_url: str) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(upgrade, [empty_database_url] * 4))
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT count(*) FROM log_head").fetchone() == (0,)


def test_a_database_migrated_by_a_newer_version_is_refused(superuser_url: str) -> None:
    with psycopg.connect(superuser_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigurationError, match="newer kai-ledger"):
        upgrade(superuser_url)


@pytest.mark.usefixtures("database_url")  # makes the roles
@pytest.mark.parametrize(("before", "shaped"), [(None, True), ("0018", False)], ids=["new", "older"])
def test_a_log_without_events_has_shapes_at_once_unless_older_services_may_run_on_it(
    empty_database_url: str, before: str | None, shaped: bool
) -> None:
    if before is not None:
        migrate(empty_database_url, before)
    upgrade(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT kai_shape('{}') IS NOT NULL").fetchone() == (shaped,)


@pytest.mark.usefixtures("database_url")  # makes the roles
async def test_indexes_of_a_large_log_stay_until_its_owner_has_them_made_thin_while_appends_wait(
    empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = shutil.copytree(MIGRATIONS, tmp_path / "migrations")
    (written,) = (scripts / "versions").glob("0019_*.py")
    # Every log is a large one.
    written.write_text(written.read_text().replace("< 1000000000", "< 0"))
    migrate(empty_database_url, "0018")
    with monkeypatch.context() as patched:
        patched.setattr(migrate_module, "_scripts", lambda: scripts)
        upgrade(empty_database_url)
    where = Filter(streams=(new_event("node/a").stream,))
    async with await PostgresLog.open(empty_database_url) as log:
        await log.append("c", [unit(new_event("node/a"))])
        assert len(await log.read("c", where=where)) == 1
        with psycopg.connect(empty_database_url) as owner:
            owner.execute("SELECT kai_thin_indexes()")
            appending = asyncio.create_task(log.append("c", [unit(new_event("node/a"))]))
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            while owner.execute(waiting).fetchone() == (0,):  # noqa: ASYNC110 - of the server
                await asyncio.sleep(0.01)
            indexes = owner.execute("SELECT to_regclass('event_stream'), to_regclass('event_stream_thin')").fetchone()
            assert (indexes, appending.done()) == ((None, "event_stream_thin"), False)
        assert [outcome.positions for outcome in await appending] == [(2,)]
        assert len(await log.read("c", where=where)) == 2
        assert (await verify(log, "c")).ok


#: Where the steps of the schema are.
MIGRATIONS = Path(__file__).parents[2] / "migrations"


def migrate(url: str, schema: str) -> None:
    """Migrate a database to an earlier schema than the newest."""
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)
    with engine.begin() as old:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = old
        command.upgrade(config, schema)


async def test_a_log_from_before_there_were_roles_of_services_goes_on(
    empty_database_url: str, database_url: str
) -> None:
    del database_url  # it has made the roles
    migrate(empty_database_url, "0007")
    service = as_role(empty_database_url, "kai_append")
    recorded, end = signed("c", Head(0, GENESIS, 1), forged(), forged(version=2))
    with psycopg.connect(service) as older:
        older.execute("SELECT FROM kai_lock_head('c')")
        older.execute("SELECT kai_append('c', %s::json, %s, %s, 1)", [recorded, end.position, end.hash])
    await asyncio.to_thread(upgrade, empty_database_url)
    async with await PostgresLog.open(service) as log:
        # The service goes on as the role that it has, and what it reads is what it was.
        assert [outcome.positions for outcome in await log.append("c", [unit()])] == [(3,)]
        assert (await verify(log, "c")).ok
        with psycopg.connect(empty_database_url) as connection:
            assert connection.execute("SELECT FROM append_grant WHERE role = 'kai_append'").rowcount == 8


def test_a_role_that_may_not_migrate_is_refused_in_one_line(superuser_url: str) -> None:
    with pytest.raises(LogError, match=r"^cannot migrate: permission denied for table alembic_version$"):
        upgrade(as_role(superuser_url, "kai_read"))


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_keep_any_text_is_refused(empty_database_url: str, encoding: str) -> None:
    name = f"{empty_database_url.rpartition('/')[2].partition('?')[0]}_{encoding.lower()}"
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
        try:
            with pytest.raises(
                ConfigurationError, match=f"^database {name}: encoding: a log needs UTF8.*'{encoding}'$"
            ):
                upgrade(psycopg.conninfo.make_conninfo(empty_database_url, dbname=name))
        finally:
            connection.execute(f"DROP DATABASE {name}")


async def test_a_service_waits_for_a_database_that_does_not_take_all_of_its_events_yet(superuser_url: str) -> None:
    with psycopg.connect(superuser_url) as connection:
        connection.execute("DELETE FROM writer_type WHERE type = 'NodeSuspected'")
        connection.execute("UPDATE writer_type SET schema = 9 WHERE type = 'CycleCompleted'")
    for role in ("kai_append", "kai_project", "kai_read"):
        with pytest.raises(
            NotMigrated, match=r"migrate it: it takes no CycleCompleted schema \d+, NodeSuspected schema 1$"
        ):
            await PostgresLog.open(as_role(superuser_url, role), of_service=True)


@pytest.mark.usefixtures("database_url")  # makes the roles
async def test_settings_of_a_database_change_nothing(empty_database_url: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(empty_database_url)["dbname"]
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        for setting in ("search_path = nowhere", "client_encoding = latin1", "timezone = 'Asia/Kathmandu'"):
            connection.execute(f"ALTER DATABASE {name} SET {setting}")
    await asyncio.to_thread(upgrade, empty_database_url)
    async with await PostgresLog.open(empty_database_url) as log:
        await log.append("c1", [unit(new_event("node/日本", subject="日本"))])
        assert [event.subject for event in await log.read("c1")] == ["日本"]
        assert (await verify(log, "c1")).findings == ()


def test_missing_server_is_named() -> None:
    with pytest.raises(LogUnavailable, match="cannot migrate"):
        upgrade("postgresql://kai@127.0.0.1:1/kai")


@pytest.mark.parametrize("table", ["event", "event_default", "event_id", "seal"])
def test_append_only_tables_refuse_truncate(superuser_url: str, table: str) -> None:
    with psycopg.connect(superuser_url) as connection, pytest.raises(psycopg.errors.RestrictViolation):
        connection.execute(f"TRUNCATE {table}")


def test_a_database_that_is_migrated_needs_nothing_of_what_migrates(
    superuser_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "alembic", None)
    upgrade(superuser_url)
