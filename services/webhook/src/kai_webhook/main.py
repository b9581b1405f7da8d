"""`kai-webhook`: the admission webhook as a process."""

import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from kaicore.errors import ConfigurationError
from kaicore.rules.topology.book import TopologyBook
from kaicore.runtime.service import ServiceContext, run_service
from kaicore.runtime.service.http_limits import HttpLimits
from kaicore.runtime.service.http_server import HttpServer
from kaicore.runtime.service.log_access import LOG, open_log
from kaicore.runtime.service.together import run_together

from kai_webhook.app import MOST_BYTES, make_app
from kai_webhook.known_topologies import KnownTopologies
from kai_webhook.settings import WebhookSettings


async def serve(context: ServiceContext, settings: WebhookSettings) -> None:
    """Judge until the process is to stop."""
    known_topologies: list[KnownTopologies] = []

    def topologies() -> TopologyBook | None:
        return known_topologies[0].book if known_topologies else None

    server = HttpServer(
        make_app(topologies, context.health, scheduler_name=settings.scheduler_name),
        host=settings.http_host,
        port=settings.http_port,
        fd=settings.http_fd,
        cert_file=settings.tls_cert_file,
        key_file=settings.tls_key_file,
        limits=HttpLimits(body_bytes=MOST_BYTES),
    )
    context.log.info("listening", address=server.address)
    bodies: list[Coroutine[Any, Any, None]] = [_keep_certificate(context, settings, server)]
    if settings.database_url:
        bodies.append(_know_topologies(context, settings, known_topologies))
    else:
        context.health.met(LOG)
    await server.run_beside(context.stopping, run_together(context.stopping, *bodies))


async def _know_topologies(
    context: ServiceContext, settings: WebhookSettings, known_topologies: list[KnownTopologies]
) -> None:
    async with open_log(context, settings.database_url) as log:
        if log is not None:
            known_topologies.append(KnownTopologies(log, settings.cluster))
            await known_topologies[0].follow(context)


async def _keep_certificate(context: ServiceContext, settings: WebhookSettings, server: HttpServer) -> None:
    """Take the certificate anew whenever its files have changed, as those of a Secret do."""
    files = settings.tls_cert_file, settings.tls_key_file
    before = _versions(*files)
    while not await context.sleep(settings.reload_s):
        now = _versions(*files)
        if now == before:
            continue
        try:
            server.reload_certificate()
        except ConfigurationError as error:
            # One file may be there before the other.
            context.log.warning("certificate cannot be used", error=str(error))
            continue
        before = now
        context.log.info("certificate taken anew")


def _versions(*files: Path) -> list[tuple[int, int, int]]:
    versions = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            versions.append((0, 0, 0))
        else:
            versions.append((status.st_mtime_ns, status.st_ino, status.st_size))
    return versions


def main() -> None:
    """Entry point of `kai-webhook`."""
    sys.exit(run_service("webhook", WebhookSettings, serve, conditions=(LOG,), serve_health=False))


if __name__ == "__main__":
    main()
