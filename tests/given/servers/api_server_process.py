"""The API server as a child process: for tests that kill it, for measurements, for programs with a whole stack."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any, Self

from kaicore.errors import KaiError
from kaicore.runtime.fork_server import ForkServer
from kaicore.runtime.supervision import Child, ProcessOutput, RotatedFile, last_lines_of
from kaicore.yaml_text import load_yaml

_STARTED = b"API server listening"
_START_S = 120.0
#: Seconds that it has to end by itself.
_STOP_S = 60.0


class StartFailed(KaiError):
    """The process ended before it listened; the message has what it said."""


class ApiServerProcess:
    """One `kai-apiserver` as a child.

    ```
    async with ApiServerProcess(directory, "--data-dir", directory / "data") as server:
        ...  # server.http_url, server.admin_token
    ```
    """

    def __init__(self, directory: Path, *flags: str | Path, forks: ForkServer | None = None) -> None:
        """Args:
        directory: for its kubeconfigs and its log.
        flags: those of `kai-apiserver`.
        forks: what it is forked from, if it can.
        """
        outputs = ["--http-kubeconfig-out", directory / "http-kubeconfig"]
        if "--no-https" not in flags:
            outputs += ["--kubeconfig-out", directory / "kubeconfig"]
        self._directory = directory
        self._forks = forks
        self._flags = [str(flag) for flag in (*outputs, *flags)]
        self._child: Child | None = None
        self._output: ProcessOutput | None = None
        self.started: dict[str, Any] = {}

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig over HTTPS, for `kubectl`."""
        return self._directory / "kubeconfig"

    @property
    def http_kubeconfig(self) -> Path:
        return self._directory / "http-kubeconfig"

    @property
    def http_url(self) -> str:
        """Base URL of the plain listener."""
        return str(self.started["http"])

    @property
    def admin_token(self) -> str:
        """The administrator's bearer token."""
        return str(load_yaml(self.http_kubeconfig.read_text())["users"][0]["user"]["token"])

    @property
    def pid(self) -> int:
        assert self._child is not None, "not started"
        return self._child.pid

    async def start(self) -> None:
        """Start it and wait until it listens.

        Raises:
            StartFailed: it ended instead.
        """
        listening = asyncio.Event()

        def on_line(line: bytes) -> None:
            if _STARTED in line and not listening.is_set():
                self.started = json.loads(line)
                listening.set()

        self._output = output = ProcessOutput(RotatedFile(self._directory / "apiserver.log"), on_line=on_line)
        command = [sys.executable, "-m", "kai_apiserver.main", *self._flags]
        self._child = Child(command, stderr=output.write_end, forks=self._forks)
        output.started()
        try:
            ready = await self._child.until_ready(lambda: _is_set(listening), within_s=_START_S)
        except BaseException:
            await self.kill()
            raise
        if not ready:
            await self.stop()
            raise StartFailed(last_lines_of(self._directory / "apiserver.log", since=0))

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; return the exit code."""
        if self._child is None:
            return 0
        code = await self._child.stop(number, patience_s=_STOP_S)
        if self._output is not None:
            self._output.close()
            self._output = None
        return code

    async def kill(self) -> None:
        await self.stop(signal.SIGKILL)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


async def _is_set(event: asyncio.Event) -> bool:
    return event.is_set()
