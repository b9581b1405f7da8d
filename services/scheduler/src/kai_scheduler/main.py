"""`kai-scheduler`: one shard's scheduler as a process."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from kaicore.analysis.replay.log_states import restored
from kaicore.errors import ConfigurationError
from kaicore.ledger.bus.jetstream import NatsBus
from kaicore.ledger.bus.leases import LeaseStore, Members, NatsLeaseStore
from kaicore.ledger.feed import ClusterFeedMetrics, EventFeed, EventSource, FeedMetrics, FeedObserver
from kaicore.ledger.log.port import EventLog
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.replicas import promoted_shadow
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.policies.guard import TimeAndMemory
from kaicore.runtime.service import Service, ServiceContext
from kaicore.runtime.service.leadership import LEADS, LeaseSettings, can_lease
from kaicore.runtime.service.log_access import LOG, open_log
from kaicore.runtime.service.settings import FeedSettings
from kaicore.runtime.shard_settings import read_shard_settings
from pydantic import Field

from kai_scheduler.metrics import SchedulerMetrics
from kai_scheduler.replicas import Announcer, Standby
from kai_scheduler.scheduler import Collecting, CyclePace, Scheduler, look_at_new
from kai_scheduler.shadowing import Shadow, read_schedulers

#: A shard's and a replica's name: part of the names of streams, and of entries on NATS.
_NAME = r"^[a-zA-Z0-9]([-_.a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$"


class SchedulerSettings(FeedSettings, LeaseSettings, CyclePace):
    """Settings of `kai-scheduler`."""

    cluster: str = Field(description="the cluster to schedule")
    shard: str = Field("default", pattern=_NAME, description="the shard's name")
    replica: str | None = Field(
        None,
        pattern=_NAME,
        description="this scheduler's name among several that share the shard's groups, such as its pod's; without it, "
        "it has the shard for itself (docs/how-to/shards.md)",
    )
    member_ttl_ms: int = Field(
        2000, ge=300, description="how long a replica counts as live that does not announce itself again"
    )
    scheduler_config: Path | None = Field(
        None, description="YAML file with the shard's settings (docs/reference/scheduler-settings.md)"
    )
    shadow: str = Field(
        "",
        description="decide on the pods of these other schedulers instead, by their schedulerName (NAME,NAME; * for "
        "all), and only record it (docs/how-to/shadow.md); its own name: until `kai shadow promote`",
    )


async def serve(context: ServiceContext, settings: SchedulerSettings) -> None:
    """Follow the cluster's log and decide, until asked to stop."""
    policies = PolicyBook(TimeAndMemory())
    config = read_shard_settings(settings.scheduler_config, policies)
    if settings.replica and not settings.nats_url:
        raise ConfigurationError("replica is set, and nats_url is not: replicas see on NATS which of them are live")
    if settings.replica and not can_lease(settings.cluster):
        raise ConfigurationError(f"replica is set, and the bus cannot carry the cluster's name: {settings.cluster!r}")
    shadowed = read_schedulers(settings.shadow)
    takes_over = shadowed == (config.scheduler_name,)
    if config.scheduler_name in shadowed and not takes_over:
        raise ConfigurationError(f"shadow: {config.scheduler_name} is this scheduler's own name: it goes alone")
    if takes_over and not (settings.nats_url and settings.lease_ms and can_lease(settings.cluster)):
        raise ConfigurationError(
            f"shadow: {config.scheduler_name}, its own name: set nats_url and lease_ms, by which it takes over"
        )
    if shadowed and settings.replica:
        raise ConfigurationError("shadow and replica are set: a shadow is alone")
    async with (
        open_log(context, settings.database_url) as log,
        NatsBus.of_service(context.name, settings.nats_url) as bus,
    ):
        if log is None:
            return
        state = await restored(log, settings.cluster)
        own = _Process(
            settings=settings,
            config=config,
            log=log,
            bus=bus,
            policies=policies,
            state=state,
            metrics=SchedulerMetrics(context.registry),
            feed_metrics=FeedMetrics(registry=context.registry),
        )
        if takes_over:
            await _in_turn(context, own)
        elif shadowed:
            await _shadow(context, own, own.feed())
        else:
            await _schedule(context, own, own.feed())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    """A process's parts, also of one that is a shadow and a scheduler in turn."""

    settings: SchedulerSettings
    config: EngineConfig
    log: EventLog
    bus: NatsBus | None
    policies: PolicyBook
    state: ClusterState
    metrics: SchedulerMetrics
    feed_metrics: FeedMetrics

    def feed(self, observer: FeedObserver | None = None) -> EventFeed:
        """Return a feed from the state on."""
        cluster = self.settings.cluster
        observer = observer or self.feed_metrics.of(cluster)
        return EventFeed(self.log, self.bus, cluster, after=self.state.position, observer=observer)


