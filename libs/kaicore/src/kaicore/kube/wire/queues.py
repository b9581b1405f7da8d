"""Queues on the wire: those of KAI and of Kueue, with cohorts and flavors, and requests of nodes.

As in `kaicore.kube.wire.objects`, only the fields that are read. The versions of Kueue's kinds differ in names of
fields, not in shape.

ProvisioningRequests come with their API paths.
"""

from typing import Any

import msgspec

from kaicore.kube.wire.objects import Condition, NodeTaint, PodToleration
from kaicore.kube.wire.resources import OptionalResource
from kaicore.rules.objects.wire import KubernetesObject, LabelSelector, Wire


class KaiQueueResource(Wire):
    """A Queue's amounts of one resource: millicores, megabytes (10**6) or GPUs; -1 for no end."""

    quota: int | float | None = None
    limit: int | float | None = None
    over_quota_weight: int | float | None = None


class KaiQueueResources(Wire):
    """A Queue's amounts of all resources."""

    cpu: KaiQueueResource | None = None
    memory: KaiQueueResource | None = None
    gpu: KaiQueueResource | None = None


class KaiQueueSpec(Wire):
    """The spec of a `scheduling.run.ai` Queue."""

    parent_queue: str | None = None
    priority: int | None = None
    resources: KaiQueueResources | None = None
    preempt_min_runtime: str | None = None
    reclaim_min_runtime: str | None = None


class KaiQueue(KubernetesObject):
    """A `scheduling.run.ai/v2` Queue."""

    spec: KaiQueueSpec = msgspec.field(default_factory=KaiQueueSpec)


class KueueResource(Wire):
    """The quota of one resource of a flavor."""

    name: str = ""
    nominal_quota: str | int | float | None = None
    borrowing_limit: str | int | float | None = None
    lending_limit: str | int | float | None = None


class KueueFlavor(Wire):
    """The quotas of one flavor."""

    name: str = ""
    resources: list[KueueResource] | None = None


class KueueResourceGroup(Wire):
    """Resources that come in the same flavors."""

    covered_resources: list[str] | None = None
    flavors: list[KueueFlavor] | None = None


class FairSharing(Wire):
    """A queue's weight beside others."""

    weight: str | int | float | None = None


class KueuePreemption(Wire):
    """The pods that work of a ClusterQueue may preempt."""

    reclaim_within_cohort: str | None = None
    within_cluster_queue: str | None = None


class ClusterQueueSpec(Wire):
    """The spec of a ClusterQueue; `cohort` is the name of `cohortName` before v1beta2."""

    cohort: str | None = None
    cohort_name: str | None = None
    resource_groups: list[KueueResourceGroup] | None = None
    namespace_selector: LabelSelector | None = None
    preemption: KueuePreemption | None = None
    fair_sharing: FairSharing | None = None
    stop_policy: str | None = None
    admission_checks: list[str] | None = None
    admission_checks_strategy: dict[str, Any] | None = None


class ClusterQueueStatus(Wire):
    """The status of a ClusterQueue, by Kueue's controller."""

    conditions: list[Condition] | None = None


class ClusterQueueObject(KubernetesObject):
    """A `kueue.x-k8s.io` ClusterQueue."""

    spec: ClusterQueueSpec = msgspec.field(default_factory=ClusterQueueSpec)
    status: ClusterQueueStatus = msgspec.field(default_factory=ClusterQueueStatus)


class CohortSpec(Wire):
    """The spec of a Cohort; `parent` is the name of `parentName` before v1beta2."""

    parent: str | None = None
    parent_name: str | None = None
    resource_groups: list[KueueResourceGroup] | None = None
    fair_sharing: FairSharing | None = None


class CohortObject(KubernetesObject):
    """A `kueue.x-k8s.io` Cohort."""

    spec: CohortSpec = msgspec.field(default_factory=CohortSpec)


class LocalQueueSpec(Wire):
    """The spec of a LocalQueue."""

    cluster_queue: str | None = None
    stop_policy: str | None = None


class LocalQueueObject(KubernetesObject):
    """A `kueue.x-k8s.io` LocalQueue."""

    spec: LocalQueueSpec = msgspec.field(default_factory=LocalQueueSpec)


class ResourceFlavorSpec(Wire):
    """The nodes of a flavor, and the pods that it takes."""

    node_labels: dict[str, str] | None = None
    node_taints: list[NodeTaint] | None = None
    tolerations: list[PodToleration] | None = None
    topology_name: str | None = None


class ResourceFlavorObject(KubernetesObject):
    """A `kueue.x-k8s.io` ResourceFlavor."""

    spec: ResourceFlavorSpec = msgspec.field(default_factory=ResourceFlavorSpec)


class ProvisioningRequestSpec(Wire):
    """The spec of a request; the decision has the rest of the object."""

    provisioning_class_name: str = ""


class ConditionOfRequest(Wire):
    """A condition, as `metav1.Condition` has it."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class ProvisioningRequestStatus(Wire):
    """The autoscaler's progress with the request."""

    conditions: list[ConditionOfRequest] | None = None


class ProvisioningRequestObject(KubernetesObject):
    """An `autoscaling.x-k8s.io` ProvisioningRequest."""

    spec: ProvisioningRequestSpec = msgspec.field(default_factory=ProvisioningRequestSpec)
    status: ProvisioningRequestStatus = msgspec.field(default_factory=ProvisioningRequestStatus)


#: Both versions have the same fields (cluster-autoscaler 1.34).
PROVISIONING_REQUESTS = OptionalResource(
    "ProvisioningRequest.autoscaling.x-k8s.io",
    "autoscaling.x-k8s.io",
    "provisioningrequests",
    ("v1", "v1beta1"),
    ProvisioningRequestObject,
)
