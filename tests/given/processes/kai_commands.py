"""`kai` commands, and services, as processes of their own that are forked: a test pays for an answer, not for imports.

`python -m kai_cli.main` takes a second of CPU until it has imported what most commands need, and a service two; the
tests run some hundreds of them. Here one process for all workers of pytest has imported it all, and each run is a fork
of it (`kaicore.runtime.fork_server`): with arguments, environment, folder and the three standard streams of its own,
and nothing of another in it. Commands of which the start itself is tested are started as they are by a user.
"""

import asyncio
import atexit
import functools
import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from kaicore.runtime.fork_server import ForkedProcess, ForkServer, Program, request, serve

#: The environment's variable with the socket of the server that all workers share.
_SHARED = "KAI_TEST_FORK_SERVER"
#: Seconds between two looks whether a process has ended.
_LOOK_S = 0.01
#: What tests run besides.
_PROGRAMS = ("kai_api.answer", "kai_exporter.main", "tests.chaos.appender")

#: It imports built-in modules only: `json` and `socket` take twice as long as all the rest of it.
_PROGRAM = """#!{python} -ISE
import os, sys, _socket
from _json import encode_basestring_ascii as quoted
if {{"up", "demo", "fleet"}} & set(sys.argv[1:2]) or {{"--follow", "--watch"}} & set(sys.argv):
    os.execv("{real}", ["{real}", *sys.argv[1:]])
ours, its = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
connection.connect("{address}")
arguments = ",".join(map(quoted, sys.argv[1:]))
environment = ",".join(f"{{quoted(name)}}:{{quoted(value)}}" for name, value in os.environ.items())
program = f'{{{{"module":"kai_cli.main","arguments":[{{arguments}}],"environment":{{{{{{environment}}}}}}'
given = b"".join(one.to_bytes(4, sys.byteorder) for one in (its.fileno(), 0, 1, 2))
rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, given)
connection.sendmsg([f'{{program}},"folder":{{quoted(os.getcwd())}}}}}}'.encode()], [rights])
its.close()
ours.recv(64)
sys.exit(int(ours.recv(64)))
"""


def kai(
    *arguments: str,
    stdin: str = "",
    cwd: str | Path = ".",
    environment: Mapping[str, str] | None = None,
    timeout: float = 120.0,
    module: str = "kai_cli.main",
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its code, what it printed, and what it said of errors."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        streams = (given.fileno(), out.fileno(), err.fileno())
        process = forked(module, *arguments, streams=streams, environment=environment, cwd=cwd)
        try:
            code = process.wait(timeout)
        except TimeoutError:
            process.kill()
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(["kai", *arguments], code, *texts)


def forked(
    module: str,
    *arguments: str,
    streams: Sequence[int],
    environment: Mapping[str, str] | None = None,
    cwd: str | Path = ".",
    inherit: Sequence[int] = (),
) -> ForkedProcess:
    """Start a program with these standard streams; with a `KAI_PARENT_PID` it ends when the tests do."""
    whole = dict(os.environ if environment is None else environment)
    program = Program(module, arguments, whole, tuple(inherit), str(Path(cwd).resolve()))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(server()))
        return request(connection, program, streams)


def talking(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None, cwd: str | Path = "."
) -> tuple[ForkedProcess, TextIO]:
    """Start a program with an empty standard input; return it, and all that it says."""
    reading, writing = os.pipe()
    with Path(os.devnull).open("rb") as empty, os.fdopen(writing, "wb") as said:
        streams = (empty.fileno(), said.fileno(), said.fileno())
        process = forked(module, *arguments, streams=streams, environment=environment, cwd=cwd)
    return process, os.fdopen(reading)


