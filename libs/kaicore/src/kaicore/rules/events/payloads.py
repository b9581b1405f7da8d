"""The facts and decisions that the log records, one class per event type.

The class's name is the event's type. A field that is added gets a default; any other change raises the type's schema
version in `kaicore.rules.events.codec` and comes with an upcaster. No floats: milli-units, bytes, counts, microseconds.
"""

import msgspec

from kaicore.rules.model.disruption import PodDisruptionBudget
from kaicore.rules.model.group_source import GroupSource
from kaicore.rules.model.namespace import Namespace
from kaicore.rules.model.node import Node, NodeTopology
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Amounts, Pod, PriorityClass
from kaicore.rules.model.queue import Queue, ResourceFlavor
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim, StorageClass
from kaicore.rules.reasons.reason import Reason


class Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an event says."""


class NodeObserved(Payload, frozen=True):
    """The watcher saw a node that is new or has changed in what scheduling needs."""

    node: Node


class NodeDeleted(Payload, frozen=True):
    """The watcher saw a node go, or missed it on a relist."""

    uid: str
    name: str


class TopologyObserved(Payload, frozen=True):
    """The watcher saw a NodeResourceTopology that is new or has changed."""

    topology: NodeTopology


class TopologyDeleted(Payload, frozen=True):
    """A NodeResourceTopology is gone."""

    node: str


class PodObserved(Payload, frozen=True):
    """The watcher saw a pod that is new or has changed in what scheduling needs."""

    pod: Pod


class PodDeleted(Payload, frozen=True):
    """The watcher saw a pod go, or missed it on a relist."""

    uid: str
    namespace: str
    name: str


class PodRejected(Payload, frozen=True):
    """A kubelet refused the pod: its phase is Failed for good, and any successor is another pod.

    Attributes:
        reason: `TopologyAffinityError`, `UnexpectedAdmissionError`, `OutOfcpu`, …
    """

    uid: str
    namespace: str
    name: str
    node: str
    reason: str
    message: str = ""


class PriorityClassObserved(Payload, frozen=True):
    """The watcher saw a priority class that is new or has changed."""

    priority_class: PriorityClass


class PriorityClassDeleted(Payload, frozen=True):
    """A priority class is gone."""

    uid: str
    name: str


class GroupSourceObserved(Payload, frozen=True):
    """The watcher saw an object that says how pods belong together, new or changed: a PodGroup, an owner of pods."""

    source: GroupSource


class GroupSourceDeleted(Payload, frozen=True):
    """An object that said how pods belong together is gone; `kind` with its API group."""

    kind: str
    uid: str
    namespace: str
    name: str


class QueueObserved(Payload, frozen=True):
    """The watcher saw a queue that is new or has changed: a Queue, ClusterQueue, Cohort or LocalQueue."""

    queue: Queue


class QueueDeleted(Payload, frozen=True):
    """A queue is gone; `name` as the model has it."""

    uid: str
    name: str


class FlavorObserved(Payload, frozen=True):
    """The watcher saw a ResourceFlavor that is new or has changed."""

    flavor: ResourceFlavor


class FlavorDeleted(Payload, frozen=True):
    """A ResourceFlavor is gone."""

    uid: str
    name: str


class NamespaceObserved(Payload, frozen=True):
    """The watcher saw a namespace that is new or whose labels have changed."""

    namespace: Namespace


class NamespaceDeleted(Payload, frozen=True):
    """A namespace is gone."""

    uid: str
    name: str


class PersistentVolumeClaimObserved(Payload, frozen=True):
    """The watcher saw a claim that is new or has changed."""

    claim: PersistentVolumeClaim


class PersistentVolumeClaimDeleted(Payload, frozen=True):
    """A claim is gone."""

    uid: str
    namespace: str
    name: str


class PersistentVolumeObserved(Payload, frozen=True):
    """The watcher saw a volume that is new or has changed."""

    volume: PersistentVolume


class PersistentVolumeDeleted(Payload, frozen=True):
    """A volume is gone."""

    uid: str
    name: str


class StorageClassObserved(Payload, frozen=True):
    """The watcher saw a storage class that is new or has changed."""

    storage_class: StorageClass


class StorageClassDeleted(Payload, frozen=True):
    """A storage class is gone."""

    uid: str
    name: str


class PodDisruptionBudgetObserved(Payload, frozen=True):
    """The watcher saw a disruption budget that is new, or allows another number of disruptions."""

    budget: PodDisruptionBudget


class PodDisruptionBudgetDeleted(Payload, frozen=True):
    """A disruption budget is gone."""

    uid: str
    namespace: str
    name: str


class WatcherStarted(Payload, frozen=True):
    """A watcher has taken over a cluster: from here on the log refuses the facts of any that came before it.

    Attributes:
        instance: which one, for people: host and process.
    """

    instance: str


class PlacementObserved(Payload, frozen=True):
    """What a pod really holds on its node.

    Attributes:
        source: `exporter` (podresources of the node's kubelet) or `annotation` (another program's record on the pod).
    """

    uid: str
    namespace: str
    name: str
    node: str
    placement: Placement
    source: str = "exporter"


class PredictionMissed(Payload, frozen=True):
    """A kubelet did otherwise than was predicted; what it did stands.

    Attributes:
        policy: of its Topology Manager.
        cause: `zones` or `amounts` of an observed placement, or the reason with which it rejected the pod.
        predicted: the placement that was predicted, None where nothing was to be bound to zones.
        observed: what the pod really holds, None if it was rejected.
        message: the kubelet's, if it rejected the pod.
    """

    uid: str
    namespace: str
    name: str
    node: str
    policy: str
    cause: str
    predicted: Placement | None = None
    observed: Placement | None = None
    message: str = ""


class PodPlaced(Payload, frozen=True):
    """A cycle decided where a pod is to run; the binder makes it so.

    Attributes:
        cycle: id of the cycle, the same as in its `CycleCompleted`.
        placement: the zones that the kubelet is predicted to give it, None where it aligns nothing.
        rejected_here_before: how often a pod of its class was rejected by this node's kubelet before.
        claims: names of its claims that are to be provisioned for the node, before it is bound.
        volumes: volumes made beforehand that claims of it are to be bound to before, by the claim's name.
    """

    uid: str
    namespace: str
    name: str
    node: str
    cycle: str
    pod_class: str
    placement: Placement | None = None
    rejected_here_before: int = 0
    claims: tuple[str, ...] = ()
    volumes: dict[str, str] = {}


class NodeCharged(Payload, frozen=True):
    """What a node is accounted to hold has changed: any decision taken on an older state of that node is stale.

    Attributes:
        node: its name.
        cycle: whose decisions charged it; empty where a fact did, which was recorded together with this.
        pods: uids of those that it is accounted to hold otherwise.
    """

    node: str
    cycle: str
    pods: tuple[str, ...]


class EvictionDecided(Payload, frozen=True):
    """A cycle decided that a running pod has to go; the binder makes it so.

    Attributes:
        group: key of the victim's own group.
        reason: see `kaicore.rules.engine.decisions.EvictionReason`.
        preemptor: key of the group that it makes way for; empty if for none.
        shrinks: whether the victim's group goes on without it; otherwise the group ends as a whole.
        fits_on: a node that could take its successor when this was decided; empty when none could.
        failures_left: how many more failures its Job bears when all that were decided are over; -1 if it fails by that,
            None where evictions do not count as failures.
    """

    uid: str
    namespace: str
    name: str
    node: str
    cycle: str
    group: str
    reason: str
    preemptor: str = ""
    shrinks: bool = False
    fits_on: str = ""
    failures_left: int | None = None


class PodNominated(Payload, frozen=True):
    """A cycle decided to keep room for a waiting pod until those who hold it are gone.

    Attributes:
        group: key of its group.
        placement: the zones that it is predicted to get there, None where nothing is aligned.
    """

    uid: str
    namespace: str
    name: str
    node: str
    cycle: str
    pod_class: str
    group: str
    placement: Placement | None = None


class NominationCleared(Payload, frozen=True):
    """A cycle decided to keep no more room for a waiting pod.

    Attributes:
        reason: see `kaicore.rules.engine.decisions.ClearReason`.
    """

    uid: str
    namespace: str
    name: str
    node: str
    cycle: str
    reason: str


class PodBound(Payload, frozen=True):
    """The API server took the binding."""

    uid: str
    namespace: str
    name: str
    node: str
    attempts: int = 1


class BindFailed(Payload, frozen=True):
    """The API server refused the binding for good, or did not take it in time; the pod is free again.

    Attributes:
        code: HTTP status, 0 when there was none.
        gone: the pod exists no more, or is another pod's successor of the same name.
    """

    uid: str
    namespace: str
    name: str
    node: str
    code: int
    reason: str
    message: str = ""
    attempts: int = 1
    gone: bool = False


class HealRequested(Payload, frozen=True):
    """A cycle decided that a pod is to be evicted: it did not get the zones that its own NUMA policy asks for.

    Attributes:
        cycle: id of the cycle, the same as in its `CycleCompleted`.
        owner: uid of its controller, which makes another.
        missed: what was observed that is not as it asks.
    """

    uid: str
    namespace: str
    name: str
    node: str
    cycle: str
    pod_class: str
    owner: str
    missed: str


class PodEvicted(Payload, frozen=True):
    """The API server took the eviction: the pod ends, and its controller makes another."""

    uid: str
    namespace: str
    name: str
    node: str
    attempts: int = 1


class EvictionFailed(Payload, frozen=True):
    """The API server refused the eviction for good, or did not take it in time.

    Attributes:
        code: HTTP status, 0 when there was none; 429 is a disruption budget that forbade it.
        gone: the pod exists no more, or is another pod's successor of the same name.
    """

    uid: str
    namespace: str
    name: str
    node: str
    code: int
    reason: str
    message: str = ""
    attempts: int = 1
    gone: bool = False


class AlonePending(Payload, frozen=True):
    """Why pods of a class and a queue that start one by one wait: what held for most of their groups in a cycle.

    Attributes:
        queue: as their groups name it.
        priority: of their groups.
    """

    queue: str
    priority: int
    reasons: tuple[Reason, ...]


class ClassPending(Payload, frozen=True):
    """A class of pods of which a cycle left some unplaced, and why.

    Attributes:
        reasons: why no node is for them.
        alone: what else stands in the way of those that start one by one, where anything does.
    """

    pod_class: str
    pods: int
    reasons: tuple[Reason, ...] = ()
    alone: tuple[AlonePending, ...] = ()


class GroupPending(Payload, frozen=True):
    """A group of which a cycle left pods unplaced, for reasons that are not recorded with their class.

    Attributes:
        pods: how many; 0 takes back what was recorded of it before.
        reasons: all of them; those of its pods' classes may be left out.
    """

    group: str
    pods: int
    reasons: tuple[Reason, ...] = ()


class CycleCompleted(Payload, frozen=True):
    """A cycle: what it was decided on, and what it decided.

    Attributes:
        cycle: the cycle's id, `<shard>/<number>`.
        input_position: the log's position up to which the cycle's state was folded.
        config_digest: of the configuration, recorded in full by `ConfigRecorded`.
        engine_version: of the rules.
        now: the cycle's clock, microseconds since the epoch.
        decisions_digest: SHA-256 over all decisions and reasons, those that came too late included.
        pods: how many pods waited for a decision.
        placed: how many it placed.
        pending: the classes of the others, where the reasons differ from those last recorded for the class.
        groups: the groups of the others that have reasons of their own, likewise.
        evicted: how many running pods it decided to evict.
        nominated: for how many waiting pods it decided to keep room.
    """

    cycle: str
    shard: str
    input_position: int
    config_digest: str
    engine_version: str
    now: int
    decisions_digest: str
    pods: int
    placed: int
    pending: tuple[ClassPending, ...] = ()
    groups: tuple[GroupPending, ...] = ()
    evicted: int = 0
    nominated: int = 0


class WaitingPod(Payload, frozen=True):
    """A pod that a cycle left waiting, and under what the reasons for that are recorded.

    Attributes:
        pod_class: key of the class as which it was decided on, as `ClassPending` has it.
        group: key of its group, as `GroupPending` has it.
        alone: whether it starts without others of its group, so that `AlonePending` of its queue and priority holds.
        queue: as its group names it.
        priority: of its group.
        problem: why its group cannot be decided on with it (`kaicore.rules.groups.problems`); None if it can.
    """

    uid: str
    namespace: str
    name: str
    pod_class: str
    group: str
    alone: bool = False
    queue: str = ""
    priority: int = 0
    problem: Reason | None = None


class PodsLeftWaiting(Payload, frozen=True):
    """Pods that a cycle left waiting, those of which it was not recorded just so before.

    Attributes:
        shard: whose cycle it was.
        pods: in order of their uids.
    """

    shard: str
    pods: tuple[WaitingPod, ...]


class QueueFigures(Payload, frozen=True):
    """How a queue stands, the queues below it included; amounts of the resources that any queue names.

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
    requested: Amounts = {}
    allocated: Amounts = {}
    non_preemptible: Amounts = {}
    fair_share: Amounts = {}
    children: tuple[str, ...] = ()


class QueuesReported(Payload, frozen=True):
    """How queues stand, for people and for the queues' own status: those that have changed since the last report.

    Attributes:
        shard: whose cycle it was.
        now: the cycle's clock, microseconds since the epoch.
        queues: in order of their names.
    """

    shard: str
    now: int
    queues: tuple[QueueFigures, ...]


class ConfigRecorded(Payload, frozen=True):
    """A scheduler's configuration in full, recorded when first used."""

    digest: str
    shard: str
    config: dict[str, object]
