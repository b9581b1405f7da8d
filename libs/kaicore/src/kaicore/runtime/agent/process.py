"""Runs an agent as a process: as `kaicore.runtime.service.process` runs a service, with less memory.

A random number for waits (`kaicore.backoff.jittered`), without `random`, which takes 0.2 MB (decision 0500).
"""

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from kaicore.errors import ConfigurationError, KaiError
from kaicore.runtime.agent.http_server import HealthServer
from kaicore.runtime.agent.logs import AgentLog, LibraryLines, Log
from kaicore.runtime.agent.metrics import Registry, process_metrics
from kaicore.runtime.agent.settings import AgentSettings, read_agent_settings
from kaicore.runtime.process_context import Health, ProcessContext, allow_open_files, bound_to_parent, run_until_stopped
from kaicore.version import version


def jitter() -> float:
    """Return a random number, 0 to 1."""
    return int.from_bytes(os.urandom(4), "big") / 0xFFFF_FFFF


@dataclass(slots=True)
class AgentContext(ProcessContext[Log]):
    """The context of an agent, with the metrics that it shows."""

    registry: Registry = field(default_factory=Registry)


_SettingsT = TypeVar("_SettingsT", bound=AgentSettings)


def run_agent(
    name: str,
    settings_class: type[_SettingsT],
    body: Callable[[AgentContext, _SettingsT], Awaitable[None]],
    *,
    conditions: tuple[str, ...] = (),
    argv: list[str] | None = None,
) -> int:
    """Run `body` until it returns or the process is asked to stop; return the exit code, as `Service.run` does.

    Args:
        name: the agent's name, in logs.
        settings_class: read from flags and environment before anything starts.
        body: the agent.
        conditions: what must be met before `/readyz` says so.
        argv: arguments without the program's name; by default the process's.
    """
    if "--version" in (sys.argv[1:] if argv is None else argv):
        sys.stdout.write(f"kai-{name} {version()}\n")
        return 0
    try:
        settings = read_agent_settings(settings_class, argv)
    except ConfigurationError as error:
        sys.stderr.write(f"kai-{name}: {error}\n")
        return 2
    if not bound_to_parent():
        return 1
    allow_open_files()
    log = AgentLog(name, level=settings.log_level)
    logging.basicConfig(handlers=[LibraryLines(log)], level=logging.WARNING, force=True)
    context = AgentContext(name, Health(*conditions), log)
    # What is there by now stays: it need not be looked at again. What comes is little, and an agent is to stay small.
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 10)
    try:
        asyncio.run(_run(context, settings, body))
    except KaiError as error:
        log.error("service failed", error=str(error), kind=type(error).__name__)
        # A supervisor need not try again while the settings are the same.
        return 2 if isinstance(error, ConfigurationError) else 1
    return 0


async def _run(
    context: AgentContext,
    settings: _SettingsT,
    body: Callable[[AgentContext, _SettingsT], Awaitable[None]],
) -> None:
    process_metrics(context.registry)
    server = HealthServer(context.health, context.registry)
    address = await server.start(host=settings.http_host, port=settings.http_port, fd=settings.http_fd)
    context.log.info("health server listening", address=address)
    try:
        await run_until_stopped(context, body(context, settings))
    finally:
        await server.close()
        context.log.info("stopped")
