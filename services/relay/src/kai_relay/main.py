"""`kai-relay`: the only publisher on the bus, as a process."""

import gc
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace

from kaicore.ledger.bus import Limits, NatsBus
from kaicore.ledger.bus.port import stream_bytes
from kaicore.runtime.service import ServiceContext, run_service
from kaicore.runtime.service.log_access import LOG, open_log

from kai_relay.cluster_relay import RelayOptions
from kai_relay.metrics import RelayMetrics
from kai_relay.readiness import BUS, Readiness
from kai_relay.relay import Relay
from kai_relay.settings import RelaySettings


async def serve(context: ServiceContext, settings: RelaySettings) -> None:
    """Relay until the process is to stop."""
    async with open_log(context, settings.database_url) as log:
        if log is None:
            return
        bus = await NatsBus.open(settings.nats_url, name="kai-relay")
        try:
            relay = Relay(
                log,
                bus,
                clusters=settings.clusters,
                options=RelayOptions(
                    batch=settings.batch,
                    refill=settings.refill,
                    takeover_s=settings.takeover_ms / 1000,
                    limits=_limits(settings),
                    room=_room(settings),
                ),
                metrics=RelayMetrics(),
                readiness=Readiness(context.health),
                logger=context.log,
            )
            # What is there now stays, and events come and go without cycles; looking through them only delays them.
            gc.freeze()
            gc.set_threshold(50_000, 20, 100)
            await relay.run(context.stopping)
        finally:
            await bus.close()


def _limits(settings: RelaySettings) -> Limits:
    limits = Limits(max_age_s=settings.stream_max_age_s, replicas=settings.stream_replicas)
    return limits if settings.stream_max_bytes is None else replace(limits, max_bytes=settings.stream_max_bytes)


def _room(settings: RelaySettings) -> Callable[[int], int] | None:
    directory = settings.nats_store_dir
    if directory is None or settings.stream_max_bytes is not None:
        return None

    def room(used: int) -> int:
        try:
            return stream_bytes(free=shutil.disk_usage(directory).free, used=used)
        except OSError:
            # A store that was deleted is noticed elsewhere.
            return Limits().max_bytes

    return room


def main() -> None:
    """Entry point of `kai-relay`."""
    sys.exit(run_service("relay", RelaySettings, serve, conditions=(LOG, BUS)))


if __name__ == "__main__":
    main()
