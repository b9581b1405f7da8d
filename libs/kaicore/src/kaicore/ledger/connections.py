"""Connections to the log's Postgres: a small pool, the session settings that the log relies on, and retries.

A broken connection does not concern the caller as long as the server comes back soon. Work is repeated on a new
connection, which is safe because reading changes nothing and appending is idempotent. Only when the server stays away
does the caller get `LogUnavailable`.

A server may keep its connections and say nothing, such as a stopped process or one behind a network that drops packets.
Its socket is then shut down, which ends every wait for it. psycopg by itself waits for ever. So does a cancellation of
the wait, because psycopg first has the server cancel it.

Only time in which an answer could have been read counts. While the process computes between two turns of its event
loop, as a replay does, or gets no CPU, the server's answer lies unread. Nor does time count in which bytes pass: over a
slow network a large snapshot takes long.
"""

import asyncio
import math
import os
import random
import re
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Self, TypeVar, cast

import psycopg
from psycopg import errors
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from kaicore.errors import ConfigurationError, KaiError, LogError, LogUnavailable, NotMigrated

_QUOTED = re.compile(r"""(["'])(.*?)\1""", re.DOTALL)
#: What parameters of a url are set to: `?password=x` is a login, too.
_VALUE = re.compile(r"[?&][^=&]*=([^&]*)")

#: What libpq says where it cannot read an option's value. It calls that a connection that failed.
_UNREADABLE = re.compile(r"invalid (port number|integer value|\w+ value)")
_PORTS = range(1, 65536)


def check_ports(url: str) -> None:
    """See that a url's ports are such as servers have: psycopg takes any other for a host that cannot be found now.

    Raises ConfigurationError: naming the port.
    """
    try:
        ports = str(psycopg.conninfo.conninfo_to_dict(url).get("port") or "")
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(f"not the url of a Postgres database: {without_login(url, error)}") from None
    for port in filter(None, ports.split(",")):
        if not (port.isascii() and port.isdecimal() and int(port) in _PORTS):
            wrong = without_login(url, f'port "{port}" is no number from 1 to 65535')
            raise ConfigurationError(f"not the url of a Postgres database: {wrong}")


def is_hopeless(error: object) -> bool:
    """Tell whether a connection failed by an option of the url, which no repetition cures."""
    return _UNREADABLE.search(str(error)) is not None


def without_login(url: str, error: object) -> str:
    """Return an error's text in one line, without words of the url's login.

    They quote what they cannot read: of a misspelled scheme the whole url, of a password with an `@`, `/` or `%` that
    is not encoded the rest of the password. Where the url itself has quotes, the quoted part
    cannot be found, and none of the text is returned.
    """
    if '"' in url or "'" in url:
        return "its url cannot be used, and has quotes, so the reason is not known without the login"
    # The part of a url before the last @, its parameters, and all of words like `password=x`.
    login = "\n".join((url.rpartition("@")[0], *_VALUE.findall(url))) if "://" in url else url

    def shown(match: re.Match[str]) -> str:
        quote, word = match.groups()
        return f"{quote}…{quote}" if "@" in word or "://" in word or (word and word in login) else match[0]

    return _QUOTED.sub(shown, " ".join(str(error).split()))


Connection = psycopg.AsyncConnection[TupleRow]
_T = TypeVar("_T")

#: What every session sets, in Postgres' own units.
_SESSION = {
    # An appender that stalls in its transaction keeps its cluster's head: it is thrown out, not waited for.
    "idle_in_transaction_session_timeout": "5s",
    "lock_timeout": "2s",
    # A dead client's transaction is noticed even while it waits for a lock.
    "client_connection_check_interval": "1s",
    # Each statement must see what was committed before it got its lock.
    "default_transaction_isolation": "read committed",
    # Where the migrations make the tables.
    "search_path": "public, pg_temp",
}

#: Said by libpq: a server that vanished without a word is noticed within half a minute.
_TRANSPORT = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

#: Seconds between attempts: the first and the longest.
_FIRST_DELAY_S = 0.05
_LAST_DELAY_S = 1.0

#: Seconds that the pool tries to connect, and that work waits for it, before `run` begins anew.
_POOL_S = 2.0

#: Seconds after which a connection beyond the first is closed: each is a process of Postgres, of 2 to 6 MB.
_IDLE_S = 30.0

#: Least seconds that work has before its server is hung up on; a longer patience gives it as much.
_LEAST_ANSWER_S = 10.0

#: Seconds to connect at most, whatever the patience is.
_MOST_CONNECT_S = 20

#: Looks at the clock in the time that an answer may take.
_LOOKS = 20

#: The shortest time to connect that libpq knows, seconds; 0 would be none at all.
_LEAST_CONNECT_S = 2

