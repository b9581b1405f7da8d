"""Settings of `kai-hub`."""

from pathlib import Path

from kaicore.rules.hub.choosing import WEIGHTS
from kaicore.runtime.service import ServiceSettings
from pydantic import Field, IPvAnyNetwork


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
