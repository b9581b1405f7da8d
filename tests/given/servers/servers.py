"""Postgres and NATS for tests: named by the environment, else containers where an engine answers, else the wheels."""

import asyncio
import fcntl
import functools
import gc
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from kaicore.ledger.log.migrate import upgrade
from kaicore.runtime.embedded import EmbeddedNats, EmbeddedPostgres
from kaicore.runtime.embedded.nats import MAX_PAYLOAD
from kaicore.runtime.embedded.process import EmbeddedServer

POSTGRES_IMAGE = "postgres:18"
NATS_IMAGE = "nats:2"

#: Bytes. Five workers' servers take some 300 MB each; containers often have 64 MB of such memory in all.
_ROOM_IN_MEMORY = 8 << 30


@contextmanager
def postgres_server() -> Iterator[str]:
    """Yield the url of a Postgres server with a user who may create databases."""
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
        with scratch_directory() as directory:
            lay_out_postgres(directory)
            with running_server(EmbeddedPostgres(directory, durable=False)) as url:
                yield url


def lay_out_postgres(directory: Path) -> None:
    """Fill the directory of an embedded Postgres as its first start and the migrations leave it.

    It is a copy: `initdb` and the migrations take two seconds of CPU, and dozens of tests have a server of their own.
    The original is made once, by the first test of all workers that needs it, in the directory that
    `KAI_TEST_PREPARED_DIR` names (`tests/conftest.py`); without that, each server makes its own.
    """
    named = os.environ.get("KAI_TEST_PREPARED_DIR")
    if named is None:
        return
    prepared = Path(named) / "postgres"
    with (Path(named) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (prepared / "made").exists():
            shutil.rmtree(prepared, ignore_errors=True)
            # In a thread of its own: the caller may be in an event loop.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(_make_postgres, EmbeddedPostgres(prepared, durable=False)).result()
            (prepared / "made").touch()
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", str(prepared / "data"), str(prepared / "password"), str(directory)], check=True)


def _make_postgres(server: EmbeddedPostgres) -> None:
    asyncio.run(server.start())
    upgrade(server.url_of("kai_migrate"))
    asyncio.run(server.stop())


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
    """Yield a directory that a server's user can enter, which pytest's `tmp_path` of root is not.

    It is in memory where there is room: Postgres makes and deletes some 600 files with each database, which took 0.27 s
    of CPU on ext4 and 0.05 s there.
    """
    with tempfile.TemporaryDirectory(prefix="kai-test-", dir=_in_memory(), ignore_cleanup_errors=True) as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


@functools.cache
def _in_memory() -> Path | None:
    """A directory in memory with room for all workers; None where there is none, or it is not to be used."""
    shared = Path("/dev/shm")
    # Benchmarks measure the disk as well.
    if "PYTEST_VERSION" not in os.environ or "TMPDIR" in os.environ or not os.access(shared, os.W_OK | os.X_OK):
        return None
    return shared if shutil.disk_usage(shared).free >= _ROOM_IN_MEMORY else None


@contextmanager
def running_server(server: EmbeddedServer) -> Iterator[str]:
    asyncio.run(server.start())
    try:
        yield server.url
    finally:
        asyncio.run(server.kill())
