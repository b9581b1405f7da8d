"""Pods, their rules, namespaces and priority classes, reduced to the fields that scheduling needs.

A pod's rules are constraints on nodes and on the pods near it, beyond amounts. A disruption budget bounds how many of
some pods may be evicted at once. A kubelet's refusal is read from a pod's status.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from kaicore.rules.model.device import PodClaim
from kaicore.rules.model.gpu_share import GpuShare
from kaicore.rules.model.selector import PodSelector, Requirement
from kaicore.rules.objects.wire import ObjectMeta


class PodDisruptionBudget(msgspec.Struct, frozen=True, omit_defaults=True):
    """The number of pods that may be evicted now.

    Attributes:
        selector: the pods, of the budget's own namespace.
        disruptions_allowed: as its controller has last counted.
        disrupted: names of pods with a granted eviction that the controller has not seen go yet.
        frees_unready: whether a pod that is not ready goes without a disruption being allowed, and counts for none.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str
    selector: PodSelector
    disruptions_allowed: int = 0
    disrupted: tuple[str, ...] = ()
    frees_unready: bool = False


class PodTerm(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod affinity or anti-affinity term: pods of `selector` in the node's domain of `topology_key`."""

    topology_key: str
    selector: PodSelector


class PreferredPods(msgspec.Struct, frozen=True, omit_defaults=True):
    """A preferred term; its weight is 1 to 100 for affinity, -1 to -100 for anti-affinity."""

    weight: int
    term: PodTerm


class PreferredNodes(msgspec.Struct, frozen=True, omit_defaults=True):
    """A preferred node affinity term and its weight, 1 to 100."""

    weight: int
    requirements: tuple[Requirement, ...] = ()


class SpreadConstraint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topology spread constraint.

    Attributes:
        max_skew: 1 or more.
        topology_key: the node label with the domains as values.
        selector: the pods that are counted; `matchLabelKeys` are among its requirements already.
        required: `DoNotSchedule`, as against `ScheduleAnyway`.
        min_domains: with fewer domains than this the least count is taken for 0.
        honor_affinity: only nodes that meet the pod's own selector and required affinity count.
        honor_taints: only nodes with taints that the pod tolerates count.
    """

    max_skew: int
    topology_key: str
    selector: PodSelector
    required: bool = True
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False


class HostPort(msgspec.Struct, frozen=True, omit_defaults=True, order=True):
    """A port of the node; `0.0.0.0` is every address."""

    port: int
    protocol: str = "TCP"
    ip: str = "0.0.0.0"  # noqa: S104 - what an absent hostIP means


class ClaimUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A PersistentVolumeClaim of the pod's namespace.

    Attributes:
        owned: it is made for the pod (an ephemeral volume), and must be owned by it.
    """

    name: str
    owned: bool = False


class PodRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """Constraints of a pod that depend on other pods, or that only rank nodes."""

    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    preferred_pods: tuple[PreferredPods, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    preferred_nodes: tuple[PreferredNodes, ...] = ()
    host_ports: tuple[HostPort, ...] = ()


#: Amounts by resource name, in canonical units (see `kaicore.rules.model.quantity`), as wide as a column.
Amounts = dict[str, Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]]

#: On the pod that stands in the API for a static pod: the uid by which its kubelet knows it.
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
#: On a pod: when it last wrote a checkpoint from which its successor goes on, as RFC 3339; its own workload writes it.
LAST_CHECKPOINT_ANNOTATION = "kai.scheduler/last-checkpoint-time"


class ContainerKind(StrEnum):
    """The role of a container in its pod; `SIDECAR` is an init container with `restartPolicy: Always`."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class QosClass(StrEnum):
    """Kubernetes' quality of service classes."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


#: Begins the feature by which a pod with a share of a GPU is refused.
GPU_SHARE = "a share of a GPU"


class Container(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One container's requests and limits; `requests` are defaulted from limits as the API server does."""

    name: str
    kind: ContainerKind = ContainerKind.APP
    requests: Amounts = {}
    limits: Amounts = {}


class Toleration(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A toleration of node taints; empty `key` with `Exists` matches all, empty `effect` matches every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Owner(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The controller of a pod."""

    kind: str
    name: str
    uid: str
    api_version: str = ""


def controller(metadata: ObjectMeta) -> Owner | None:
    """Return the owner that controls an object, None where there is none."""
    for owner in metadata.owner_references or ():
        if owner.controller:
            return Owner(kind=owner.kind, name=owner.name, uid=owner.uid, api_version=owner.api_version)
    return None


class WorkloadRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod's reference to its group in the native Workload API.

    Attributes:
        workload: of Kubernetes 1.35: `spec.workloadRef.name`; `group` and `replica` are its `podGroup` and
            `podGroupReplicaKey`.
        group: of Kubernetes 1.36 and later, with `workload` empty: `spec.schedulingGroup.podGroupName`.
    """

    group: str
    workload: str = ""
    replica: str = ""


class Pod(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A pod as the scheduler knows it.

    Attributes:
        created_at: seconds since the epoch.
        containers: in the kubelet's order, init containers (sidecars among them) before the others.
        node_affinity: required terms: any of the terms, all requirements of a term.
        pod_resources: pod-level requests (`spec.resources.requests`), None when the pod has none.
        annotations: those that kai-ledger or a workload API it reads may care for.
        deletion_at: `metadata.deletionTimestamp` in seconds since the epoch, None when not terminating.
        rules: what it asks of nodes and of the pods near it beyond that; None for nothing.
        claims: persistent volume claims that it uses, by name.
        resource_claims: resource claims that it uses, for devices, in the order in which these choose.
        unsupported: constraints of the pod that this version cannot honour, and for which the pod therefore waits.
        malformed: the problem of its constraints, which are then left out; such a pod waits.
        start_time: `status.startTime` in seconds since the epoch, once its phase is no longer Pending; 0 before.
        active_deadline_s: seconds from there after which it is ended (`spec.activeDeadlineSeconds`); 0 for never.
        checkpoint_at: when it last wrote a checkpoint (`LAST_CHECKPOINT_ANNOTATION`), in seconds since the epoch; 0 for
            never.
        gpu_share: the parts of GPUs that it asks for; None for none.
        unready: whether it runs on, and its kubelet or node controller says that it is not ready.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str
    created_at: int
    scheduler_name: str
    qos: QosClass
    containers: tuple[Container, ...]
    phase: str = "Pending"
    node_name: str = ""
    priority: int = 0
    priority_class: str = ""
    preemption_policy: str = "PreemptLowerPriority"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    overhead: Amounts = {}
    pod_resources: Amounts | None = None
    node_selector: dict[str, str] = {}
    node_affinity: tuple[tuple[Requirement, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[str, ...] = ()
    owner: Owner | None = None
    reason: str = ""
    message: str = ""
    deletion_at: int | None = None
    nominated_node: str = ""
    workload: WorkloadRef | None = None
    unsupported: tuple[str, ...] = ()
    malformed: str = ""
    rules: PodRules | None = None
    claims: tuple[ClaimUse, ...] = ()
    start_time: int = 0
    active_deadline_s: int = 0
    resource_claims: tuple[PodClaim, ...] = ()
    checkpoint_at: int = 0
    gpu_share: GpuShare | None = None
    unready: bool = False

    @property
    def subject(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def has_init(self) -> bool:
        """True if it has init containers that end before its containers run; sidecars do not count."""
        return any(container.kind is ContainerKind.INIT for container in self.containers)

    @property
    def finished(self) -> bool:
        """True if the pod has reached a terminal phase."""
        return self.phase in ("Succeeded", "Failed")


class PriorityClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """A priority class."""

    uid: str
    name: str
    resource_version: str
    value: int
    global_default: bool = False
    preemption_policy: str = "PreemptLowerPriority"


#: Reasons that nothing but a refusal has; `OutOf…` (OutOfcpu, OutOfpods, …) besides. `Evicted` has other causes too.
REJECTION_REASONS = frozenset(
    {
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
        "SMTAlignmentError",
        "EmptyPodSharedPoolError",
        "NodeAffinity",
        "NodePorts",
        "PodLevelResourcesNotSupported",
        "AppArmor",
        "SysctlForbidden",
        "NodeShutdown",
    }
)
_REJECTED_MESSAGE = "Pod was rejected: "


def is_kubelet_rejection(pod: Pod) -> bool:
    """Tell whether a kubelet refused to start the pod; such a pod never held anything."""
    if pod.phase != "Failed" or not pod.node_name:
        return False
    return (
        pod.message.startswith(_REJECTED_MESSAGE) or pod.reason in REJECTION_REASONS or pod.reason.startswith("OutOf")
    )


class Namespace(msgspec.Struct, frozen=True, omit_defaults=True):
    """A namespace and its labels (`default_tolerations`: that admission adds to its pods)."""

    uid: str
    name: str
    resource_version: str
    labels: dict[str, str] = {}
    default_tolerations: tuple[Toleration, ...] = ()
