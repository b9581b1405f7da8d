"""A stack's processes under supervision: watched while they run, started again when they end.

A process is healthy while its readiness URL answers 200. One that stops answering is killed, and started again like
one that ended (`kaicore.runtime.supervision`). One that reports settings that cannot work is started again, too,
because that may pass, as when its port is taken; but only a limited number of times in a row. Nothing outlives the
supervisor: its children die with it (`KAI_PARENT_PID`, see `kaicore.runtime.service.process`).

Their ports are chosen once and kept, so that a restart has the same addresses. A port that is listened on here stays
ours for as long as the stack runs, whatever becomes of the process that serves it.
"""

import asyncio
import os
import random
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from kaicore.errors import ConfigurationError, KaiError
from kaicore.runtime.agent.http_client import HttpClient, HttpFailure
from kaicore.runtime.embedded.process import EmbeddedServer
from kaicore.runtime.fork_server import ForkServer
from kaicore.runtime.supervision import (
    SHARED_PROCESS,
    Child,
    FileOfEach,
    Pauses,
    ProcessOutput,
    RotatedFile,
    SharedService,
    Supervisor,
    shared_environment,
)

#: Below the kernel's ephemeral ports: a client that retries an ephemeral port of its own host may connect to itself.
_LOWEST, _HIGHEST = 10_240, 32_000
_TRIES = 50
#: Connections that wait while a process is away.
_BACKLOG = 1024


class Ports:
    """Ports by name."""

    def __init__(self, file: Path) -> None:
        """Args: file: where they are kept; made when missing."""
        self._file = file
        try:
            self._ports = msgspec.json.decode(file.read_bytes(), type=dict[str, int])
        except (OSError, msgspec.DecodeError):
            self._ports = {}
        self._listening: dict[str, socket.socket] = {}

    def listen(self, name: str) -> socket.socket:
        """Return a socket that listens on the port of a name, the same for each call until `close`."""
        listening = self._listening.get(name)
        while listening is None:
            with suppress(OSError):
                # Taken in the moment since it was found free: another one is chosen.
                listening = socket.create_server(("127.0.0.1", self.port(name)), backlog=_BACKLOG)
                self._listening[name] = listening
        return listening

    def close(self) -> None:
        """Give up the ports that are listened on."""
        for listening in self._listening.values():
            listening.close()
        self._listening.clear()

    def port(self, name: str) -> int:
        """Return the port that a name had before if it is free, otherwise a new one."""
        kept = self._ports.get(name)
        if kept is not None and (name in self._listening or _free(kept)):
            return kept
        for _ in range(_TRIES):
            port = random.randrange(_LOWEST, _HIGHEST)
            if port not in self._ports.values() and _free(port):
                self._ports[name] = port
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._file.write_bytes(msgspec.json.encode(self._ports, order="sorted"))
                return port
        raise ConfigurationError(f"{name}: found no free port between {_LOWEST} and {_HIGHEST}")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


#: Seconds between two looks at a process that is not ready yet.
_LOOK_S = 0.05
#: Seconds that a process has to end by itself.
_STOP_S = 12.0
#: Pauses before an embedded server is started again: everything waits for it.
_SERVER_PAUSES = Pauses(first=0.5, most=2.0)
#: Exit code of a process with settings that cannot work.
_MISCONFIGURED = 2
#: Such ends in a row after which a process is given up: one that never was ready (16 s of pauses), and one that was
#: (3 minutes), with settings that did work.
_MOST_AT_START, _MOST_AFTER_SUCCESS = 6, 12


