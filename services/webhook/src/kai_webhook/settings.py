"""Settings of `kai-webhook`."""

from pathlib import Path

from kaicore.runtime.service import ServiceSettings
from pydantic import Field, model_validator


class WebhookSettings(ServiceSettings):
    """Settings of `kai-webhook`; `http_host` and `http_port` are where it answers, health and metrics included."""

    tls_cert_file: Path = Field(description="certificate, PEM; read again when it changes")
    tls_key_file: Path = Field(description="its key, PEM")
    scheduler_name: str = Field("kai-ledger", description="spec.schedulerName of pods that are ours")
    cluster: str = Field("", description="the cluster, as the log calls it; without a log names are not looked up")
    database_url: str = Field("", description="postgresql://… of the event log, to know which topologies there are")
    reload_s: float = Field(10.0, gt=0, description="seconds between two looks whether the certificate has changed")

    @model_validator(mode="after")
    def _both_or_neither(self) -> "WebhookSettings":
        if bool(self.cluster) != bool(self.database_url):
            raise ValueError("--cluster and --database-url go together: topologies are known by both or not at all")
        return self
