"""The table of kinds: every recorded kind of objects is one row, and a new kind needs only its row.

The watcher follows these kinds; its snapshot and `kai simulate` use the same table. The rights in
`deploy/k8s/rbac.yaml` are tested against it.

A row has the API path of a kind and the conversion of its objects into facts. Kinds of devices, owners of pods, queues
and network topologies have tables of their own within it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from kaicore.errors import Lost
from kaicore.kube.api.reflector_core import ObjectKey
from kaicore.kube.kinds.kind import Kind, Model
from kaicore.kube.normalize import device, queue, storage
from kaicore.kube.normalize.network_topology import (
    normalize_cluster_network_topology,
    normalize_hyper_node,
    normalize_label_topology,
)
from kaicore.kube.normalize.node import normalize_node, normalize_priority_class, normalize_topology
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.normalize.pod_group import (
    normalize_composite_pod_group,
    normalize_kai_pod_group,
    normalize_kueue_workload,
    normalize_native_pod_group,
    normalize_sigs_pod_group,
    normalize_workload,
)
from kaicore.kube.normalize.reservation import normalize_reservation
from kaicore.kube.wire.resources import (
    BUDGETS,
    CLAIMS,
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    PROVISIONING_REQUESTS,
    RESERVATIONS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    TAINT_RULES,
    TOPOLOGIES,
    VOLUMES,
    OptionalResource,
)
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload
from kaicore.rules.groups import labels
from kaicore.rules.groups.dialects.dialect import WorkloadKind
from kaicore.rules.groups.dialects.table import WORKLOADS
from kaicore.rules.model import queue as queue_model
from kaicore.rules.model.node import (
    CLUSTER_NETWORK_TOPOLOGY,
    HYPER_NODE,
    KAI_TOPOLOGY,
    KUEUE_TOPOLOGY,
    TopologyDefinition,
)
from kaicore.rules.objects.wire import PlainObject

DEVICE_CLASS = Kind(
    DEVICE_CLASSES,
    device.normalize_device_class,
    payloads.DeviceClassObserved,
    payloads.DeviceClassDeleted,
    "deviceclass/{name}",
)
RESOURCE_SLICE = Kind(
    RESOURCE_SLICES,
    device.normalize_slice,
    payloads.ResourceSliceObserved,
    payloads.ResourceSliceDeleted,
    "resourceslice/{name}",
)
DEVICE_TAINT_RULE = Kind(
    TAINT_RULES,
    device.normalize_taint_rule,
    payloads.DeviceTaintRuleObserved,
    payloads.DeviceTaintRuleDeleted,
    "devicetaintrule/{name}",
)
RESOURCE_CLAIM = Kind(
    RESOURCE_CLAIMS,
    device.normalize_resource_claim,
    payloads.ResourceClaimObserved,
    payloads.ResourceClaimDeleted,
    "resourceclaim/{namespace}/{name}",
)

#: Every kind of dynamic resource allocation that decides where pods may go.
DEVICE_KINDS: tuple[Kind[Any], ...] = (DEVICE_CLASS, DEVICE_TAINT_RULE, RESOURCE_SLICE, RESOURCE_CLAIM)

_KUEUE_VERSIONS = ("v1", "v1beta2", "v1beta1")


#: Kinds of groups that no controller makes pods of.
_POD_GROUP_KINDS = (
    WorkloadKind(labels.KAI_POD_GROUP, "podgroups", ("v2alpha2",), normalize_kai_pod_group),
    WorkloadKind(labels.SIGS_POD_GROUP, "podgroups", ("v1alpha1",), normalize_sigs_pod_group),
    WorkloadKind(labels.X_POD_GROUP, "podgroups", ("v1alpha1",), normalize_sigs_pod_group),
    WorkloadKind(
        labels.NATIVE_POD_GROUP, "podgroups", ("v1", "v1beta1", "v1alpha3", "v1alpha2"), normalize_native_pod_group
    ),
    WorkloadKind(
        labels.COMPOSITE_POD_GROUP, "compositepodgroups", ("v1beta1", "v1alpha3"), normalize_composite_pod_group
    ),
    WorkloadKind(
        labels.WORKLOAD, "workloads", ("v1", "v1beta1", "v1alpha3", "v1alpha2", "v1alpha1"), normalize_workload
    ),
    WorkloadKind(labels.KUEUE_WORKLOAD, "workloads", _KUEUE_VERSIONS, normalize_kueue_workload),
)


def _found(rows: tuple[Kind[Any], ...], api_version: str, kind: str) -> Kind[Any] | None:
    name = f"{kind}.{api_version.rpartition('/')[0]}"
    return next((row for row in rows if row.name == name), None)


#: Every such kind.
GROUP_KINDS: tuple[Kind[Any], ...] = tuple(
    Kind(
        OptionalResource(one.kind, one.group, one.plural, one.versions, PlainObject),
        one.source,
        payloads.GroupSourceObserved,
        payloads.GroupSourceDeleted,
        "group/{kind}/{namespace}/{name}",
    )
    for one in (*_POD_GROUP_KINDS, *WORKLOADS.values())
    if one.normalize is not None
)


#: Returns the kind of an object that says how pods belong together, by its apiVersion and kind; None for any other.
group_kind = partial(_found, GROUP_KINDS)


KAI_QUEUES = OptionalResource(queue.KAI_QUEUE, "scheduling.run.ai", "queues", ("v2",), PlainObject, namespaced=False)


def _queue_kind(
    resource: OptionalResource[PlainObject],
    normalize: Callable[[PlainObject, Lost], queue_model.Queue],
    called: str = "{name}",
) -> Kind[PlainObject]:
    return Kind(resource, normalize, payloads.QueueObserved, payloads.QueueDeleted, "queue/{name}", called)


def _of_kueue(kind: str, plural: str, *older: str, namespaced: bool = False) -> OptionalResource[PlainObject]:
    return OptionalResource(kind, "kueue.x-k8s.io", plural, (*_KUEUE_VERSIONS, *older), PlainObject, namespaced)


#: Every kind of queues, and ResourceFlavors.
QUEUE_KINDS: tuple[Kind[Any], ...] = (
    _queue_kind(KAI_QUEUES, queue.normalize_kai_queue),
    _queue_kind(
        _of_kueue(queue.CLUSTER_QUEUE, "clusterqueues"),
        queue.normalize_cluster_queue,
        f"{queue_model.CLUSTER_QUEUE_PREFIX}{{name}}",
    ),
    _queue_kind(
        _of_kueue(queue.COHORT, "cohorts", "v1alpha1"),
        queue.normalize_cohort,
        f"{queue_model.COHORT_PREFIX}{{name}}",
    ),
    _queue_kind(
        _of_kueue(queue.LOCAL_QUEUE, "localqueues", namespaced=True),
        queue.normalize_local_queue,
        "{namespace}/{name}",
    ),
    _queue_kind(
        _of_kueue(queue.PREEMPTION_CONFIG, "preemptionconfigs", "v1alpha1"),
        queue.normalize_preemption_config,
        f"{queue_model.PREEMPTION_CONFIG_PREFIX}{{name}}",
    ),
    Kind(
        _of_kueue(queue.RESOURCE_FLAVOR, "resourceflavors"),
        queue.normalize_resource_flavor,
        payloads.FlavorObserved,
        payloads.FlavorDeleted,
        "flavor/{name}",
    ),
)


#: Returns the kind of an object that is a queue or a flavor, by its apiVersion and kind; None for any other.
queue_kind = partial(_found, QUEUE_KINDS)


def _topology_kind(
    kind: str, plural: str, versions: tuple[str, ...], normalize: Callable[[PlainObject, Lost], TopologyDefinition]
) -> Kind[PlainObject]:
    resource = OptionalResource(kind, kind.partition(".")[2], plural, versions, PlainObject, namespaced=False)
    observed, deleted = payloads.TopologyDefinitionObserved, payloads.TopologyDefinitionDeleted
    return Kind(resource, normalize, observed, deleted, "topology/{kind}/{name}")


#: Every kind of network topologies.
TOPOLOGY_KINDS: tuple[Kind[Any], ...] = (
    _topology_kind(KAI_TOPOLOGY, "topologies", ("v1alpha1",), partial(normalize_label_topology, KAI_TOPOLOGY)),
    _topology_kind(
        KUEUE_TOPOLOGY,
        "topologies",
        ("v1beta2", "v1beta1", "v1alpha1"),
        partial(normalize_label_topology, KUEUE_TOPOLOGY),
    ),
    _topology_kind(
        CLUSTER_NETWORK_TOPOLOGY, "clusternetworktopologies", ("v1alpha1",), normalize_cluster_network_topology
    ),
    Kind(
        OptionalResource(HYPER_NODE, "topology.volcano.sh", "hypernodes", ("v1alpha1",), PlainObject, namespaced=False),
        normalize_hyper_node,
        payloads.HyperNodeObserved,
        payloads.HyperNodeDeleted,
        "hypernode/{name}",
    ),
)


#: Returns the kind of an object that defines a network topology, by its apiVersion and kind; None for any other.
topology_kind = partial(_found, TOPOLOGY_KINDS)


NODE = Kind(NODES, normalize_node, payloads.NodeObserved, payloads.NodeDeleted, "node/{name}")
TOPOLOGY = Kind(TOPOLOGIES, normalize_topology, payloads.TopologyObserved, payloads.TopologyDeleted, "nrt/{name}")
POD = Kind(PODS, normalize_pod, payloads.PodObserved, payloads.PodDeleted, "pod/{uid}")
PRIORITY_CLASS = Kind(
    PRIORITY_CLASSES,
    normalize_priority_class,
    payloads.PriorityClassObserved,
    payloads.PriorityClassDeleted,
    "priorityclass/{name}",
)
NAMESPACE = Kind(
    NAMESPACES, storage.normalize_namespace, payloads.NamespaceObserved, payloads.NamespaceDeleted, "namespace/{name}"
)
CLAIM = Kind(
    CLAIMS,
    storage.normalize_claim,
    payloads.PersistentVolumeClaimObserved,
    payloads.PersistentVolumeClaimDeleted,
    "pvc/{namespace}/{name}",
)
VOLUME = Kind(
    VOLUMES, storage.normalize_volume, payloads.PersistentVolumeObserved, payloads.PersistentVolumeDeleted, "pv/{name}"
)
STORAGE_CLASS = Kind(
    STORAGE_CLASSES,
    storage.normalize_storage_class,
    payloads.StorageClassObserved,
    payloads.StorageClassDeleted,
    "storageclass/{name}",
)
BUDGET = Kind(
    BUDGETS,
    storage.normalize_budget,
    payloads.PodDisruptionBudgetObserved,
    payloads.PodDisruptionBudgetDeleted,
    "pdb/{namespace}/{name}",
)
PROVISIONING_REQUEST = Kind(
    PROVISIONING_REQUESTS,
    queue.normalize_provisioning_request,
    payloads.ProvisioningRequestObserved,
    payloads.ProvisioningRequestDeleted,
    "provisioning/{namespace}/{name}",
)

RESERVATION = Kind(
    RESERVATIONS,
    normalize_reservation,
    payloads.ReservationObserved,
    payloads.ReservationDeleted,
    "reservation/{name}",
)

#: Every kind; pods are followed last, for they need all the others.
KINDS: tuple[Kind[Any], ...] = (
    NODE,
    PRIORITY_CLASS,
    NAMESPACE,
    CLAIM,
    VOLUME,
    STORAGE_CLASS,
    BUDGET,
    TOPOLOGY,
    *GROUP_KINDS,
    *QUEUE_KINDS,
    *TOPOLOGY_KINDS,
    PROVISIONING_REQUEST,
    RESERVATION,
    *DEVICE_KINDS,
    POD,
)
_BY_NAME = {kind.name: kind for kind in KINDS}

#: Names of the payloads of all facts about objects, with the kinds of these facts.
_OBSERVED: dict[str, list[str]] = {}
_DELETED: dict[str, list[str]] = {}
for _kind in KINDS:
    _OBSERVED.setdefault(_kind.observed.__name__, []).append(_kind.name)
    _DELETED.setdefault(_kind.deleted.__name__, []).append(_kind.name)

#: Event types of all facts about objects.
FACT_TYPES = (*_OBSERVED, *_DELETED)


def subject_of_fact(payload: Payload) -> tuple[str, ObjectKey, Model | None] | None:
    """Return which object a fact is about, kind and key, and what it says of it: None when it is gone.

    None altogether for a payload that is no fact of a kind, or of a kind that this program does not watch.
    """
    fact = type(payload).__name__
    model: Model | None = getattr(payload, payload.__struct_fields__[0]) if fact in _OBSERVED else None
    kinds = _OBSERVED.get(fact) or _DELETED.get(fact)
    named = None if kinds is None else _named(payload if model is None else model, kinds)
    return None if named is None else (*named, model)


def _named(about: Any, kinds: list[str]) -> tuple[str, ObjectKey] | None:
    """Return the kind and the key of an object, from a model or from the fact of its end; None for an unknown kind."""
    name = about.node if hasattr(about, "node") else about.name
    kind = kinds[0] if len(kinds) == 1 else getattr(about, "kind", "") or queue_model.queue_kind_of(name)
    if kind not in _BY_NAME:
        return None
    if _BY_NAME[kind].called != "{name}":
        namespace, _, name = name.rpartition("/")
        return kind, ObjectKey(namespace if _BY_NAME[kind].resource.namespaced else "", name)
    return kind, ObjectKey(getattr(about, "namespace", ""), name)
