"""Backups of a running stack, and what comes of a restore: the commands of docs/how-to/back-up-and-restore.md.

A bus that is lost is filled from the log in `test_own_cluster.py`.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify
from kaicore.runtime.embedded.places import unprivileged_user
from kaicore.runtime.embedded.postgres import programs_of

from tests.e2e.cluster import PATIENCE_S
from tests.e2e.live_stack import LiveStack, bound, ours, pod_manifest
from tests.given.cluster.fleets import TWO_ALIGNED_NODES
from tests.given.examples import BEYOND_THE_GATE
from tests.given.logs.new_events import new_event, unit
from tests.given.processes.kai_commands import kai as run_kai
from tests.given.servers.servers import lay_out_postgres, scratch_directory

pytestmark = pytest.mark.slow


class BackedUpStack(LiveStack):
    """A stack of two nodes with a Postgres that archives its WAL, and an operator with Postgres' own programs."""

    def __init__(self, root: Path) -> None:
        profile = root / "profile.yaml"
        profile.write_text(TWO_ALIGNED_NODES)
        super().__init__(root / "kai", profile=str(profile))
        self.backups = root / "backups"
        self.wal = self.backups / "wal"
        self.wal.mkdir(parents=True)
        self._user = unprivileged_user()
        self._programs = programs_of(self._user)
        for made in (self.backups, self.wal):
            self._own(made)
        self.directory.root.mkdir()
        self.directory.claim()
        lay_out_postgres(self.directory.postgres)
        self._configure(f"archive_mode = on\narchive_command = 'cp %p {self.wal}/%f'\n")

    @property
    def owner_url(self) -> str:
        password = (self.directory.postgres / "password").read_text()
        return f"postgresql://kai:{password}@{self.running.database_url.rpartition('@')[2]}"

    def run(self, program: str, *arguments: str) -> str:
        """Run one of Postgres' programs as the owner of the data."""
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            timeout=PATIENCE_S,
            **self._user.popen(),  # type: ignore[call-overload]
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def as_superuser(self, statement: str) -> str:
        with psycopg.connect(self.owner_url, autocommit=True) as connection:
            done = connection.execute(statement.encode())
            row = done.fetchone() if done.description else None
        return "" if row is None else str(row[0])

    def restore(self, base: Path, point: str) -> None:
        """Put a base backup in the place of the data of a stack that was stopped, to be rolled forward to a point."""
        data = self.directory.postgres / "data"
        data.rename(self.backups / "lost")
        subprocess.run(["cp", "-a", str(base), str(data)], check=True)
        self._configure(
            f"restore_command = 'cp {self.wal}/%f %p'\nrecovery_target_name = '{point}'\n"
            "recovery_target_action = 'promote'\n"
        )
        signal = data / "recovery.signal"
        signal.touch()
        self._own(signal)

    def _configure(self, lines: str) -> None:
        with (self.directory.postgres / "data/postgresql.auto.conf").open("a") as file:
            file.write(lines)

    def _own(self, path: Path) -> None:
        if self._user.other:
            shutil.chown(path, self._user.uid, self._user.gid)


@pytest.fixture(scope="module")
def of_all_tests() -> Iterator[BackedUpStack]:
    with scratch_directory() as root:
        live = BackedUpStack(root)
        yield live
        if live.alive:
            live.interrupt()


@pytest.fixture
def stack(of_all_tests: BackedUpStack) -> BackedUpStack:
    if not of_all_tests.alive:
        of_all_tests.start()
    return of_all_tests


async def position(stack: LiveStack) -> int:
    async with stack.log() as log:
        return (await log.head("e2e")).position


def to_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def kai(stack: LiveStack, *arguments: str, code: int = 0) -> str:
    """Run a `kai` command on the stack's data directory; what it says."""
    done = run_kai(*arguments, "--data-dir", str(stack.directory.root), timeout=PATIENCE_S)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@BEYOND_THE_GATE
