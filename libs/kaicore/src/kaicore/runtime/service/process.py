"""Runs a service as a process: one event loop, a health server, and a clean end on SIGTERM or SIGINT.

A supervisor that names itself in `KAI_PARENT_PID` is not outlived, however it ends: on Linux the kernel sends the
service SIGTERM when its parent dies.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, NoReturn, TypeVar

import uvloop
from prometheus_client import REGISTRY, CollectorRegistry

from kaicore.runtime.fork_server import ForkServer, forking
from kaicore.runtime.process_context import Health, ProcessContext, run_until_stopped, served, start
from kaicore.runtime.service.health import Asgi, with_health
from kaicore.runtime.service.http_limits import HttpLimits
from kaicore.runtime.service.http_server import HttpServer
from kaicore.runtime.service.logs import Logger, configure_logging, get_logger
from kaicore.runtime.service.settings import ProxySettings, ServiceSettings, TlsSettings, read_settings


@dataclass(slots=True)
class ServiceContext(ProcessContext[Logger]):
    """The context of a service.

    Attributes:
        forks: forks the programs that the service starts; None where it starts none, or this system has no such server.
        registry: of its metrics; another one where several services share a process.
    """

    forks: ForkServer | None = None
    registry: CollectorRegistry = REGISTRY


_SettingsT = TypeVar("_SettingsT", bound=ServiceSettings)


@dataclass(frozen=True, slots=True)
class Service(Generic[_SettingsT]):
    """A service, as its process starts it.

    Attributes:
        name: in logs, and without `kai-` the name of its program.
        settings: read from flags and environment before anything starts.
        serve: the service; it is cancelled `STOP_GRACE_S` seconds after the context's `stopping` was set.
        conditions: these must be met before `/readyz` says so.
        serve_health: False for a service that serves the health routes itself.
        starts: modules of the programs that it starts; they are imported once, beside the service.
    """

    name: str
    settings: type[_SettingsT]
    serve: Callable[[ServiceContext, _SettingsT], Awaitable[None]]
    conditions: tuple[str, ...] = ()
    serve_health: bool = True
    starts: tuple[str, ...] = ()

    def main(self) -> NoReturn:
        """Entry point of the program: run with the process's arguments, and exit."""
        # First of all: what this process has written to is not shared with the server any more.
        with forking(self.starts, at_once=False) as forks:
            run = partial(self._run_alone, forks=forks)
            sys.exit(start(self.name, read=lambda: read_settings(self.settings), run=run))

    def _run_alone(self, settings: _SettingsT, *, forks: ForkServer | None) -> int:
        configure_logging(self.name, level=settings.log_level)
        return uvloop.run(self.run_in(asyncio.Event(), settings, registry=REGISTRY, forks=forks))

    async def run_in(
        self, stopping: asyncio.Event, settings: _SettingsT, *, registry: CollectorRegistry, forks: ForkServer | None
    ) -> int:
        """Run in an event loop until the service returns or `stopping` is set; return the exit code of `served`."""
        context = ServiceContext(
            name=self.name,
            health=Health(*self.conditions),
            log=get_logger(),
            stopping=stopping,
            forks=forks,
            registry=registry,
        )
        return await served(context, self._run(context, settings))

    async def _run(self, context: ServiceContext, settings: _SettingsT) -> None:
        ended = asyncio.Event()
        serving: asyncio.Future[None] | None = None
        if self.serve_health:
            server = HttpServer(
                with_health(context.health, registry=context.registry),
                host=settings.http_host,
                port=settings.http_port,
                fd=settings.http_fd,
            )
            serving = asyncio.ensure_future(server.run(ended))
            context.log.info("health server listening", address=server.address)
        try:
            await run_until_stopped(context, self.serve(context, settings))
        finally:
            ended.set()
            if serving is not None:
                await serving
            context.log.info("stopped")


def listen(
    context: ServiceContext, settings: ServiceSettings, app: Asgi, *, limits: HttpLimits | None = None, **fields: object
) -> HttpServer:
    """Begin to listen where the settings say, over TLS if they are `TlsSettings`; log the address.

    Raises ConfigurationError: the address cannot be listened on, or the certificate cannot be used.

    Args:
        settings: of the service; `ProxySettings` name the proxies that are believed.
        limits: see `HttpServer`.
        fields: more for the line in the log.
    """
    cert_file, key_file = (
        (settings.tls_cert_file, settings.tls_key_file) if isinstance(settings, TlsSettings) else (None, None)
    )
    server = HttpServer(
        app,
        host=settings.http_host,
        port=settings.http_port,
        fd=settings.http_fd,
        cert_file=cert_file,
        key_file=key_file,
        limits=limits,
        trusted_proxies=settings.trusted_proxy if isinstance(settings, ProxySettings) else (),
    )
    context.log.info("listening", address=server.address, **fields)
    return server
