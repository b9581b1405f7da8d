"""`kai-hub`, which gives dispatches to clusters, as a process, with its settings."""

import time
from pathlib import Path
from uuid import uuid4

from kaicore.analysis.trial.dispatching.hub_log import HubLog
from kaicore.runtime.access.access_file import AccessFile
from kaicore.runtime.access.callers import HttpAccess
from kaicore.runtime.service import Service, ServiceContext
from kaicore.runtime.service.bus_access import open_bus
from kaicore.runtime.service.health import Later, with_health
from kaicore.runtime.service.http_limits import HttpLimits
from kaicore.runtime.service.log_access import LOG, open_log
from kaicore.runtime.service.process import listen
from kaicore.runtime.service.settings import FeedSettings, ProxySettings, TlsSettings
from pydantic import Field

from kai_hub.app import make_app
from kai_hub.hub import STATE, Hub, HubOptions
from kai_hub.metrics import HubMetrics


class HubSettings(FeedSettings, TlsSettings, ProxySettings, HubOptions):
    """Settings of `kai-hub`."""

    access_file: Path | None = Field(
        None,
        description="YAML file of hashed keys with their scopes, who may submit over HTTP; without it nobody may",
    )


#: Manifests are larger than other requests.
_LIMITS = HttpLimits(body_bytes=4 << 20)


async def serve(context: ServiceContext, settings: HubSettings) -> None:
    """Decide, and take dispatches, until the process is to stop."""
    access = None
    if settings.access_file is not None:
        access = HttpAccess(anonymous="no", file=AccessFile(settings.access_file))
    app = Later(context.health)
    server = listen(context, settings, app, limits=_LIMITS, takes_dispatches=access is not None)
    await server.run_beside(context.stopping, _decide(context, settings, access, app))


async def _decide(context: ServiceContext, settings: HubSettings, access: HttpAccess | None, app: Later) -> None:
    async with open_bus(context, settings.nats_url) as bus, open_log(context, settings.database_url) as log:
        if log is None:
            return
        if access is None:
            app.give(with_health(context.health))
        else:
            app.give(make_app(HubLog(log), access, context.health))
        hub = Hub(
            log=log,
            bus=bus,
            context=context,
            metrics=HubMetrics(),
            instance=uuid4().hex[:8],
            clock=lambda: time.time_ns() // 1000,
            monotonic=lambda: time.monotonic_ns() // 1000,
            options=settings,
        )
        await hub.run()


SERVICE = Service("hub", HubSettings, serve, conditions=(LOG, STATE), serve_health=False)
main = SERVICE.main

if __name__ == "__main__":
    main()
