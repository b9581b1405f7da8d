"""`kai-watcher`: one cluster's watcher as a process.

Settings of `kai-watcher`.
"""

import asyncio
import os
import socket
import time
from contextlib import suppress
from itertools import count
from uuid import uuid4

from kaicore.errors import ConfigurationError, KaiError, StaleExpectation
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.reflector import ReflectorOptions
from kaicore.kube.kinds.table import KINDS
from kaicore.kube.wire.resources import OptionalResource
from kaicore.runtime.service import Service, ServiceContext
from kaicore.runtime.service.leadership import LeaseSettings, leadership
from kaicore.runtime.service.log_access import open_log
from kaicore.runtime.service.settings import KubeSettings, LogSettings
from kaicore.spelling import did_you_mean
from pydantic import Field

from kai_watcher.metrics import WatcherMetrics
from kai_watcher.watcher import API, LISTS, LOG, Watcher, WatcherOptions


class WatcherSettings(LogSettings, LeaseSettings, KubeSettings):
    """Settings of `kai-watcher`."""

    cluster: str = Field(description="the cluster, as the log is to call it")
    leave_out: str = Field(
        "",
        description="API groups that are not read (GROUP,GROUP), such as kueue.x-k8s.io where Kueue keeps the "
        "quotas; only of kinds that a cluster need not serve",
    )
    batch: int = Field(1000, ge=1, le=10_000, description="facts per append at most")
    buffer: int = Field(20_000, ge=1, description="facts that may wait for the log before reading stops")
    page: int = Field(500, ge=1, le=10_000, description="objects per page of a list")
    snapshot_events: int = Field(50_000, ge=1, description="facts between two snapshots of what is known")
    recheck_s: int = Field(30, ge=1, description="how often to look for kinds that the cluster does not serve yet")


#: A watch of each kind keeps a connection; lists need some besides.
_CONNECTIONS = len(KINDS) + 8


async def serve(context: ServiceContext, settings: WatcherSettings) -> None:
    """Record the cluster until the process is to stop."""
    access = configured_access(settings.kubeconfig, context=settings.kube_context)
    async with (
        open_log(context, settings.database_url) as log,
        KubeClient(access, timeout_s=60.0, connections=_CONNECTIONS, user_agent="kai-watcher") as client,
    ):
        if log is None:
            return
        instance = f"{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:8]}"
        metrics = WatcherMetrics(settings.cluster)
        turns = count()

        async def watch() -> None:
            """Begin from what the log says now: another watcher may have had its turn meanwhile."""
            watcher = Watcher(
                cluster=settings.cluster,
                instance=f"{instance}/{next(turns)}",
                log=log,
                client=client,
                context=context,
                metrics=metrics,
                clock=lambda: time.time_ns() // 1000,
                options=WatcherOptions(
                    batch=settings.batch,
                    buffer=settings.buffer,
                    snapshot_every=settings.snapshot_events,
                    recheck_s=settings.recheck_s,
                    reflector=ReflectorOptions(page=settings.page),
                    leave_out=left_out(settings.leave_out),
                ),
            )
            await watcher.run()

        async with leadership(
            context,
            settings,
            cluster=settings.cluster,
            role="watcher",
            instance=instance,
            needed=(LOG,),
            refused=(StaleExpectation,),
        ) as lead_in_turn:
            # What takes seconds the first time, configuration and imports, is done before it is this one's turn.
            warming = asyncio.create_task(_ask_version(client))
            try:
                await lead_in_turn(watch)
            finally:
                warming.cancel()
                await asyncio.gather(warming, return_exceptions=True)


def left_out(text: str) -> frozenset[str]:
    """Read API groups that are not to be followed, divided by commas.

    Raises:
        ConfigurationError: kinds of one of them are not followed anyway, or are of every cluster.
    """
    groups = frozenset(filter(None, (name.strip() for name in text.split(","))))
    optional = {kind.resource.group for kind in KINDS if isinstance(kind.resource, OptionalResource)}
    for group in sorted(groups - optional):
        raise ConfigurationError(f"leave_out: {group} is no group of optional kinds{did_you_mean(group, optional)}")
    return groups


async def _ask_version(client: KubeClient) -> None:
    with suppress(KaiError):
        await client.get("/version")


SERVICE = Service("watcher", WatcherSettings, serve, conditions=(LOG, API, LISTS))
main = SERVICE.main

if __name__ == "__main__":
    main()
