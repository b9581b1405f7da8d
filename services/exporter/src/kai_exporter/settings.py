"""Settings of the exporter, each a flag and a `KAI_…` variable of the same name."""

from pathlib import Path
from typing import Annotated

from kaicore.runtime.agent.settings import AgentSettings
from msgspec import Meta

_URLS = r"^https?://[^\s/,]+[^\s,]*(\s*,\s*https?://[^\s/,]+[^\s,]*)*$"


class ExporterSettings(AgentSettings, frozen=True, kw_only=True):
    """One node by its name and socket, or, for simulated fleets, every node below a directory."""

    cluster: Annotated[str, Meta(min_length=1, description="the cluster's name, as ingest knows it")]
    ingest_url: Annotated[
        str,
        Meta(pattern=_URLS, description="of ingest, such as http://kai-ingest:8080; several with commas between them"),
    ]
    ingest_ca_file: Annotated[
        Path | None, Meta(description="certificates to trust for https; default: the system's")
    ] = None
    node_name: Annotated[str, Meta(description="the node's name; in a pod from spec.nodeName")] = ""
    podresources_socket: Annotated[Path, Meta(description="the kubelet's socket")] = Path(
        "/var/lib/kubelet/pod-resources/kubelet.sock"
    )
    sysfs_root: Annotated[Path, Meta(description="where sysfs is mounted")] = Path("/sys")
    podresources_dir: Annotated[
        Path | None,
        Meta(description="serve every <node>/kubelet.sock below this directory, with sys and state files beside it"),
    ] = None
    token_file: Annotated[
        Path | None, Meta(description="the node's token; read anew for each report, for tokens rotate")
    ] = None
    token: Annotated[str, Meta(description="the node's token, where there is no file")] = ""
    node_token_secret_file: Annotated[
        Path | None, Meta(description="derive tokens from this secret, shared with ingest")
    ] = None
    kubelet_state_dir: Annotated[
        Path | None,
        Meta(description="the kubelet's root directory: its state files tell pods' uids and what init containers keep"),
    ] = None
    publish_nrt: Annotated[
        bool, Meta(description="publish the node's NodeResourceTopology, as long as no other publisher does")
    ] = False
    publish_interval_s: Annotated[
        float, Meta(ge=0.05, le=3600, description="how often it is looked at what to publish")
    ] = 10.0
    kubelet_config: Annotated[
        Path | None, Meta(description="the kubelet's configuration; default: config.yaml of its root directory")
    ] = None
    kubeconfig: Annotated[str, Meta(description="to publish with; by default the pod's service account")] = ""
    kube_context: Annotated[str, Meta(description="context of the kubeconfig; by default its current one")] = ""
    poll_interval_s: Annotated[float, Meta(ge=0.05, le=300, description="how often a kubelet is asked")] = 1.0
    quiet_interval_s: Annotated[
        float, Meta(ge=0.05, le=3600, description="the same while state files do not change")
    ] = 10.0
    drift_interval_s: Annotated[float, Meta(ge=1, le=86_400, description="how often everything is reported again")] = (
        60.0
    )
    report_timeout_s: Annotated[float, Meta(gt=0, le=300, description="how long ingest may take to answer")] = 20.0

    @property
    def config_file(self) -> Path | None:
        """The path of the kubelet's configuration; None where nothing names it."""
        if self.kubelet_config is not None or self.kubelet_state_dir is None:
            return self.kubelet_config
        return self.kubelet_state_dir / "config.yaml"

    def __post_init__(self) -> None:
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
