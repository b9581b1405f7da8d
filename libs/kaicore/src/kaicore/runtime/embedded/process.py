"""A server as a child process: started once, never twice on the same data, and never outliving us.

An `flock` on a file beside the data distinguishes a live server from the leftovers of a dead one. The server inherits
it, and so do its own children: the lock is free when the last of them is gone, however they ended. A process id that
another process has now cannot mislead us. After a `kill -9` of Postgres the next start waits until the orphaned
backends have noticed, as Postgres itself demands.

On Linux the server is signalled to stop when the thread that started it ends, so start it from a thread that stays,
such as the main one. On other systems a server outlives a parent that is killed; the next start on the same data then
names that process.
"""

import asyncio
import os
import random
import signal
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from kaicore.errors import ConfigurationError, EmbeddedServerError
from kaicore.runtime.embedded import launch
from kaicore.runtime.embedded.places import ServerUser
from kaicore.runtime.file_lock import FileLock
from kaicore.runtime.supervision import Child, last_lines_of

#: Seconds that a server has to get ready: recovery after a crash included.
_START_S = 120.0

#: Seconds that a server has to stop by itself.
_STOP_S = 30.0

#: Seconds to wait for the last processes of a server that has been killed.
_ORPHANS_S = 20.0

#: Seconds between two looks at something that only can be looked at.
_LOOK_S = 0.01

#: Lines of a server's log that an error shows.
_SHOWN_LINES = 15

#: Bytes of a server's log; a larger one is put aside at the next start.
_MOST_LOG_BYTES = 16 << 20

#: Ports that are tried before giving up.
_PORTS = 20


class _PortTakenError(Exception):
    """The server found its port taken."""


class ServerLock(FileLock):
    """A lock in which `launch` notes the server and the process that started it."""

    def holder(self) -> int | None:
        """Return the last process that noted itself as the holder; it may be dead."""
        noted = self._noted()
        return noted[0] if noted else None

    def in_use(self) -> bool:
        """True if the holder is alive, and will not end with a parent that has died."""
        noted = self._noted()
        if not noted or not alive(noted[0]):
            return False
        return len(noted) < 2 or _parent(noted[0]) in (noted[1], None)

    def _noted(self) -> list[int]:
        fields = os.pread(self.fd, 40, 0).split()
        return [int(field) for field in fields] if all(field.isdigit() for field in fields) else []


