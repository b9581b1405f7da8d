"""The table of kinds: every recorded kind of objects is one row, and a new kind needs only its row.

The watcher follows these kinds; its snapshot and `kai simulate` use the same table. The rights in
`deploy/k8s/rbac.yaml` are tested against it.
"""

from typing import Any

from kaicore.kube.device_kinds import DEVICE_KINDS
from kaicore.kube.group_kinds import GROUP_KINDS
from kaicore.kube.kind import Kind, Model
from kaicore.kube.normalize_node import normalize_node, normalize_priority_class
from kaicore.kube.normalize_pod import normalize_pod
from kaicore.kube.normalize_provisioning import normalize_provisioning_request
from kaicore.kube.normalize_storage import (
    normalize_budget,
    normalize_claim,
    normalize_namespace,
    normalize_storage_class,
    normalize_volume,
)
from kaicore.kube.normalize_topology import normalize_topology
from kaicore.kube.provisioning_objects import PROVISIONING_REQUESTS
from kaicore.kube.queue_kinds import QUEUE_KINDS
from kaicore.kube.reflector_core import ObjectKey
from kaicore.kube.resources import (
    BUDGETS,
    CLAIMS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    STORAGE_CLASSES,
    TOPOLOGIES,
    VOLUMES,
)
from kaicore.kube.topology_kinds import TOPOLOGY_KINDS
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload
from kaicore.rules.model.queue import queue_kind_of

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
    NAMESPACES, normalize_namespace, payloads.NamespaceObserved, payloads.NamespaceDeleted, "namespace/{name}"
)
CLAIM = Kind(
    CLAIMS,
    normalize_claim,
    payloads.PersistentVolumeClaimObserved,
    payloads.PersistentVolumeClaimDeleted,
    "pvc/{namespace}/{name}",
)
VOLUME = Kind(
    VOLUMES, normalize_volume, payloads.PersistentVolumeObserved, payloads.PersistentVolumeDeleted, "pv/{name}"
)
STORAGE_CLASS = Kind(
    STORAGE_CLASSES,
    normalize_storage_class,
    payloads.StorageClassObserved,
    payloads.StorageClassDeleted,
    "storageclass/{name}",
)
BUDGET = Kind(
    BUDGETS,
    normalize_budget,
    payloads.PodDisruptionBudgetObserved,
    payloads.PodDisruptionBudgetDeleted,
    "pdb/{namespace}/{name}",
)
PROVISIONING_REQUEST = Kind(
    PROVISIONING_REQUESTS,
    normalize_provisioning_request,
    payloads.ProvisioningRequestObserved,
    payloads.ProvisioningRequestDeleted,
    "provisioning/{namespace}/{name}",
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
    *DEVICE_KINDS,
    POD,
)
_BY_NAME = {kind.name: kind for kind in KINDS}

#: Names of the payloads of all facts about objects, and of which kinds those facts are.
_OBSERVED: dict[str, list[str]] = {}
_DELETED: dict[str, list[str]] = {}
for _kind in KINDS:
    _OBSERVED.setdefault(_kind.observed.__name__, []).append(_kind.name)
    _DELETED.setdefault(_kind.deleted.__name__, []).append(_kind.name)

#: Event types of all facts about objects.
FACT_TYPES = (*_OBSERVED, *_DELETED)


def subject_of_fact(payload: Payload) -> tuple[str, ObjectKey, Model | None] | None:
    """Return which object a fact is about, kind and key, and what it says of it: None when it is gone.

    None altogether for a payload that is no fact of a kind.
    """
    fact = type(payload).__name__
    if fact in _OBSERVED:
        model: Model = getattr(payload, payload.__struct_fields__[0])
        return *_named(model, _OBSERVED[fact]), model
    if fact in _DELETED:
        return *_named(payload, _DELETED[fact]), None
    return None


def _named(about: Any, kinds: list[str]) -> tuple[str, ObjectKey]:
    """Return the kind and the key of an object, from a model or from the fact of its end."""
    name = about.node if hasattr(about, "node") else about.name
    kind = kinds[0] if len(kinds) == 1 else getattr(about, "kind", "") or queue_kind_of(name)
    if _BY_NAME[kind].called != "{name}":
        namespace, _, name = name.rpartition("/")
        return kind, ObjectKey(namespace if _BY_NAME[kind].resource.namespaced else "", name)
    return kind, ObjectKey(getattr(about, "namespace", ""), name)
