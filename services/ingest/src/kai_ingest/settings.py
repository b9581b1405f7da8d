"""Settings of ingest, each a flag and a `KAI_…` variable of the same name."""

from pathlib import Path
from typing import Self

from kaicore.runtime.service import ServiceSettings
from pydantic import Field, model_validator


class IngestSettings(ServiceSettings):
    """One ingest serves one cluster, and knows tokens from Kubernetes or from a shared secret, not both."""

    cluster: str = Field(min_length=1, description="the cluster whose nodes report here")
    database_url: str = Field(description="postgresql://… of the event log")
    nats_url: str | None = Field(None, description="nats://… of the bus; without it events come from the log alone")
    node_token_secret_file: Path | None = Field(None, description="secret that node tokens are made with")
    token_review: bool = Field(False, description="have Kubernetes review the tokens")
    kubeconfig: str = Field("", description="for token_review; default: the pod's own service account")
    kube_context: str = Field("", description="context of the kubeconfig; default: its current one")
    token_audience: str = Field("kai-ingest", description="for token_review: what the tokens must be made for")
    exporter_service_accounts: list[str] = Field(
        ["kai-system:kai-exporter"], description="for token_review: whose tokens count, as namespace:name"
    )
    tls_cert_file: Path | None = Field(None, description="serve HTTPS with this certificate; default: HTTP")
    tls_key_file: Path | None = Field(None, description="the certificate's key; default: in the same file")
    max_body_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="size of a request's body at most")
    max_connections: int = Field(10_000, ge=1, description="connections at once; one for each node's exporter")
    snapshot_events: int = Field(50_000, ge=1, description="how many events between two snapshots of the projection")

    @model_validator(mode="after")
    def _one_way_to_authenticate(self) -> Self:
        if self.token_review == (self.node_token_secret_file is not None):
            raise ValueError("give either token_review or node_token_secret_file")
        return self