@dataclass(frozen=True, slots=True)
class Watch:
    """A view of a running process.

    Attributes:
        check_s: seconds between two looks.
        again_s: the same once it has not answered.
        answer_s: seconds in which it must answer.
        most_silent: looks in a row at which it may fail to answer before it is killed.
    """

    check_s: float = 20.0
    again_s: float = 5.0
    answer_s: float = 2.0
    most_silent: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A process to run.

    Attributes:
        name: its name, also of its log file.
        command: program and arguments.
        environment: added to ours.
        ready_url: answers 200 when it is ready.
        listening: a socket that it is to serve on, given to it as `KAI_HTTP_FD`. We keep it, so that no other process
            can take the port, and with it the tokens that clients send there, while the process is away.
        shared_by: services that share the process, each with an address of its own: it is ready when all are.
    """

    name: str
    command: Sequence[str]
    ready_url: str
    environment: Mapping[str, str] = field(default_factory=dict)
    listening: socket.socket | None = None
    shared_by: tuple["ProcessSpec", ...] = ()

    @property
    def services(self) -> tuple["ProcessSpec", ...]:
        """The services that run in it."""
        return self.shared_by or (self,)

    @property
    def given(self) -> dict[str, str]:
        """Its environment beside ours."""
        return {**self.environment, **({} if self.listening is None else {"KAI_HTTP_FD": str(self.listening.fileno())})}


def service_spec(
    ports: Ports, name: str, module: str, environment: Mapping[str, str], *, port: str = ""
) -> ProcessSpec:
    """Return a service of ours that answers at its own port, or at another name's."""
    listening = ports.listen(port or name)
    return ProcessSpec(
        name=name,
        command=(sys.executable, "-m", module),
        ready_url=f"http://127.0.0.1:{ports.port(port or name)}/readyz",
        environment=environment,
        listening=listening,
    )


def sharing(name: str, specs: Sequence[ProcessSpec]) -> ProcessSpec:
    """Return one process for services of ours, of which each would have one."""
    services = [SharedService(spec.command[-1], spec.given) for spec in specs]
    return ProcessSpec(
        name=name,
        command=(sys.executable, "-m", SHARED_PROCESS),
        ready_url="",
        environment=shared_environment(services),
        shared_by=tuple(specs),
    )


