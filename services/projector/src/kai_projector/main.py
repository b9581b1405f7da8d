"""`kai-projector`: the read models of all clusters of a log, as a process."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from kaicore.analysis.ask.hours.kept import CountedHours, keep_hours
from kaicore.analysis.ask.projections.building import Builder, FoldedRows, GenerationStore
from kaicore.analysis.ask.projections.store import Superseded, ViewStore
from kaicore.analysis.replay.samples import SampleDifference
from kaicore.analysis.replay.self_check import Reporting, SelfCheck, states
from kaicore.errors import ConfigurationError, KaiError, LogUnavailable
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.envelope import Event
from kaicore.rules.hub.hub_state import without_hub
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.process_context import beside, end_all, run_together
from kaicore.runtime.service import Service, ServiceContext
from kaicore.runtime.service.leadership import LeaseSettings, leadership
from kaicore.runtime.service.log_access import LOG, open_log
from kaicore.runtime.service.logs import Logger
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
from pydantic import Field

if TYPE_CHECKING:
    from kai_projector.notifications import Notifications
    from kai_projector.traces import OtlpSender

#: The condition of readiness that the states of all clusters are there: an instance that has them takes over at once;
#: and seconds that they are waited for at most: one that takes over late is better than none.
STATES = "states"
_MOST_WAIT_S = 60.0

#: Seconds between two looks for clusters that are new, that one wait for events lasts, and after something failed.
_LOOK_S, _WAIT_S, _PAUSE_S = 10.0, 30.0, 2.0

#: Seconds between two looks whether an hour of the account is over.
_HOURS_S = 60.0

#: Seconds between two looks, while standing by, at how far the one that leads has come.
_TRAIL_S = 1.0

#: Seconds that events gather before they are projected: each transaction costs more than ten events in it.
_GATHER_S = 1.0


#: The lease's name: one projector keeps the read models of all clusters.
_HUB = "hub"


class ProjectorSettings(LeaseSettings):
    """Settings of `kai-projector`."""

    database_url: str = Field(description="postgresql://… of the event log, for the role kai_project")
    report_labels: str = Field(
        "project", description="labels of pods, by comma, by which `kai report` sums kept hours; others count the log"
    )
    otlp_endpoint: str = Field(
        "", description="http://HOST:4318 of a receiver of OpenTelemetry traces (OTLP over HTTP); empty for none"
    )
    otlp_headers: str = Field("", description="sent with them: name=value,name=value", repr=False)
    check_s: float = Field(3600.0, ge=0, description="how often memory and log are compared; 0: never")
    notifications: Path | None = Field(
        None, description="file of rules and targets of notifications (docs/how-to/monitor.md); none without it"
    )


class ProjectorMetrics:
    """The metrics of all clusters."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:
        self.position = Gauge(
            "kai_projector_position", "Position up to which the read models are made", ["cluster"], registry=registry
        )
        self.lag = Gauge(
            "kai_projector_lag_events",
            "Events in the log that are not in the read models",
            ["cluster"],
            registry=registry,
        )
        self.events = Counter("kai_projector_events", "Events taken in", ["cluster"], registry=registry)

        self.sent_spans = Counter(
            "kai_projector_spans_sent", "Spans that the receiver of traces took", registry=registry
        )
        self.dropped_spans = Counter(
            "kai_projector_spans_dropped",
            "Spans that were not sent: the receiver refused them, or was away for too long",
            registry=registry,
        )
        self.notices = Counter(
            "kai_projector_notices",
            "Notices that a target took, that it refused for good, and that expired untaken after three days",
            ["target", "result"],
            registry=registry,
        )
        self.oldest_notice = Gauge(
            "kai_projector_notice_waiting_seconds",
            "Age of the notice that a target did not take when it was sent last; 0 once it took all",
            ["target"],
            registry=registry,
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that each cluster's read models are kept with.

    Attributes:
        sender: sends the spans that end to a receiver of traces.
        labels: of pods, by which hours are kept.
        check_s: how often memory and log are compared; 0: never.
        leads: is set while this instance leads. While it stands by, it takes in what the one that leads has saved, so
            that it takes over in the same time however long the log is.
    """

    context: ServiceContext
    log: EventLog
    store: GenerationStore
    metrics: ProjectorMetrics
    sender: "OtlpSender | None" = None
    notifications: "Notifications | None" = None
    labels: tuple[str, ...] = ()
    check_s: float = 0.0
    leads: asyncio.Event = field(default_factory=asyncio.Event)


async def serve(context: ServiceContext, settings: ProjectorSettings) -> None:
    """Keep the read models until the process is to stop."""
    metrics = ProjectorMetrics(registry=context.registry)
    sender = open_sender(context, settings, metrics)
    async with open_log(context, settings.database_url) as log:
        if log is None:
            return
        async with (
            await ViewStore.open(settings.database_url, application="kai-projector") as store,
            _notifications(context, settings, metrics) as notifications,
            leadership(
                context, settings, cluster=_HUB, role="projector", instance=uuid4().hex, needed=(LOG, STATES)
            ) as lead_in_turn,
        ):
            parts = Parts(
                *(context, log, store, metrics),
                sender=sender,
                notifications=notifications,
                labels=tuple(filter(None, map(str.strip, settings.report_labels.split(",")))),
                check_s=settings.check_s,
            )
            async with beside(_follow_all(parts)):
                await lead_in_turn(lambda: _lead(parts))


@asynccontextmanager
async def _notifications(
    context: ServiceContext, settings: ProjectorSettings, metrics: ProjectorMetrics
) -> AsyncIterator["Notifications | None"]:
    if settings.notifications is None:
        yield None
        return
    # The HTTP client takes long to import.
    from kai_projector.notifications import Notifications  # noqa: PLC0415

    async with Notifications.opened(
        settings.notifications,
        settings.database_url,
        ended=metrics.notices,
        oldest=metrics.oldest_notice,
        logger=context.log,
    ) as opened:
        yield opened


async def _lead(parts: Parts) -> None:
    sending = [one.run() for one in (parts.sender, parts.notifications) if one is not None]
    parts.leads.set()
    try:
        await run_together(parts.context.stopping, *sending)
    finally:
        parts.leads.clear()


async def _follow_all(parts: Parts) -> None:
    context = parts.context
    following: list[asyncio.Task[None]] = []
    tried: dict[str, asyncio.Event] = {}
    catching_up: list[asyncio.Task[None]] = []
    late = asyncio.get_running_loop().call_later(_MOST_WAIT_S, context.health.met, STATES)
    try:
        while True:
            with suppress(KaiError):
                for cluster in without_hub(await parts.log.clusters()):
                    if cluster not in tried:
                        tried[cluster] = asyncio.Event()
                        works = (follow(parts, cluster, tried=tried[cluster]), _keep_account(parts, cluster))
                        following += map(asyncio.create_task, works)
                if not catching_up:
                    catching_up.append(asyncio.create_task(_catch_up(context, tuple(tried.values()))))
            await context.sleep(_LOOK_S)
    finally:
        late.cancel()
        await end_all((*following, *catching_up))


async def _catch_up(context: ServiceContext, tried: Sequence[asyncio.Event]) -> None:
    for one in tried:
        await one.wait()
    context.health.met(STATES)


def open_sender(context: ServiceContext, settings: ProjectorSettings, metrics: ProjectorMetrics) -> "OtlpSender | None":
    """Return what sends traces; None where they are not wanted.

    Raises:
        ConfigurationError: the address or the headers are none, or what traces are written with is not installed.
    """
    if not settings.otlp_endpoint:
        return None
    try:
        # Some 50 ms of imports.
        from kai_projector.traces import OtlpSender, read_headers, traces_url  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise ConfigurationError(
            "otlp_endpoint: opentelemetry-proto is not installed: pip install 'kai-ledger[otel]'"
        ) from error
    url, headers = traces_url(settings.otlp_endpoint), read_headers(settings.otlp_headers)
    return OtlpSender(url, headers, sent=metrics.sent_spans, dropped=metrics.dropped_spans, logger=context.log)


async def follow(parts: Parts, cluster: str, *, tried: asyncio.Event) -> None:
    """Keep one cluster's read models until cancelled.

    Args:
        tried: is set as soon as it has the cluster's state, or cannot have it.
    """
    log, metrics = parts.log, parts.metrics
    logger = parts.context.log.bind(cluster=cluster)
    builder: Builder | None = None
    check = _self_check(parts, cluster, lambda: builder, logger)
    while True:
        try:
            builder = await _stand_by(parts, cluster, builder=builder, tried=tried)
            if parts.notifications is not None:
                builder.watcher = await parts.notifications.maker(log, cluster, upto=builder.generation.position)
            check.trust(builder.state)
            logger.info("projecting", generation=builder.generation.number, after=builder.generation.position)
            while parts.leads.is_set():
                events = await builder.step()
                metrics.events.labels(cluster).inc(len(events))
                if parts.sender is not None:
                    await _send_spans(log, builder, events, parts.sender)
                position, head = builder.generation.position, (await log.head(cluster)).position
                metrics.position.labels(cluster).set(position)
                metrics.lag.labels(cluster).set(max(0, head - position))
                if check.look(builder.state, idle=position >= head) is not None:
                    # What was written by a wrong state is wrong as well.
                    builder = await Builder.anew(log, parts.store, cluster)
                    break
                if position >= head:
                    await builder.catch_up()
                    await log.wait_beyond(cluster, position, timeout_s=_WAIT_S)
                    await asyncio.sleep(_GATHER_S)
            continue
        except LogUnavailable as error:
            logger.warning("projecting waits", error=str(error))
        except Superseded as error:
            logger.info("read models were made anew", detail=str(error))
            builder = None
        except Exception as error:
            # No KaiError: of a wrong memory, for events with which a state raises are quarantined.
            logger.warning("projecting waits", error=str(error), exc_info=not isinstance(error, KaiError))
            builder = None
        finally:
            check.stop()
        tried.set()
        await asyncio.sleep(_PAUSE_S)


def _self_check(
    parts: Parts, cluster: str, building: Callable[[], Builder | None], logger: Logger
) -> SelfCheck[ClusterState]:
    """Return what checks the state, and the rows that a builder has saved."""
    log = parts.log
    hours = CountedHours(log, cluster, labels=parts.labels)
    rows = FoldedRows(log, hours)

    async def sampled(state: ClusterState) -> SampleDifference | None:
        builder = building()
        return None if builder is None else await builder.differs_by_sample(state)

    async def stored(after: int, upto: int) -> SampleDifference | None:
        builder = building()
        if builder is None:
            return None
        return await builder.stored_differs(after, upto) or await builder.times_differ(rows) or await hours.differ()

    memory = states(log, cluster)._replace(fold=rows.fold, sampled=sampled, stored=stored)
    reporting = Reporting("projector", log, cluster, "projector", lambda: time.time_ns() // 1000, logger)
    return SelfCheck(memory, reporting, every_s=parts.check_s, monotonic=time.monotonic)


async def _keep_account(parts: Parts, cluster: str) -> None:
    """Keep the hours of one cluster's account, each once it is over, while this instance leads."""
    while True:
        await parts.leads.wait()
        try:
            await keep_hours(parts.log, cluster, labels=parts.labels)
        except KaiError as error:
            parts.context.log.warning("keeping hours of the account waits", cluster=cluster, error=str(error))
        await asyncio.sleep(_HOURS_S)


async def _stand_by(parts: Parts, cluster: str, *, builder: Builder | None, tried: asyncio.Event) -> Builder:
    """Trail the instance that leads until this one does; return the builder that goes on."""
    stood_by = False
    while not parts.leads.is_set():
        stood_by = True
        if builder is None:
            builder = await Builder.beside(parts.log, parts.store, cluster)
        else:
            await builder.trail()
        tried.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_TRAIL_S):
                await parts.leads.wait()
    if builder is None:
        builder = await Builder.resume(parts.log, parts.store, cluster)
    elif stood_by:
        await builder.trail()
    tried.set()
    return builder


async def _send_spans(log: EventLog, builder: Builder, events: list[Event], sender: "OtlpSender") -> None:
    from kai_projector.traces import encoded, ended_spans  # noqa: PLC0415

    spans = await ended_spans(log, builder.state, events, now=time.time_ns() // 1000)
    if spans:
        sender.take(encoded(builder.state.cluster, spans), len(spans))


SERVICE = Service("projector", ProjectorSettings, serve, conditions=(LOG, STATES))
main = SERVICE.main

if __name__ == "__main__":
    main()