#: Commits of our role that wait for a standby, and which standby that is; sessions of other roles are not shown.
_STANDBY_WAITS = """
SELECT count(*), current_setting('synchronous_standby_names') FROM pg_stat_activity
WHERE wait_event = 'SyncRep' AND datname = current_database()
"""

#: Seconds that looking for such commits takes at most.
_STANDBY_LOOK_S = 2.0

#: Class of errors of a server that has not what it takes: its disk is full, it is out of memory.
_RESOURCES_CLASS = "53"

#: Operational errors that no repetition cures: a program limit is exceeded, a login is refused.
_HOPELESS_CLASSES = ("54", "28")

#: Class of errors of a server that is broken, such as data that cannot be read: they say nothing of what was asked.
_BROKEN_CLASS = "XX"

#: Errors of other classes that a repetition cures: thrown out while idle, and on a server that is being replaced.
_PASSING = (errors.IdleInTransactionSessionTimeout, errors.TransactionTimeout, errors.ReadOnlySqlTransaction)


class Connections:
    """A pool of autocommit connections to one database."""

    def __init__(
        self, url: str, *, size: int, patience_s: float, application: str, standby_will_do: bool = True
    ) -> None:
        """Args:
        url: `postgresql://…`.
        patience_s: how long work is repeated before `LogUnavailable`.
        application: how the sessions are called in `pg_stat_activity`.
        standby_will_do: False connects to no standby, unless the url says which servers will do.
        """
        self._url = url
        #: Why the pool's last attempt to connect failed.
        self.refusal = ""
        self._patience_s = patience_s
        self._answer_s = max(patience_s, _LEAST_ANSWER_S)
        #: What the server lacked when work was last refused for want of it, and when that was (the event loop's clock).
        self.lacking, self.lacking_since_s = "", 0.0
        #: When the server last answered (the event loop's clock).
        self.answered_at = -math.inf
        connect_s = min(max(_TRANSPORT["connect_timeout"], round(patience_s / 3)), _MOST_CONNECT_S)
        self._options: dict[str, Any] = {
            **_TRANSPORT,
            "connect_timeout": connect_s,
            # Whatever the environment, the role or the database sets.
            "client_encoding": "utf8",
            "application_name": application,
            "autocommit": True,
            **({} if standby_will_do or "target_session_attrs" in url else {"target_session_attrs": "primary"}),
        }
        self._tried: Connection | None = None
        self._pool = AsyncConnectionPool(
            url,
            # It uses only `connect` of a class.
            connection_class=cast("type[Connection]", _TriedFirst(self)),
            kwargs=self._options,
            configure=_configure,
            min_size=1,
            max_size=size,
            max_idle=_IDLE_S,
            num_workers=1,
            open=False,
            reconnect_timeout=_POOL_S,
        )

    async def open(self) -> None:
        """Connect.

        Raises:
            ConfigurationError: the url is none, or the database has no log in it.
            LogUnavailable: the server does not answer, or does not let us in.
        """
        check_ports(self._url)
        connection = await self.connect()
        try:
            await connection.execute("SELECT FROM log_head, event_id, seal, body_shape LIMIT 0")
        except BaseException as error:
            await connection.close()
            if isinstance(error, psycopg.Error):
                raise _translated(error) from error
            raise
        self._tried = connection
        await self._pool.open()

    async def close(self) -> None:
        """Close all connections; further work raises `LogUnavailable`."""
        await self._pool.close()
        if (tried := self.take_tried()) is not None:
            await tried.close()

    def take_tried(self) -> Connection | None:
        """Return the connection by which opening has tried the database, to the first who asks."""
        tried, self._tried = self._tried, None
        return tried

    def hasten(self, patience_s: float) -> None:
        """Repeat work no longer than `patience_s` from now on, work that is under way included."""
        self._patience_s = min(self._patience_s, patience_s)

    async def ping(self, *, timeout_s: float) -> None:
        """Ask the server for a sign of life, where all connections of the pool are busy on one that is for this alone.

        Connections of the pool that have ended, as by a restart, are discarded, and say nothing of the server.

        Raises LogUnavailable: there was none in `timeout_s`, once to connect and once to answer.
        """
        try:
            for _ in range(self._pool.get_stats()["pool_available"]):
                with suppress(_EndedError):
                    async with self._pool.connection(timeout=timeout_s) as connection:
                        await self._answers(connection, timeout_s)
                        return
            async with await self.connect(timeout_s=timeout_s) as connection:
                await self._answers(connection, timeout_s)
        except psycopg.Error as error:
            raise _translated(error) from error

    async def _answers(self, connection: Connection, timeout_s: float) -> None:
        with _Deadline(connection, timeout_s):
            try:
                await connection.execute("SELECT")
            except psycopg.OperationalError as error:
                if connection.closed:
                    raise _EndedError(str(error)) from error
                raise
        self.answered_at = asyncio.get_running_loop().time()

    async def connect(self, *, timeout_s: float | None = None) -> Connection:
        """Return a connection outside the pool, with the same settings.

        Args:
            timeout_s: seconds that connecting may take, two at least; by default five, or a third of a longer patience.

        Raises:
            ConfigurationError: the url is none.
            LogUnavailable: the server does not answer, or does not let us in.
        """
        try:
            connection = await self._connect(timeout_s)
        except (psycopg.ProgrammingError, psycopg.OperationalError) as error:
            said = without_login(self._url, error)
            if isinstance(error, psycopg.ProgrammingError) or is_hopeless(error):
                raise ConfigurationError(f"not the url of a Postgres database: {said}") from None
            # libpq does not say which error it was, so a wrong password looks like a server that is starting up.
            raise LogUnavailable(f"cannot connect to Postgres: {said}") from None
        try:
            await _configure(connection)
        except BaseException as error:
            await connection.close()
            if isinstance(error, psycopg.Error):
                raise _translated(error) from error
            raise
        return connection

    async def _connect(self, timeout_s: float | None) -> Connection:
        """Connect to the end, even when cancelled.

        A connection that was cancelled halfway leaves its socket open until garbage is collected, and up to a minute
        long a session on the server that waits for the password, and that DROP DATABASE in turn waits for.
        """
        options = (
            self._options
            if timeout_s is None
            else {**self._options, "connect_timeout": max(_LEAST_CONNECT_S, round(timeout_s))}
        )
        connecting = asyncio.ensure_future(psycopg.AsyncConnection.connect(self._url, **options))
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            while not connecting.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([connecting])
            if connecting.exception() is None:
                await connecting.result().close()
            raise

    async def run(
        self, work: Callable[[Connection], Awaitable[_T]], *, repeat: bool = True, answer_s: float | None = None
    ) -> _T:
        """Do work on a connection, again on another one when it breaks.

        Args:
            work: must bear repetition, also after it succeeded without our learning of it.
            repeat: False does it once, and raises any failure at once.
            answer_s: how long work that is not repeated may take; None: however long it takes.

        Raises:
            LogUnavailable: the server stays away, or the pool is closed.
            LogError: the server refuses the work; `ConfigurationError` where the database is not a log.
        """
        task = asyncio.current_task()
        assert task is not None
        cancelled = task.cancelling()
        time = asyncio.get_running_loop().time
        spent_s = 0.0
        delay_s = _FIRST_DELAY_S
        while True:
            pool_s = max(min(_POOL_S, self._patience_s - spent_s), 0.01)
            began, heard = time(), None
            try:
                # In small portions, because the pool tries to connect anew only when it is asked anew.
                async with self._pool.connection(timeout=pool_s) as connection:
                    spent_s += min(time() - began, pool_s)
                    with _Deadline(connection, self._answer_s if repeat else answer_s) as heard:
                        result = await work(connection)
            except PoolClosed as error:
                raise LogUnavailable("the log is closed") from error
            except psycopg.Error as error:
                if not _passes(error):
                    raise _translated(error) from error
                if error.sqlstate is not None and error.sqlstate.startswith(_RESOURCES_CLASS):
                    self.lacking, self.lacking_since_s = str(error), time()
                spent_s += delay_s + (min(time() - began, pool_s) if heard is None else heard.waited_s)
                if not repeat or spent_s > self._patience_s:
                    raise await self._given_up(error) from error
                if not isinstance(error, PoolTimeout):
                    # Where one connection broke, the idle ones broke too.
                    with suppress(PoolClosed):
                        await self._pool.check()
            else:
                if task.cancelling() > cancelled:
                    # psycopg waits by wait_for, which in Python 3.11 may swallow a cancellation.
                    raise asyncio.CancelledError
                self.answered_at = time()
                return result
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
            delay_s = min(2 * delay_s, _LAST_DELAY_S)

    async def rows(self, query: Any, parameters: Any, *, prepare: bool | None = None) -> list[tuple[Any, ...]]:
        """Return what a query finds; see `run`."""

        async def fetch(connection: Connection) -> list[tuple[Any, ...]]:
            async with connection.cursor(binary=True) as cursor:
                await cursor.execute(query, parameters, prepare=prepare)
                return await cursor.fetchall()

        return await self.run(fetch)

    async def _given_up(self, error: psycopg.Error) -> LogError | ConfigurationError:
        """Return why work was given up; a lock or an answer that does not come may be a standby's that is away."""
        if isinstance(error, PoolTimeout) and self.refusal:
            return LogUnavailable(f"cannot connect to Postgres: {without_login(self._url, self.refusal)}")
        if not isinstance(error, (errors.LockNotAvailable, _NoAnswerError)) or self._patience_s < _STANDBY_LOOK_S:
            return _translated(error)
        try:
            async with await self.connect(timeout_s=_STANDBY_LOOK_S) as connection:
                with _Deadline(connection, _STANDBY_LOOK_S):
                    ((waiting, names),) = await (await connection.execute(_STANDBY_WAITS)).fetchall()
        except (psycopg.Error, KaiError):
            return _translated(error)
        if not waiting:
            return _translated(error)
        self.lacking = (
            f"its commits wait for the synchronous standby ({names!r} in synchronous_standby_names), "
            "which does not confirm them"
        )
        self.lacking_since_s = asyncio.get_running_loop().time()
        return LogUnavailable(f"Postgres cannot do it now: {self.lacking}")

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Connection]:
        """Give a connection of its own in a read-only transaction that sees one state of the database.

        It is not repeated: psycopg's errors come out as errors of the log.
        """
        connection = await self.connect()
        try:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield connection
        except psycopg.Error as error:
            raise _translated(error) from error
        finally:
            await connection.close()


