"""Instances of a service that something happens to: forked from a process that has imported all, behind links.

What a process imports takes a second of CPU on a busy machine, and is not what is measured. So one process imports the
service, and each instance is a fork of it (`python -m tests.measured.bench.scale.instances MODULE`). Between an
instance and each server is a link of its own (`tests/chaos/link.py`), by which it is cut off from all of them.
"""

import asyncio
import importlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import aiohttp
import yaml
from kaicore.yaml_text import load_yaml

from tests.chaos.link import Link
from tests.given.processes.service_process import ready
from tests.given.servers.ports import free_port

ROOT = Path(__file__).parents[4]

#: Seconds that an instance may take to listen, and between two tries to reach it.
_PATIENCE_S, _LOOK_S = 60.0, 0.02


class Fault(StrEnum):
    """Faults of an instance; a partition cuts it off from all servers, and its connections live."""

    KILLED = "kill -9"
    FROZEN = "SIGSTOP"
    STOPPED = "SIGTERM"
    CUT_OFF = "partition"


_SIGNALS = {Fault.KILLED: signal.SIGKILL, Fault.FROZEN: signal.SIGSTOP, Fault.STOPPED: signal.SIGTERM}


class Instance:
    def __init__(self, pid: int, address: str, links: AsyncExitStack, ways: list[Link]) -> None:
        self._pid, self.address, self._links, self._ways = pid, address, links, ways

    def strike(self, fault: Fault) -> None:
        """Let something happen to it."""
        if fault in _SIGNALS:
            os.kill(self._pid, _SIGNALS[fault])
            return
        for way in self._ways:
            way.hold()

    async def end(self) -> None:
        """End it, whatever its state is; harmless when it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        for way in self._ways:
            way.release()
        await self._links.aclose()


class Template:
    """A process that has imported a service, and forks instances."""

    def __init__(self, module: str) -> None:
        """Args: module: of the service's entry point."""
        self._module = module
        self._process: asyncio.subprocess.Process | None = None
        self._instances: list[Instance] = []

    async def start(self, settings: Mapping[str, str]) -> Instance:
        """Start an instance with links of its own, and wait until it is ready."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        links = AsyncExitStack()
        behind, ways = await _behind_links(settings, links)
        host, port = "127.0.0.1", free_port()
        behind |= {"HTTP_HOST": host, "HTTP_PORT": str(port)}
        environment = {"KAI_LOG_LEVEL": "error"} | {f"KAI_{name}": value for name, value in behind.items()}
        self._process.stdin.write(json.dumps(environment).encode() + b"\n")
        pid = int(await self._process.stdout.readline())
        instance = Instance(pid, f"{host}:{port}", links, ways)
        self._instances.append(instance)
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                with suppress(aiohttp.ClientConnectorError):
                    await ready(instance.address)
                    return instance
                await asyncio.sleep(_LOOK_S)

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            self._module,
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for instance in self._instances:
            await instance.end()
        assert self._process is not None
        self._process.kill()
        await self._process.wait()


async def _behind_links(settings: Mapping[str, str], links: AsyncExitStack) -> tuple[dict[str, str], list[Link]]:
    """Put a link before each server that settings name; return the settings with the links' addresses, and them."""
    changed, ways = dict(settings), []
    for name in ("DATABASE_URL", "NATS_URL", "KUBECONFIG"):
        if name not in settings:
            continue
        url = _server(Path(settings[name])) if name == "KUBECONFIG" else settings[name]
        way = await links.enter_async_context(Link(url))
        ways.append(way)
        changed[name] = way.url
        if name == "KUBECONFIG":
            directory = Path(links.enter_context(TemporaryDirectory()))
            changed[name] = _with_server(Path(settings[name]), way.url, directory / "kubeconfig")
    return changed, ways


def _server(kubeconfig: Path) -> str:
    return str(load_yaml(kubeconfig.read_text())["clusters"][0]["cluster"]["server"])


def _with_server(kubeconfig: Path, url: str, path: Path) -> str:
    access = load_yaml(kubeconfig.read_text())
    access["clusters"][0]["cluster"]["server"] = url
    path.write_text(yaml.safe_dump(access))
    return str(path)


def fork_on_demand(module: str) -> None:
    """Be a template: for each line on the standard input, the settings as JSON, fork an instance and print its pid."""
    service = importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # An instance goes with the template, also where it stands still.
            os.environ.update(json.loads(line))
            sys.argv[1:] = []
            service.main()
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    fork_on_demand(sys.argv[1])
