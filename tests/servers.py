"""Postgres and NATS for tests: named by the environment, else containers where an engine answers, else the wheels."""

import asyncio
import functools
import gc
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kaicore.runtime.embedded import EmbeddedNats, EmbeddedPostgres
from kaicore.runtime.embedded.nats import MAX_PAYLOAD
from kaicore.runtime.embedded.process import EmbeddedServer

POSTGRES_IMAGE = "postgres:18"
NATS_IMAGE = "nats:2"


@contextmanager
def postgres_server() -> Iterator[str]:
    """Yield the url of a Postgres server whose user may create databases."""
    if given := os.environ.get("KAI_TEST_DATABASE_URL"):
        yield given
    elif container_engine_answers():
        from testcontainers.community.postgres import PostgresContainer

        container = PostgresContainer(POSTGRES_IMAGE, driver=None).with_command(
            "postgres -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_connections=200"
        )
        with container as running:
            yield running.get_connection_url()
    else:
        with scratch_directory() as directory, running_server(EmbeddedPostgres(directory, durable=False)) as url:
            yield url


@contextmanager
def nats_server() -> Iterator[str]:
    """Yield the url of a NATS server with JetStream."""
    if given := os.environ.get("KAI_TEST_NATS_URL"):
        yield given
    elif container_engine_answers():
        from testcontainers.community.nats import NatsContainer

        config = f"max_payload: {MAX_PAYLOAD}\njetstream {{ store_dir: /tmp/jetstream }}\n"
        container = NatsContainer(NATS_IMAGE)
        container.with_copy_into_container(config.encode(), "/kai.conf").with_command("-c /kai.conf")
        with container as running:
            yield running.nats_uri()
    else:
        with scratch_directory() as directory, running_server(EmbeddedNats(directory)) as url:
            yield url


@functools.cache
def container_engine_answers() -> bool:
    """Ask once whether containers can be run here."""
    import docker
    from docker.errors import DockerException

    with warnings.catch_warnings():
        # docker leaves its socket open when no server answers; collected here, it disturbs no test.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            client = docker.from_env()
            client.ping()
            client.close()
        except DockerException:
            return False
        finally:
            gc.collect()
    return True


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a directory that a server's user can enter, which pytest's `tmp_path` of root is not."""
    with tempfile.TemporaryDirectory(prefix="kai-test-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


@contextmanager
def running_server(server: EmbeddedServer) -> Iterator[str]:
    """Run an embedded server; yield its url."""
    asyncio.run(server.start())
    try:
        yield server.url
    finally:
        asyncio.run(server.kill())