class _EndedError(psycopg.OperationalError):
    """The connection had ended, or did instead of an answer."""


class _NoAnswerError(psycopg.OperationalError):
    """The server was hung up on because it did not answer in time."""


class _Deadline:
    """Hangs up on a server that does not answer in time; what waits for it fails with an `OperationalError`.

    Attributes:
        waited_s: seconds of silence in which an answer would have been heard: a look that comes late counts as one that
            does not.
    """

    __slots__ = ("_connection", "_look_s", "_passed_bytes", "_seconds", "_timer", "waited_s")

    def __init__(self, connection: Connection, seconds: float | None) -> None:
        self._connection = connection
        self._seconds = seconds
        self._look_s = (seconds or 0.0) / _LOOKS
        self._timer: asyncio.TimerHandle | None = None
        self._passed_bytes = -1
        self.waited_s = 0.0

    def __enter__(self) -> Self:
        if self._seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._look_s, self._look)
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._passed and isinstance(error, psycopg.OperationalError):
            raise _NoAnswerError(f"no answer in {self._seconds:g} s") from error

    @property
    def _passed(self) -> bool:
        # Sums of fractions are not exact.
        return self._seconds is not None and self.waited_s > self._seconds - self._look_s / 2

    def _look(self) -> None:
        before, self._passed_bytes = self._passed_bytes, _passed_bytes(self._connection)
        self.waited_s = self.waited_s + self._look_s if before in (-1, self._passed_bytes) else 0.0
        if self._passed:
            self._hang_up()
        else:
            self._timer = asyncio.get_running_loop().call_later(self._look_s, self._look)

    def _hang_up(self) -> None:
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as connected:
            connected.shutdown(socket.SHUT_RDWR)


