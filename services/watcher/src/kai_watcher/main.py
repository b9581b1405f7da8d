"""`kai-watcher`: one cluster's watcher as a process, with its settings."""

import os
import socket
import time
from contextlib import suppress
from itertools import count
from uuid import uuid4

from kaicore.errors import KaiError, StaleExpectation
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.kinds.table import KINDS
from kaicore.runtime.process_context import beside
from kaicore.runtime.service import Service, ServiceContext
from kaicore.runtime.service.leadership import LeaseSettings, leadership
from kaicore.runtime.service.log_access import open_log
from kaicore.runtime.service.settings import KubeSettings, LogSettings
from pydantic import Field

from kai_watcher.metrics import WatcherMetrics
from kai_watcher.watcher import API, LISTS, LOG, Watcher, WatcherOptions


class WatcherSettings(LogSettings, LeaseSettings, KubeSettings, WatcherOptions):
    """Settings of `kai-watcher`."""

    cluster: str = Field(description="the cluster, as the log is to call it")


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
        metrics = WatcherMetrics(settings.cluster, registry=context.registry)
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
                options=settings,
            )
            await watcher.run()

        async with (
            leadership(
                context,
                settings,
                cluster=settings.cluster,
                role="watcher",
                instance=instance,
                needed=(LOG,),
                refused=(StaleExpectation,),
            ) as lead_in_turn,
            # What takes seconds the first time, configuration and imports, is done before it is this one's turn.
            beside(_ask_version(client)),
        ):
            await lead_in_turn(watch)


async def _ask_version(client: KubeClient) -> None:
    with suppress(KaiError):
        await client.get("/version")


SERVICE = Service("watcher", WatcherSettings, serve, conditions=(LOG, API, LISTS))
main = SERVICE.main

if __name__ == "__main__":
    main()
