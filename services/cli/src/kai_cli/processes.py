"""Processes under supervision: started in order, watched, restarted with back-off, stopped together.

A process is healthy while its readiness URL answers 200. One that ends is started again after a pause that doubles with
each failure and is forgotten after a while of good health. Nothing outlives the supervisor: its children are told to
die with it (`KAI_PARENT_PID`, see `kaicore.service.process`).
"""

import asyncio
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A process to run.

    Attributes:
        name: its name, also of its log file.
        command: program and arguments.
        environment: added to ours.
        ready_url: answers 200 when it is ready.
        needs_ready: whether later processes wait for its readiness.
    """

    name: str
    command: Sequence[str]
    ready_url: str
    environment: Mapping[str, str] = field(default_factory=dict)
    needs_ready: bool = True


class _LogLine(msgspec.Struct):
    error: str = ""


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
        while not self._stopping.is_set():
            started = asyncio.get_running_loop().time()
            await self._run_once()
            self.ready.clear()
            if self._stopping.is_set():
                return
            code = self._process.returncode if self._process is not None else None
            if code == _MISCONFIGURED:
                self.why_hopeless = f"{self.spec.name}: {self._last_words()}"
                if self.restarts:
                    self._tell(self.why_hopeless)
                self.hopeless.set()
                return
            if asyncio.get_running_loop().time() - started > _FORGIVEN_S:
                pause_s = _PAUSE_S
            self.restarts += 1
            self._tell(
                f"{self.spec.name}: ended with code {code} ({self._last_words()}), again in {pause_s:.1f} s; "
                f"see {self.log_file}"
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _last_words(self) -> str:
        """What the process said of its end: the error of its last log line that has one."""
        with self.log_file.open(errors="replace") as log:
            for line in reversed(deque(log, maxlen=20)):
                try:
                    error = msgspec.json.decode(line, type=_LogLine).error
                except msgspec.DecodeError:
                    error = line.strip()
                if error:
                    return error
        return "it said nothing"

    async def _run_once(self) -> None:
        with self.log_file.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.spec.environment, "KAI_PARENT_PID": str(os.getpid())},
                # A Ctrl-C on the terminal is for us, who then stop the processes in order.
                start_new_session=True,
                pass_fds=self._inherit,
            )
        watching = asyncio.create_task(self._watch())
        try:
            await self._process.wait()
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
                if silent >= _MAX_SILENT and self._process is not None:
                    self._tell(f"{self.spec.name}: does not answer, killed")
                    self._process.kill()
                    return
                await asyncio.sleep(_CHECK_S if self.ready.is_set() else _LOOK_S)


async def _status(session: aiohttp.ClientSession, url: str) -> int | None:
    try:
        async with session.get(url) as response:
            return response.status
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
