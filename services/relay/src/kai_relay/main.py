"""`kai-relay`: the only publisher on the bus, as a process."""

import asyncio
import gc
import shutil
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace

from kaicore.ledger.bus import Limits, NatsBus
from kaicore.ledger.bus.port import stream_bytes
from kaicore.ledger.log.anchors import Key, read_file
from kaicore.ledger.log.deposits import FileDeposit, open_deposit
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.runtime.service import ServiceContext, run_service
from kaicore.runtime.service.log_access import LOG, open_log

from kai_relay.cluster_relay import RelayOptions
from kai_relay.metrics import RelayMetrics
from kai_relay.readiness import BUS, Readiness
from kai_relay.relay import Relay
from kai_relay.sealing import Sealer, SealMetrics
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
            # What is there now stays; looking through it only delays events.
            gc.freeze()
            await _beside(relay.run(context.stopping), sealer_of(context, settings, log, relay))
        finally:
            await bus.close()


def sealer_of(context: ServiceContext, settings: RelaySettings, log: PostgresLog, relay: Relay) -> Sealer | None:
    """Return what seals the logs that a relay leads; None where no key is configured.

    Raises:
        ConfigurationError: the key or the token cannot be read, or an address is none.
    """
    if settings.seal_key_file is None:
        return None
    key = Key.read(read_file(settings.seal_key_file), name=str(settings.seal_key_file))
    key.sign(b"")
    token = "" if settings.seal_token_file is None else read_file(settings.seal_token_file).decode().strip()
    keep = () if settings.seal_keep_file is None else (str(settings.seal_keep_file),)
    deposits = [open_deposit(address, token=token) for address in dict.fromkeys((*settings.seal_to, *keep))]
    if not any(isinstance(deposit, FileDeposit) for deposit in deposits):
        context.log.warning("seals that wait for an address are lost when the relay ends: set --seal-keep-file")
    return Sealer(
        log,
        deposits,
        key,
        clusters=relay.leads,
        every_s=settings.seal_every_s,
        metrics=SealMetrics(),
        logger=context.log,
    )


async def _beside(relaying: Coroutine[object, object, None], sealer: Sealer | None) -> None:
    """Relay until that ends, and seal meanwhile."""
    sealing = None if sealer is None else asyncio.create_task(sealer.run())
    try:
        await relaying
    finally:
        if sealing is not None:
            sealing.cancel()
            await asyncio.gather(sealing, return_exceptions=True)


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
