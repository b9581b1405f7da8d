"""Settings of `kai-watcher`."""

from kaicore.runtime.service.leadership import LeaseSettings
from pydantic import Field


class WatcherSettings(LeaseSettings):
    """Settings of `kai-watcher`."""

    cluster: str = Field(description="the cluster, as the log is to call it")
    database_url: str = Field(description="postgresql://… of the event log")
    kubeconfig: str = Field("", description="path of a kubeconfig; by default the pod's service account")
    kube_context: str = Field("", description="context of the kubeconfig; by default its current one")
    leave_out: str = Field(
        "",
        description="API groups whose objects are not read (GROUP,GROUP), such as kueue.x-k8s.io where Kueue keeps the "
        "quotas; only of kinds that a cluster need not serve",
    )
    batch: int = Field(1000, ge=1, le=10_000, description="facts per append at most")
    buffer: int = Field(20_000, ge=1, description="facts that may wait for the log before reading stops")
    page: int = Field(500, ge=1, le=10_000, description="objects per page of a list")
    snapshot_events: int = Field(50_000, ge=1, description="facts between two snapshots of what is known")
    recheck_s: int = Field(30, ge=1, description="how often to look for kinds that the cluster does not serve yet")
