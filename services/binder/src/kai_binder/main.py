"""`kai-binder`: one cluster's binder as a process."""

import os
import socket
import sys
import time

from kaicore.errors import ConfigurationError
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.bus import NatsBus
from kaicore.ledger.bus.leases import LeaseStore, Members, NatsLeaseStore
from kaicore.ledger.feed import FeedMetrics
from kaicore.runtime.service import ServiceContext, run_service
from kaicore.runtime.service.log_access import open_log

from kai_binder.binder import API, LOG, Binder
from kai_binder.metrics import BinderMetrics
from kai_binder.settings import BinderOptions, BinderSettings
from kai_binder.side_writes import FIELD_MANAGER
from kai_binder.work_share import WorkShare

#: Connections for what is not a binding.
_SPARE_CONNECTIONS = 2


async def serve(context: ServiceContext, settings: BinderSettings) -> None:
    """Bind until the process is to stop."""
    bus = await NatsBus.open(settings.nats_url, name="kai-binder") if settings.nats_url else None
    access = configured_access(settings.kubeconfig, context=settings.kube_context)
    connections = settings.concurrency + _SPARE_CONNECTIONS
    try:
        async with (
            open_log(context, settings.database_url) as log,
            KubeClient(access, connections=connections, user_agent=FIELD_MANAGER) as client,
        ):
            if log is None:
                return
            store = None
            if settings.replica:
                if not settings.nats_url:
                    raise ConfigurationError("replica is set, and nats_url is not: binders see on NATS which are live")
                store = await NatsLeaseStore.open(settings.nats_url, name="kai-binder leases")
            binder = Binder(
                cluster=settings.cluster,
                log=log,
                bus=bus,
                client=client,
                context=context,
                metrics=BinderMetrics(settings.cluster),
                clock=lambda: time.time_ns() // 1000,
                options=BinderOptions(
                    concurrency=settings.concurrency,
                    give_up_s=settings.give_up_s,
                    evict_give_up_s=settings.evict_give_up_s,
                    volumes_give_up_s=settings.volumes_give_up_s,
                    annotations=settings.annotations,
                    group_statuses=settings.group_statuses,
                    queue_statuses=settings.queue_statuses,
                    topology_statuses=settings.topology_statuses,
                    empty_groups=settings.empty_groups,
                    pod_conditions=settings.pod_conditions,
                    failed_scheduling_events=settings.failed_scheduling_events,
                    scheduled_events=settings.scheduled_events,
                    side_writes_per_s=settings.side_writes_per_s,
                    snapshot_events=settings.snapshot_events,
                    hub_lease_s=settings.hub_lease_s,
                ),
                observer=FeedMetrics().of(settings.cluster),
                share=None if store is None else WorkShare(_members(store, settings)),
            )
            try:
                await binder.run()
            finally:
                if store is not None:
                    await store.close()
    finally:
        if bus is not None:
            await bus.close()


def _members(store: LeaseStore, settings: BinderSettings) -> Members:
    about = {"host": socket.gethostname(), "pid": str(os.getpid())}
    ttl_s = settings.member_ttl_ms / 1000
    return Members(store, settings.cluster, "binder", member=settings.replica or "", ttl_s=ttl_s, about=about)


def main() -> None:
    """Entry point of `kai-binder`."""
    sys.exit(run_service("binder", BinderSettings, serve, conditions=(LOG, API)))


if __name__ == "__main__":
    main()
