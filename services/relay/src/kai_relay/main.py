"""`kai-relay`: the only publisher on the bus, as a process, with its settings."""

import gc
from pathlib import Path
from typing import Annotated, Self

from kaicore.ledger.bus import NatsBus
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.anchors import Key, read_file
from kaicore.ledger.log.seals.deposits import FileDeposit, open_deposit
from kaicore.runtime.process_context import beside
from kaicore.runtime.service import Service, ServiceContext
from kaicore.runtime.service.log_access import LOG, open_log
from kaicore.runtime.service.settings import LogSettings
from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode

from kai_relay.relay import BUS, Readiness, Relay, RelayMetrics, RelayOptions
from kai_relay.sealing import Sealer, SealMetrics


class RelaySettings(LogSettings, RelayOptions):
    """Settings of `kai-relay`."""

    nats_url: str = Field(description="nats://… of the bus; several with commas between them")
    clusters: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="clusters to relay, with commas between them; by default all that the log has"
    )

    seal_key_file: Path | None = Field(
        None,
        description="key that seals are signed with: Ed25519 in PEM, private, or a secret; without it none are made",
    )
    seal_to: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="where seals are handed in, with commas between: files, or http(s)://… folders that take PUT"
    )
    seal_keep_file: Path | None = Field(
        None, description="file that keeps all seals, so that those that wait for an address outlive the relay"
    )
    seal_token_file: Path | None = Field(None, description="bearer token for the http(s) addresses of seal_to")
    seal_every_s: float = Field(3600, gt=0, description="seconds between two seals of a cluster's log")

    @model_validator(mode="after")
    def _key_and_address(self) -> Self:
        if (self.seal_key_file is None) != (not self.seal_to):
            raise ValueError("--seal-key-file and --seal-to: each needs the other")
        return self

    @field_validator("clusters", "seal_to", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


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
                options=settings,
                metrics=RelayMetrics(registry=context.registry),
                readiness=Readiness(context.health),
                logger=context.log,
            )
            # What is there now stays; looking through it only delays events.
            gc.freeze()
            sealer = sealer_of(context, settings, log, relay)
            async with beside(*(() if sealer is None else (sealer.run(),))):
                await relay.run(context.stopping)
        finally:
            await bus.close()


def sealer_of(context: ServiceContext, settings: RelaySettings, log: PostgresLog, relay: Relay) -> Sealer | None:
    """Return what seals the logs that a relay leads; None where no key is configured.

    Raises ConfigurationError: the key or the token cannot be read, or an address is none.
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
        metrics=SealMetrics(registry=context.registry),
        logger=context.log,
    )


SERVICE = Service("relay", RelaySettings, serve, conditions=(LOG, BUS))
main = SERVICE.main

if __name__ == "__main__":
    main()
