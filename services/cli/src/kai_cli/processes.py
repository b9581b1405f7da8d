"""Processes under supervision: started in order, watched, restarted with back-off, stopped together.

A process is healthy while its readiness URL answers 200. One that ends is started again after a pause that doubles with
each failure and is forgotten after a while of good health. One that says that its settings cannot work is tried again,
too, for that may pass, as when its port is taken; but only so many times in a row. Nothing outlives the supervisor: its
children are told to die with it (`KAI_PARENT_PID`, see `kaicore.runtime.service.process`).
"""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from kai_cli.process_output import ProcessOutput, RotatedFile

#: Seconds between two looks at a process that is not ready yet.
_LOOK_S = 0.05
#: Seconds between two looks at one that is.
_CHECK_S = 2.0
#: Seconds in which a process must answer a look.
_ANSWER_S = 2.0
#: Looks in a row at which a running process may fail to answer before it is killed and started again.
_MAX_SILENT = 15
#: Seconds of pause before the first restart, and the longest.
_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0
#: Seconds of good health after which earlier failures are forgotten.
_FORGIVEN_S = 60.0
#: Seconds that a process has to end by itself.
_STOP_S = 12.0
#: Exit code of a process whose settings cannot work.
_MISCONFIGURED = 2
#: Such ends in a row after which a process is given up: one that never was ready (16 s of pauses), and one that was
#: (3 minutes), whose settings did work.
_MOST_AT_START, _MOST_AFTER_SUCCESS = 6, 12


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
    """

    name: str
    command: Sequence[str]
    ready_url: str
    environment: Mapping[str, str] = field(default_factory=dict)
    listening: socket.socket | None = None


class SupervisedProcess:
    """One process, kept running."""

    def __init__(
        self, spec: ProcessSpec, *, log_file: Path, tell: Callable[[str], None], inherit: tuple[int, ...] = ()
    ) -> None:
        """Args:
        spec: what to run.
        log_file: gets its output.
        tell: is told what an operator should see.
        inherit: descriptors that it gets, such as a lock that is to last as long as it does.
        """
        self.spec = spec
        self._inherit = inherit
        self.log_file = log_file
        self.restarts = 0
        self.ready = asyncio.Event()
        #: Set when the process cannot work and is not tried again; `why_hopeless` then says why.
        self.hopeless = asyncio.Event()
        self.why_hopeless = ""
        self._tell = tell
        self._file = RotatedFile(log_file)
        self._last_words = "it said nothing"
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Its process id; None while it does not run."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self) -> None:
        """Begin to run it."""
        self._task = asyncio.create_task(self._keep_running())

    async def stop(self) -> None:
        """Ask it to end, and see to it that it does."""
        self._stopping.set()
        process = self._process
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
            if process.returncode is None:
                self._tell(f"{self.spec.name}: does not end, killed")
                process.kill()
                await process.wait()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep_running(self) -> None:
        pause_s = _PAUSE_S
        misconfigured, was_ready = 0, False
        while not self._stopping.is_set():
            started = asyncio.get_running_loop().time()
            await self._run_once()
            was_ready = was_ready or self.ready.is_set()
            self.ready.clear()
            if self._stopping.is_set():
                return
            code = self._process.returncode if self._process is not None else None
            misconfigured = misconfigured + 1 if code == _MISCONFIGURED else 0
            if misconfigured >= (_MOST_AFTER_SUCCESS if was_ready else _MOST_AT_START):
                self.why_hopeless = (
                    f"{self.spec.name}: {self._last_words} (given up after {misconfigured} starts in a row; "
                    f"see {self.log_file})"
                )
                if was_ready:
                    self._tell(self.why_hopeless)
                self.hopeless.set()
                return
            if asyncio.get_running_loop().time() - started > _FORGIVEN_S:
                pause_s = _PAUSE_S
            self.restarts += 1
            self._tell(
                f"{self.spec.name}: ended with code {code} ({self._last_words}), again in {pause_s:.1f} s; "
                f"see {self.log_file}"
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    async def _run_once(self) -> None:
        output = ProcessOutput(self._file)
        environment = {**self.spec.environment, "KAI_PARENT_PID": str(os.getpid())}
        inherit = self._inherit
        if self.spec.listening is not None:
            descriptor = self.spec.listening.fileno()
            environment["KAI_HTTP_FD"] = str(descriptor)
            inherit = (*inherit, descriptor)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.command,
                stdin=subprocess.DEVNULL,
                stdout=output.write_end,
                stderr=output.write_end,
                env={**os.environ, **environment},
                # A Ctrl-C on the terminal is for us, who then stop the processes in order.
                start_new_session=True,
                pass_fds=inherit,
            )
            output.started()
            await self._watched(self._process)
        finally:
            output.close()
            self._last_words = output.last_words()

    async def _watched(self, process: asyncio.subprocess.Process) -> None:
        watching = asyncio.create_task(self._watch())
        try:
            await process.wait()
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _watch(self) -> None:
        silent = 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as session:
            while True:
                status = await _status(session, self.spec.ready_url)
                if status == 200 and not self.ready.is_set():
                    self.ready.set()
                silent = silent + 1 if status is None and self.ready.is_set() else 0
                process = self._process
                if silent >= _MAX_SILENT and process is not None:
                    # It may have ended this moment: its end is told elsewhere.
                    if process.returncode is None:
                        self._tell(f"{self.spec.name}: does not answer, killed")
                        process.kill()
                    return
                await asyncio.sleep(_CHECK_S if self.ready.is_set() else _LOOK_S)


async def _status(session: aiohttp.ClientSession, url: str) -> int | None:
    try:
        async with session.get(url) as response:
            return response.status
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
