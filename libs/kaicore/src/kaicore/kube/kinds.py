"""The kinds of objects that are recorded: how each becomes a fact, and which object a fact is about."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

import msgspec

from kaicore.kube.losses import Lost
from kaicore.kube.normalize_node import normalize_node, normalize_priority_class
from kaicore.kube.normalize_pod import normalize_pod
from kaicore.kube.normalize_storage import (
    normalize_budget,
    normalize_claim,
    normalize_namespace,
    normalize_storage_class,
    normalize_volume,
)
from kaicore.kube.normalize_topology import normalize_topology
from kaicore.kube.objects import NodeObject, PodObject, PriorityClassObject, TopologyObject
from kaicore.kube.reflector_core import ObjectKey
from kaicore.kube.resources import ObjectT
from kaicore.kube.storage_objects import (
    BudgetObject,
    ClaimObject,
    NamespaceObject,
    StorageClassObject,
    VolumeObject,
)
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload
from kaicore.rules.groups.kinds import OWNER_KINDS, POD_GROUPS, WORKLOAD
from kaicore.rules.model.disruption import PodDisruptionBudget
from kaicore.rules.model.group_source import GroupSource
from kaicore.rules.model.namespace import Namespace
from kaicore.rules.model.node import Node, NodeTopology
from kaicore.rules.model.pod import Pod, PriorityClass
from kaicore.rules.model.queue import Queue, ResourceFlavor, queue_kind_of
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim, StorageClass

Model = (
    GroupSource
    | Node
    | NodeTopology
    | Pod
    | PriorityClass
    | Queue
    | ResourceFlavor
    | Namespace
    | PersistentVolumeClaim
    | PersistentVolume
    | StorageClass
    | PodDisruptionBudget
)


@dataclass(frozen=True, slots=True)
class Kind(Generic[ObjectT]):
    """A kind of objects.

    Attributes:
        name: as Kubernetes calls it.
        normalize: wire to model; tells what it leaves out, and raises `InvalidObject` where the rest makes no sense.
        observed: the fact of an object.
        deleted: the fact of an object's end, by key and uid.
        stream: what the stream of an object is called, by key and uid.
    """

    name: str
    normalize: Callable[[ObjectT, Lost], Model]
    observed: Callable[[Any], Payload]
    deleted: Callable[[ObjectKey, str], Payload]
    stream: Callable[[ObjectKey, str], str]

    @property
    def types(self) -> tuple[str, str]:
        """The event types of its facts."""
        return _TYPES[self.name]


NODE: Kind[NodeObject] = Kind(
    "Node",
    normalize_node,
    payloads.NodeObserved,
    lambda key, uid: payloads.NodeDeleted(uid=uid, name=key.name),
    lambda key, _: f"node/{key.name}",
)
TOPOLOGY: Kind[TopologyObject] = Kind(
    "NodeResourceTopology",
    normalize_topology,
    payloads.TopologyObserved,
    lambda key, _: payloads.TopologyDeleted(node=key.name),
    lambda key, _: f"nrt/{key.name}",
)
POD: Kind[PodObject] = Kind(
    "Pod",
    normalize_pod,
    payloads.PodObserved,
    lambda key, uid: payloads.PodDeleted(uid=uid, namespace=key.namespace, name=key.name),
    lambda _, uid: f"pod/{uid}",
)
PRIORITY_CLASS: Kind[PriorityClassObject] = Kind(
    "PriorityClass",
    normalize_priority_class,
    payloads.PriorityClassObserved,
    lambda key, uid: payloads.PriorityClassDeleted(uid=uid, name=key.name),
    lambda key, _: f"priorityclass/{key.name}",
)

QUEUE_KIND_NAMES = (
    "ClusterQueue.kueue.x-k8s.io",
    "Cohort.kueue.x-k8s.io",
    "LocalQueue.kueue.x-k8s.io",
    "Queue.scheduling.run.ai",
)
FLAVOR_KIND_NAME = "ResourceFlavor.kueue.x-k8s.io"
NAMESPACE: Kind[NamespaceObject] = Kind(
    "Namespace",
    normalize_namespace,
    payloads.NamespaceObserved,
    lambda key, uid: payloads.NamespaceDeleted(uid=uid, name=key.name),
    lambda key, _: f"namespace/{key.name}",
)
CLAIM: Kind[ClaimObject] = Kind(
    "PersistentVolumeClaim",
    normalize_claim,
    payloads.PersistentVolumeClaimObserved,
    lambda key, uid: payloads.PersistentVolumeClaimDeleted(uid=uid, namespace=key.namespace, name=key.name),
    lambda key, _: f"pvc/{key.namespace}/{key.name}",
)
VOLUME: Kind[VolumeObject] = Kind(
    "PersistentVolume",
    normalize_volume,
    payloads.PersistentVolumeObserved,
    lambda key, uid: payloads.PersistentVolumeDeleted(uid=uid, name=key.name),
    lambda key, _: f"pv/{key.name}",
)
STORAGE_CLASS: Kind[StorageClassObject] = Kind(
    "StorageClass",
    normalize_storage_class,
    payloads.StorageClassObserved,
    lambda key, uid: payloads.StorageClassDeleted(uid=uid, name=key.name),
    lambda key, _: f"storageclass/{key.name}",
)
BUDGET: Kind[BudgetObject] = Kind(
    "PodDisruptionBudget",
    normalize_budget,
    payloads.PodDisruptionBudgetObserved,
    lambda key, uid: payloads.PodDisruptionBudgetDeleted(uid=uid, namespace=key.namespace, name=key.name),
    lambda key, _: f"pdb/{key.namespace}/{key.name}",
)

_TYPES = {
    "Node": ("NodeObserved", "NodeDeleted"),
    "NodeResourceTopology": ("TopologyObserved", "TopologyDeleted"),
    "Pod": ("PodObserved", "PodDeleted"),
    "PriorityClass": ("PriorityClassObserved", "PriorityClassDeleted"),
    **dict.fromkeys(QUEUE_KIND_NAMES, ("QueueObserved", "QueueDeleted")),
    FLAVOR_KIND_NAME: ("FlavorObserved", "FlavorDeleted"),
    **dict.fromkeys(sorted(POD_GROUPS | OWNER_KINDS | {WORKLOAD}), ("GroupSourceObserved", "GroupSourceDeleted")),
    "Namespace": ("NamespaceObserved", "NamespaceDeleted"),
    "PersistentVolumeClaim": ("PersistentVolumeClaimObserved", "PersistentVolumeClaimDeleted"),
    "PersistentVolume": ("PersistentVolumeObserved", "PersistentVolumeDeleted"),
    "StorageClass": ("StorageClassObserved", "StorageClassDeleted"),
    "PodDisruptionBudget": ("PodDisruptionBudgetObserved", "PodDisruptionBudgetDeleted"),
}

#: Names of all kinds.
KINDS = tuple(_TYPES)

#: Event types of all facts about objects.
FACT_TYPES = tuple(dict.fromkeys(name for pair in _TYPES.values() for name in pair))


def subject_of_fact(payload: Payload) -> tuple[str, ObjectKey, Model | None] | None:
    """Return which object a fact is about, kind and key, and what it says of it: None when it is gone.

    None altogether for a payload that is no fact of a kind.
    """
    match payload:
        case payloads.NodeObserved(node):
            return "Node", ObjectKey("", node.name), node
        case payloads.TopologyObserved(topology):
            return "NodeResourceTopology", ObjectKey("", topology.node), topology
        case payloads.PodObserved(pod):
            return "Pod", ObjectKey(pod.namespace, pod.name), pod
        case payloads.PriorityClassObserved(priority_class):
            return "PriorityClass", ObjectKey("", priority_class.name), priority_class
        case payloads.GroupSourceObserved(source):
            return source.kind, ObjectKey(source.namespace, source.name), source
        case payloads.GroupSourceDeleted(kind, _, namespace, name):
            return kind, ObjectKey(namespace, name), None
        case payloads.QueueObserved(queue):
            return queue_kind_of(queue.name), _queue_key(queue.name), queue
        case payloads.QueueDeleted(_, name):
            return queue_kind_of(name), _queue_key(name), None
        case payloads.FlavorObserved(flavor):
            return FLAVOR_KIND_NAME, ObjectKey("", flavor.name), flavor
        case payloads.FlavorDeleted(_, name):
            return FLAVOR_KIND_NAME, ObjectKey("", name), None
        case payloads.NodeDeleted(_, name):
            return "Node", ObjectKey("", name), None
        case payloads.TopologyDeleted(node_name):
            return "NodeResourceTopology", ObjectKey("", node_name), None
        case payloads.PodDeleted(_, namespace, name):
            return "Pod", ObjectKey(namespace, name), None
        case payloads.PriorityClassDeleted(_, name):
            return "PriorityClass", ObjectKey("", name), None
        case _:
            return _subject_of_surroundings(payload)


def _subject_of_surroundings(payload: Payload) -> tuple[str, ObjectKey, Model | None] | None:
    match payload:
        case payloads.NamespaceObserved(found):
            return "Namespace", ObjectKey("", found.name), found
        case payloads.PersistentVolumeClaimObserved(claim):
            return "PersistentVolumeClaim", ObjectKey(claim.namespace, claim.name), claim
        case payloads.PersistentVolumeObserved(volume):
            return "PersistentVolume", ObjectKey("", volume.name), volume
        case payloads.StorageClassObserved(storage_class):
            return "StorageClass", ObjectKey("", storage_class.name), storage_class
        case payloads.PodDisruptionBudgetObserved(budget):
            return "PodDisruptionBudget", ObjectKey(budget.namespace, budget.name), budget
        case payloads.NamespaceDeleted(_, name):
            return "Namespace", ObjectKey("", name), None
        case payloads.PersistentVolumeClaimDeleted(_, namespace, name):
            return "PersistentVolumeClaim", ObjectKey(namespace, name), None
        case payloads.PersistentVolumeDeleted(_, name):
            return "PersistentVolume", ObjectKey("", name), None
        case payloads.StorageClassDeleted(_, name):
            return "StorageClass", ObjectKey("", name), None
        case payloads.PodDisruptionBudgetDeleted(_, namespace, name):
            return "PodDisruptionBudget", ObjectKey(namespace, name), None
        case _:
            return None


def _queue_key(name: str) -> ObjectKey:
    before, _, after = name.rpartition("/")
    return ObjectKey(before if queue_kind_of(name).startswith("LocalQueue.") else "", after)


def without_version(model: Model) -> Model:
    """Return what is material of an object: all but its resourceVersion."""
    return msgspec.structs.replace(model, resource_version="")
