"""`kai-projector`: the read models of all clusters of a log, as a process."""

import asyncio
import sys
from contextlib import suppress

from kaicore.analysis.projections.building import Builder
from kaicore.analysis.projections.store import Superseded, ViewStore
from kaicore.errors import KaiError
from kaicore.ledger.log.port import EventLog
from kaicore.runtime.service import ServiceContext, ServiceSettings, run_service
from kaicore.runtime.service.log_access import LOG, open_log
from pydantic import Field

from kai_projector.metrics import ProjectorMetrics

#: Seconds between two looks for clusters that are new, that one wait for events lasts, and after something failed.
_LOOK_S, _WAIT_S, _PAUSE_S = 10.0, 30.0, 2.0

#: Seconds that events gather before they are projected: each transaction costs more than ten events in it.
_GATHER_S = 0.2


class ProjectorSettings(ServiceSettings):
    """Settings of `kai-projector`."""

    database_url: str = Field(description="postgresql://… of the event log, for the role kai_project")


async def serve(context: ServiceContext, settings: ProjectorSettings) -> None:
    """Keep the read models until the process is to stop."""
    async with open_log(context, settings.database_url) as log:
        if log is None:
            return
        async with await ViewStore.open(settings.database_url, application="kai-projector") as store:
            following: dict[str, asyncio.Task[None]] = {}
            metrics = ProjectorMetrics()
            while True:
                with suppress(KaiError):
                    for cluster in await log.clusters():
                        if cluster not in following:
                            following[cluster] = asyncio.create_task(follow(context, log, store, cluster, metrics))
                if await context.sleep(_LOOK_S):
                    break
            for task in following.values():
                task.cancel()
            await asyncio.gather(*following.values(), return_exceptions=True)


async def follow(
    context: ServiceContext, log: EventLog, store: ViewStore, cluster: str, metrics: ProjectorMetrics
) -> None:
    """Keep one cluster's read models until cancelled."""
    logger = context.log.bind(cluster=cluster)
    while True:
        try:
            builder = await Builder.resume(log, store, cluster)
            logger.info("projecting", generation=builder.generation.number, after=builder.generation.position)
            while True:
                count = await builder.step()
                metrics.took(cluster, count)
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


def main() -> None:
    """Entry point of `kai-projector`."""
    sys.exit(run_service("projector", ProjectorSettings, serve, conditions=(LOG,)))


if __name__ == "__main__":
    main()
