"""Two real Postgres servers: a primary, and a standby that every commit waits for."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import psycopg
from kaicore.runtime.embedded import EmbeddedPostgres
from kaicore.runtime.embedded.process import ServerLock
from psycopg.conninfo import conninfo_to_dict, make_conninfo

#: How the standby calls itself to its primary.
STANDBY = "standby"

#: Line of `postmaster.pid` with the server's state, and what it says of one that takes connections.
_STATE_LINE, _TAKES_CONNECTIONS = 7, ("ready", "standby")


class FollowingPostgres(EmbeddedPostgres):
    """A server that begins as a copy of another one and follows it, until it is promoted."""

    def __init__(self, directory: Path, *, follows: EmbeddedPostgres, durable: bool = True) -> None:
        super().__init__(directory, durable=durable)
        self._follows = follows

    def _initialise(self, lock: ServerLock) -> None:
        del lock
        shutil.copy2(self._follows._directory / "password", self._password_file)
        source = make_conninfo(self._follows.url, dbname="", application_name=STANDBY)
        # A directory of its own, for `nobody` may not make one beside the password.
        self._data.mkdir(mode=0o700)
        if self._user.other:
            shutil.chown(self._data, self._user.uid, self._user.gid)
        options = ("--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream", "--no-sync")
        self._run("pg_basebackup", f"--dbname={source}", f"--pgdata={self._data}", *options)

    async def _ready(self, port: int) -> bool:
        pid_file = self._data / "postmaster.pid"
        lines = pid_file.read_text().splitlines() if pid_file.exists() else []
        return len(lines) > _STATE_LINE and lines[_STATE_LINE].strip() in _TAKES_CONNECTIONS

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
            env={"LC_ALL": "C"},
            **self._user.popen(),  # type: ignore[call-overload]
        )
        assert done.returncode == 0, done.stderr

    async def promote(self) -> None:
        """Make it the primary; nothing follows it, so its commits wait for nobody."""
        await on(self, "SELECT pg_promote(wait => true, wait_seconds => 60)")


class RejoiningPostgres(FollowingPostgres):
    """A former primary, made a standby of the one that took its place by `pg_rewind`."""

    def _prepare(self, lock: ServerLock) -> None:
        source = make_conninfo(self._follows.url, application_name=STANDBY)
        super()._prepare(lock)
        self._run(
            "pg_rewind",
            f"--target-pgdata={self._data}",
            f"--source-server={source}",
            "--write-recovery-conf",
            "--no-sync",
        )


class PostgresPair:
    """A primary and its synchronous standby, and the urls with which services reach whichever of the two leads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.primary: EmbeddedPostgres = EmbeddedPostgres(directory / "a")
        self.standby = FollowingPostgres(directory / "b", follows=self.primary)

    async def start(self) -> None:
        """Start both, and let every commit of the primary wait for the standby."""
        await self.primary.start()
        await self.standby.start()
        await wait_for_standby(self.primary)

    async def fail_over(self) -> None:
        await self.primary.kill()
        await self.standby.promote()

    async def rejoin(self) -> None:
        """Make the former primary, which runs or not, the synchronous standby of the one that took its place."""
        await self.primary.stop()
        rejoining = RejoiningPostgres(self._directory / "a", follows=self.standby)
        self.primary, self.standby = self.standby, rejoining
        await self.standby.start()
        await wait_for_standby(self.primary)

    async def kill(self) -> None:
        await self.standby.kill()
        await self.primary.kill()

    def url_of(self, role: str) -> str:
        """Return a url with both hosts, for the one that can be written to."""
        one, other = (conninfo_to_dict(server.url_of(role)) for server in (self.primary, self.standby))
        ports = f"127.0.0.1:{one['port']},127.0.0.1:{other['port']}"
        return f"postgresql://{role}:{one['password']}@{ports}/kai?target_session_attrs=read-write"


async def wait_for_standby(primary: EmbeddedPostgres) -> None:
    """Have every commit of a server wait for its standby, from when that one follows."""
    await on(primary, f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'")
    await on(primary, "SELECT pg_reload_conf()")
    while await on(primary, "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'") is None:
        pass


async def on(server: EmbeddedPostgres, statement: str) -> Any:
    """Return the first row of what the superuser asks a server."""
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        cursor = await connection.execute(statement)  # type: ignore[arg-type]
        return await cursor.fetchone() if cursor.description else None
