"""`kai-scheduler`: one shard's scheduler as a process."""

import gc
import sys
from pathlib import Path
from uuid import uuid4

from kaicore.analysis.inquiry.log_states import restored
from kaicore.ledger.bus.jetstream import NatsBus
from kaicore.ledger.feed import EventFeed, FeedMetrics
from kaicore.ledger.log.port import EventLog
from kaicore.rules.engine.config import EngineConfig
from kaicore.runtime.service import ServiceContext, ServiceSettings, run_service
from kaicore.runtime.service.log_access import LOG, open_log
from kaicore.runtime.shard_settings import read_shard_settings
from pydantic import Field

from kai_scheduler.metrics import SchedulerMetrics
from kai_scheduler.scheduler import CyclePace, Scheduler


class SchedulerSettings(ServiceSettings):
    """Settings of `kai-scheduler`."""

    cluster: str = Field(description="the cluster to schedule")
    database_url: str = Field(description="postgresql://… of the event log")
    nats_url: str | None = Field(None, description="nats://… of the bus; without it events come from the log alone")
    shard: str = Field("default", description="the shard's name")
    scheduler_config: Path | None = Field(
        None, description="YAML file with the shard's settings (docs/reference/scheduler-settings.md)"
    )
    period_ms: int = Field(200, ge=0, description="least time between two cycles")
    standby_ms: int = Field(3000, ge=0, description="how long to leave the shard to another scheduler of it")
    snapshot_events: int = Field(50_000, ge=1, description="how many events between two snapshots of the state")


#: The state is long-lived and without cycles; collecting it again and again only delays decisions. What a cycle makes
#: is gone after it: there is room for that of several cycles of 10,000 pods before any of it is looked at.
GC_THRESHOLDS = (200_000, 5, 100)


async def serve(context: ServiceContext, settings: SchedulerSettings) -> None:
    """Follow the cluster's log and decide, until told to stop."""
    config = read_shard_settings(settings.scheduler_config)
    async with open_log(context, settings.database_url) as log:
        if log is None:
            return
        bus = await NatsBus.open(settings.nats_url, name="kai-scheduler") if settings.nats_url else None
        try:
            await _schedule(context, settings, config, log, bus)
        finally:
            if bus is not None:
                await bus.close()


async def _schedule(
    context: ServiceContext, settings: SchedulerSettings, config: EngineConfig, log: EventLog, bus: NatsBus | None
) -> None:
    state = await restored(log, settings.cluster)
    feed = EventFeed(log, bus, settings.cluster, after=state.position, observer=FeedMetrics().of(settings.cluster))
    scheduler = Scheduler(
        log=log,
        feed=feed,
        state=state,
        config=config,
        shard=settings.shard,
        instance=uuid4().hex[:8],
        context=context,
        metrics=SchedulerMetrics(),
        pace=CyclePace(
            period_s=settings.period_ms / 1000,
            standby_s=settings.standby_ms / 1000,
            snapshot_events=settings.snapshot_events,
        ),
    )
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        await scheduler.run()
    finally:
        await feed.close()
        await scheduler.save_snapshot()


def main() -> None:
    """Entry point of `kai-scheduler`."""
    sys.exit(run_service("scheduler", SchedulerSettings, serve, conditions=(LOG, "state")))


if __name__ == "__main__":
    main()
