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
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop
from prometheus_client import REGISTRY, CollectorRegistry

from kaicore.errors import ConfigurationError
from kaicore.runtime.fork_server import ForkServer, forking
from kaicore.runtime.process_context import allow_open_files, bound_to_parent
from kaicore.runtime.service.logs import configure_logging
from kaicore.runtime.service.process import Service
from kaicore.runtime.service.settings import ServiceSettings, read_settings
from kaicore.runtime.supervision import SHARED_SERVICES, SharedService


def main() -> None:
    """Run the services that the environment names, and exit as the first of them that ended."""
    shared = msgspec.json.decode(os.environ.pop(SHARED_SERVICES), type=tuple[SharedService, ...])
    found: list[Service[Any]] = [importlib.import_module(one.module).SERVICE for one in shared]
    with suppress(OSError):
        Path("/proc/self/comm").write_text("kai-services")
    allow_open_files()
    # First of all: what this process has written to is not shared with the server any more.
    with forking([module for service in found for module in service.starts], at_once=False) as forks:
        services = [(service, _settings_of(service, one)) for service, one in zip(found, shared, strict=True)]
        if not bound_to_parent():
            sys.exit(1)
        configure_logging("services", level=services[0][1].log_level)
        sys.exit(uvloop.run(_run(services, forks)))


def _settings_of(service: Service[Any], shared: SharedService) -> ServiceSettings:
    """Return what a service is set to, or exit."""
    try:
        with _beside(shared.environment):
            settings: ServiceSettings = read_settings(service.settings, [])
    except ConfigurationError as error:
        sys.stderr.write(f"kai-{service.name}: {error}\n")
        sys.exit(2)
    return settings


async def _run(services: Sequence[tuple[Service[Any], ServiceSettings]], forks: ForkServer | None) -> int:
    stopping = asyncio.Event()
    # Metrics of modules, and of the process, are in the registry that there is of old: one service shows it.
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
