"""`kai-hub`: gives dispatches to clusters, as a process."""

import sys
import time
from uuid import uuid4

from kaicore.ledger.bus import NatsBus
from kaicore.rules.hub.steps import HubConfig
from kaicore.runtime.service import ServiceContext, run_service
from kaicore.runtime.service.log_access import LOG, open_log

from kai_hub.hub import STATE, Hub, HubOptions
from kai_hub.metrics import HubMetrics
from kai_hub.settings import HubSettings


async def serve(context: ServiceContext, settings: HubSettings) -> None:
    """Decide until the process is to stop."""
    bus = await NatsBus.open(settings.nats_url, name="kai-hub") if settings.nats_url else None
    config = HubConfig(patience_us=int(settings.patience_s * 1e6), weights=settings.weights())
    try:
        async with open_log(context, settings.database_url) as log:
            if log is None:
                return
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
    finally:
        if bus is not None:
            await bus.close()


def main() -> None:
    """Entry point of `kai-hub`."""
    sys.exit(run_service("hub", HubSettings, serve, conditions=(LOG, STATE)))


if __name__ == "__main__":
    main()
