"""Embedded servers and their processes: parents that are killed, and the user that they run as."""

import asyncio
import fcntl
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import nullcontext
from pathlib import Path

import kaicore
import psycopg
import pytest
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.runtime.embedded import EmbeddedNats, EmbeddedPostgres, places, usable_directory

from tests.given.logs.new_events import unit
from tests.given.servers.embedded_servers import as_root, query

_PARENT = """
import asyncio, os, signal, sys
from pathlib import Path
from kaicore.runtime.embedded import EmbeddedNats, EmbeddedPostgres
servers = [EmbeddedNats(Path(sys.argv[1])), EmbeddedPostgres(Path(sys.argv[2]), durable=False)]
async def main():
    for server in servers:
        await server.start()
asyncio.run(main())
for server in servers:
    os.kill(server.pid, signal.Signals[sys.argv[3]])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux'")
async def test_servers_end_when_their_parent_is_killed(directory: Path, used: Path) -> None:
    places = [directory, used]
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", _PARENT, *places, "SIGCONT")
    assert await parent.wait() == -signal.SIGKILL
    for place in places:
        with (place / "lock").open() as lock:
            # What holds it is a process of the server; it ends, so this ends.
            await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
    assert (used / "postgres.log").read_text().endswith("database system is shut down\n")


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux'")
async def test_servers_whose_parent_was_killed_are_waited_for(directory: Path, used: Path) -> None:
    """They have not noticed yet, being stopped: a supervisor that starts at once must not take them for in use."""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", _PARENT, directory, used, "SIGSTOP")
    assert await parent.wait() == -signal.SIGKILL
    orphans = [int((place / "lock").read_text().split()[0]) for place in (directory, used)]
    servers = EmbeddedNats(directory), EmbeddedPostgres(used, durable=False)
    starting = [asyncio.ensure_future(server.start()) for server in servers]
    done, _ = await asyncio.wait(starting, timeout=0.3)
    for orphan in orphans:
        os.kill(orphan, signal.SIGCONT)
    assert not done
    await asyncio.gather(*starting)
    for server in servers:
        await server.stop()


# As root, and not as root


@as_root
async def test_as_root_postgres_runs_as_nobody_and_a_directory_that_it_cannot_enter_is_named(directory: Path) -> None:
    closed = directory / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(ConfigurationError, match=f"which cannot enter {closed}"):
        await EmbeddedPostgres(closed / "postgres").start()
    instead = usable_directory(closed / ".kai")
    try:
        assert instead == usable_directory(closed / ".kai")
        async with EmbeddedPostgres(instead, durable=False) as server:
            assert await query(server.url, "SELECT 1") == (1,)
            assert os.stat(f"/proc/{server.pid}").st_uid == pwd.getpwnam("nobody").pw_uid  # noqa: PTH116
    finally:
        shutil.rmtree(instead)
    assert usable_directory(directory / "open") == directory / "open"


@as_root
def test_as_root_programs_out_of_reach_are_copied(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reachable, hidden = directory / "reachable", directory / "hidden"
    reachable.mkdir()
    reachable.chmod(0o755)
    monkeypatch.setattr(places, "_REACHABLE", reachable)
    program = hidden / "package" / "bin" / "program"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\ncat ${0%/*}/../share/text\n")
    (hidden / "package" / "share").mkdir()
    (hidden / "package" / "share" / "text").write_text("found")
    program.chmod(0o700)
    (hidden / "package" / "share" / "text").chmod(0o600)
    hidden.chmod(0o700)
    user = places.unprivileged_user()

    def copied() -> Path:
        return places.reachable_programs(
            hidden, program="package/bin/program", parts=("package",), name="test", user=user
        )

    assert copied() == copied() == reachable / "kai-test"
    output = subprocess.run(
        [copied() / "package/bin/program"], check=True, capture_output=True, text=True, user=user.uid, group=user.gid
    )
    assert output.stdout == "found"
    (reachable / "kai-test").chmod(0o777)
    with pytest.raises(ConfigurationError, match="others than this user can write there"):
        copied()


_AS_ANOTHER_USER = """
import asyncio, os, sys
from pathlib import Path
import psycopg
from kaicore.runtime.embedded import EmbeddedNats, EmbeddedPostgres
assert os.geteuid() != 0
async def main(place):
    async with EmbeddedPostgres(place / "postgres", durable=False) as server, EmbeddedNats(place / "nats"):
        async with await psycopg.AsyncConnection.connect(server.url) as connection:
            await connection.execute("SELECT 1")
        await server.kill()
        await server.start()
        assert Path(f"/proc/{server.pid}").stat().st_uid == os.geteuid()
asyncio.run(main(Path(sys.argv[1])))
print("done")
"""


@as_root
def test_as_an_ordinary_user_servers_run_as_that_user() -> None:
    nobody = pwd.getpwnam("nobody")
    path = os.pathsep.join([str(Path(kaicore.__file__).parents[1]), sysconfig.get_path("purelib")])
    command = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": "/"}
    environment = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.defpath}

    def runs(python: str) -> bool:
        try:
            done = subprocess.run([python, "-c", "import psycopg"], check=False, env=environment, **command)
        except OSError:
            return False
        return done.returncode == 0

    # Root's own Python may lie where an ordinary user cannot go.
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = next((program for program in (sys.executable, f"/usr/bin/{version}") if runs(program)), None)
    if python is None:
        pytest.skip(f"no {version} that an ordinary user can run with the packages of this environment")
    place = Path(tempfile.gettempdir()) / f"kai-test-{secrets.token_hex(6)}"
    place.mkdir(mode=0o700)
    os.chown(place, nobody.pw_uid, nobody.pw_gid)
    try:
        done = subprocess.run(
            [python, "-c", _AS_ANOTHER_USER, place],
            check=False,
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
            **command,
        )
        assert (done.stdout, done.stderr) == ("done\n", "")
    finally:
        shutil.rmtree(place)


async def test_the_roles_of_a_log_are_there_also_for_data_from_before_there_were_any(directory: Path) -> None:
    server = EmbeddedPostgres(directory, durable=False)
    async with server:
        # As it was: everything belongs to the superuser.
        await asyncio.to_thread(upgrade, server.url)
    async with server:
        await asyncio.to_thread(upgrade, server.url_of("kai_migrate"))
        async with await PostgresLog.open(server.url_of("kai_append")) as log:
            await log.append("c", [unit()])
            (month, *_) = await log.months()
        async with await PostgresLog.open(server.url_of("kai_read")) as log:
            assert len(await log.read("c")) == 1
        later = (month + 2).start
        async with await PostgresLog.open(server.url_of("kai_migrate"), clock=lambda: later) as log:
            assert len(await log.detach_month(month, without_snapshot=True)) == 1
        async with await psycopg.AsyncConnection.connect(server.url_of("kai_read")) as connection:
            cursor = await connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname LIKE 'kai@_%' ESCAPE '@'")
            assert await cursor.fetchall() == [(False,)] * 9
        for service in ("watcher", "ingest", "scheduler", "binder"):
            async with await PostgresLog.open(server.url_of(f"kai_{service}")) as log:
                refused = service != "watcher"
                with pytest.raises(ConfigurationError) if refused else nullcontext():
                    await log.append("c", [unit()])


async def test_nats_has_one_thread_that_runs_and_waits_that_may_end_a_little_late(directory: Path) -> None:
    async with EmbeddedNats(directory) as server:
        of_process = Path(f"/proc/{server.pid}")
        assert b"GOMAXPROCS=1\0" in (of_process / "environ").read_bytes()
        assert int((of_process / "timerslack_ns").read_text()) == 2_000_000
