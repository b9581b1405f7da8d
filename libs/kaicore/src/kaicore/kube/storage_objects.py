"""Volumes, namespaces and disruption budgets on the wire: see `kaicore.kube.objects`."""

import msgspec

from kaicore.kube.constraint_objects import LabelSelector, NodeSelector
from kaicore.kube.objects import KubernetesObject, Quantities
from kaicore.kube.wire import Wire


class StorageRequest(Wire):
    """How much storage is asked for."""

    requests: Quantities | None = None


class ClaimSpec(Wire):
    """What a claim asks for."""

    volume_name: str | None = None
    storage_class_name: str | None = None
    access_modes: list[str] | None = None
    resources: StorageRequest | None = None
    volume_mode: str | None = None
    selector: LabelSelector | None = None


class PhaseStatus(Wire):
    """How far something has come."""

    phase: str | None = None


class ClaimObject(KubernetesObject):
    """A `v1` PersistentVolumeClaim."""

    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)
    status: PhaseStatus = msgspec.field(default_factory=PhaseStatus)


class ClaimReference(Wire):
    """The claim that a volume is bound to, or kept for."""

    namespace: str = ""
    name: str = ""
    uid: str | None = None


class VolumeNodeAffinity(Wire):
    """From which nodes a volume can be reached."""

    required: NodeSelector | None = None


class VolumeSpec(Wire):
    """What a volume is."""

    capacity: Quantities | None = None
    access_modes: list[str] | None = None
    storage_class_name: str | None = None
    claim_ref: ClaimReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    volume_mode: str | None = None


class VolumeObject(KubernetesObject):
    """A `v1` PersistentVolume."""

    spec: VolumeSpec = msgspec.field(default_factory=VolumeSpec)
    status: PhaseStatus = msgspec.field(default_factory=PhaseStatus)


class TopologySelectorLabel(Wire):
    """Values of a label that are allowed."""

    key: str = ""
    values: list[str] | None = None


class TopologySelectorTerm(Wire):
    """All of its expressions have to hold."""

    match_label_expressions: list[TopologySelectorLabel] | None = None


class StorageClassObject(KubernetesObject):
    """A `storage.k8s.io/v1` StorageClass."""

    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: list[TopologySelectorTerm] | None = None


class NamespaceObject(KubernetesObject):
    """A `v1` Namespace."""


class BudgetSpec(Wire):
    """Whose disruption is limited, and how far: a count, or a part of them such as `50%`."""

    selector: LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    unhealthy_pod_eviction_policy: str | None = None


class BudgetStatus(Wire):
    """What is allowed now; pods whose eviction was granted are named with the time of it."""

    disruptions_allowed: int | None = None
    disrupted_pods: dict[str, msgspec.Raw] | None = None


class BudgetObject(KubernetesObject):
    """A `policy/v1` PodDisruptionBudget."""

    spec: BudgetSpec = msgspec.field(default_factory=BudgetSpec)
    status: BudgetStatus = msgspec.field(default_factory=BudgetStatus)
