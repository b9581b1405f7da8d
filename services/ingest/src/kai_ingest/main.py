"""`kai-ingest`: one cluster's ingest as a process."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kaicore.bus import NatsBus
from kaicore.feed import EventFeed, FeedMetrics
from kaicore.k8s.access import configured_access
from kaicore.k8s.client import KubeClient
from kaicore.log.postgres import PostgresLog
from kaicore.service import ServiceContext, run_service
from kaicore.service.http_limits import HttpLimits
from kaicore.service.http_server import HttpServer
from kaicore.service.node_tokens import read_secret

from kai_ingest.app import PROJECTION, ReportRoutes, create_app
from kai_ingest.authentication import Authenticator, KubernetesTokens, SharedSecret
from kai_ingest.ingest import Ingest
from kai_ingest.metrics import IngestMetrics
from kai_ingest.settings import IngestSettings
from kai_ingest.token_review import KubernetesReviewer

#: Seconds that a log which does not answer is waited for; shorter than exporters wait for us.
_PATIENCE_S = 10.0


async def serve(context: ServiceContext, settings: IngestSettings) -> None:
    """Take reports until the process is to stop."""
    async with _authenticator(settings) as authenticator:
        await _serve(context, settings, authenticator)


async def _serve(context: ServiceContext, settings: IngestSettings, authenticator: Authenticator) -> None:
    log = await PostgresLog.open(settings.database_url, application="kai-ingest", patience_s=_PATIENCE_S)
    context.health.met("log")
    bus = await NatsBus.open(settings.nats_url, name="kai-ingest") if settings.nats_url else None
    metrics = IngestMetrics()
    ingest = Ingest(
        log=log,
        cluster=settings.cluster,
        metrics=metrics,
        logger=context.log,
        clock=lambda: time.time_ns() // 1000,
        snapshot_events=settings.snapshot_events,
    )
    routes = ReportRoutes(
        ingest,
        authenticator,
        cluster=settings.cluster,
        health=context.health,
        metrics=metrics,
        logger=context.log,
    )
    server = HttpServer(
        create_app(routes, context.health),
        host=settings.http_host,
        port=settings.http_port,
        fd=settings.http_fd,
        cert_file=settings.tls_cert_file,
        key_file=settings.tls_key_file,
        limits=HttpLimits(connections=settings.max_connections, body_bytes=settings.max_body_bytes),
    )
    context.log.info("listening", address=server.address)
    serving = asyncio.ensure_future(server.run(context.stopping))
    following = asyncio.ensure_future(_follow(context, settings, ingest, log, bus))
    try:
        await asyncio.wait({serving, following}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
        await serving
    finally:
        following.cancel()
        context.stopping.set()
        await asyncio.wait({serving, following})
        await ingest.save_snapshot()
        if bus is not None:
            await bus.close()
        await log.close()


async def _follow(
    context: ServiceContext, settings: IngestSettings, ingest: Ingest, log: PostgresLog, bus: NatsBus | None
) -> None:
    await ingest.load()
    feed = EventFeed(
        log, bus, settings.cluster, after=ingest.projection.position, observer=FeedMetrics().of(settings.cluster)
    )
    context.health.met(PROJECTION)
    try:
        await ingest.follow(feed)
    finally:
        await feed.close()


@asynccontextmanager
async def _authenticator(settings: IngestSettings) -> AsyncIterator[Authenticator]:
    if settings.node_token_secret_file is not None:
        yield SharedSecret(read_secret(settings.node_token_secret_file), cluster=settings.cluster)
        return
    source = configured_access(settings.kubeconfig, context=settings.kube_context)
    async with KubeClient(source, timeout_s=_PATIENCE_S, user_agent="kai-ingest") as client:
        yield KubernetesTokens(
            KubernetesReviewer(client),
            audience=settings.token_audience,
            service_accounts=frozenset(settings.exporter_service_accounts),
            clock=time.monotonic,
        )


def main() -> None:
    """Entry point of `kai-ingest`."""
    sys.exit(run_service("ingest", IngestSettings, serve, conditions=("log", PROJECTION), serve_health=False))


if __name__ == "__main__":
    main()
