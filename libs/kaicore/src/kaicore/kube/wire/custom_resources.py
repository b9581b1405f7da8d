"""Custom resources of other projects on the wire: queues, network topologies, reservations, ProvisioningRequests.

Reduced to the fields that are read; see `kaicore.kube.wire.objects`.
"""

from datetime import datetime
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


class BorrowWithinCohort(Wire):
    """The work that a ClusterQueue's work may preempt for quota that it borrows."""

    policy: str | None = None
    max_priority_threshold: int | None = None


class NumericLabel(Wire):
    """A label with a number, of a candidate for preemption."""

    key: str = ""
    fallback_value: int | None = None
    comparison: str | None = None
    min_value: int | None = None
    max_value: int | None = None


class PriorityClassNames(Wire):
    """Names of priority classes of work."""

    match_names: list[str] | None = None
    not_match_names: list[str] | None = None


class CandidatePriority(PriorityClassNames):
    """The priority of a candidate for preemption."""

    mode: str | None = None
    comparison: str | None = None


class CandidateSelector(Wire):
    """Candidates for preemption."""

    scope: str = ""
    cluster_queue_selector: LabelSelector | None = None
    label_selector: LabelSelector | None = None
    numeric_labels: list[NumericLabel] | None = None
    priority: CandidatePriority | None = None


class ActivationPolicy(Wire):
    """The time when a rule counts."""

    trigger: str = ""


class PreemptionConfigRule(Wire):
    """A rule of a PreemptionConfig."""

    name: str = ""
    preemptor_selector: LabelSelector | None = None
    preemptor_priority_class_selector: PriorityClassNames | None = None
    activation_policy: ActivationPolicy = msgspec.field(default_factory=ActivationPolicy)
    candidate_selectors: list[CandidateSelector] | None = None


class PreemptionConfigSpec(Wire):
    """The spec of a PreemptionConfig."""

    rules: list[PreemptionConfigRule] | None = None


class PreemptionConfigObject(KubernetesObject):
    """A `kueue.x-k8s.io` PreemptionConfig (alpha in Kueue 0.20)."""

    spec: PreemptionConfigSpec = msgspec.field(default_factory=PreemptionConfigSpec)


class KueuePreemption(Wire):
    """The pods that work of a ClusterQueue may preempt."""

    reclaim_within_cohort: str | None = None
    within_cluster_queue: str | None = None
    borrow_within_cohort: BorrowWithinCohort | None = None


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


class ReservedFor(Wire):
    """The work that a reservation is for."""

    queue: str | None = None
    namespace: str | None = None
    work: str | None = None


class ReservationSpec(Wire):
    """The nodes of a reservation, and when they are reserved for whom."""

    reserved_for: ReservedFor | None = msgspec.field(default=None, name="for")
    nodes: list[str] | None = None
    node_selector: dict[str, str] | None = None
    start: datetime | None = None
    end: datetime | None = None
    recurrence: str | None = None
    time_zone: str | None = None
    notice: str | None = None
    drain_by: datetime | None = None


class ReservationObject(KubernetesObject):
    """A `kai.scheduler/v1alpha1` Reservation."""

    spec: ReservationSpec = msgspec.field(default_factory=ReservationSpec)


RESERVATIONS = OptionalResource(
    "Reservation.kai.scheduler", "kai.scheduler", "reservations", ("v1alpha1",), ReservationObject, namespaced=False
)

#: Both versions have the same fields (cluster-autoscaler 1.34).
PROVISIONING_REQUESTS = OptionalResource(
    "ProvisioningRequest.autoscaling.x-k8s.io",
    "autoscaling.x-k8s.io",
    "provisioningrequests",
    ("v1", "v1beta1"),
    ProvisioningRequestObject,
)