async def test_a_dump_of_a_log_that_is_written_meanwhile_is_a_whole_log_and_takes_events(
    stack: BackedUpStack,
) -> None:
    await stack.create(*(pod_manifest(f"dump-{n}", cpu="1", memory="1Gi", seconds=1) for n in range(6)))
    await stack.until(bound(1, "dump"))
    dump = stack.backups / "kai.dump"
    stack.run("pg_dump", "--format=custom", f"--file={dump}", stack.owner_url)
    await stack.until(bound(6, "dump"))

    stack.as_superuser("CREATE DATABASE restored OWNER kai_migrate")
    stack.run("pg_restore", "--exit-on-error", f"--dbname={to_database(stack.owner_url, 'restored')}", str(dump))
    appending = to_database(stack.running.database_url, "restored")
    async with await PostgresLog.open(appending) as log:
        audit = await verify(log, "e2e")
        assert audit.ok, str(audit)
        assert 0 < audit.head.position <= await position(stack)
        await log.append("e2e", [unit(new_event("node/added"))])
        assert (await verify(log, "e2e")).ok
        with pytest.raises(psycopg.errors.InsufficientPrivilege), psycopg.connect(appending) as connection:
            connection.execute("UPDATE event SET actor = 'x'")


async def test_a_stack_restored_to_a_moment_of_the_past_goes_on_and_promises_nothing_twice(
    stack: BackedUpStack,
) -> None:
    base, seals = stack.backups / "base", stack.backups / "seals"
    await stack.create(*(pod_manifest(f"before-{n}", cpu="2", memory="2Gi", gpu="2") for n in range(4)))
    await stack.until(bound(4, "before"))
    stack.run("pg_basebackup", f"--pgdata={base}", "--checkpoint=fast", f"--dbname={stack.owner_url}")
    await stack.create(*(pod_manifest(f"between-{n}", cpu="2", memory="2Gi", gpu="2") for n in range(2)))
    await stack.until(bound(2, "between"))
    kai(stack, "audit", "seal", str(seals))
    sealed = json.loads(seals.read_text())["position"]
    stack.as_superuser("SELECT pg_create_restore_point('before_the_fault')")

    # The log goes on: a pod ends, others get what it had held, and some of it is sealed.
    async with stack.client() as client:
        await client.delete("/api/v1/namespaces/default/pods/before-0")
    await stack.create(*(pod_manifest(f"after-{n}", cpu="2", memory="2Gi", gpu="2") for n in range(4)))
    lost = await stack.until(bound(3, "after"))
    kai(stack, "audit", "seal", str(seals))
    segment = stack.as_superuser("SELECT pg_walfile_name(pg_switch_wal())")
    stack.interrupt()
    assert (stack.wal / segment).exists(), "Postgres archives what it has before it ends"
    held = {entry.pod.name: entry.node for entry in ours(lost, "after") if entry.node}

    stack.restore(base, "before_the_fault")
    stack.start()
    # What the cluster did meanwhile comes by the watcher's list: pods that this log did not place hold their nodes.
    state = await stack.until(lambda state: bound(len(held), "after")(state) and not ours(state, "before-0"))
    assert {entry.pod.name: entry.node for entry in ours(state, "after") if entry.node} == held
    async with stack.client() as client:
        await client.delete("/api/v1/namespaces/default/pods/before-1")
    await stack.until(bound(4, "after"))
    await stack.check()
    # The log grows beyond the event that was sealed.
    await stack.create(*(pod_manifest(f"later-{n}", cpu="1", memory="1Gi", gpu="8") for n in range(12)))
    await stack.until(lambda state: len(ours(state, "later")) == 12)

    # Seals show that the log ends otherwise than it did, and that what is before the restored point is what it was.
    said = kai(stack, "audit", "verify", "--against", str(seals), code=1)
    assert f"the log was rewritten somewhere from event {sealed + 1} to this one" in said
