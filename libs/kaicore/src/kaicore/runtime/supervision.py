"""Supervision of child processes: a run from start to end (`Child`), its output, and its restart (`Supervisor`).

A process that has ended is never signalled, for its id may be another process's by then. It is a `subprocess.Popen`
and not one of asyncio's: a server may be started in one event loop and stopped in another.

`ProcessOutput` is a file of bounded size, and its last lines in memory. The process writes into a pipe of ours, not
into the file. So a large file can be rotated without losing a line, a full disk costs lines and not the process, and
the last lines are those of this run.

A supervisor restarts a process that ends, after a pause that doubles with each failure.
"""

import asyncio
import fcntl
import os
import signal
import subprocess
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from kaicore.backoff import backoff
from kaicore.interpreter import readable
from kaicore.runtime.fork_server import ForkedProcess, ForkServer

#: The program that runs several services in one process, and the variable that names them.
SHARED_PROCESS, SHARED_SERVICES = "kaicore.runtime.service.shared_process", "KAI_SHARED_SERVICES"


class SharedService(msgspec.Struct, frozen=True):
    """A service that shares a process (`environment`: beside the process's)."""

    module: str
    environment: Mapping[str, str]


def shared_environment(services: Sequence[SharedService]) -> dict[str, str]:
    """Return the environment that has `SHARED_PROCESS` run these services."""
    return {SHARED_SERVICES: msgspec.json.encode(services).decode()}


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses before restarts, seconds.

    Attributes:
        forgiven: a run that was so long was good health: failures before it are forgotten.
    """

    first: float = 0.5
    most: float = 30.0
    forgiven: float = 60.0


class Supervisor:
    """Runs something again and again until it is asked to stop or it is no use."""

    def __init__(
        self, run: Callable[[], Awaitable[None]], *, again: Callable[[float], bool], pauses: Pauses | None = None
    ) -> None:
        """Args:
        run: runs it once, from start to end; also returns when it cannot be started.
        again: called after each run with the seconds of the pause that follows; False gives it up.
        pauses: by default those of `Pauses`.
        """
        self._run = run
        self._again = again
        self._pauses = pauses or Pauses()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to run it."""
        self._task = asyncio.create_task(self._keep_running())

    def stop_restarting(self) -> None:
        """Let the present run be the last."""
        self._stopping.set()

    async def stop(self) -> None:
        """Run it no more; a run that is under way is cancelled."""
        self._stopping.set()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _keep_running(self) -> None:
        time, failures = asyncio.get_running_loop().time, 0
        while not self._stopping.is_set():
            began = time()
            await self._run()
            failures = 1 if time() - began > self._pauses.forgiven else failures + 1
            pause_s = backoff(failures, first=self._pauses.first, most=self._pauses.most)
            if self._stopping.is_set() or not self._again(pause_s):
                return
            await asyncio.sleep(pause_s)


#: Bytes of a log file; then it is put aside.
_MOST_BYTES = 16 << 20
#: Files that are kept aside: `<file>.1` is the youngest.
_ASIDE = 3
#: Lines that are searched for a process's last words.
_LAST_LINES = 20
#: Bytes that a process can write while we are stopped (Ctrl-Z), as far as the system allows.
_PIPE_BYTES = 1 << 20


class RotatedFile:
    """A file that is put aside when it is large. Nothing here raises: what cannot be written is lost."""

    def __init__(self, path: Path, *, most_bytes: int = _MOST_BYTES) -> None:
        """Args:
        path: of the file; what is in it stays.
        most_bytes: size at which it is put aside.
        """
        self._path = path
        self._most_bytes = most_bytes
        self._file: IO[bytes] | None = None

    def write(self, data: bytes) -> None:
        """Append whole lines."""
        with suppress(OSError):
            if self._file is None:
                self._file = self._path.open("ab", buffering=0)
            if self._file.tell() + len(data) > self._most_bytes and self._file.tell():
                self.close()
                self._put_aside()
                self._file = self._path.open("ab", buffering=0)
            self._file.write(data)

    def close(self) -> None:
        """Close it; a later write opens it again."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _put_aside(self) -> None:
        for number in range(_ASIDE, 0, -1):
            younger = self._path if number == 1 else _aside(self._path, number - 1)
            with suppress(FileNotFoundError):
                younger.rename(_aside(self._path, number))


def _aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


class _LogLine(msgspec.Struct):
    error: str = ""
    service: str = ""


class FileOfEach:
    """A process's file, and one for each of the services that share the process: to which a line goes, it says."""

    def __init__(self, rest: RotatedFile, by_service: Mapping[str, RotatedFile]) -> None:
        self._rest = rest
        self._by_service = by_service

    def write(self, data: bytes) -> None:
        """Append whole lines."""
        for line in data.splitlines(keepends=True):
            service = ""
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                service = msgspec.json.decode(line, type=_LogLine).service
            self._by_service.get(service, self._rest).write(line)

    def close(self) -> None:
        """Close all; a later write opens one again."""
        for file in (self._rest, *self._by_service.values()):
            file.close()


