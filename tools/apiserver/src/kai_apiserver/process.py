"""The API server as a child process: for tests that kill it, for measurements, for programs with a whole stack."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any, Self

import yaml
from kaicore.errors import KaiError

_STARTED = "API server listening"
_START_S = 120.0


class StartFailed(KaiError):
    """The process ended before it listened; the message has what it said."""


class ApiServerProcess:
    """One `kai-apiserver` as a child.

    ```
    async with ApiServerProcess(directory, "--data-dir", directory / "data") as server:
        ...  # server.http_url, server.admin_token
    ```
    """

    def __init__(self, directory: Path, *flags: str | Path) -> None:
        """`directory` is where its kubeconfigs and its log go; `flags` are those of `kai-apiserver`."""
        outputs = ["--http-kubeconfig-out", directory / "http-kubeconfig"]
        if "--no-https" not in flags:
            outputs += ["--kubeconfig-out", directory / "kubeconfig"]
        self._directory = directory
        self._flags = [str(flag) for flag in (*outputs, *flags)]
        self._process: asyncio.subprocess.Process | None = None
        self._log: asyncio.Task[None] | None = None
        self.started: dict[str, Any] = {}

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig over HTTPS, for `kubectl`."""
        return self._directory / "kubeconfig"

    @property
    def http_kubeconfig(self) -> Path:
        """A kubeconfig over plain HTTP."""
        return self._directory / "http-kubeconfig"

    @property
    def http_url(self) -> str:
        """Base URL of the plain listener."""
        return str(self.started["http"])

    @property
    def admin_token(self) -> str:
        """The administrator's bearer token."""
        return str(yaml.safe_load(self.http_kubeconfig.read_text())["users"][0]["user"]["token"])

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None, "not started"
        return self._process.pid

    async def start(self) -> None:
        """Start it and wait until it listens.

        Raises:
            StartFailed: it ended instead.
        """
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "kai_apiserver.main",
            *self._flags,
            stderr=asyncio.subprocess.PIPE,
        )
        said: list[str] = []
        async with asyncio.timeout(_START_S):
            async for line in self._lines():
                said.append(line)
                if _STARTED in line:
                    self.started = json.loads(line)
                    break
            else:
                raise StartFailed("\n".join(said[-20:]))
        self._log = asyncio.create_task(self._write_log(said))

    async def _lines(self) -> Any:
        assert self._process is not None
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            yield line.decode(errors="replace").rstrip("\n")

    async def _write_log(self, said: list[str]) -> None:
        path = self._directory / "apiserver.log"
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in said)
            async for line in self._lines():
                file.write(f"{line}\n")

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; return the exit code."""
        if self._process is None:
            return 0
        if self._process.returncode is None:
            self._process.send_signal(number)
        code = await self._process.wait()
        if self._log is not None:
            await self._log
        return code

    async def kill(self) -> None:
        """Kill it without any warning."""
        await self.stop(signal.SIGKILL)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