class SupervisedProcess:
    """One process, kept running."""

    def __init__(
        self,
        spec: ProcessSpec,
        *,
        log_file: Path,
        report: Callable[[str], None],
        inherit: tuple[int, ...] = (),
        pauses: Pauses | None = None,
        watch: Watch | None = None,
        forks: ForkServer | None = None,
    ) -> None:
        """Args:
        report: gets the lines that an operator should see.
        inherit: descriptors that it gets, such as a lock that is to last as long as it does.
        forks: forks it, instead of starting Python anew.
        """
        self.spec = spec
        self._forks = forks
        self._inherit = inherit
        self.log_file = log_file
        self.restarts = 0
        self.ready = asyncio.Event()
        #: Set when the process cannot work and is not tried again; `why_hopeless` then says why.
        self.hopeless = asyncio.Event()
        self.why_hopeless = ""
        self._report = report
        self._file: RotatedFile | FileOfEach = RotatedFile(log_file)
        if spec.shared_by:
            files = {_service_of(one): RotatedFile(log_file.with_name(f"{one.name}.log")) for one in spec.shared_by}
            self._file = FileOfEach(self._file, files)
        self._last_words = "it said nothing"
        self._child: Child | None = None
        self._watch = watch or Watch()
        self._supervisor = Supervisor(self._run_once, again=self._again, pauses=pauses)
        self._misconfigured, self._was_ready = 0, False

    @property
    def pid(self) -> int | None:
        """Its process id; None while it does not run."""
        return self._child.pid if self._child is not None and self._child.running else None

    def start(self) -> None:
        """Begin to run it."""
        self._supervisor.start()

    def stop_restarting(self) -> None:
        """Take its next end for good, without a word."""
        self._supervisor.stop_restarting()

    async def stop(self) -> None:
        """Ask it to end, and see to it that it does."""
        self.stop_restarting()
        if self._child is not None:
            await self._child.stop(
                patience_s=_STOP_S, killing=lambda: self._report(f"{self.spec.name}: does not end, killed")
            )
        await self._supervisor.stop()

    def _again(self, pause_s: float) -> bool:
        code = self._child.code if self._child is not None else None
        self._misconfigured = self._misconfigured + 1 if code == _MISCONFIGURED else 0
        if self._misconfigured >= (_MOST_AFTER_SUCCESS if self._was_ready else _MOST_AT_START):
            self.why_hopeless = (
                f"{self.spec.name}: {self._last_words} (given up after {self._misconfigured} starts in a row; "
                f"see {self.log_file})"
            )
            if self._was_ready:
                self._report(self.why_hopeless)
            self.hopeless.set()
            return False
        self.restarts += 1
        self._report(
            f"{self.spec.name}: ended with code {code} ({self._last_words}), again in {pause_s:.1f} s; "
            f"see {self.log_file}"
        )
        return True

    async def _run_once(self) -> None:
        output = ProcessOutput(self._file)
        environment = {**self.spec.given, "KAI_PARENT_PID": str(os.getpid())}
        listening = [one.listening.fileno() for one in self.spec.services if one.listening is not None]
        inherit = (*self._inherit, *listening)
        try:
            self._child = Child(
                self.spec.command,
                environment={**os.environ, **environment},
                stdout=output.write_end,
                stderr=output.write_end,
                inherit=inherit,
                # A Ctrl-C on the terminal is for us, who then stop the processes in order.
                start_new_session=True,
                forks=self._forks,
            )
            output.started()
            await self._watched(self._child)
        finally:
            output.close()
            self._last_words = output.last_words()
            self._was_ready = self._was_ready or self.ready.is_set()
            self.ready.clear()

    async def _watched(self, child: Child) -> None:
        watching = asyncio.create_task(self._look_at(child))
        try:
            await child.ended()
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _look_at(self, child: Child) -> None:
        silent, watch = 0, self._watch
        client = HttpClient(timeout_s=watch.answer_s)
        while True:
            statuses = [await _status(client, one.ready_url) for one in self.spec.services]
            if all(status == 200 for status in statuses):
                self.ready.set()
            silent = silent + 1 if None in statuses and self.ready.is_set() else 0
            if silent >= watch.most_silent:
                # It may have ended this moment: its end is reported elsewhere.
                if child.running:
                    self._report(f"{self.spec.name}: does not answer, killed")
                    await child.kill()
                return
            await asyncio.sleep(
                _LOOK_S if not self.ready.is_set() else min(watch.again_s, watch.check_s) if silent else watch.check_s
            )


class KeptServer:
    """An embedded server that has been started, started again whenever it dies."""

    def __init__(
        self, server: EmbeddedServer, report: Callable[[str], None], *, pauses: Pauses = _SERVER_PAUSES
    ) -> None:
        """Args:
        report: gets the lines that an operator should see.
        """
        self._server = server
        self._report = report
        self._down, self._trouble = False, ""
        self._supervisor = Supervisor(self._run_once, again=lambda _: True, pauses=pauses)

    def start(self) -> None:
        """Begin to watch it."""
        self._supervisor.start()

    async def stop(self) -> None:
        """Watch it no more; it runs on."""
        await self._supervisor.stop()

    async def _run_once(self) -> None:
        server = self._server
        if server.pid is None:
            if not self._down:
                self._report(f"{server.name} died, starting it again; see {server.log_file}")
            self._down = True
            try:
                await server.start()
            except KaiError as error:
                trouble = f"{server.name} does not start: {error}"
                if trouble != self._trouble:
                    self._report(f"{trouble}; tried again until it does")
                self._trouble = trouble
                return
            self._report(f"{server.name} is up again")
            self._down, self._trouble = False, ""
        await server.ended()


def _service_of(spec: ProcessSpec) -> str:
    """Return the service's name in its lines; its program's module is such as `kai_watcher.main`."""
    return spec.command[-1].partition(".")[0].removeprefix("kai_")


async def _status(client: HttpClient, url: str) -> int | None:
    try:
        # A connection that is kept has its server look every two seconds whether the next request is late.
        return (await client.request("GET", url, headers={"Connection": "close"})).status
    except HttpFailure:
        return None