class ProcessOutput:
    """One run's output, from its start to its end."""

    def __init__(self, file: RotatedFile | FileOfEach, *, on_line: Callable[[bytes], None] | None = None) -> None:
        self._file = file
        self._on_line = on_line
        self._last: deque[bytes] = deque(maxlen=_LAST_LINES)
        self._partial = b""
        self._read, self.write_end = os.pipe()
        os.set_blocking(self._read, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):
                fcntl.fcntl(self._read, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        asyncio.get_running_loop().add_reader(self._read, self._take)

    def started(self) -> None:
        """The process has its end of the pipe; ours is closed."""
        os.close(self.write_end)
        self.write_end = -1

    def close(self) -> None:
        """Take what is left."""
        self._take()
        asyncio.get_running_loop().remove_reader(self._read)
        os.close(self._read)
        if self.write_end >= 0:
            os.close(self.write_end)
        if self._partial:
            self._write(self._partial + b"\n")
        self._file.close()

    def last_words(self) -> str:
        """The process's own words about its end: the error of its last line that has one."""
        for line in reversed(self._last):
            text = line.decode(errors="replace")
            try:
                error = msgspec.json.decode(line, type=_LogLine).error
            except msgspec.DecodeError:
                error = text.strip()
            if error:
                return error
        return "it said nothing"

    def _take(self) -> None:
        while True:
            try:
                data = os.read(self._read, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                asyncio.get_running_loop().remove_reader(self._read)
                return
            lines, newline, rest = data.rpartition(b"\n")
            if newline:
                self._write(self._partial + lines + newline)
                self._partial = rest
            else:
                self._partial += rest
            if len(self._partial) > _PIPE_BYTES:
                self._write(self._partial)
                self._partial = b""

    def _write(self, text: bytes) -> None:
        lines = text.splitlines()
        if self._on_line is not None:
            for line in lines:
                self._on_line(line)
        self._last.extend(lines[-_LAST_LINES:])
        self._file.write(text)


def last_lines_of(file: Path, *, since: int, most: int = _LAST_LINES) -> str:
    """Return the last lines of a log that a process writes itself.

    Args:
        since: bytes that it had before; they do not count.
    """
    with file.open("rb") as log:
        log.seek(since)
        return "\n".join(log.read().decode(errors="replace").splitlines()[-most:])


#: Seconds between two looks at something that only can be looked at.
_LOOK_S = 0.01
#: Seconds that a process that was killed has to be gone.
_KILLED_S = 20.0


class Child:
    """One run of a process, from its start to its end."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        inherit: Sequence[int] = (),
        start_new_session: bool = False,
        forks: ForkServer | None = None,
    ) -> None:
        """Start it. Its standard input is empty. Raises OSError: the program cannot be run.

        Args:
            environment: all of it; None for ours.
            stdout: where its standard output goes; None for where ours goes.
            start_new_session: whether a Ctrl-C on our terminal is not for it.
            forks: forks it, in a session of its own, if it can.
        """
        self._process: subprocess.Popen[bytes] | ForkedProcess
        if forks is not None:
            forked = forks.started(
                command,
                environment=os.environ if environment is None else environment,
                stdout=stdout,
                stderr=stderr,
                inherit=inherit,
            )
            if forked is not None:
                self._process = forked
                return
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            pass_fds=inherit,
            start_new_session=start_new_session,
        )

    @property
    def pid(self) -> int:
        """Its process id, also after its end."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        """True if it has not ended."""
        return self.code is None

    def send(self, number: int) -> None:
        """Send it a signal; do nothing where it has ended."""
        if self.running:
            self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end; return its exit code."""
        with suppress(AttributeError, OSError):
            # Some systems and sandboxes have no such descriptors.
            descriptor = os.pidfd_open(self.pid) if self.running else -1
            try:
                if descriptor >= 0:
                    await readable(descriptor)
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
        while (code := self.code) is None:  # noqa: ASYNC110  # the end of a process sets no event
            await asyncio.sleep(_LOOK_S)
        return code

    async def until_ready(self, is_ready: Callable[[], Awaitable[bool]], *, within_s: float) -> bool:
        """Wait until it is ready; return False if it ends first.

        Raises TimeoutError: it is neither ready nor has it ended.

        Args:
            is_ready: asked again and again; answers soon.
            within_s: seconds that it has.
        """
        async with asyncio.timeout(within_s):
            while not await is_ready():
                if not self.running:
                    return False
                await asyncio.sleep(_LOOK_S)
        return True

    async def stop(
        self, number: int = signal.SIGTERM, *, patience_s: float, killing: Callable[[], None] | None = None
    ) -> int:
        """Ask it to end, kill it if it does not, and wait until it is gone; return its exit code.

        Raises TimeoutError: it does not even end when it is killed.

        Args:
            patience_s: seconds that it has to end by itself.
        """
        self.send(number)
        with suppress(TimeoutError):
            return await asyncio.wait_for(self.ended(), patience_s)
        if self.running and killing is not None:
            killing()
        return await self.kill()

    async def kill(self) -> int:
        """Kill it and wait until it is gone; return its exit code. Raises TimeoutError: it does not end."""
        self.send(signal.SIGKILL)
        return await asyncio.wait_for(self.ended(), _KILLED_S)

    def discard(self) -> None:
        """Kill it and wait until it is gone, without letting anything else run: for an end that is under way."""
        self._process.kill()
        self._process.wait()
