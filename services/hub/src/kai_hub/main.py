"""`kai-hub`: gives dispatches to clusters, as a process.

Settings of `kai-hub`.
"""

import sys
import time
from pathlib import Path
from uuid import uuid4

from kaicore.analysis.dispatching.hub_log import HubLog
from kaicore.rules.hub.choosing import WEIGHTS
from kaicore.rules.hub.steps import HubConfig
from kaicore.runtime.access.access_file import AccessFile
from kaicore.runtime.access.callers import HttpAccess
from kaicore.runtime.service import ServiceContext, ServiceSettings, run_service
from kaicore.runtime.service.bus_access import open_bus
from kaicore.runtime.service.health import Later, with_health
from kaicore.runtime.service.http_limits import HttpLimits
from kaicore.runtime.service.http_server import HttpServer
from kaicore.runtime.service.log_access import LOG, open_log
from pydantic import Field, IPvAnyNetwork

from kai_hub.app import make_app
from kai_hub.hub import STATE, Hub, HubOptions
from kai_hub.metrics import HubMetrics


class HubSettings(ServiceSettings):
    """Settings of `kai-hub`."""

    database_url: str = Field(description="postgresql://… of the event log")
    nats_url: str | None = Field(None, description="nats://… of the bus; without it events come from the log alone")
    access_file: Path | None = Field(
        None,
        description="YAML file of hashed keys with their scopes, who may submit over HTTP; without it nobody may",
    )
    trusted_proxy: list[IPvAnyNetwork] = Field(
        [],
        description="addresses or networks of proxies that say for whom they ask (X-Forwarded-For); by default nobody",
    )
    tls_cert_file: Path | None = Field(None, description="serve HTTPS with this certificate; default: HTTP")
    tls_key_file: Path | None = Field(None, description="the certificate's key; default: in the same file")
    period_ms: int = Field(200, ge=0, description="least time between two rounds in which clusters are chosen")
    batch: int = Field(
        8,
        ge=1,
        le=1000,
        description="dispatches that are tried in one round at most",
    )
    patience_s: float = Field(
        60.0, gt=0, description="how long a dispatch may wait in its cluster while it would start in another"
    )
    weight_capacity: int = Field(WEIGHTS["capacity"], ge=0, description="weight of starting at once, with much left")
    weight_locality: int = Field(WEIGHTS["locality"], ge=0, description="weight of data sets that are near")
    weight_topology: int = Field(WEIGHTS["topology"], ge=0, description="weight of being close in the network")
    weight_share: int = Field(WEIGHTS["share"], ge=0, description="weight of the queue's room below its fair share")
    weight_cost: int = Field(WEIGHTS["cost"], ge=0, description="weight of being cheap")

    def weights(self) -> dict[str, int]:
        """Return the weights by part."""
        return {part: int(getattr(self, f"weight_{part}")) for part in WEIGHTS}


#: Manifests are larger than other requests.
_LIMITS = HttpLimits(body_bytes=4 << 20)


async def serve(context: ServiceContext, settings: HubSettings) -> None:
    """Decide, and take dispatches, until the process is to stop."""
    access = None
    if settings.access_file is not None:
        access = HttpAccess(anonymous="no", file=AccessFile(settings.access_file))
    app = Later(context.health)
    server = HttpServer(
        app,
        host=settings.http_host,
        port=settings.http_port,
        fd=settings.http_fd,
        cert_file=settings.tls_cert_file,
        key_file=settings.tls_key_file,
        limits=_LIMITS,
        trusted_proxies=settings.trusted_proxy,
    )
    context.log.info("listening", address=server.address, takes_dispatches=access is not None)
    await server.run_beside(context.stopping, _decide(context, settings, access, app))


async def _decide(context: ServiceContext, settings: HubSettings, access: HttpAccess | None, app: Later) -> None:
    config = HubConfig(patience_us=int(settings.patience_s * 1e6), weights=settings.weights())
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
            options=HubOptions(config=config, period_s=settings.period_ms / 1000, batch=settings.batch),
        )
        await hub.run()


def main() -> None:
    """Entry point of `kai-hub`."""
    sys.exit(run_service("hub", HubSettings, serve, conditions=(LOG, STATE), serve_health=False))


if __name__ == "__main__":
    main()
