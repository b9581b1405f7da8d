"""Several services in one process, for one small machine: `kai up --compact`.

They share an event loop and what they import, and nothing else. Each has its settings, address, health and metrics, and
its own connections to the log and the bus, with its own roles there. They stand and fall together: where one ends, the
process ends, and its supervisor starts all of them again.

`$KAI_SHARED_SERVICES` names them, for a shared process has as many environments as services.
"""

import asyncio
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop
from prometheus_client import REGISTRY, CollectorRegistry

from kaicore.errors import ConfigurationError
from kaicore.runtime.fork_server import ForkServer, forking
from kaicore.runtime.process_context import start
from kaicore.runtime.service.logs import configure_logging
from kaicore.runtime.service.process import Service
from kaicore.runtime.service.settings import ServiceSettings, read_settings
from kaicore.runtime.supervision import SHARED_SERVICES, SharedService


def main() -> None:
    """Run the services that the environment names, and exit as the first of them that ended."""
    shared = msgspec.json.decode(os.environ.pop(SHARED_SERVICES), type=tuple[SharedService, ...])
    found: list[Service[Any]] = [importlib.import_module(one.module).SERVICE for one in shared]
    # First of all: what this process has written to is not shared with the server any more.
    with forking([module for service in found for module in service.starts], at_once=False) as forks:
        sys.exit(start("services", read=partial(_read, found, shared), run=partial(_run, forks=forks)))


def _read(found: Sequence[Service[Any]], shared: Sequence[SharedService]) -> list[tuple[Service[Any], ServiceSettings]]:
    services: list[tuple[Service[Any], ServiceSettings]] = []
    for service, one in zip(found, shared, strict=True):
        try:
            with _beside(one.environment):
                services.append((service, read_settings(service.settings, [])))
        except ConfigurationError as error:
            raise ConfigurationError(f"kai-{service.name}: {error}") from error
    return services


def _run(services: Sequence[tuple[Service[Any], ServiceSettings]], *, forks: ForkServer | None) -> int:
    with suppress(OSError):
        Path("/proc/self/comm").write_text("kai-services")
    configure_logging("services", level=services[0][1].log_level)
    return uvloop.run(_run_together(services, forks))


async def _run_together(services: Sequence[tuple[Service[Any], ServiceSettings]], forks: ForkServer | None) -> int:
    stopping = asyncio.Event()
    # Metrics of modules and of the process are in the global registry: one service shows it.
    registries = [*(CollectorRegistry() for _ in services[1:]), REGISTRY]
    running = [
        asyncio.create_task(_named(service, settings, stopping, registry, forks if service.starts else None))
        for (service, settings), registry in zip(services, registries, strict=True)
    ]
    ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    stopping.set()
    await asyncio.gather(*running)
    return max(task.result() for task in ended)


async def _named(
    service: Service[Any],
    settings: Any,
    stopping: asyncio.Event,
    registry: CollectorRegistry,
    forks: ForkServer | None,
) -> int:
    structlog.contextvars.bind_contextvars(service=service.name)
    return await service.run_in(stopping, settings, registry=registry, forks=forks)


@contextmanager
def _beside(environment: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    main()
