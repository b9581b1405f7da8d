"""A change of the schema does nothing that services of the release before, beside this one, do not survive."""

import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from kaicore.rules.events.codec import _UPCASTERS, FORMER_NAMES, event_types, schema_version
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.pool import NullPool

ROOT = Path(__file__).parents[2]
UPGRADE = ROOT / "docs/how-to/upgrade.md"
#: The schema of the release before (`tests/e2e/test_versions_side_by_side.py`).
RELEASE = "0022"
#: Rules of squawk about other things. A migration is one transaction; what holds locks for long has rules of its own.
STYLE = (
    "prefer-bigint-over-int",
    "prefer-robust-stmts",
    "prefer-text-field",
    "require-lock-timeout",
    "require-statement-timeout",
)


def refused(sql: str) -> list[tuple[str, str]]:
    """Return what a rolling upgrade does not survive: rules of squawk (squawkhq.com/docs/rules), and lines."""
    squawk = Path(sys.executable).with_name("squawk")
    linted = subprocess.run(
        [
            squawk,
            "--assume-in-transaction",
            "--reporter=json",
            "--stdin-filepath=m.sql",
            f"--exclude={','.join(STYLE)}",
        ],
        input=sql,
        capture_output=True,
        text=True,
        check=False,
    )
    return [(found["rule_name"], sql.splitlines()[found["line"]].strip()) for found in json.loads(linted.stdout)]


def rights(connection: Connection) -> dict[tuple[str, str], int]:
    """Return up to which schema each writer may append an event type."""
    rows = connection.execute(text("SELECT writer, type, schema FROM writer_type"))
    return {(writer, event_type): schema for writer, event_type, schema in rows}


@pytest.mark.usefixtures("database_url")  # makes the roles
def test_migrations_since_the_release_before_and_events_leave_its_services_what_they_need(
    empty_database_url: str,
) -> None:
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(empty_database_url), poolclass=NullPool
    )
    statements: list[str] = []
    config = Config()
    config.set_main_option("script_location", str(ROOT / "migrations"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, RELEASE)
        before = rights(connection)

        def executed(*given: object) -> None:
            # With parameters are Alembic's own questions.
            if not given[3]:
                statements.append(f"{given[2]};".replace("%%", "%"))

        event.listen(connection, "before_cursor_execute", executed)
        command.upgrade(config, "head")
        event.remove(connection, "before_cursor_execute", executed)
        after = rights(connection)
    changes = [one for one in statements if "FROM alembic_version" not in one]
    assert bool(changes) == (ScriptDirectory.from_config(config).get_current_head() != RELEASE)
    assert refused("\n".join(statements)) == []
    # Its writers append what they did.
    assert {writer: schema for writer, schema in before.items() if after.get(writer, 0) < schema} == {}
    # Its events are read: by their names, and from their schemas on.
    schemas = {event_type: schema for (_, event_type), schema in before.items()}
    assert {FORMER_NAMES.get(name, name) for name in schemas} <= set(event_types())
    steps = {(name, at) for name, schema in schemas.items() for at in range(schema, schema_version(name))}
    assert steps <= _UPCASTERS.keys()
    # Events that its services do not know stop those that read them: the page says in which order to replace them.
    new = {name for (_, name), schema in after.items() if schema > schemas.get(name, 0)}
    assert {name for name in new if f"`{name}`" not in UPGRADE.read_text()} == set()


def test_a_change_that_services_of_the_release_before_do_not_survive_is_refused() -> None:
    planted = {
        "ALTER TABLE event DROP COLUMN actor;": "ban-drop-column",
        "ALTER TABLE event RENAME COLUMN actor TO writer;": "renaming-column",
        "ALTER TABLE stream RENAME TO streams;": "renaming-table",
        "DROP TABLE stream;": "ban-drop-table",
        "DROP FUNCTION kai_append;": "ban-drop-function",
        "ALTER TABLE log_head ADD COLUMN epoch bigint NOT NULL;": "adding-required-field",
        "ALTER TABLE log_head ALTER COLUMN hash SET NOT NULL;": "adding-not-nullable-field",
        "ALTER TABLE event ALTER COLUMN occurred_at TYPE numeric;": "changing-column-type",
        "ALTER TABLE event ADD COLUMN at timestamptz DEFAULT clock_timestamp();": "adding-field-with-default",
        "ALTER TABLE stream ADD CONSTRAINT positive CHECK (version > 0);": "constraint-missing-not-valid",
        "CREATE INDEX event_actor ON event (cluster, actor);": "require-concurrent-index-creation",
    }
    survived = ("ALTER TABLE log_head ADD COLUMN epoch bigint NOT NULL DEFAULT 0;", "CREATE TABLE fresh (a bigint);")
    sql = "\n".join((*planted, *survived, "CREATE INDEX fresh_a ON fresh (a);"))
    assert {line: rule for rule, line in refused(sql)} == planted
