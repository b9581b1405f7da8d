"""`kai-projector`: the read models of all clusters of a log, as a process."""

import asyncio
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from kaicore.analysis.projections.building import Builder, GenerationStore
from kaicore.analysis.projections.store import Superseded, ViewStore
from kaicore.errors import ConfigurationError, KaiError
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.envelope import Event
from kaicore.rules.hub.hub_state import without_hub
from kaicore.runtime.service import ServiceContext, run_service
from kaicore.runtime.service.leadership import LeaseSettings, leadership
from kaicore.runtime.service.log_access import LOG, open_log
from pydantic import Field

from kai_projector.metrics import ProjectorMetrics

if TYPE_CHECKING:
    from kai_projector.otlp import OtlpSender

#: Seconds between two looks for clusters that are new, that one wait for events lasts, and after something failed.
_LOOK_S, _WAIT_S, _PAUSE_S = 10.0, 30.0, 2.0

#: Seconds that events gather before they are projected: each transaction costs more than ten events in it.
_GATHER_S = 0.2


#: Whose lease it is: one projector keeps the read models of all clusters.
_HUB = "hub"


class ProjectorSettings(LeaseSettings):
    """Settings of `kai-projector`."""

    database_url: str = Field(description="postgresql://… of the event log, for the role kai_project")
    otlp_endpoint: str = Field(
        "", description="http://HOST:4318 of a receiver of OpenTelemetry traces (OTLP over HTTP); empty for none"
    )
    otlp_headers: str = Field("", description="sent with them: name=value,name=value", repr=False)


async def serve(context: ServiceContext, settings: ProjectorSettings) -> None:
    """Keep the read models until the process is to stop."""
    metrics = ProjectorMetrics()
    sender = open_sender(context, settings, metrics)
    async with open_log(context, settings.database_url) as log:
        if log is None:
            return
        async with (
            await ViewStore.open(settings.database_url, application="kai-projector") as store,
            leadership(
                context, settings, cluster=_HUB, role="projector", instance=uuid4().hex, needed=(LOG,)
            ) as lead_in_turn,
        ):
            await lead_in_turn(lambda: _project(context, log, store, metrics=metrics, sender=sender))


async def _project(
    context: ServiceContext, log: EventLog, store: ViewStore, *, metrics: ProjectorMetrics, sender: "OtlpSender | None"
) -> None:
    following: dict[str, asyncio.Task[None]] = {}
    sending = None if sender is None else asyncio.create_task(sender.run())
    try:
        while not context.stopping.is_set():
            with suppress(KaiError):
                for cluster in without_hub(await log.clusters()):
                    if cluster not in following:
                        work = follow(context, log, store, cluster, metrics=metrics, sender=sender)
                        following[cluster] = asyncio.create_task(work)
            await context.sleep(_LOOK_S)
    finally:
        tasks = [*following.values(), *([] if sending is None else [sending])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def open_sender(context: ServiceContext, settings: ProjectorSettings, metrics: ProjectorMetrics) -> "OtlpSender | None":
    """Return what sends traces; None where they are not wanted.

    Raises:
        ConfigurationError: the address or the headers are none, or what traces are written with is not installed.
    """
    if not settings.otlp_endpoint:
        return None
    try:
        # Some 50 ms of imports.
        from kai_projector.otlp import OtlpSender, read_headers, traces_url  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise ConfigurationError(
            "otlp_endpoint: opentelemetry-proto is not installed: pip install 'kai-ledger[otel]'"
        ) from error
    url, headers = traces_url(settings.otlp_endpoint), read_headers(settings.otlp_headers)
    return OtlpSender(url, headers, metrics=metrics, logger=context.log)


async def follow(
    context: ServiceContext,
    log: EventLog,
    store: GenerationStore,
    cluster: str,
    *,
    metrics: ProjectorMetrics,
    sender: "OtlpSender | None" = None,
) -> None:
    """Keep one cluster's read models until cancelled; send the spans that end to a receiver of traces, if any."""
    logger = context.log.bind(cluster=cluster)
    while True:
        try:
            builder = await Builder.resume(log, store, cluster)
            logger.info("projecting", generation=builder.generation.number, after=builder.generation.position)
            while True:
                events = await builder.step()
                metrics.took(cluster, len(events))
                if sender is not None:
                    await _send_spans(log, builder, events, sender)
                position = builder.generation.position
                head = (await log.head(cluster)).position
                metrics.reached(cluster, position=position, head=head)
                if position >= head:
                    await builder.catch_up()
                    await log.wait_beyond(cluster, position, timeout_s=_WAIT_S)
                    await asyncio.sleep(_GATHER_S)
        except Superseded as error:
            logger.info("read models were made anew", detail=str(error))
        except KaiError as error:
            logger.warning("projecting waits", error=str(error))
        await asyncio.sleep(_PAUSE_S)


async def _send_spans(log: EventLog, builder: Builder, events: list[Event], sender: "OtlpSender") -> None:
    from kai_projector.traces import encoded, ended_spans  # noqa: PLC0415

    spans = await ended_spans(log, builder.state, events, now=time.time_ns() // 1000)
    if spans:
        sender.take(encoded(builder.state.cluster, spans), len(spans))


def main() -> None:
    """Entry point of `kai-projector`."""
    sys.exit(run_service("projector", ProjectorSettings, serve, conditions=(LOG,)))


if __name__ == "__main__":
    main()