class Spawned:
    """A program forked for an event loop; it has what `asyncio.subprocess.Process` has of a process.

    Attributes:
        stdin: its standard input, where that is a pipe.
        stdout: likewise.
        stderr: likewise.
    """

    stdin: asyncio.StreamWriter | None = None
    stdout: asyncio.StreamReader | None = None
    stderr: asyncio.StreamReader | None = None

    def __init__(self, process: ForkedProcess) -> None:
        self._process = process
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    async def wait(self) -> int:
        """Wait for its end; return its exit code."""
        while (code := self.returncode) is None:  # noqa: ASYNC110  # another process reports it
            await asyncio.sleep(_LOOK_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal; do nothing where it has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


async def spawned(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
    inherit: Sequence[int] = (),
) -> Spawned:
    """Start a program as `asyncio.create_subprocess_exec` does; a stream is ours, a pipe, or `/dev/null`.

    Args:
        module: its function `main` is run.
        arguments: of the program.
        environment: all of it; None for ours.
        stdin: `subprocess.PIPE` or `subprocess.DEVNULL`.
        stdout: likewise; None for ours.
        stderr: likewise.
        inherit: descriptors that it gets besides, under the same numbers.
    """
    loop, pipes, given = asyncio.get_running_loop(), dict[int, int](), list[int]()
    for number, stream in enumerate((stdin, stdout, stderr)):
        if stream == subprocess.PIPE:
            reading, writing = os.pipe()
            pipes[number], its = (writing, reading) if number == 0 else (reading, writing)
        else:
            its = os.dup(number) if stream is None else os.open(os.devnull, os.O_RDWR)
        given.append(its)
    try:
        process = Spawned(
            await asyncio.to_thread(forked, module, *arguments, streams=given, environment=environment, inherit=inherit)
        )
    finally:
        for descriptor in given:
            os.close(descriptor)
    for number, pipe in pipes.items():
        if number == 0:
            transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(pipe, "wb"))
            process.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        else:
            reader = asyncio.StreamReader()
            await loop.connect_read_pipe(
                lambda reader=reader: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb")
            )
            setattr(process, "stdout" if number == 1 else "stderr", reader)
    return process


class Forks(ForkServer):
    """The server of this worker, as a supervisor of services has one of its own."""

    def __init__(self) -> None:
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.connect(str(server()))
        super().__init__(control, os.getpid())
        self._usable = True


@functools.cache
def server() -> Path:
    """Start the process that programs are forked from; the socket that it takes them at. It ends with this process.

    A worker of pytest has that of all workers (`tests/given/processes/worker_forks.py`).
    """
    if shared := os.environ.get(_SHARED):
        return Path(shared)
    address = Path(tempfile.mkdtemp(prefix="kai-commands-")) / "socket"
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # It takes connections from now on, and answers when it has imported everything.
    with its, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(address))
        listening.listen(64)
        given = [its.fileno(), listening.fileno()]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.given.processes.kai_commands", *map(str, given)],
            stdin=subprocess.DEVNULL,
            cwd=Path(__file__).parents[3],
            start_new_session=True,
            pass_fds=given,
        )
    atexit.register(_end, process, ours, address)
    return address


def shared_at(address: Path) -> None:
    """Have this process, and what it starts, use a server that is there already."""
    os.environ[_SHARED] = str(address)


def _end(process: subprocess.Popen[bytes], control: socket.socket, address: Path) -> None:
    # It says that it is ready; closed before, it would end by an error.
    control.recv(64)
    control.close()
    process.wait()
    address.unlink()
    address.parent.rmdir()


def put_on_path(directory: Path) -> None:
    """Write a program `kai` that hands over to the server, standard streams and all, and ends as the command ends.

    What goes on until it is interrupted is started as a user starts it.
    """
    text = _PROGRAM.format(python=sys.executable, real=Path(sys.executable).with_name("kai"), address=server())
    (directory / "kai").write_text(text)
    (directory / "kai").chmod(0o755)


def import_programs() -> None:
    """Import what is forked."""
    import pkgutil

    import kai_cli
    from kai_cli.running.stack import IMPORTED

    commands = [module.name for module in pkgutil.walk_packages(kai_cli.__path__, "kai_cli.")]
    for module in (*commands, *IMPORTED, *_PROGRAMS):
        with suppress(ImportError):
            importlib.import_module(module)


def serve_programs(control: int, listening: int) -> None:
    """Fork what is asked for until the tests end."""
    # A shell that runs the tests in the background has them ignore it, and what is forked here is interrupted by tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with socket.socket(fileno=control) as ours, socket.socket(fileno=listening) as asked:
        serve(ours, (), asked)


if __name__ == "__main__":
    import_programs()
    serve_programs(int(sys.argv[1]), int(sys.argv[2]))