class EmbeddedServer(ABC):
    """A server with its data, log and password in one directory, from which a later start resumes."""

    #: What people call it.
    name: ClassVar[str]
    #: Signals: stop in order, and what the server gets when we die.
    stop_signal: ClassVar[signal.Signals]
    #: Its environment beside the least that a program needs, and how much later than asked for its waits may end.
    environment: ClassVar[Mapping[str, str]] = {}
    timer_slack_ns: ClassVar[int] = 0

    def __init__(self, directory: Path, *, port: int | None = None, inherit: tuple[int, ...] = ()) -> None:
        """Args:
        directory: of the server's data and log; made when missing.
        port: to listen on; by default a free one, kept when the same object starts its server again.
        inherit: descriptors that the server gets, such as a lock that is to last as long as it does.
        """
        self._inherit = inherit
        self._directory = directory.absolute()
        self._port = port
        self._child: Child | None = None
        self._user = ServerUser()
        self._secret = ""

    @property
    def url(self) -> str:
        """The address for clients, password included.

        Raises EmbeddedServerError: the server has not been started yet.
        """
        if self._port is None or not self._secret:
            raise EmbeddedServerError(f"{self.name} below {self._directory} has not been started")
        return self._url(self._port)

    @property
    def log_file(self) -> Path:
        """The server's own log."""
        return self._directory / f"{self.name.lower()}.log"

    @property
    def pid(self) -> int | None:
        """The server's process id; None while it does not run."""
        return self._child.pid if self._child is not None and self._child.running else None

    async def start(self) -> None:
        """Start the server and wait until it takes connections; do nothing when it runs.

        Raises:
            ConfigurationError: the wheel is missing, the directory cannot be used or is in use, the port is taken.
            EmbeddedServerError: the server ended, was not ready in two minutes, or its files cannot be written.
        """
        if self.pid is not None:
            return
        try:
            await self._start()
        except OSError as error:
            raise EmbeddedServerError(
                f"{self.name}: {error.filename or self._directory}: {error.strerror or error}"
            ) from error

    async def _start(self) -> None:
        self._check()
        with await self._lock() as lock:
            preparing = asyncio.ensure_future(asyncio.to_thread(self._prepare, lock))
            try:
                await asyncio.shield(preparing)
            except asyncio.CancelledError:
                # The thread goes on whatever we do, and needs the lock until it is done.
                await asyncio.wait([preparing])
                raise
            self._put_log_aside()
            for port in [self._port] if self._port else _free_ports():
                try:
                    await self._start_on(port, lock)
                except _PortTakenError:
                    continue
                self._port = port
                return
        raise ConfigurationError(f"{self.name}: port {self._port or 'any'} of 127.0.0.1 is taken")

    async def stop(self) -> None:
        """Stop the server in order and wait until it is gone; do nothing when it does not run."""
        if self._child is None:
            return
        try:
            await self._child.stop(self.stop_signal, patience_s=_STOP_S)
        except TimeoutError:
            raise EmbeddedServerError(f"{self.name}: process {self._child.pid} does not end") from None
        self._child = None

    async def kill(self) -> None:
        """Kill the server as a crash would (`kill -9`) and wait until it and its children are gone."""
        if self._child is None:
            return
        await self._child.kill()
        self._child = None
        # Free when the last orphan has gone.
        with await self._lock():
            pass

    async def ended(self) -> None:
        """Wait until the server runs no more; return at once when it does not run."""
        if self._child is not None:
            await self._child.ended()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @abstractmethod
    def _url(self, port: int) -> str:
        """Return `url` for a port."""

    @abstractmethod
    def _check(self) -> None:
        """Find programs and user and make the directory; raise ConfigurationError."""

    @abstractmethod
    def _prepare(self, lock: ServerLock) -> None:
        """Make the data where there is none; runs in a thread and may take a second."""

    @abstractmethod
    def _command(self, port: int) -> list[str]:
        """Return the server's command line, and write the files that it names."""

    @abstractmethod
    async def _ready(self, port: int) -> bool:
        """True if our server, and no other process on that port, takes connections; answers within a second or so."""

    def _put_log_aside(self) -> None:
        """Begin a new log where the old one is large; the server keeps its file open, so only a start can."""
        with suppress(OSError):
            if self.log_file.stat().st_size > _MOST_LOG_BYTES:
                self.log_file.rename(self.log_file.with_name(f"{self.log_file.name}.1"))

    async def _start_on(self, port: int, lock: ServerLock) -> None:
        start_of_log = self.log_file.stat().st_size if self.log_file.exists() else 0
        self._child = child = self._spawn(self._command(port), lock)
        try:
            if await child.until_ready(lambda: self._ready(port), within_s=_START_S):
                return
            problem = f"ended with code {child.code} while starting"
        except TimeoutError:
            problem = f"was not ready in {_START_S:.0f} s"
        except BaseException:
            self._discard(child)
            raise
        self._discard(child)
        shown = last_lines_of(self.log_file, since=start_of_log, most=_SHOWN_LINES)
        if "address already in use" in shown.lower():
            raise _PortTakenError
        raise EmbeddedServerError(f"{self.name} {problem}; {self.log_file} says:\n{shown}")

    def _discard(self, child: Child) -> None:
        child.discard()
        self._child = None

    def _spawn(self, command: list[str], lock: ServerLock) -> Child:
        launcher = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), str(int(self.stop_signal))]
        # Opened here, and by us, so that the log is ours to read, whichever user the server runs as.
        with self.log_file.open("ab") as log:
            return Child(
                [*launcher, *map(str, (self._user.uid, self._user.gid, lock.fd, self.timer_slack_ns)), *command],
                environment={"PATH": os.defpath, "LC_ALL": "C", **self.environment},
                stdout=log,
                stderr=log,
                inherit=(lock.fd, *self._inherit),
            )

    async def _lock(self) -> ServerLock:
        lock = ServerLock(self._directory / "lock")
        try:
            async with asyncio.timeout(_ORPHANS_S):
                while not lock.taken():
                    if lock.in_use():
                        raise ConfigurationError(f"{self._directory}: process {lock.holder()} is using it")
                    # The server or who started it is dead, and the others are about to notice; or a start is under
                    # way elsewhere.
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            lock.release()
            raise ConfigurationError(f"{self._directory}: processes of a server are still using it") from None
        except BaseException:
            lock.release()
            raise
        return lock


def alive(pid: int) -> bool:
    """True if there is a process of that id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _parent(pid: int) -> int | None:
    """Return the parent of a process; None where it is not known."""
    with suppress(OSError, ValueError, IndexError):
        # The program's name is in parentheses and may itself hold any character.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def _free_ports() -> Iterator[int]:
    """Yield ports on which no process listens.

    The server's own attempt to listen decides, and another port is taken when it fails; so nothing can come between.
    Ports below the kernel's ephemeral range are used, because a client that keeps trying to reach an ephemeral port of
    its own host will in the end connect to itself, and then keeps the server from coming back.
    """
    lowest, ephemeral = 10_240, 32_768
    with suppress(OSError):
        ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if ephemeral < 2 * lowest:
        ephemeral = 65_536
    for _ in range(_PORTS):
        port = random.randrange(lowest, ephemeral)
        with socket.socket() as probe:
            free = probe.connect_ex(("127.0.0.1", port)) != 0
        if free:
            yield port
