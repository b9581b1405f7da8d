"""Settings of `kai-operator`."""

from pathlib import Path

from kaicore.runtime.service import ServiceSettings
from pydantic import Field


class OperatorSettings(ServiceSettings):
    """Settings of `kai-operator`."""

    namespace: str = Field("kai-system", description="where the exporter and the schedulers are")
    image: str = Field("", description="image of what it makes, where the Config names none; by default its own pod's")
    pod_name: str = Field("", description="the operator's own pod, to take its image; in a pod from metadata.name")
    templates_dir: Path | None = Field(
        None, description="directory with exporter.yaml and scheduler.yaml; by default those of deploy/k8s"
    )
    kubeconfig: str = Field("", description="path of a kubeconfig; by default the pod's service account")
    kube_context: str = Field("", description="context of the kubeconfig; by default its current one")
    lease_ms: int = Field(
        15_000, ge=1000, description="how long a leader may be silent before another instance takes over"
    )
    resync_s: float = Field(60.0, gt=0, description="how often everything is looked at, when nothing has changed")
