"""Objects that group pods, on the wire: owners of pods, PodGroups of four dialects, native Workloads and HyperJobs.

Only the fields are read that define how many of their pods must run at once, as in `kaicore.kube.wire.objects`.
"""

from typing import Any

import msgspec

from kaicore.rules.objects.wire import KubernetesObject, Wire


class KaiTopologyConstraint(Wire):
    """The place in a topology where pods are to be."""

    topology: str | None = None
    required_topology_level: str | None = None
    preferred_topology_level: str | None = None


class KaiSubGroup(Wire):
    """A node of a PodGroup's tree."""

    name: str = ""
    parent: str | None = None
    min_member: int | None = None
    min_sub_group: int | None = None
    topology_constraint: KaiTopologyConstraint | None = None


class KaiPodGroupSpec(Wire):
    """The spec of a `scheduling.run.ai` PodGroup."""

    min_member: int | None = None
    min_sub_group: int | None = None
    sub_groups: list[KaiSubGroup] | None = None
    queue: str | None = None
    priority_class_name: str | None = None
    preemptibility: str | None = None
    topology_constraint: KaiTopologyConstraint | None = None
    mark_unschedulable: bool | None = None
    scheduling_backoff: int | None = None
    preemption_delay: str | None = None
    staleness_grace_period: str | None = None


class KaiPodGroup(KubernetesObject):
    """A `scheduling.run.ai/v2alpha2` PodGroup."""

    spec: KaiPodGroupSpec = msgspec.field(default_factory=KaiPodGroupSpec)


class SigsPodGroupSpec(Wire):
    """The spec of a PodGroup of the scheduler-plugins, Koordinator's among them."""

    min_member: int | None = None
    schedule_timeout_seconds: int | None = None


class SigsPodGroup(KubernetesObject):
    """A `scheduling.sigs.k8s.io/v1alpha1` PodGroup, or one of `scheduling.x-k8s.io`."""

    spec: SigsPodGroupSpec = msgspec.field(default_factory=SigsPodGroupSpec)


class NativeGang(Wire):
    """All or nothing."""

    min_count: int | None = None


class NativePolicy(Wire):
    """The scheduling policy of a group's pods: `basic` is one by one."""

    gang: NativeGang | None = None


class NativeTopology(Wire):
    """Pods must share a value of a node label."""

    key: str = ""


class NativeConstraints(Wire):
    """The place where pods of a group are to be."""

    topology: list[NativeTopology] | None = None


class NativePodGroupSpec(Wire):
    """The spec of a native PodGroup."""

    scheduling_policy: NativePolicy = msgspec.field(default_factory=NativePolicy)
    scheduling_constraints: NativeConstraints | None = None
    disruption_mode: Any = None
    priority_class_name: str | None = None
    priority: int | None = None


class NativePodGroup(KubernetesObject):
    """A `scheduling.k8s.io` PodGroup: v1alpha2 (Kubernetes 1.36), v1alpha3 and v1beta1 (1.37).

    What is read of it is called the same in all of them, but for how pods are disrupted.
    """

    spec: NativePodGroupSpec = msgspec.field(default_factory=NativePodGroupSpec)


class WorkloadPodGroup(Wire):
    """A kind of groups of a Workload."""

    name: str = ""
    policy: NativePolicy = msgspec.field(default_factory=NativePolicy)


class NativePodGroupTemplate(NativePodGroupSpec):
    """A Workload's template of PodGroups."""

    name: str = ""


class WorkloadSpec(Wire):
    """The spec of a Workload: groups of pods in Kubernetes 1.35, templates of PodGroups from 1.36 on."""

    pod_groups: list[WorkloadPodGroup] | None = None
    pod_group_templates: list[NativePodGroupTemplate] | None = None


class WorkloadObject(KubernetesObject):
    """A `scheduling.k8s.io` Workload: v1alpha1 (Kubernetes 1.35), v1alpha2 (1.36), v1alpha3 and v1beta1 (1.37)."""

    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)


class KueueWorkloadSpec(Wire):
    """The spec of a `kueue.x-k8s.io` Workload: how long it may run once it is admitted."""

    maximum_execution_time_seconds: int | None = None


class KueueWorkloadStatus(Wire):
    """The status of a `kueue.x-k8s.io` Workload: how long it ran before it was evicted."""

    accumulated_past_execution_time_seconds: int | None = None


class KueueWorkloadObject(KubernetesObject):
    """A `kueue.x-k8s.io` Workload, which stands for a job, a pod or a pod group."""

    spec: KueueWorkloadSpec = msgspec.field(default_factory=KueueWorkloadSpec)
    status: KueueWorkloadStatus = msgspec.field(default_factory=KueueWorkloadStatus)
