"""A fork server: one process has imported the code of programs, and each run of a program is a fork of it.

A service imports a thousand modules, which takes it 1 to 2 seconds of CPU. A supervisor of a dozen services pays that
once: `ForkServer.fork` makes the server before the supervisor has an event loop or a thread, and the server imports
while the supervisor does other work. The server has one thread and no event loop, and its programs make theirs after
the fork. So nothing that cannot be forked is forked: no lock is held, no connection is open.

A program gets its arguments, environment and descriptors as if it had been started by itself, a session of its own, and
the name of its service for `ps -e` and `top`. Its command line, for `ps -f`, is that of the supervisor. It is signalled
through a pidfd, which never means another process.

A program outlives the server as little as its supervisor: the server ends when the supervisor's end of its socket is
closed, and `KAI_PARENT_PID` names the server. Where the server cannot be had, programs are started as usual.

Each request is one message on a Unix socket: the program as JSON, and as descriptors the socket that reports on this
run, its standard streams, and what it inherits. The reports are the process id, with the pidfd, and the exit code.
"""

import array
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, NoReturn, Self

import msgspec

from kaicore import GC_THRESHOLDS
from kaicore.interpreter import readable

#: Bytes of a request at most, and how many descriptors come with it.
_MOST_BYTES, _MOST_DESCRIPTORS = 1 << 18, 64
#: A report's bytes at most.
_REPORT_BYTES = 64
#: Descriptors on their way to their numbers, where no other is.
_ASIDE = 512
#: Bytes of a pool of CPython's allocator, of its least place that bytes fit in, of its largest, and between sizes.
_POOL, _LEAST_PLACE, _MOST_PLACE, _PLACE_STEP = 1 << 14, 48, 512, 16
#: Of an empty `bytes`; and at most held of one size.
_EMPTY, _MOST_HELD = sys.getsizeof(b""), 1 << 18
#: Seconds between two looks for the report of an exit that has happened.
_LOOK_S = 0.001


class Program(msgspec.Struct, frozen=True):
    """A program to run.

    Attributes:
        module: its function `main` is called.
        arguments: without the program's name.
        descriptors: the numbers under which it gets what it inherits.
        folder: working directory; empty for the server's.
    """

    module: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    descriptors: tuple[int, ...] = ()
    folder: str = ""


