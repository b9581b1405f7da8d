"""Facts about a cluster: pods, nodes with their zones, devices, queues, topologies, groups, and other constraints.

They come from the API server and from the kubelets that run the pods.
"""

import msgspec

from kaicore.rules.events.payloads.base import NamedPayload, NamespacedPayload, Payload, PodPayload
from kaicore.rules.model.device import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from kaicore.rules.model.group import GroupSource
from kaicore.rules.model.node import HyperNode, Node, NodeTopology, TopologyDefinition
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Amounts, Namespace, Pod, PodDisruptionBudget, PriorityClass
from kaicore.rules.model.queue import Queue, ResourceFlavor
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim, StorageClass


class NamespaceObserved(Payload, frozen=True):
    """The watcher saw a namespace that is new or has changed labels."""

    namespace: Namespace


class NamespaceDeleted(NamedPayload, frozen=True):
    """A namespace is gone."""


class PersistentVolumeClaimObserved(Payload, frozen=True):
    """The watcher saw a claim that is new or has changed."""

    claim: PersistentVolumeClaim


class PersistentVolumeClaimDeleted(NamespacedPayload, frozen=True):
    """A claim is gone."""


class PersistentVolumeObserved(Payload, frozen=True):
    """The watcher saw a volume that is new or has changed."""

    volume: PersistentVolume


class PersistentVolumeDeleted(NamedPayload, frozen=True):
    """A volume is gone."""


class StorageClassObserved(Payload, frozen=True):
    """The watcher saw a storage class that is new or has changed."""

    storage_class: StorageClass


class StorageClassDeleted(NamedPayload, frozen=True):
    """A storage class is gone."""


class PodDisruptionBudgetObserved(Payload, frozen=True):
    """The watcher saw a disruption budget that is new, or allows another number of disruptions."""

    budget: PodDisruptionBudget


class PodDisruptionBudgetDeleted(NamespacedPayload, frozen=True):
    """A disruption budget is gone."""


class ResourceSliceObserved(Payload, frozen=True):
    """The watcher saw a slice of a pool of devices that is new or has changed."""

    resource_slice: ResourceSlice


class ResourceSliceDeleted(NamedPayload, frozen=True):
    """A slice is gone."""


class DeviceClassObserved(Payload, frozen=True):
    """The watcher saw a device class that is new or has changed."""

    device_class: DeviceClass


class DeviceClassDeleted(NamedPayload, frozen=True):
    """A device class is gone."""


class DeviceTaintRuleObserved(Payload, frozen=True):
    """The watcher saw a rule that gives devices a taint, new or changed."""

    rule: DeviceTaintRule


class DeviceTaintRuleDeleted(NamedPayload, frozen=True):
    """A rule is gone, and with it its taint."""


class ResourceClaimObserved(Payload, frozen=True):
    """The watcher saw a resource claim that is new, or was allocated, reserved or released."""

    claim: ResourceClaim


class ResourceClaimDeleted(NamespacedPayload, frozen=True):
    """A resource claim is gone."""


class DevicesCharged(Payload, frozen=True):
    """Devices were given that no node's stream guards: any decision about them on an older state is stale.

    That is of a pool that several nodes can use, or of a claim that several pods can use.

    Attributes:
        of: the pool as `driver/name`, or the claim as `namespace/name`; the event's stream tells which.
        cycle: id of the cycle.
        pods: uids of the pods that get them.
    """

    of: str
    cycle: str
    pods: tuple[str, ...]


class NodeObserved(Payload, frozen=True):
    """The watcher saw a node that is new or has changed in what scheduling needs."""

    node: Node


class NodeDeleted(NamedPayload, frozen=True):
    """The watcher saw a node go, or missed it on a relist."""


class TopologyObserved(Payload, frozen=True):
    """The watcher saw a NodeResourceTopology that is new or has changed."""

    topology: NodeTopology


class TopologyDeleted(Payload, frozen=True):
    """A NodeResourceTopology is gone."""

    node: str


class PodObserved(Payload, frozen=True):
    """The watcher saw a pod that is new or has changed in what scheduling needs."""

    pod: Pod


class PodDeleted(NamespacedPayload, frozen=True):
    """The watcher saw a pod go, or missed it on a relist."""


