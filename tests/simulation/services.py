"""The services as they run in a simulation: their own classes and run loops, on simulated ports and clocks."""

import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from kai_binder.binder import Binder, BinderOptions
from kai_binder.metrics import BinderMetrics
from kai_hub.hub import Hub, HubMetrics, HubOptions
from kai_ingest.ingest import Ingest, IngestMetrics
from kai_ingest.reports import Report
from kai_relay.relay import Readiness, Relay, RelayMetrics, RelayOptions
from kai_scheduler.metrics import SchedulerMetrics
from kai_scheduler.replicas import Standby
from kai_scheduler.scheduler import CyclePace, Scheduler
from kai_watcher.metrics import WatcherMetrics
from kai_watcher.watcher import Watcher, WatcherOptions
from kaicore.analysis.replay.log_states import restored
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.bus.leases import Members
from kaicore.ledger.feed import EventFeed, FeedOptions
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.objects.reports import ReportAnswer
from kaicore.runtime.service import Health, ServiceContext
from prometheus_client import CollectorRegistry

from tests.simulation.bus import NetworkBus
from tests.simulation.leases import LoopAnnouncer, NetworkLeaseStore
from tests.simulation.log import NetworkLog
from tests.simulation.loop import Process

#: Of a run that has one.
CLUSTER = "simulated"


class Silence:
    """A service's logger; errors go into the trace, for they should be rare."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def bind(self, **_: Any) -> "Silence":
        return self

    def debug(self, *_: Any, **__: Any) -> None:
        """Say nothing."""

    info = warning = debug

    def error(self, event: str, **values: Any) -> None:
        """Put it into the trace."""
        self._tell(f"error {event} {sorted(values.items())}")

    exception = error


@dataclass(frozen=True, slots=True)
class Place:
    """The inputs of a process of a service."""

    cluster: str
    process: Process
    log: NetworkLog
    bus: NetworkBus
    client: KubeClient
    context: ServiceContext
    chance: random.Random
    leases: NetworkLeaseStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The speed of the services, and the interval of their snapshots."""

    period_s: float = 0.2
    standby_s: float = 1.5
    takeover_s: float = 1.0
    snapshot_events: int = 60
    give_up_s: float = 8.0
    side_writes: bool = True
    shares: bool = False
    hub_lease_s: float = 3.0
    hub_patience_s: float = 5.0


def context_of(role: str, tell: Callable[[str], None]) -> ServiceContext:
    conditions = ("log", "bus", "api", "lists", "state", "projection")
    return ServiceContext(role, Health(*conditions), Silence(tell))


async def watch(place: Place, pace: Pace) -> None:
    """`kai-watcher`."""
    process = place.process
    registry = CollectorRegistry()
    await Watcher(
        cluster=place.cluster,
        instance=process.name,
        log=place.log,
        client=place.client,
        context=place.context,
        metrics=WatcherMetrics(place.cluster, registry=registry, clock=lambda: process.clock() / 1e6),
        clock=process.clock,
        options=WatcherOptions(snapshot_events=pace.snapshot_events, recheck_s=60.0),
        jitter=place.chance.random,
    ).run()


async def relay(place: Place, pace: Pace) -> None:
    """`kai-relay`."""
    process = place.process
    await Relay(
        place.log,
        place.bus,
        clusters=(),
        options=RelayOptions(takeover_ms=int(pace.takeover_s * 1000)),
        metrics=RelayMetrics(registry=CollectorRegistry(), clock=lambda: process.clock() / 1e6),
        readiness=Readiness(place.context.health),
        logger=place.context.log,
        jitter=place.chance.random,
    ).run(place.context.stopping)


async def schedule(place: Place, pace: Pace, config: EngineConfig, now: Callable[[], float], *, shared: bool) -> None:
    """`kai-scheduler`, of the shard `default`: with a replica's name, or one of several of which one decides.

    Args:
        place: where.
        pace: how fast.
        config: the shard's settings.
        now: seconds that never jump.
        shared: whether schedulers share the groups.
    """
    process, log = place.process, place.log
    state = await restored(log, place.cluster)
    replica = process.role if shared else ""
    member = replica or f"{now():020.6f}-{process.name.replace('.', '-')}"
    role = "scheduler/default" if shared else "standby/default"
    announcer = LoopAnnouncer(
        Members(place.leases, place.cluster, role, member=member.replace(".", "-"), ttl_s=pace.standby_s, clock=now)
    )
    standby = Standby(
        standby_s=pace.standby_s,
        monotonic=now,
        live=None if shared else announcer,
        member=member.replace(".", "-"),
    )
    await Scheduler(
        log=log,
        feed=EventFeed(log, place.bus, place.cluster, after=state.position, options=FeedOptions(retry_max_s=2.0)),
        state=state,
        config=config,
        shard="default",
        replica=replica,
        live=announcer if shared else None,
        standby=None if shared else standby,
        instance=process.name,
        context=place.context,
        metrics=SchedulerMetrics(CollectorRegistry()),
        pace=CyclePace(
            period_ms=int(pace.period_s * 1000),
            standby_ms=int(pace.standby_s * 1000),
            snapshot_events=pace.snapshot_events,
        ),
        clock=process.clock,
        monotonic=now,
    ).run()


async def bind(place: Place, pace: Pace) -> None:
    """`kai-binder`."""
    await Binder(
        cluster=place.cluster,
        log=place.log,
        bus=place.bus,
        client=place.client,
        context=place.context,
        metrics=BinderMetrics(place.cluster, registry=CollectorRegistry()),
        clock=place.process.clock,
        options=BinderOptions(
            concurrency=8,
            give_up_s=pace.give_up_s,
            evict_give_up_s=2 * pace.give_up_s,
            annotations=pace.side_writes,
            pod_conditions=pace.side_writes,
            failed_scheduling_events=False,
            scheduled_events=False,
            snapshot_events=pace.snapshot_events,
            hub_lease_s=pace.hub_lease_s,
            gpu_sharing=pace.shares,
            gpu_reservation_image="kai-ledger",
            gpu_give_up_s=pace.give_up_s,
        ),
        jitter=place.chance.random,
    ).run()


async def hub(place: Place, pace: Pace) -> None:
    """`kai-hub`, without its routes."""
    process = place.process
    await Hub(
        log=place.log,
        bus=place.bus,
        context=place.context,
        metrics=HubMetrics(registry=CollectorRegistry()),
        instance=process.name,
        clock=process.clock,
        monotonic=process.boot_us,
        options=HubOptions(patience_s=pace.hub_patience_s),
    ).run()


class IngestService:
    """`kai-ingest`, without HTTP."""

    def __init__(self, place: Place, pace: Pace) -> None:
        self._place = place
        self._ingest = Ingest(
            log=place.log,
            cluster=place.cluster,
            metrics=IngestMetrics(registry=CollectorRegistry()),
            logger=place.context.log,
            clock=place.process.clock,
            snapshot_events=pace.snapshot_events,
        )
        self.ready = False

    async def run(self) -> None:
        """Take what the log says, and reports meanwhile."""
        await self._ingest.load()
        feed = EventFeed(
            self._place.log,
            self._place.bus,
            self._place.cluster,
            after=self._ingest.projection.position,
            options=FeedOptions(),
        )
        self.ready = True
        await self._ingest.follow(feed)

    async def take(self, report: Report) -> ReportAnswer:
        """Take a node's report."""
        (answer,) = await self._ingest.take([report])
        return answer


#: Makes the body of a service at a place.
Body = Callable[[Place], Coroutine[Any, Any, None]]
