"""`kai-ingest`: one cluster's ingest as a process, with its settings."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.bus import NatsBus
from kaicore.ledger.feed import EventFeed, FeedMetrics
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.runtime.access.node_tokens import read_secret
from kaicore.runtime.service import Service, ServiceContext
from kaicore.runtime.service.bus_access import open_bus
from kaicore.runtime.service.health import Later
from kaicore.runtime.service.http_limits import HttpLimits
from kaicore.runtime.service.log_access import LOG, open_log
from kaicore.runtime.service.process import listen
from kaicore.runtime.service.settings import FeedSettings, TlsSettings
from pydantic import Field, model_validator

from kai_ingest.app import PROJECTION, ReportRoutes, create_app
from kai_ingest.authentication import Authenticator, KubernetesReviewer, KubernetesTokens, SharedSecret
from kai_ingest.ingest import Ingest
from kai_ingest.metrics import IngestMetrics


class IngestSettings(FeedSettings, TlsSettings):
    """One ingest serves one cluster, and knows tokens from Kubernetes or from a shared secret, not both."""

    cluster: str = Field(min_length=1, description="the cluster of the nodes that report here")
    node_token_secret_file: Path | None = Field(None, description="secret that node tokens are made with")
    token_review: bool = Field(False, description="have Kubernetes review the tokens")
    kubeconfig: str = Field("", description="for token_review; default: the pod's own service account")
    kube_context: str = Field("", description="context of the kubeconfig; default: its current one")
    token_audience: str = Field("kai-ingest", description="for token_review: what the tokens must be made for")
    exporter_service_accounts: list[str] = Field(
        ["kai-system:kai-exporter"],
        description="for token_review: service accounts with tokens that count, as namespace:name",
    )
    max_body_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="size of a request's body at most")
    max_connections: int = Field(10_000, ge=1, description="connections at once; one for each node's exporter")
    snapshot_events: int = Field(50_000, ge=1, description="how many events between two snapshots of the projection")

    @model_validator(mode="after")
    def _one_way_to_authenticate(self) -> Self:
        if self.token_review == (self.node_token_secret_file is not None):
            raise ValueError("give either token_review or node_token_secret_file")
        return self


#: Seconds that a log which does not answer is waited for; shorter than exporters wait for us.
_PATIENCE_S = 10.0


async def serve(context: ServiceContext, settings: IngestSettings) -> None:
    """Take reports until the process is to stop."""
    app = Later(context.health)
    limits = HttpLimits(connections=settings.max_connections, body_bytes=settings.max_body_bytes)
    server = listen(context, settings, app, limits=limits)
    async with _authenticator(settings) as authenticator:
        await server.run_beside(context.stopping, _take_reports(context, settings, authenticator, app))


async def _take_reports(
    context: ServiceContext, settings: IngestSettings, authenticator: Authenticator, app: Later
) -> None:
    async with open_log(context, settings.database_url, patience_s=_PATIENCE_S) as log:
        if log is None:
            return
        metrics = IngestMetrics()
        ingest = Ingest(
            log=log,
            cluster=settings.cluster,
            metrics=metrics,
            logger=context.log,
            clock=lambda: time.time_ns() // 1000,
            snapshot_events=settings.snapshot_events,
            health=context.health,
        )
        routes = ReportRoutes(
            ingest,
            authenticator,
            cluster=settings.cluster,
            health=context.health,
            metrics=metrics,
            logger=context.log,
        )
        app.give(create_app(routes, context.health))
        async with open_bus(context, settings.nats_url) as bus:
            try:
                await _follow(context, settings, ingest, log, bus)
            finally:
                await ingest.save_snapshot()


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


SERVICE = Service("ingest", IngestSettings, serve, conditions=(LOG, PROJECTION), serve_health=False)
main = SERVICE.main

if __name__ == "__main__":
    main()
