"""`deploy/postgres/roles.sql` on the real server: who migrates owns the log; the environment sets the passwords."""

import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from kaicore.ledger.log.migrate import admit_roles, upgrade
from kaicore.runtime.embedded import EmbeddedPostgres
from kaicore.runtime.embedded.places import unprivileged_user
from kaicore.runtime.embedded.postgres import programs_of

from tests.given.logs.new_events import attempt, forged
from tests.given.servers.servers import scratch_directory

ROLES = Path(__file__).parents[2] / "deploy" / "postgres" / "roles.sql"


@pytest.fixture
async def database_url() -> AsyncIterator[str]:
    """A database of a server of the test's own, for roles are the server's."""
    with scratch_directory() as directory:
        async with EmbeddedPostgres(directory / "postgres", durable=False) as server:
            async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
                await connection.execute("CREATE DATABASE deployed")
            yield urlunsplit(urlsplit(server.url)._replace(path="/deployed"))


def make_roles(url: str, **passwords: str) -> None:
    psql = programs_of(unprivileged_user()) / "psql"
    done = subprocess.run(
        [str(psql), "-d", url, "-f", str(ROLES)],
        env={**os.environ, **{f"KAI_{role.upper()}_PASSWORD": password for role, password in passwords.items()}},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def make_spoke_role(url: str, cluster: str, password: str) -> None:
    psql = programs_of(unprivileged_user()) / "psql"
    subprocess.run(
        [str(psql), "-d", url, "-v", f"cluster={cluster}", "-f", str(ROLES.with_name("spoke-role.sql"))],
        env={**os.environ, "KAI_SPOKE_PASSWORD": password},
        capture_output=True,
        check=True,
    )


def as_role(url: str, role: str, password: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"kai_{role}:{password}@{parts.netloc.rpartition('@')[2]}"))


def test_the_role_that_migrates_owns_the_log_and_others_do_not(database_url: str) -> None:
    make_roles(database_url, migrate="m1", append="a1", read="r1", project="p1")
    make_roles(database_url, migrate="m2", append="it's", read="r2", project="p2")
    upgrade(as_role(database_url, "migrate", "m2"))
    for role, password in (("append", "it%27s"), ("read", "r2"), ("project", "p2")):
        with psycopg.connect(as_role(database_url, role, password)) as connection:
            for forbidden in (
                "CREATE TABLE public.mine (a int)",
                "DELETE FROM public.event",
                "UPDATE public.log_head SET position = 0",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                    connection.execute(forbidden)
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(as_role(database_url, "migrate", "m1"))


async def test_roles_of_services_that_are_made_after_the_migration_append_what_is_their_own(database_url: str) -> None:
    make_roles(database_url, migrate="m", append="a", read="r", project="p")
    migrate = as_role(database_url, "migrate", "m")
    upgrade(migrate)
    services = {name: name for name in ("watcher", "ingest", "scheduler", "binder", "hub")}
    make_roles(database_url, migrate="m", append="a", read="r", project="p", **services)
    make_spoke_role(database_url, "west-1", "w")
    make_spoke_role(database_url, "west-1", "it's")
    admit_roles(migrate)
    spoke = as_role(database_url, "spoke_west-1", "it%27s")
    assert await attempt(as_role(database_url, "watcher", "watcher"), "east", forged("pod/u", "PodObserved")) == ""
    assert (await attempt(as_role(database_url, "ingest", "ingest"), "east", forged("pod/v", "PodPlaced")))[
        :5
    ] == "42501"
    assert await attempt(spoke, "west-1", forged("pod/u", "PodObserved")) == ""
    assert (await attempt(spoke, "east", forged("pod/v", "PodObserved")))[:5] == "42501"
    settings = {"watcher": ("idle_in_transaction_session_timeout", "5s"), "read": ("statement_timeout", "1min")}
    for role, (setting, value) in settings.items():
        password = {"read": "r"}.get(role, role)
        with psycopg.connect(as_role(database_url, role, password)) as connection:
            assert connection.execute(f"SHOW {setting}").fetchone() == (value,)  # type: ignore[arg-type]
