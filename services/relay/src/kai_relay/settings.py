"""Settings of `kai-relay`."""

from pathlib import Path
from typing import Annotated, Self

from kaicore.runtime.service import ServiceSettings
from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode


class RelaySettings(ServiceSettings):
    """Settings of `kai-relay`."""

    database_url: str = Field(description="postgresql://… of the event log")
    nats_url: str = Field(description="nats://… of the bus; several with commas between them")
    clusters: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="clusters to relay, with commas between them; by default all that the log has"
    )
    batch: int = Field(500, ge=1, le=5000, description="events per batch at most")
    refill: int = Field(10_000, ge=0, description="events put into a stream that had to be made anew")
    stream_max_age_s: int = Field(48 * 3600, ge=0, description="how long a stream keeps an event; 0: for ever")
    stream_max_bytes: int | None = Field(
        None, ge=-1, description="size of a stream; -1: unlimited; default: what there is room for, 1 GiB at most"
    )
    nats_store_dir: Path | None = Field(
        None,
        description="folder of NATS' store, if it is on this machine: a stream gets a tenth of its disk",
    )
    stream_replicas: int = Field(1, ge=1, le=5, description="NATS servers that hold a stream")
    takeover_ms: int = Field(1500, ge=100, description="how long another relay may stand still before we take over")

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
