"""Settings of `kai-binder`; those that its parts read are `BinderOptions`, and are passed to them as a whole."""

from typing import Literal

from kaicore.kube.gpu_shares import ReservationSettings
from kaicore.runtime.service.settings import FeedSettings, KubeSettings
from pydantic import BaseModel, Field, model_validator

#: Whether statuses of topologies are written: always, never, or where no other controller has written them.
TopologyStatusesMode = Literal["auto", "on", "off"]


class BinderOptions(BaseModel):
    """A binder's settings."""

    concurrency: int = Field(64, ge=1, le=1024, description="nodes to which pods are bound at the same time")
    give_up_s: float = Field(60.0, gt=0, description="how long a binding is tried before the pod is given back")
    evict_give_up_s: float = Field(120.0, gt=0, description="how long an eviction is tried, budgets that forbid it too")
    volumes_give_up_s: float = Field(120.0, gt=0, description="how long a pod's claims may take to be bound")
    gpu_sharing: bool = Field(False, description="carry out shares of GPUs; as gpu_sharing in the scheduler's settings")
    gpu_reservation_image: str = Field("", description="image of the pods that hold GPUs for shares")
    gpu_reservation_runtime_class: str = Field("", description="their RuntimeClass; by default the node's own runtime")
    gpu_cdi: bool = Field(False, description="the device plugin names GPUs by CDI")
    gpu_give_up_s: float = Field(60.0, gt=0, description="how long it may take until a pod's GPUs are reserved")
    annotations: bool = Field(True, description="write observed placements on pods")
    group_statuses: bool = Field(True, description="write into PodGroups how they fare")
    queue_statuses: bool = Field(True, description="write into Queues how they stand")
    topology_statuses: TopologyStatusesMode = Field(
        "auto",
        description="write into HyperNodes and ClusterNetworkTopologies what nodes they have: on, off, or auto, which "
        "is where no other controller has written their status",
    )
    empty_groups: bool = Field(
        False,
        description="also into those without pods, but for those of a Volcano Job of another scheduler; set it "
        "where no other scheduler uses PodGroups by themselves",
    )
    pod_conditions: bool = Field(True, description="write into waiting pods why they wait (condition PodScheduled)")
    failed_scheduling_events: bool = Field(True, description="say why a pod waits by a Kubernetes event")
    scheduled_events: bool = Field(True, description="report each bound pod by a Kubernetes event")
    side_writes_per_s: float = Field(
        100.0, gt=0, description="such annotations, conditions, statuses and events per second at most"
    )
    snapshot_events: int = Field(50_000, ge=1, description="events between two snapshots of what is left to do")
    hub_lease_s: float = Field(
        30.0, gt=0, description="how long the lease lasts on which the binder acts for the hub; renewed thrice as often"
    )

    @model_validator(mode="after")
    def _an_image_for_shares(self) -> "BinderOptions":
        if self.gpu_sharing and not self.gpu_reservation_image:
            raise ValueError("gpu_sharing is on, and gpu_reservation_image names no image")
        return self

    @property
    def reservations(self) -> ReservationSettings | None:
        """Settings of reservation pods; None where shares are not carried out."""
        if not self.gpu_sharing:
            return None
        return ReservationSettings(self.gpu_reservation_image, runtime_class=self.gpu_reservation_runtime_class)


class BinderSettings(FeedSettings, KubeSettings, BinderOptions):
    """Settings of `kai-binder`."""

    cluster: str = Field(description="the cluster, as the log calls it")
    replica: str | None = Field(
        None,
        pattern=r"^[a-zA-Z0-9]([-_.a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$",
        description="this binder's name among several that share the cluster's work, such as its pod's; without it, it "
        "carries out everything (docs/how-to/shards.md)",
    )
    member_ttl_ms: int = Field(2000, ge=300, description="how long a binder counts as live without a sign of life")
