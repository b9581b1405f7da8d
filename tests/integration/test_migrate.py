import sys
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from kaicore.errors import ConfigurationError, LogUnavailable
from kaicore.ledger.log.migrate import upgrade


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