class _Turn(ClusterFeedMetrics):
    """Ends a turn when the log says that the shadow is promoted, or is a shadow again."""

    def __init__(self, own: _Process, over: asyncio.Event) -> None:
        super().__init__(own.feed_metrics, own.settings.cluster)
        self._shadow, self._over = promoted_shadow(own.settings.shard), over

    def delivered(self, source: EventSource, events: Sequence[Event]) -> None:
        """See `FeedObserver.delivered`."""
        super().delivered(source, events)
        if any(event.type == "ReplicasChanged" and event.subject == self._shadow for event in events):
            self._over.set()


async def _hand_on(stopping: asyncio.Event, over: asyncio.Event) -> None:
    await stopping.wait()
    over.set()


async def _in_turn(context: ServiceContext, own: _Process) -> None:
    """Be the shadow of one's own shard's scheduler, and decide ahead of it while promoted."""
    promoted = promoted_shadow(own.settings.shard)
    while not context.stopping.is_set():
        turn = replace(context, stopping=asyncio.Event())
        stopping = asyncio.ensure_future(_hand_on(context.stopping, turn.stopping))
        try:
            feed = own.feed(_Turn(own, turn.stopping))
            if own.state.replicas.get(promoted):
                await _schedule(turn, own, feed, promoted=True)
            else:
                await _shadow(turn, own, feed)
        finally:
            stopping.cancel()


async def _schedule(context: ServiceContext, own: _Process, feed: EventFeed, *, promoted: bool = False) -> None:
    settings = own.settings
    instance = uuid4().hex[:8]
    # Names in the order of announcement: the first one decides, where none has a name of its own.
    member = settings.replica or f"{0 if promoted else time.time_ns():020d}-{instance}"
    announcer = None
    loop = asyncio.get_running_loop()
    if settings.nats_url and can_lease(settings.cluster) and (settings.replica or settings.lease_ms):
        announcer = _announcer(
            settings, settings.nats_url, member, changed=lambda: loop.call_soon_threadsafe(scheduler.look)
        )
    standby = None
    leads = LEADS.labels(settings.cluster, f"scheduler/{settings.shard}")
    if not settings.replica:
        standby = Standby(
            standby_s=settings.standby_s, monotonic=time.monotonic, live=announcer, member=member, notify=leads.set
        )
    scheduler = Scheduler(
        log=own.log,
        feed=feed,
        state=own.state,
        config=own.config,
        shard=settings.shard,
        replica=settings.replica or "",
        live=announcer if settings.replica else None,
        standby=standby,
        instance=instance,
        context=context,
        metrics=own.metrics,
        collecting=Collecting(),
        pace=settings,
        policies=own.policies,
    )
    stopping = asyncio.ensure_future(context.stopping.wait())
    stopping.add_done_callback(lambda _: scheduler.look())
    try:
        await scheduler.run()
    finally:
        stopping.cancel()
        if announcer is not None:
            await announcer.stop()
            await scheduler.leave()
        if promoted:
            leads.set(False)
        await feed.close()
        await scheduler.save_snapshot()


async def _shadow(context: ServiceContext, own: _Process, feed: EventFeed) -> None:
    shadow = Shadow(
        log=own.log,
        feed=feed,
        state=own.state,
        config=own.config,
        schedulers=read_schedulers(own.settings.shadow),
        instance=uuid4().hex[:8],
        context=context,
        metrics=own.metrics,
        pace=own.settings,
        policies=own.policies,
    )
    look_at_new()
    try:
        await shadow.begin()
        await shadow.run()
    finally:
        await feed.close()
        await shadow.save_snapshot()


def _announcer(settings: SchedulerSettings, url: str, member: str, *, changed: Callable[[], object]) -> Announcer:
    """Return what announces this scheduler and sees the others, of its shard or of its replica's."""

    async def join() -> tuple[LeaseStore, Members]:
        store = await NatsLeaseStore.open(url, name="kai-scheduler leases", replicas=settings.lease_replicas)
        role = f"scheduler/{settings.shard}" if settings.replica else f"standby/{settings.shard}"
        ttl_s = (settings.member_ttl_ms if settings.replica else settings.lease_ms) / 1000
        return store, Members(store, settings.cluster, role, member=member, ttl_s=ttl_s)

    return Announcer(join, changed=changed)


SERVICE = Service("scheduler", SchedulerSettings, serve, conditions=(LOG, "state"))
main = SERVICE.main

if __name__ == "__main__":
    main()
