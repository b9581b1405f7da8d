"""`kai-binder`: one cluster's binder as a process."""

import gc
import sys
import time

from kaicore.bus import NatsBus
from kaicore.feed import EventFeed, FeedMetrics
from kaicore.k8s.access import configured_access
from kaicore.k8s.client import KubeClient
from kaicore.log.postgres import PostgresLog
from kaicore.service import ServiceContext, ServiceSettings, run_service
from pydantic import Field

from kai_binder.binder import API, LOG, Binder, BinderOptions
from kai_binder.binding import Patience
from kai_binder.metrics import BinderMetrics


class BinderSettings(ServiceSettings):
    """Settings of `kai-binder`."""

    cluster: str = Field(description="the cluster whose decisions are made so")
    database_url: str = Field(description="postgresql://… of the event log")
    nats_url: str | None = Field(None, description="nats://… of the bus; without it events come from the log alone")
    kubeconfig: str = Field("", description="path of a kubeconfig; by default the pod's service account")
    kube_context: str = Field("", description="context of the kubeconfig; by default its current one")
    concurrency: int = Field(64, ge=1, le=1024, description="nodes whose pods are being bound at once")
    give_up_s: float = Field(60.0, gt=0, description="how long a binding is tried on a server that does not take it")
    annotations: bool = Field(True, description="show observed placements on pods")
    annotations_per_s: float = Field(100.0, gt=0, description="most such annotations written per second")
    snapshot_events: int = Field(50_000, ge=1, description="how many events between two snapshots")


async def serve(context: ServiceContext, settings: BinderSettings) -> None:
    """Bind until told to stop."""
    bus = await NatsBus.open(settings.nats_url, name="kai-binder") if settings.nats_url else None
    metrics = FeedMetrics()
    try:
        async with (
            await PostgresLog.open(settings.database_url, application="kai-binder") as log,
            KubeClient(
                configured_access(settings.kubeconfig, context=settings.kube_context),
                connections=settings.concurrency + 4,
                user_agent="kai-binder",
            ) as client,
        ):
            await client.get("/version")
            context.health.met(API)
            binder = Binder(
                cluster=settings.cluster,
                log=log,
                feed_after=lambda position: EventFeed(
                    log, bus, settings.cluster, after=position, observer=metrics.of(settings.cluster)
                ),
                client=client,
                context=context,
                metrics=BinderMetrics(),
                clock=lambda: time.time_ns() // 1000,
                options=BinderOptions(
                    concurrency=settings.concurrency,
                    annotations=settings.annotations,
                    annotations_per_s=settings.annotations_per_s,
                    snapshot_events=settings.snapshot_events,
                    patience=Patience(give_up_s=settings.give_up_s),
                ),
            )
            gc.set_threshold(50_000, 20, 100)
            await binder.run()
            await binder.save_snapshot()
    finally:
        if bus is not None:
            await bus.close()


def main() -> None:
    """Entry point of `kai-binder`."""
    sys.exit(run_service("binder", BinderSettings, serve, conditions=(LOG, API)))


if __name__ == "__main__":
    main()
