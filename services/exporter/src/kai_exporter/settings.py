"""Settings of the exporter, each a flag and a `KAI_…` variable of the same name."""

from pathlib import Path
from typing import Self

from kaicore.runtime.service import ServiceSettings
from pydantic import Field, model_validator


class ExporterSettings(ServiceSettings):
    """One node by its name and socket, or, for simulated fleets, every node below a directory."""

    cluster: str = Field(min_length=1, description="the cluster's name, as ingest knows it")
    ingest_url: str = Field(
        pattern=r"^https?://[^\s/,]+[^\s,]*(\s*,\s*https?://[^\s/,]+[^\s,]*)*$",
        description="of ingest, such as http://kai-ingest:8080; several with commas between them",
    )
    ingest_ca_file: Path | None = Field(None, description="certificates to trust for https; default: the system's")
    node_name: str = Field("", description="the node's name; in a pod from spec.nodeName")
    podresources_socket: Path = Field(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"), description="the kubelet's socket"
    )
    sysfs_root: Path = Field(Path("/sys"), description="where sysfs is mounted")
    podresources_dir: Path | None = Field(
        None,
        description="serve every <node>/kubelet.sock below this directory, with sys and state files beside it",
    )
    token_file: Path | None = Field(None, description="the node's token; read anew for each report, for tokens rotate")
    token: str = Field("", description="the node's token, where there is no file")
    node_token_secret_file: Path | None = Field(None, description="derive tokens from this secret, shared with ingest")
    kubelet_state_dir: Path | None = Field(
        None, description="the kubelet's root directory: its state files tell pods' uids and what init containers keep"
    )
    publish_nrt: bool = Field(
        False, description="publish the node's NodeResourceTopology, as long as no other publisher does"
    )
    publish_interval_s: float = Field(10.0, ge=0.05, le=3600, description="how often it is looked at what to publish")
    kubelet_config: Path | None = Field(
        None, description="the kubelet's configuration; default: config.yaml of its root directory"
    )
    kubeconfig: str = Field("", description="to publish with; by default the pod's service account")
    kube_context: str = Field("", description="context of the kubeconfig; by default its current one")
    poll_interval_s: float = Field(1.0, ge=0.05, le=300, description="how often a kubelet is asked")
    quiet_interval_s: float = Field(10.0, ge=0.05, le=3600, description="the same while state files do not change")
    drift_interval_s: float = Field(60.0, ge=1, le=86_400, description="how often everything is reported again")
    report_timeout_s: float = Field(20.0, gt=0, le=300, description="how long ingest may take to answer")

    @property
    def config_file(self) -> Path | None:
        """Where the kubelet's configuration is; None where nothing says so."""
        if self.kubelet_config is not None or self.kubelet_state_dir is None:
            return self.kubelet_config
        return self.kubelet_state_dir / "config.yaml"

    @model_validator(mode="after")
    def _one_node_or_many(self) -> Self:
        if (self.podresources_dir is None) == (not self.node_name):
            raise ValueError("give either node_name or podresources_dir")
        if self.publish_nrt and not self.node_name:
            raise ValueError("publish_nrt needs node_name")
        if self.publish_nrt and self.config_file is None:
            raise ValueError("publish_nrt needs kubelet_config or kubelet_state_dir")
        if self.podresources_dir is not None and self.node_token_secret_file is None:
            raise ValueError("podresources_dir needs node_token_secret_file")
        if [bool(self.token), self.token_file is not None, self.node_token_secret_file is not None].count(True) != 1:
            raise ValueError("give exactly one of token_file, token and node_token_secret_file")
        return self
