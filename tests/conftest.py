"""Fixtures that tests of every kind share: real servers, one database per test or module, one cluster name per test.

`database_url` is a fresh, migrated database for each test, copied from a template in some 20 ms, as services connect to
it: as the role `kai_append`. `superuser_url` is the same database for the owner of the server. NATS is one server for
the session; tests keep apart by `cluster_name`, which is part of every stream and subject. Where the servers come from
is in `tests/given/servers/servers.py`. Nothing is started before a test asks for it, as an argument: `getfixturevalue`
inside a coroutine comes too late, because servers are started by an event loop of their own.
"""

import asyncio
import gc
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.runtime.process_context import allow_open_files
from psycopg import sql
from xdist.remote import Producer

from tests.given.examples import examples
from tests.given.processes import worker_forks
from tests.given.processes.workers import StacksInTurn, stacks_first, tell_little
from tests.given.servers.servers import nats_server, postgres_server, scratch_directory

# The gate tries the same examples each time, so that a submission is judged by what it changed; other runs look
# for new ones.
# How long an example takes says how busy the machine is.
_ANY_SPEED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", _ANY_SPEED)
settings.register_profile("gate", _ANY_SPEED, derandomize=True, max_examples=examples(100))
settings.load_profile("gate" if os.environ.get("CI") else "search")
if os.environ.get("CI"):
    # Hypothesis draws constants of our modules, too: it parses all of them, seconds for each worker, and the examples
    # depend on what a worker has imported.
    providers._get_local_constants = lambda: providers._local_constants

Administrator = psycopg.Connection[tuple[Any, ...]]


# Fleets and API servers of many nodes run in the tests' own process too.
allow_open_files()

# A logged exception drawn by `rich`, with all locals, takes seconds of CPU: services import none (`logs.py`).
structlog.get_config()["processors"][-1].exception_formatter = structlog.dev.plain_traceback


def pytest_configure(config: pytest.Config) -> None:
    """Make what all workers share: servers, commands and forks (`tests/given`)."""
    # What collecting leaves stays for as long as the process runs: to look through it for garbage again and again took
    # a twelfth of the time.
    gc.disable()
    if hasattr(config, "workerinput"):
        tell_little(config)
    else:
        prepared = ExitStack()
        os.environ["KAI_TEST_PREPARED_DIR"] = str(prepared.enter_context(scratch_directory()))
        config.add_cleanup(prepared.close)
        if (config.getoption("numprocesses", None) or 0) > 1:
            worker, end = worker_forks.start(config.args, Path(os.environ["KAI_TEST_PREPARED_DIR"]))
            config.add_cleanup(end)
            config.option.tx = [worker] * len(config.option.tx)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> StacksInTurn:
    """See `tests/given/processes/workers.py`."""
    return StacksInTurn(config, log)


# With its defaults structlog prints an exception with the values of each frame, which takes seconds of CPU where these
# hold a cluster.
structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but not among what there is by now."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """See `tests/given/processes/workers.py`."""
    items[:] = stacks_first(items)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands that are called in the tests' own process set up its logging: not for the tests after them."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The url of a Postgres server for the whole session; prefer `database_url`."""
    with postgres_server() as url:
        yield url


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """The url of a NATS server with JetStream, the same for all tests of the session."""
    with nats_server() as url:
        yield url


@pytest.fixture
def cluster_name() -> str:
    """A cluster's name that no other test has."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture(scope="session")
def _administrator(postgres_url: str) -> Iterator[Administrator]:
    """The connection that makes and drops databases: one for each of them costs as much as the copy."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def _template_without_months(postgres_url: str, _administrator: Administrator) -> Iterator[str]:
    """A migrated database without connections, so that it can be copied."""
    with _new_database(_administrator, template="template1") as name:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            # Roles belong to the whole server, which may be another worker's too (KAI_TEST_DATABASE_URL).
            connection.execute("SELECT pg_advisory_lock(hashtext('kai tests: roles'))")
            upgrade(_of_database(postgres_url, name))
            for role in ("kai_append", "kai_read", "kai_project"):
                connection.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD 'x'").format(sql.Identifier(role)))
        yield name


@pytest.fixture(scope="session")
def _migrated_template(
    postgres_url: str, _administrator: Administrator, _template_without_months: str
) -> Iterator[str]:
    with _new_database(_administrator, template=_template_without_months) as name:
        asyncio.run(_make_months(_of_database(postgres_url, name)))
        yield name


@pytest.fixture
def superuser_url(postgres_url: str, _administrator: Administrator, _migrated_template: str) -> Iterator[str]:
    """A migrated database of the test's own, dropped afterwards, for the superuser."""
    with _new_database(_administrator, template=_migrated_template) as name:
        yield _of_database(postgres_url, name)


@pytest.fixture
def database_url(superuser_url: str) -> str:
    """The test's own database for a service that appends."""
    return as_role(superuser_url, "kai_append")


@pytest.fixture(scope="module")
def module_database_url(postgres_url: str, _administrator: Administrator, _migrated_template: str) -> Iterator[str]:
    """A migrated database that the tests of a module share, for property tests.

    A database of a test's own takes 60 ms of CPU. Where each test has a cluster of its own (`cluster_name`), a module
    or a room imports this one as its `superuser_url`.
    """
    with _new_database(_administrator, template=_migrated_template) as name:
        yield _of_database(postgres_url, name)


@pytest.fixture(scope="session")
def copy_of(postgres_url: str, _administrator: Administrator) -> Callable[[str], AbstractContextManager[str]]:
    """Copies a database to which nobody is connected, given its url, for one test: cheaper than to fill one again."""

    @contextmanager
    def copied(url: str) -> Iterator[str]:
        with _new_database(_administrator, template=urlsplit(url).path.removeprefix("/")) as name:
            yield _of_database(postgres_url, name)

    return copied


@pytest.fixture
def monthless_url(postgres_url: str, _administrator: Administrator, _template_without_months: str) -> Iterator[str]:
    """A migrated database of the test's own for the superuser, in which no log was opened: for tests of other times."""
    with _new_database(_administrator, template=_template_without_months) as name:
        yield _of_database(postgres_url, name)


@pytest.fixture
def empty_database_url(postgres_url: str, _administrator: Administrator) -> Iterator[str]:
    """A database of the test's own that is not migrated."""
    with _new_database(_administrator, template="template1") as name:
        yield _of_database(postgres_url, name)


@pytest.fixture
async def postgres_log(database_url: str) -> AsyncIterator[PostgresLog]:
    """An open log in a database of the test's own."""
    async with await PostgresLog.open(database_url) as log:
        yield log


async def _make_months(url: str) -> None:
    async with await PostgresLog.open(url):
        pass


@contextmanager
def _new_database(administrator: Administrator, *, template: str) -> Iterator[str]:
    name = f"kai_test_{secrets.token_hex(6)}"
    # A third less CPU than by the write-ahead log.
    copy = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
    administrator.execute(copy.format(*map(sql.Identifier, (name, template))))
    try:
        yield name
    finally:
        administrator.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def as_role(url: str, role: str) -> str:
    """Return a migrated database's url for a role: `kai_append`, `kai_read` or `kai_project`."""
    split = urlsplit(url)
    return urlunsplit(split._replace(netloc=f"{role}:x@{split.netloc.rpartition('@')[2]}"))


def _of_database(server: str, name: str) -> str:
    return urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
