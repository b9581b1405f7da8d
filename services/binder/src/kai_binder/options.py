"""Options of a binder."""

from dataclasses import dataclass

from kai_binder.settings import TopologyStatusesMode


@dataclass(frozen=True, slots=True, kw_only=True)
class BinderOptions:
    """How a binder works.

    Attributes:
        concurrency: nodes to which pods are bound at the same time.
        give_up_s: how long a binding is tried before the pod is given back.
        evictions: how many pods are evicted at the same time.
        evict_give_up_s: how long an eviction is tried, against a disruption budget too.
        volumes_give_up_s: how long a pod's claims may take to be bound before the pod is given back.
        annotations: whether observed placements are written on pods.
        group_statuses: whether it is written into PodGroups how they fare.
        queue_statuses: whether it is written into Queues how they stand.
        topology_statuses: whether it is written into HyperNodes and ClusterNetworkTopologies what nodes they have.
        empty_groups: whether into those without any pods too, which might be another scheduler's.
        pod_conditions: whether it is written into waiting pods why they wait.
        failed_scheduling_events: whether a Kubernetes event tells of it, too.
        scheduled_events: whether each bound pod is told of by a Kubernetes event.
        side_writes_per_s: such annotations, conditions, statuses and events per second at most.
        snapshot_events: events between two snapshots.
        hub_lease_s: how long the lease lasts on which the binder acts for the hub.
        retry_s: how long a log or API server that did not answer at the start is left alone.
        flush_s: how long the log is given, in the end, to take the last outcomes.
    """

    concurrency: int = 64
    give_up_s: float = 60.0
    evictions: int = 8
    evict_give_up_s: float = 120.0
    volumes_give_up_s: float = 120.0
    annotations: bool = True
    group_statuses: bool = True
    queue_statuses: bool = True
    topology_statuses: TopologyStatusesMode = "auto"
    empty_groups: bool = False
    pod_conditions: bool = True
    failed_scheduling_events: bool = True
    scheduled_events: bool = True
    side_writes_per_s: float = 100.0
    snapshot_events: int = 20_000
    hub_lease_s: float = 30.0
    retry_s: float = 1.0
    flush_s: float = 5.0