def _passed_bytes(connection: Connection) -> int:
    """Return how many bytes the server has taken and sent; always 0 where the system does not tell."""
    if sys.platform != "linux":
        return 0
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as connected:
        # `tcpi_bytes_acked` and `tcpi_bytes_received` of `struct tcp_info` (linux/tcp.h).
        info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
        return sum(struct.unpack_from("=QQ", info, 120)) if len(info) == 136 else 0
    return 0


class _TriedFirst:
    """The connections of a pool, the first of which is that by which opening has tried the database."""

    def __init__(self, owner: Connections) -> None:
        self._owner = owner

    async def connect(self, url: str, **options: Any) -> Connection:
        connection = self._owner.take_tried()
        try:
            connection = connection or await psycopg.AsyncConnection.connect(url, **options)
        except psycopg.Error as error:
            self._owner.refusal = str(error)
            raise
        self._owner.refusal = ""
        return connection


async def _configure(connection: Connection) -> None:
    settings = [part for setting in _SESSION.items() for part in setting]
    calls = ", ".join(["set_config(%s, %s, false)"] * len(_SESSION))
    await connection.execute(f"SELECT {calls}", settings)


def _passes(error: psycopg.Error) -> bool:
    if isinstance(error, psycopg.OperationalError):
        return error.sqlstate is None or error.sqlstate[:2] not in _HOPELESS_CLASSES
    broken = (error.sqlstate or "").startswith(_BROKEN_CLASS)
    return broken or isinstance(error, (psycopg.InterfaceError, *_PASSING))


def _translated(error: psycopg.Error) -> LogError | ConfigurationError:
    if isinstance(error, (errors.UndefinedTable, errors.UndefinedColumn, errors.UndefinedFunction)):
        return NotMigrated(f"the database has no log of this version, migrate it: {error}")
    if isinstance(error, errors.InsufficientPrivilege):
        return ConfigurationError(f"the database role may not do this: {error}")
    if _passes(error):
        return LogUnavailable(f"Postgres {'cannot do it now' if error.sqlstate else 'does not answer'}: {error}")
    return LogError(f"Postgres refuses: {error}")
