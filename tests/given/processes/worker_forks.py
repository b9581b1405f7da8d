"""Workers of pytest-xdist as forks of one process that has imported all tests.

A worker takes ten seconds of CPU until it has collected the tests, more than half of it for imports, and the first one
of a new checkout twenty more to compile them. So one process imports each test file once, as pytest does it, and then
forks the workers (`kaicore.runtime.fork_server`), and before that what programs are forked from (`kai_commands`). What
xdist starts instead of a Python is a program that hands its standard streams over to that process.
"""

import importlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.given.processes import kai_commands

#: Its library is written in Go, which has threads as soon as it is loaded, and what has threads is not forked.
_UNFORKABLE = "helm_python"

_PROGRAM = """import json, os, signal, socket
signal.signal(signal.SIGINT, signal.SIG_IGN)
ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, ours:
    connection.connect("{address}")
    program = dict(module="{module}", arguments=[], environment=dict(os.environ), folder=os.getcwd())
    with its:
        socket.send_fds(connection, [json.dumps(program).encode()], (its.fileno(), 0, 1, 2))
    # Its process id, and at its end its exit code.
    ours.recv(64)
    ours.recv(64)
"""


def start(paths: Sequence[str], directory: Path) -> tuple[str, Callable[[], None]]:
    """Start the process that workers are forked from, and wait until it has imported the tests.

    What is started afterwards finds everything compiled.

    Args:
        paths: of the tests to import.
        directory: for the socket and the program.

    Returns:
        xdist's specification of a worker that is forked, and what ends the process.

    Raises:
        ChildProcessError: the process has ended.
    """
    address, commands, program = directory / "workers", directory / "commands", directory / "worker.py"
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    asked = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    for listening, where in zip(asked, (address, commands), strict=True):
        listening.bind(str(where))
        listening.listen(64)
    given = [one.fileno() for (_, its), listening in zip(pairs, asked, strict=True) for one in (its, listening)]
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, *map(str, given), *paths],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=given,
    )
    for one in (*(its for _, its in pairs), *asked):
        one.close()
    ours, of_commands = (one for one, _ in pairs)
    if not ours.recv(64):
        raise ChildProcessError(f"{process.args}: ended with {process.wait()}")
    kai_commands.shared_at(commands)

    def end() -> None:
        # In this order: what serves workers waits for what serves programs.
        ours.close()
        of_commands.close()
        process.wait()

    program.write_text(_PROGRAM.format(address=address, module=__name__))
    return f"popen//python={sys.executable} -ISE {program}", end


class _Importing:
    """A plugin for pytest with which collecting is importing: no tests are made of what is imported.

    Attributes:
        failed: the paths of files, or of folders, that could not be imported.
    """

    def __init__(self) -> None:
        self.failed: list[str] = []

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and report.nodeid not in {"", "."}:
            self.failed.append(str(Path(report.nodeid).absolute()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self) -> list[Any]:
        return []


class _Later(ModuleType):
    """A module that is loaded when a worker uses it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):
            raise AttributeError(name)
        if sys.modules[self.__name__] is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def main() -> None:
    """Be a worker: run what xdist sends first."""
    random.seed()
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})


def _serve(control: int, listening: int, of_commands: tuple[int, int], paths: Sequence[str]) -> None:
    """Fork a worker for each that asks, until the tests end."""
    from kaicore.runtime.fork_server import serve

    kai_commands.import_programs()
    if (commands := os.fork()) == 0:
        try:
            for descriptor in (control, listening):
                os.close(descriptor)
            kai_commands.serve_programs(*of_commands)
        finally:
            os._exit(0)
    for descriptor in of_commands:
        os.close(descriptor)
    # A shell that runs the tests in the background has them ignore it, and tests interrupt what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    importing, files = _Importing(), [path.partition("::")[0] for path in paths]
    sys.modules[_UNFORKABLE] = _Later(_UNFORKABLE)
    pytest.main(["--collect-only", "--quiet", "-p", "no:cacheprovider", *files], plugins=[importing])
    # What could not be imported stays half imported: workers import it anew, and say what is wrong, if anything is.
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(tuple(importing.failed)):
            del sys.modules[name]
    with socket.socket(fileno=control) as ours, socket.socket(fileno=listening) as asked:
        serve(ours, [__spec__.name], asked)
    os.waitpid(commands, 0)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]), (int(sys.argv[3]), int(sys.argv[4])), sys.argv[5:])
