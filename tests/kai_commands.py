"""`kai` commands as processes of their own that are forked, so that a test pays for an answer and not for imports.

`python -m kai_cli.main` takes a second of CPU until it has imported what most commands need, and the tests run some
hundreds of them. Here one process for each worker of pytest has imported it, and each command is a fork of it: with
arguments, environment, folder and the three standard streams of its own, and nothing of another command in it. Starts
that go on, and commands of which the start itself is tested, are started as they are by a user.
"""

import array
import atexit
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

#: Bytes of arguments and environment of a command, at most.
_MOST = 1 << 18

_PROGRAM = """#!{python} -ISE
import json, os, socket, sys
if {{"up", "demo", "fleet", "--follow", "--watch"}} & set(sys.argv):
    os.execv("{real}", ["{real}", *sys.argv[1:]])
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
    connection.connect("{address}")
    socket.send_fds(connection, [json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()], (0, 1, 2))
    connection.recv(64)
    sys.exit(int(connection.recv(64)))
"""


def kai(
    *arguments: str,
    stdin: str = "",
    cwd: str | Path = ".",
    environment: Mapping[str, str] | None = None,
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its code, what it printed, and what it said of errors."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        streams = (given.fileno(), out.fileno(), err.fileno())
        asked = [arguments, dict(os.environ if environment is None else environment), str(Path(cwd).resolve())]
        code = _ended(json.dumps(asked).encode(), streams, timeout)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(["kai", *arguments], code, *texts)


@functools.cache
def server() -> Path:
    """Start the process that commands are forked from; the socket that it takes them at. It ends with this process."""
    directory = Path(tempfile.mkdtemp(prefix="kai-commands-"))
    address = directory / "socket"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kai_commands", str(address)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        start_new_session=True,
    )
    atexit.register(_end, process)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return address


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def put_on_path(directory: Path) -> None:
    """Write a program `kai` that hands over to the server, standard streams and all, and ends as the command ends.

    What goes on until it is interrupted is started as a user starts it.
    """
    text = _PROGRAM.format(python=sys.executable, real=Path(sys.executable).with_name("kai"), address=server())
    (directory / "kai").write_text(text)
    (directory / "kai").chmod(0o755)


def _ended(asked: bytes, streams: tuple[int, int, int], timeout: float) -> int:
    """Have a command run with these descriptors as its standard streams; its exit code."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(timeout)
        connection.connect(str(server()))
        socket.send_fds(connection, [asked], streams)
        pid = int(connection.recv(64))
        try:
            return int(connection.recv(64))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise


def _serve(address: str) -> None:
    """Take commands until the other end of our standard input is closed."""
    _import_everything()
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    running: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        # What there is now is in every command: collecting garbage must not copy its pages.
        gc.collect()
        gc.freeze()
        while True:
            ready, _, _ = select.select([0, woken, listening], [], [])
            if 0 in ready:
                Path(address).unlink()
                Path(address).parent.rmdir()
                return
            if woken in ready:
                with suppress(BlockingIOError):
                    os.read(woken, 4096)
                _tell_of_the_ended(running)
            if listening in ready:
                connection, _ = listening.accept()
                asked, streams = _received(connection)
                if (pid := os.fork()) == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for one in (listening, connection, *running.values()):
                        one.close()
                    _become(*json.loads(asked), streams)
                connection.send(str(pid).encode())
                running[pid] = connection
                for descriptor in streams:
                    os.close(descriptor)


def _received(connection: socket.socket) -> tuple[bytes, list[int]]:
    asked, ancillary, _, _ = connection.recvmsg(_MOST, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    return asked, list(descriptors)


def _tell_of_the_ended(running: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            with running.pop(pid) as connection, suppress(OSError):
                connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _import_everything() -> None:
    """Import the command line and all that its commands import when they run."""
    import importlib
    import pkgutil

    import kai_cli

    for module in pkgutil.iter_modules(kai_cli.__path__):
        importlib.import_module(f"kai_cli.{module.name}")


def _become(arguments: list[str], environment: dict[str, str], cwd: str, streams: list[int]) -> None:
    """Be the command, and end with it."""
    from kai_cli.main import main

    code = 1
    try:
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.setsid()
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["kai", *arguments]
        sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            if isinstance(end.code, str):
                sys.stderr.write(end.code)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
