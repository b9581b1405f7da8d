"""`kai-binder`: one cluster's binder as a process."""

import time

from kaicore.errors import ConfigurationError
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.bus import NatsBus
from kaicore.ledger.bus.leases import LeaseStore, Members, NatsLeaseStore
from kaicore.ledger.feed import FeedMetrics
from kaicore.runtime.service import Service, ServiceContext
from kaicore.runtime.service.log_access import open_log

from kai_binder.binder import API, LOG, Binder, BinderSettings
from kai_binder.metrics import BinderMetrics
from kai_binder.work_share import WorkShare
from kai_binder.writes.side_writes import FIELD_MANAGER

#: Connections for what is not a binding.
_SPARE_CONNECTIONS = 2


async def serve(context: ServiceContext, settings: BinderSettings) -> None:
    """Bind until the process is to stop."""
    access = configured_access(settings.kubeconfig, context=settings.kube_context)
    connections = settings.concurrency + _SPARE_CONNECTIONS
    async with (
        NatsBus.of_service(context.name, settings.nats_url) as bus,
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
            metrics=BinderMetrics(settings.cluster, registry=context.registry),
            clock=lambda: time.time_ns() // 1000,
            options=settings,
            observer=FeedMetrics(registry=context.registry).of(settings.cluster),
            share=None if store is None else WorkShare(_members(store, settings)),
        )
        try:
            await binder.run()
        finally:
            if store is not None:
                await store.close()


def _members(store: LeaseStore, settings: BinderSettings) -> Members:
    ttl_s = settings.member_ttl_ms / 1000
    return Members(store, settings.cluster, "binder", member=settings.replica or "", ttl_s=ttl_s)


SERVICE = Service("binder", BinderSettings, serve, conditions=(LOG, API))
main = SERVICE.main

if __name__ == "__main__":
    main()