class PodRejected(PodPayload, frozen=True):
    """A kubelet refused the pod: its phase is Failed for good, and any successor is another pod.

    Attributes:
        reason: `TopologyAffinityError`, `UnexpectedAdmissionError`, `OutOfcpu`, …
    """

    reason: str
    message: str = ""


class PlacementObserved(PodPayload, frozen=True):
    """A pod's real holdings on its node.

    Attributes:
        source: `exporter` (podresources of the node's kubelet) or `annotation` (another program's record on the pod).
    """

    placement: Placement
    source: str = "exporter"


class PredictionMissed(PodPayload, frozen=True):
    """A kubelet did otherwise than was predicted; what it did stands.

    Attributes:
        policy: of its Topology Manager.
        cause: `zones` or `amounts` of an observed placement, or the reason with which it rejected the pod.
        predicted: the placement that was predicted, None where nothing was to be bound to zones.
        observed: what the pod really holds, None if it was rejected.
        message: the kubelet's, if it rejected the pod.
    """

    policy: str
    cause: str
    predicted: Placement | None = None
    observed: Placement | None = None
    message: str = ""


class QueueObserved(Payload, frozen=True):
    """The watcher saw a queue that is new or has changed: a Queue, ClusterQueue, Cohort or LocalQueue."""

    queue: Queue


class QueueDeleted(NamedPayload, frozen=True):
    """A queue is gone; `name` as the model has it."""


class FlavorObserved(Payload, frozen=True):
    """The watcher saw a ResourceFlavor that is new or has changed."""

    flavor: ResourceFlavor


class FlavorDeleted(NamedPayload, frozen=True):
    """A ResourceFlavor is gone."""


class QueueReclaimed(Payload, frozen=True):
    """A replica of a shard takes work of a queue back for others; no other may do so by what it knew before.

    Attributes:
        queue: the root of the hierarchy that the queue is in.
        cycle: id of the cycle.
        pods: uids of the pods to be evicted.
    """

    queue: str
    cycle: str
    pods: tuple[str, ...]


class QueueFigures(Payload, frozen=True):
    """A queue's standing, the queues below it included; amounts of the resources that any queue names.

    Attributes:
        queue: its name, as the model has it.
        uid: of the object.
        requested: what its work holds and waits for.
        allocated: what it holds.
        non_preemptible: the part of that which cannot be preempted.
        fair_share: what the division gave it.
        children: names of the queues right below it.
    """

    queue: str
    uid: str = ""
    requested: Amounts = msgspec.field(default_factory=dict)
    allocated: Amounts = msgspec.field(default_factory=dict)
    non_preemptible: Amounts = msgspec.field(default_factory=dict)
    fair_share: Amounts = msgspec.field(default_factory=dict)
    children: tuple[str, ...] = ()


class QueuesReported(Payload, frozen=True):
    """The queues' standings, for people and for the queues' own status: those that changed since the last report.

    Attributes:
        shard: the shard of the cycle.
        now: the cycle's clock, microseconds since the epoch.
        queues: in order of their names.
    """

    shard: str
    now: int
    queues: tuple[QueueFigures, ...]


class TopologyDefinitionObserved(Payload, frozen=True):
    """The watcher saw a Topology or ClusterNetworkTopology that is new or has changed."""

    definition: TopologyDefinition


class TopologyDefinitionDeleted(Payload, frozen=True):
    """A Topology or ClusterNetworkTopology is gone; `kind` with its API group."""

    kind: str
    uid: str
    name: str


class HyperNodeObserved(Payload, frozen=True):
    """The watcher saw a HyperNode that is new or has changed."""

    hyper_node: HyperNode


class HyperNodeDeleted(NamedPayload, frozen=True):
    """A HyperNode is gone."""


class PriorityClassObserved(Payload, frozen=True):
    """The watcher saw a priority class that is new or has changed."""

    priority_class: PriorityClass


class PriorityClassDeleted(NamedPayload, frozen=True):
    """A priority class is gone."""


class GroupSourceObserved(Payload, frozen=True):
    """The watcher saw an object that says how pods belong together, new or changed: a PodGroup, an owner of pods."""

    source: GroupSource


class GroupSourceDeleted(Payload, frozen=True):
    """An object that said how pods belong together is gone; `kind` with its API group."""

    kind: str
    uid: str
    namespace: str
    name: str
