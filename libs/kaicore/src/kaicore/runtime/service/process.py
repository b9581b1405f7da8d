"""Run a service as a process: one event loop, a health server, and a clean end on SIGTERM or SIGINT.

A supervisor that names itself in `KAI_PARENT_PID` is not outlived, however it ends: on Linux the kernel sends the
service SIGTERM when its parent dies.
"""

import asyncio
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import uvloop

from kaicore.errors import ConfigurationError, KaiError
from kaicore.runtime.service.health import Health, with_health
from kaicore.runtime.service.http_server import HttpServer
from kaicore.runtime.service.logs import Logger, configure_logging, get_logger
from kaicore.runtime.service.settings import ServiceSettings, read_settings
from kaicore.version import version

#: Seconds that a service's body has to end by itself after it was asked to.
STOP_GRACE_S = 10.0

#: `prctl(2)`: the signal to get when the parent dies.
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class ServiceContext:
    """What a service's body gets: its health, its logger, and the wish that it stop."""

    name: str
    health: Health
    log: Logger
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def sleep(self, seconds: float) -> bool:
        """Sleep, but wake at once when the service is to stop; return whether it is to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        return self.stopping.is_set()


_SettingsT = TypeVar("_SettingsT", bound=ServiceSettings)


def run_service(
    name: str,
    settings_class: type[_SettingsT],
    body: Callable[[ServiceContext, _SettingsT], Awaitable[None]],
    *,
    conditions: tuple[str, ...] = (),
    serve_health: bool = True,
    argv: list[str] | None = None,
) -> int:
    """Run `body` until it returns or the process is told to stop; return the exit code.

    `--version` only says it. The code is 0 after a clean end, 2 for settings that cannot work, 1 for any other failure.

    Args:
        name: the service's name, in logs.
        settings_class: read from flags and environment before anything starts.
        body: the service; it is cancelled `STOP_GRACE_S` seconds after `stopping` was set.
        conditions: what must be met before `/readyz` says so.
        serve_health: False for a service that serves the health routes itself.
        argv: arguments without the program's name; by default the process's.
    """
    if "--version" in (sys.argv[1:] if argv is None else argv):
        sys.stdout.write(f"kai-{name} {version()}\n")
        return 0
    try:
        settings = read_settings(settings_class, argv)
    except ConfigurationError as error:
        sys.stderr.write(f"kai-{name}: {error}\n")
        return 2
    if not bound_to_parent():
        return 1
    allow_open_files()
    configure_logging(name, level=settings.log_level)
    context = ServiceContext(name=name, health=Health(*conditions), log=get_logger())
    try:
        uvloop.run(_run(context, settings, body, serve_health=serve_health))
    except KaiError as error:
        context.log.error("service failed", error=str(error), kind=type(error).__name__)
        # A supervisor need not try again while the settings are the same.
        return 2 if isinstance(error, ConfigurationError) else 1
    return 0


def allow_open_files() -> None:
    """Raise the limit of open files as far as is allowed, as Go programs do: the usual 1024 are for `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def bound_to_parent() -> bool:
    """Ask for SIGTERM when the supervisor (`KAI_PARENT_PID`) dies; return False if it is dead already."""
    supervisor = os.environ.get("KAI_PARENT_PID")
    if supervisor is None:
        return True
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return str(os.getppid()) == supervisor


async def _run(
    context: ServiceContext,
    settings: _SettingsT,
    body: Callable[[ServiceContext, _SettingsT], Awaitable[None]],
    *,
    serve_health: bool,
) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, context.stopping.set)
    ended = asyncio.Event()
    serving: asyncio.Future[None] | None = None
    if serve_health:
        server = HttpServer(
            with_health(context.health), host=settings.http_host, port=settings.http_port, fd=settings.http_fd
        )
        serving = asyncio.ensure_future(server.run(ended))
        context.log.info("health server listening", address=server.address)
    task = asyncio.ensure_future(body(context, settings))
    stopping = asyncio.ensure_future(context.stopping.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait({task}, timeout=STOP_GRACE_S)
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    finally:
        stopping.cancel()
        ended.set()
        if serving is not None:
            await serving
        context.log.info("stopped")