class ForkServer:
    """The supervisor's side of the server."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        """Args:
        control: takes requests; the server ends when it is closed.
        pid: of the server, which is a child of ours.
        """
        self._control = control
        self._pid = pid
        self._usable, self._waits = False, False

    @classmethod
    def fork(
        cls, modules: Iterable[str], *, at_once: bool = True, then: Callable[[], None] = lambda: None
    ) -> Self | None:
        """Fork the server from this process, which has one thread yet; None where this system has no pidfds.

        Args:
            modules: imported by the server, but for those that are not installed.
            at_once: whether it imports them now, and not when `imported` is called.
            then: see `serve`.
        """
        if not _has_pidfds():
            return None
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Neither's collector is to copy pages that both have.
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                ours.close()
                if at_once or its.recv(_REPORT_BYTES):
                    serve(its, modules, then=then)
            finally:
                os._exit(0)
        its.close()
        server = cls(ours, pid)
        server._waits = not at_once
        return server

    async def imported(self) -> None:
        """Wait until the server has imported everything, or has ended."""
        if self._waits:
            self._waits = False
            with suppress(OSError):
                self._control.send(b"import")
        await readable(self._control.fileno())
        self._usable = bool(self._control.recv(_REPORT_BYTES))

    def started(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdout: int | IO[bytes] | None,
        stderr: int | IO[bytes] | None,
        inherit: Sequence[int],
    ) -> "ForkedProcess | None":
        """Start `python -m MODULE ARGUMENT…` with an empty standard input; None for another command, or no server.

        Args:
            stdout: where its standard output goes; None for where ours goes.
            inherit: descriptors that it gets besides, under the same numbers.
        """
        if not self._usable or tuple(command[:2]) != (sys.executable, "-m") or max(inherit, default=0) >= _ASIDE:
            return None
        program = Program(command[2], tuple(command[3:]), dict(environment), tuple(inherit))
        with open(os.devnull, "rb") as empty:  # noqa: PTH123  # a descriptor is wanted
            streams = (empty, 1 if stdout is None else stdout, 2 if stderr is None else stderr)
            try:
                return request(self._control, program, [_number(one) for one in streams])
            except OSError:
                # It has been killed: so are its programs, which are started again without it.
                self._usable = False
                return None

    def close(self) -> None:
        """Have the server end, and wait until it is gone; its programs that run still get SIGTERM."""
        self._control.close()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def forking(
    modules: Sequence[str], *, at_once: bool = True, then: Callable[[], None] = lambda: None
) -> AbstractContextManager[ForkServer | None]:
    """Return a server that forks programs of these modules, for as long as it is entered; None where there is none.

    To be called before there is an event loop or a thread. `KAI_FORK_SERVICES=no` has each program start by itself: its
    command line and environment are its own then, in `/proc` as well.
    """
    forks = (
        None
        if not modules or os.environ.get("KAI_FORK_SERVICES") == "no"
        else ForkServer.fork(modules, at_once=at_once, then=then)
    )
    return nullcontext() if forks is None else forks


class ForkedProcess:
    """One run of a program; it has what `subprocess.Popen` has of a process."""

    def __init__(self, pid: int, pidfd: int, reports: socket.socket) -> None:
        """Args:
        reports: on which the server reports its exit code.
        """
        self.pid = pid
        self._pidfd = pidfd
        self._reports = reports
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            try:
                report = self._reports.recv(_REPORT_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if not report and not _is_readable(self._pidfd, 0):
                # The server was killed, and this process has not ended yet.
                return None
            self.returncode = int(report) if report else -signal.SIGKILL
            self._reports.close()
            os.close(self._pidfd)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code. Raises TimeoutError: it has not ended after so many seconds."""
        if self.poll() is None and not _is_readable(self._pidfd, timeout):
            raise TimeoutError(f"process {self.pid} has not ended after {timeout} s")
        while (code := self.poll()) is None:
            _is_readable(self._reports.fileno(), _LOOK_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal; do nothing where it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def request(control: socket.socket, program: Program, streams: Sequence[int]) -> ForkedProcess:
    """Have a server run a program. Raises OSError: the server is gone, or the request is larger than a message may be.

    Args:
        streams: its standard input, output and error.
    """
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        given = [its.fileno(), *streams, *program.descriptors]
        socket.send_fds(control, [msgspec.json.encode(program)], given)
    pid, descriptors = _received(ours)
    if not descriptors:
        raise BrokenPipeError("the fork server is gone")
    return ForkedProcess(int(pid), descriptors[0], ours)


def serve(
    control: socket.socket,
    modules: Iterable[str],
    listening: socket.socket | None = None,
    *,
    then: Callable[[], None] = lambda: None,
) -> None:
    """Be the server until the other end of `control` is closed.

    Args:
        control: takes requests, and says when everything is imported.
        modules: imported first, but for those that are not installed.
        listening: takes connections that take requests as `control` does.
        then: is called once they are imported, to make what all programs would make for themselves; starts no thread.
    """
    for module in modules:
        with suppress(ImportError):
            importlib.import_module(module)
    then()
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    # What there is now is in every program: collecting garbage must not copy its pages.
    gc.collect()
    _held = _filled_up()
    gc.freeze()
    control.send(b"ready")
    running: dict[int, socket.socket] = {}
    askers = [control]
    while True:
        awaited: list[Any] = [woken, *askers, *([listening] if listening is not None else [])]
        ready, _, _ = select.select(awaited, [], [])
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
            _report_ended(running)
        for asker in [asker for asker in askers if asker in ready]:
            asked, descriptors = _received(asker)
            if asked:
                _start(msgspec.json.decode(asked, type=Program), descriptors, running)
            elif asker is control:
                return
            else:
                askers.remove(asker)
                asker.close()
        if listening is not None and listening in ready:
            askers.append(listening.accept()[0])


def _filled_up() -> list[bytes]:
    """Return objects in all free places among older ones, where a program's first objects would copy a page each.

    CPython has places of each size in pools of 16 KiB. It gives those of pools in use first, then those of a new pool
    in a row. With another allocator, a bound ends this.
    """
    held: list[bytes] = []
    for size in range(_LEAST_PLACE, _MOST_PLACE + 1, _PLACE_STEP):
        row, pool = 0, 0
        for _ in range(_MOST_HELD // size):
            held.append(bytes(size - _EMPTY))
            row = row + 1 if id(held[-1]) // _POOL == pool else 1
            pool = id(held[-1]) // _POOL
            if row >= _POOL // size - 1:
                break
        del held[-row:]
    return held


def _start(program: Program, descriptors: list[int], running: dict[int, socket.socket]) -> None:
    reports, *given = descriptors
    server = os.getpid()
    if (pid := os.fork()) == 0:
        _become(program, given, server)
    pidfd = os.pidfd_open(pid)
    running[pid] = socket.socket(fileno=reports)
    with suppress(OSError):
        # Who asked may be gone.
        socket.send_fds(running[pid], [str(pid).encode()], [pidfd])
    for descriptor in (pidfd, *given):
        os.close(descriptor)


def _report_ended(running: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            with running.pop(pid) as reports, suppress(OSError):
                reports.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(program: Program, descriptors: list[int], server: int) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _take(descriptors, program.descriptors)
        with suppress(OSError):
            Path("/proc/self/comm").write_text(program.module.partition(".")[0].replace("_", "-"))
        if program.folder:
            os.chdir(program.folder)
        os.environ.clear()
        os.environ.update(program.environment)
        if "KAI_PARENT_PID" in os.environ:
            os.environ["KAI_PARENT_PID"] = str(server)
        gc.set_threshold(*GC_THRESHOLDS)
        sys.argv = [program.module, *program.arguments]
        # Not to be closed with the object: a program that is a fork server itself gives its programs others.
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        code = _code_of(program.module)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _code_of(module: str) -> int:
    """Run a program's `main`; return the exit code that Python would end with."""
    try:
        importlib.import_module(module).main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    return 0


def _take(descriptors: list[int], numbers: Sequence[int]) -> None:
    """Have these descriptors, the first three as standard streams, under their numbers, and close all others."""
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ASIDE) for descriptor in descriptors]
    os.closerange(0, _ASIDE)
    for descriptor, number in zip(aside, (0, 1, 2, *numbers), strict=True):
        os.dup2(descriptor, number)
    os.closerange(_ASIDE, max(aside) + 1)


def _received(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return a message and the descriptors that came with it; nothing at the connection's end."""
    size = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
    try:
        message, ancillary, _, _ = connection.recvmsg(_MOST_BYTES, size, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return b"", []
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    return message, list(descriptors)


def _has_pidfds() -> bool:
    """Return whether a descriptor of a process can be had and signalled through, which a sandbox may not allow."""
    try:
        descriptor = os.pidfd_open(os.getpid())
    except (AttributeError, OSError):
        return False
    try:
        signal.pidfd_send_signal(descriptor, 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_readable(descriptor: int, seconds: float | None) -> bool:
    looking = select.poll()
    looking.register(descriptor, select.POLLIN)
    return bool(looking.poll(None if seconds is None else seconds * 1000))


def _number(stream: Any) -> int:
    return stream if isinstance(stream, int) else int(stream.fileno())
