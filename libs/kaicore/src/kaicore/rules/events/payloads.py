# long: one class for each type of event
"""The facts and decisions that the log records, one class per event type.

The class's name is the event's type. A field that is added gets a default; any other change raises the type's schema
version in `kaicore.rules.events.codec` and comes with an upcaster. No floats: milli-units, bytes, counts, microseconds.
"""

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model import device
from kaicore.rules.model.gpu_share import GpuPart
from kaicore.rules.model.group import GroupSource
from kaicore.rules.model.node import HyperNode, Node, NodeTopology, TopologyDefinition
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Amounts, Namespace, Pod, PodDisruptionBudget, PriorityClass
from kaicore.rules.model.queue import Queue, ResourceFlavor
from kaicore.rules.model.reservation import NodeReservation
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim, StorageClass
from kaicore.rules.objects.provisioning import ProvisioningRequest


class Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    """The contents of an event."""


class NamedPayload(Payload, frozen=True):
    """Something about an object that has no namespace."""

    uid: str
    name: str


class NamespacedPayload(Payload, frozen=True):
    """Something about an object in a namespace."""

    uid: str
    namespace: str
    name: str


class PodPayload(NamespacedPayload, frozen=True):
    """Something about a pod on a node."""

    node: str


def payload_types(base: type[Payload] = Payload) -> Iterator[type[Payload]]:
    """Yield the classes of payloads, but for those that only others are made of."""
    for below in base.__subclasses__():
        if not below.__name__.endswith(Payload.__name__):
            yield below
        yield from payload_types(below)


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

    resource_slice: device.ResourceSlice


class ResourceSliceDeleted(NamedPayload, frozen=True):
    """A slice is gone."""


class DeviceClassObserved(Payload, frozen=True):
    """The watcher saw a device class that is new or has changed."""

    device_class: device.DeviceClass


class DeviceClassDeleted(NamedPayload, frozen=True):
    """A device class is gone."""


class DeviceTaintRuleObserved(Payload, frozen=True):
    """The watcher saw a rule that gives devices a taint, new or changed."""

    rule: device.DeviceTaintRule


class DeviceTaintRuleDeleted(NamedPayload, frozen=True):
    """A rule is gone, and with it its taint."""


class ResourceClaimObserved(Payload, frozen=True):
    """The watcher saw a resource claim that is new, or was allocated, reserved or released."""

    claim: device.ResourceClaim


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


class ReservationObserved(Payload, frozen=True):
    """The watcher saw a Reservation that is new or has changed."""

    reservation: NodeReservation


class ReservationDeleted(NamedPayload, frozen=True):
    """A Reservation is gone."""


class ProvisioningRequestObserved(Payload, frozen=True):
    """The watcher saw a ProvisioningRequest that is new or has changed."""

    request: ProvisioningRequest


class ProvisioningRequestDeleted(NamespacedPayload, frozen=True):
    """A ProvisioningRequest is gone."""


class ProvisioningPodSet(msgspec.Struct, frozen=True):
    """Pods of a request that are alike.

    Attributes:
        pod_class: key of their class.
        count: how many they are.
        uid: of one of them, which the template is made from.
        pod: the name of that one.
    """

    pod_class: str
    count: int
    uid: str
    pod: str


class ProvisioningRequested(Payload, frozen=True):
    """A cycle decided that a group needs nodes that are not there; the binder makes a ProvisioningRequest.

    Attributes:
        group: key of the group.
        namespace: of the request, as of the group.
        name: of the request; its PodTemplates are called `<name>-<number of the pod set>`.
        cycle: id of the cycle, the same as in its `CycleCompleted`.
        attempt: how many requests, this one included, have been made for what the group lacks.
        parameters: `spec.parameters`.
    """

    group: str
    namespace: str
    name: str
    cycle: str
    provisioning_class: str
    attempt: int
    pod_sets: tuple[ProvisioningPodSet, ...]
    parameters: dict[str, str] = msgspec.field(default_factory=dict)


class ProvisioningPayload(Payload, frozen=True):
    """Something about a ProvisioningRequest (`group`: key of the group that it was made for)."""

    group: str
    namespace: str
    name: str


class ProvisioningWithdrawn(ProvisioningPayload, frozen=True):
    """A cycle decided that a ProvisioningRequest is of no use any more; the binder deletes it and its PodTemplates.

    Attributes:
        reason: see `kaicore.rules.engine.decisions.WithdrawalReason`.
        pod_sets: how many it has.
    """

    cycle: str
    reason: str
    pod_sets: int


class ProvisioningRequestCreated(ProvisioningPayload, frozen=True):
    """The API server took a ProvisioningRequest."""

    attempts: int = 1


class ProvisioningRequestRemoved(ProvisioningPayload, frozen=True):
    """A ProvisioningRequest that was withdrawn is gone, and so are its PodTemplates."""

    attempts: int = 1


class ProvisioningRequestRefused(ProvisioningPayload, frozen=True):
    """The API server refused to make, or to delete, a ProvisioningRequest, or did not do so in time.

    Attributes:
        code: HTTP status, 0 when there was none.
        reason: the API server's; `NotServed` where it knows no ProvisioningRequests.
        removing: whether it was to be deleted.
    """

    code: int
    reason: str
    message: str = ""
    attempts: int = 1
    removing: bool = False


class PodPlaced(PodPayload, frozen=True, gc=False):
    """A cycle decided where a pod is to run; the binder makes it so.

    Attributes:
        cycle: id of the cycle, the same as in its `CycleCompleted`.
        placement: the zones that the kubelet is predicted to give it, None where it aligns nothing.
        rejected_here_before: how often a pod of its class was rejected by this node's kubelet before.
        claims: names of its claims that are to be provisioned for the node, before it is bound.
        volumes: volumes made beforehand that claims of it are to be bound to before, by the claim's name.
        rank: its place among the pods of its set, where the group has a topology constraint; -1 for none.
        domains: of such a group, the node's domain at each level of the topology, by the level's name.
        provisioning_request: name of the ProvisioningRequest that an autoscaler was at for it; empty for none.
        provisioning_class: that request's class.
        devices: what its resource claims are to be allocated before it is bound, by the claim's name.
        reserved_claims: names of its resource claims that have their devices already.
        extended_claim: of those in `devices`, the one that is to be made first, for its extended resources.
        gpus: the parts of GPUs that it gets, each of another GPU of the node.
    """

    cycle: str
    pod_class: str
    placement: Placement | None = None
    rejected_here_before: int = 0
    claims: tuple[str, ...] = ()
    volumes: dict[str, str] = msgspec.field(default_factory=dict)
    rank: int = -1
    domains: dict[str, str] = msgspec.field(default_factory=dict)
    provisioning_request: str = ""
    provisioning_class: str = ""
    devices: dict[str, device.Allocation] = msgspec.field(default_factory=dict)
    reserved_claims: tuple[str, ...] = ()
    extended_claim: device.ExtendedClaim | None = None
    gpus: tuple[GpuPart, ...] = ()


class NodeSuspected(Payload, frozen=True):
    """A cycle found that a node fails its pods; from here on it gets such work as a probe only.

    Attributes:
        node: its name.
        kind: of work (`kaicore.rules.state.indexes.node_trials.WorkKind`).
        cycle: id of the cycle, the same as in its `CycleCompleted`.
        failures: positions of the events that show the pods that failed there.
        probe_after_us: how long until the first probe; doubles with each that fails.
        works: the works that it fails, where no other is to keep off it; none for all of the kind.
        ran_elsewhere: how many of the failures are of works that ran on other nodes.
        problems: what the node reported of itself then; of work with devices also its failed ones, by their taints.
    """

    node: str
    kind: str
    cycle: str
    failures: tuple[int, ...]
    probe_after_us: int
    works: tuple[str, ...] = ()
    ran_elsewhere: int = 0
    problems: tuple[str, ...] = ()


class NodeCleared(Payload, frozen=True):
    """A cycle found that a node is suspect no more; its failures so far do not count.

    Attributes:
        node: its name.
        kind: of work.
        reason: `Probed` after a pod that lasted, `FollowsWork` where the work failed on other nodes as well.
        cycle: id of the cycle, the same as in its `CycleCompleted`.
    """

    node: str
    kind: str
    reason: str
    cycle: str


class GpuOpened(Payload, frozen=True, gc=False):
    """A cycle decided to open a GPU of a node for sharing; the binder makes a reservation pod that holds the GPU.

    It stands in the node's stream, before the first `PodPlaced` that has a part of the GPU.

    Attributes:
        node: its name.
        group: the GPU group, which stands for the GPU until it is closed.
        namespace: of the reservation pod.
        name: of the reservation pod.
        cycle: id of the cycle, the same as in its `CycleCompleted`.
        placement: the zones that the kubelet is predicted to give the reservation pod, None where it aligns nothing.
    """

    node: str
    group: str
    namespace: str
    name: str
    cycle: str
    placement: Placement | None = None


class GpuClosed(Payload, frozen=True, gc=False):
    """No pod has a part of a GPU any more, or its reservation failed; from now on no pod gets a part of it.

    The binder appends it, conditional on the node's stream, and deletes the reservation pod afterwards.

    Attributes:
        node: the node's name.
        group: the GPU group.
        reason: `Unused` after the last part, or what failed.
    """

    node: str
    group: str
    reason: str


class NodeCharged(Payload, frozen=True, gc=False):
    """A node's account has changed: any decision taken on an older state of that node is stale.

    Attributes:
        node: its name.
        cycle: the cycle that charged it; empty where a fact did, which was recorded together with this.
        pods: uids of those that it is accounted to hold otherwise.
    """

    node: str
    cycle: str
    pods: tuple[str, ...]


class EvictionCost(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cost of evicting pods that go together: of two costs, the first field that differs decides.

    Attributes:
        rank: of the highest of their priorities among those of all candidates, 1 for the lowest.
        policies: what the operator's policies add.
        size: what they hold, in ten-thousandths of the largest node, times how bad the end is for the group: 1 if it
            goes on, 2 if it ends, 4 if its Job fails. Of several priorities that of the highest decides first.
        pods: how many pods go.
        minutes: of work that they lose, summed over the pods: since the last checkpoint of each, or since it runs.
    """

    rank: int = 0
    pods: int = 0
    size: int = 0
    minutes: int = 0
    policies: int = 0


class EvictionDecided(PodPayload, frozen=True):
    """A cycle decided that a running pod has to go; the binder makes it so.

    Attributes:
        group: key of the victim's own group.
        reason: see `kaicore.rules.engine.decisions.EvictionReason`.
        preemptor: key of the group that it makes way for; empty if for none.
        shrinks: whether the victim's group goes on without it; otherwise the group ends as a whole.
        fits_on: a node that could take its successor when this was decided; empty when none could.
        failures_left: how many more failures its Job bears when all that were decided are over; -1 if it fails by that,
            None where evictions do not count as failures.
        cost: of all pods that go together with it; None where pods are not chosen by cost.
        chosen_for: what it makes room for: `pod/<namespace>/<name>` on its node, or below the limit of `queue/<name>`;
            empty where pods are not chosen by cost.
        runner_up: what came next: to evict on `node/<name>`, or to evict `pod/<namespace>/<name>`; empty for nothing.
        runner_up_cost: what the runner-up costs at least.
        lost_gpu_seconds: the work that it loses: since its last checkpoint, or since it runs, times its GPUs.
        won_gpu_seconds: what all that starts in place of it wins, at the rate of `consolidate_win_us`; 0 where no such
            rate was asked for.
        rule: the PreemptionConfig, the rules of it and the numbers of their selectors that let it be evicted, as Kueue
            names them: `<config> rule <rule>/<number>,<number>; <rule>/<number>`; empty where none did.
    """

    cycle: str
    group: str
    reason: str
    preemptor: str = ""
    shrinks: bool = False
    fits_on: str = ""
    failures_left: int | None = None
    cost: EvictionCost | None = None
    chosen_for: str = ""
    runner_up: str = ""
    runner_up_cost: EvictionCost | None = None
    lost_gpu_seconds: int = 0
    won_gpu_seconds: int = 0
    rule: str = ""

    @property
    def why(self) -> str:
        """The reason, and the rule that lets it be evicted if there is one."""
        return f"{self.reason} by preemption config {self.rule}" if self.rule else self.reason


class PodNominated(PodPayload, frozen=True, gc=False):
    """A cycle decided to keep room for a waiting pod until the pods on it are gone.

    Attributes:
        group: key of its group.
        placement: the zones that it is predicted to get there, None where nothing is aligned.
    """

    cycle: str
    pod_class: str
    group: str
    placement: Placement | None = None


class NominationCleared(PodPayload, frozen=True):
    """A cycle decided to keep no more room for a waiting pod.

    Attributes:
        reason: see `kaicore.rules.engine.decisions.ClearReason`.
    """

    cycle: str
    reason: str


class RepairRequested(PodPayload, frozen=True):
    """A cycle decided that a pod is to be evicted: it did not get the zones that its own NUMA policy asks for.

    Attributes:
        cycle: id of the cycle, the same as in its `CycleCompleted`.
        owner: uid of its controller, which makes another.
        missed: what was observed that is not as it asks.
    """

    cycle: str
    pod_class: str
    owner: str
    missed: str


class AlonePending(Payload, frozen=True):
    """The reason why a class's pods in a queue wait and start one by one: it held for most of their groups in a cycle.

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


class WaitingPod(NamespacedPayload, frozen=True):
    """A pod that a cycle left waiting, and under what the reasons for that are recorded.

    Attributes:
        pod_class: key of the class as which it was decided on, as `ClassPending` has it.
        group: key of its group, as `GroupPending` has it.
        alone: whether it starts without others of its group, so that `AlonePending` of its queue and priority holds.
        queue: as its group names it.
        priority: of its group.
        problem: why its group cannot be decided on with it (`kaicore.rules.events.reasons.group`); None if it can.
    """

    pod_class: str
    group: str
    alone: bool = False
    queue: str = ""
    priority: int = 0
    problem: Reason | None = None


class PodsLeftWaiting(Payload, frozen=True):
    """Pods that a cycle left waiting, those of which it was not recorded just so before.

    Attributes:
        shard: the shard of the cycle.
        pods: in order of their uids.
    """

    shard: str
    pods: tuple[WaitingPod, ...]


class ShadowDecided(Payload, frozen=True):
    """A shadow ran a cycle over all waiting pods of another scheduler: what of its answer is new.

    The cycle starts from what really is: the other scheduler's bindings, and none of the shadow's own decisions. No
    service acts on it, and it charges no node.

    Attributes:
        shard: the shadow's name, `shadow/<scheduler>`.
        scheduler: `spec.schedulerName` of the pods.
        cycle: the cycle's id, `shadow/<scheduler>/<input position>`.
        input_position: the log's position up to which the cycle's state was folded.
        config_digest: of the configuration.
        config: the configuration in full, where the state at `input_position` does not have it.
        engine_version: of the rules.
        now: the cycle's clock, microseconds since the epoch.
        pods: how many pods waited for a decision.
        placed: the pods that would go to another place than was recorded last.
        nominated: the pods for which room would be kept, likewise.
        left: uids of pods that would wait, where a place was recorded last.
        evicted: all pods that it would evict, also those that were recorded before.
        pending: classes of pods that would wait, where the reasons differ from those last recorded by this shadow.
        groups: groups of pods that would wait for reasons of their own, likewise.
        more: whether there is more that is new than fits into one event; the next cycle records it.
    """

    shard: str
    scheduler: str
    cycle: str
    input_position: int
    config_digest: str
    engine_version: str
    now: int
    pods: int
    config: dict[str, object] | None = None
    placed: tuple[PodPlaced, ...] = ()
    nominated: tuple[PodNominated, ...] = ()
    left: tuple[str, ...] = ()
    evicted: tuple[EvictionDecided, ...] = ()
    pending: tuple[ClassPending, ...] = ()
    groups: tuple[GroupPending, ...] = ()
    more: bool = False


class PolicyLeftOut(Payload, frozen=True):
    """A policy that a cycle left out.

    Attributes:
        policy: its name.
        why: see `kaicore.rules.engine.policies.guarded.PolicyFailure`.
        detail: the point, and what was wrong; without messages of errors, which differ between machines.
    """

    policy: str
    why: str
    detail: str = ""


class CycleCompleted(Payload, frozen=True):
    """A cycle: what it was decided on, and what it decided.

    Attributes:
        cycle: the cycle's id, `<shard>/<number>`.
        input_position: the log's position up to which the cycle's state was folded.
        config_digest: of the configuration, recorded in full by `ConfigRecorded`.
        engine_version: of the rules.
        now: the cycle's clock, microseconds since the epoch.
        decisions_digest: SHA-256 over all decisions and reasons, stale decisions included.
        pods: how many pods waited for a decision.
        placed: how many it placed.
        pending: the classes of the others, where the reasons differ from those last recorded for the class.
        groups: the groups of the others that have reasons of their own, likewise.
        evicted: how many running pods it decided to evict.
        nominated: for how many waiting pods it decided to keep room.
        policies_left_out: the policies that failed, in the order in which they did; the cycle was run without them.
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
    policies_left_out: tuple[PolicyLeftOut, ...] = ()


class ConfigRecorded(Payload, frozen=True):
    """A scheduler's configuration in full, recorded when first used."""

    digest: str
    shard: str
    config: dict[str, object]


class ReplicasChanged(Payload, frozen=True):
    """From here on these replicas share a shard's groups; what others, or these by an older list, decide is refused.

    Attributes:
        shard: the shard; `<shard>@shadow` says whether a shadow of its scheduler decides in its place.
        replicas: their names, sorted; empty where the shard has one scheduler for all of it, or its shadow is one.
    """

    shard: str
    replicas: tuple[str, ...] = ()


class PolicyInputRecorded(Payload, frozen=True):
    """Somebody recorded a fact from outside that policies may look at: a price, power, maintenance.

    Attributes:
        name: of the fact.
        node: that it is about; empty for the whole cluster.
        value: a number or a short text; None takes the fact away.
        by: who recorded it.
    """

    name: str
    node: str = ""
    value: int | str | None = None
    by: str = ""


class WatcherStarted(Payload, frozen=True):
    """A watcher has taken over a cluster: from here on the log refuses the facts of any that came before it.

    Attributes:
        instance: which one, for people: host and process.
    """

    instance: str


class PodBound(PodPayload, frozen=True):
    """The API server took the binding."""

    attempts: int = 1


class RefusedPayload(PodPayload, frozen=True):
    """A write about a pod failed.

    Attributes:
        code: HTTP status, 0 when there was none; 429 is a disruption budget that forbade an eviction.
        gone: the pod exists no more, or is another pod's successor of the same name.
    """

    code: int
    reason: str
    message: str = ""
    attempts: int = 1
    gone: bool = False


class BindFailed(RefusedPayload, frozen=True):
    """The API server refused the binding for good, or did not take it in time; the pod is free again."""


class PodEvicted(PodPayload, frozen=True):
    """The API server took the eviction: the pod ends, and its controller makes another."""

    attempts: int = 1


class EvictionFailed(RefusedPayload, frozen=True):
    """The API server refused the eviction for good, or did not take it in time."""


class ErasedEvent(msgspec.Struct, frozen=True):
    """An event from which something was erased.

    Attributes:
        mark: what its body is marked with (`kaicore.ledger.log.chain.erasure_mark`): a digest over the hash of the
            event before it, its own hash as it was recorded, and all of it that is left.
    """

    position: int
    mark: str


class FieldsErased(Payload, frozen=True):
    """The log's owner erased the personal data of pods that had one name: name, labels, annotations.

    The events that are named keep the hashes with which they were recorded.

    Attributes:
        uids: of the pods.
        pseudonym: what they are called from then on.
        events: from which something was erased, in order; the last record that names a position counts.
        reason: why, as whoever did it said.
    """

    uids: tuple[str, ...]
    namespace: str
    pseudonym: str
    events: tuple[ErasedEvent, ...]
    reason: str = ""


class EventSetAside(Payload, frozen=True):
    """The log's owner set aside an event that cannot be decoded: it counts as if it said nothing.

    Attributes:
        position: of that event.
        stream: of that event; decisions about its node or pod are made again.
        hash: of that event, in hexadecimal.
        reason: why it is there and may be left out, as whoever did it said.
    """

    position: int
    stream: str
    hash: str
    reason: str


class DifferenceFound(Payload, frozen=True):
    """A check found a difference, and set it right.

    Attributes:
        check: the check that found it (`kaicore.analysis.replay.self_check.CHECKS`).
        after: the position at which all was right last; the events behind it replay what happened since.
        upto: the position at which it differed.
        parts: some of what differed.
    """

    check: str
    after: int
    upto: int
    parts: tuple[str, ...] = ()


class MonthSealed(Payload, frozen=True):
    """The log's owner sealed the account of a month that is over; a later one of the same month corrects it.

    Attributes:
        month: as `2026-11`, by UTC.
        position: of the last event that counts.
        rules: version of the account's rules (`kaicore.analysis.ask.hours.account.ACCOUNT_SCHEMA`).
        digest: SHA-256 over the whole account, in hexadecimal.
        figures: of GPUs, in thousandths of GPU-seconds, by name; what each queue held as `queue/NAME`.
        corrects: position of the seal that this one corrects; 0 for the first.
        reason: why it is corrected, as whoever did it said.
    """

    month: str
    position: int
    rules: int
    digest: str
    figures: dict[str, int]
    corrects: int = 0
    reason: str = ""


class Undecodable(Payload, frozen=True):
    """Stands for the payload of an event that has none of its type; it is never recorded.

    Attributes:
        error: what is wrong with the body.
    """

    error: str


class ReleaseReason(StrEnum):
    """The reason why a dispatch is taken from a cluster.

    Attributes:
        DRAINED: the cluster is being drained.
        LEASE_OVER: the cluster's lease ran out: it is lost.
        REMOVED: the cluster was removed.
        REFUSED: its API server refuses the objects.
        WAITED: it did not start there for a long time, and would start elsewhere.
        WITHDRAWN: its owner wants it no more.
    """

    DRAINED = "Drained"
    LEASE_OVER = "LeaseOver"
    REMOVED = "Removed"
    REFUSED = "Refused"
    WAITED = "Waited"
    WITHDRAWN = "Withdrawn"


class ClusterRegistered(Payload, frozen=True):
    """A cluster is one of the hub's.

    Attributes:
        kubeconfigs: paths by which the hub's machine reaches it, as `kai cluster add` was given them; none where an
            agent in the cluster dials out. Never the credentials themselves.
        simulated: profile of the fleet of a cluster that `kai up` simulates; empty for a real one.
        data: data sets that are near it.
        cost: what a GPU costs there, as people compare clusters; 0 where it is not given.
    """

    cluster: str
    kubeconfigs: tuple[str, ...] = ()
    simulated: str = ""
    data: tuple[str, ...] = ()
    cost: int = 0


class ClusterDrained(Payload, frozen=True):
    """A cluster is given no more dispatches, and gives back those that wait."""

    cluster: str


class ClusterResumed(Payload, frozen=True):
    """A cluster that was drained is given dispatches again."""

    cluster: str


class ClusterRemoved(Payload, frozen=True):
    """A cluster is none of the hub's any more.

    Attributes:
        lost: an operator vouches that nothing runs there any more: what had started there is started elsewhere.
    """

    cluster: str
    lost: bool = False


class LeaseRenewed(Payload, frozen=True):
    """A cluster's binder renewed its lease on all dispatches that the cluster was given.

    Attributes:
        holder: tells this process from others of the cluster.
        lease_us: how long it acts on it, from before this was appended, microseconds of its own clock.
    """

    cluster: str
    holder: str
    lease_us: int


class QueueBounded(Payload, frozen=True):
    """An operator said how much the work of a queue may hold in all clusters together.

    Attributes:
        limits: by resource, as queues count them; empty for no bound.
    """

    queue: str
    limits: Amounts = msgspec.field(default_factory=dict)


class QueueCharged(Payload, frozen=True):
    """A dispatch was given to a cluster on the bound of a queue: any other giving decided on an older state is stale.

    Attributes:
        dispatch: that was given.
        term: of that giving.
    """

    queue: str
    dispatch: str
    term: int


class DispatchSubmitted(Payload, frozen=True):
    """Objects were given to the hub, to run as a whole in one of its clusters.

    Attributes:
        dispatch: its name, unique in the hub's log.
        manifests: the objects, a list as JSON.
        queue: that pays for it; empty for the default one.
        demand: what all of its pods ask for, as queues count it.
        clusters: that it may run in; empty for any.
        data: data sets that it reads.
    """

    dispatch: str
    manifests: str
    queue: str = ""
    demand: Amounts = msgspec.field(default_factory=dict)
    clusters: tuple[str, ...] = ()
    data: tuple[str, ...] = ()


class Offer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A dispatch's outcome in a cluster, with a score; parts of the score are from 0 to 100.

    Attributes:
        position: of the cluster's log, as of which it was tried.
        prospect: StartsNow, StartsAfterEvictions, Waits; empty where it was not tried.
        unfit: why the cluster cannot be given it; empty where it can.
        capacity: from 50 to 100 where it starts now, the more the more is left; 20 where pods are evicted for it first.
        topology: in how few domains its groups are.
        share: how far its queue is below its fair share there.
        locality: which part of the data sets it reads are near.
        cost: how cheap it is, the cheapest of all offers 100.
        score: the weighted sum.
        why: what it would wait for there; empty where it starts.
    """

    cluster: str
    position: int = 0
    prospect: str = ""
    unfit: str = ""
    capacity: int = 0
    topology: int = 0
    share: int = 0
    locality: int = 0
    cost: int = 0
    score: int = 0
    why: str = ""


class DispatchPayload(Payload, frozen=True):
    """Something about a dispatch in a cluster.

    Attributes:
        term: counts how often the dispatch was given to a cluster, from 1.
    """

    dispatch: str
    term: int
    cluster: str


class DispatchGiven(DispatchPayload, frozen=True):
    """The hub gave a dispatch to a cluster: the first level of the decision; nodes are the second.

    Attributes:
        offers: of all clusters, the chosen one's among them, in order of their names.
        weights: of the parts of the offers' scores.
    """

    offers: tuple[Offer, ...] = ()
    weights: dict[str, int] = msgspec.field(default_factory=dict)


class DispatchKeptWaiting(Payload, frozen=True):
    """No cluster takes a dispatch now; recorded when that becomes so, and when the reasons change.

    Attributes:
        reason: what forbids it in all clusters, such as a queue's bound; empty where each cluster has its own.
        offers: in order of the clusters' names.
    """

    dispatch: str
    reason: str = ""
    offers: tuple[Offer, ...] = ()


class DispatchStarted(DispatchPayload, frozen=True):
    """A cluster's binder is about to bind the first pod of a dispatch: from now on the dispatch is that cluster's."""


class DispatchRecalled(DispatchPayload, frozen=True):
    """The hub asks a cluster to give a dispatch back; the cluster binds no more pods of it."""

    reason: ReleaseReason


class DispatchReturned(DispatchPayload, frozen=True):
    """A cluster has nothing of a term of a dispatch any more: neither objects nor pods.

    Attributes:
        refusal: why its API server did not take the objects; empty where that is not why.
    """

    refusal: str = ""


class DispatchReleased(DispatchPayload, frozen=True):
    """The hub took a dispatch from a cluster that does not answer, after its lease had run out by its own clock.

    Attributes:
        waited_us: how long the hub had heard nothing, microseconds of the hub's clock.
    """

    reason: ReleaseReason
    waited_us: int = 0


class DispatchFinished(DispatchPayload, frozen=True):
    """The objects of a dispatch have ended.

    Attributes:
        outcome: Succeeded, Failed, or Deleted where somebody deleted them.
    """

    outcome: str


class DispatchWithdrawn(Payload, frozen=True):
    """Its owner wants a dispatch no more, wherever it is."""

    dispatch: str


class DispatchArrived(Payload, frozen=True):
    """In a cluster's own log: its binder made the objects of a dispatch; the hub's decision is the cause.

    Attributes:
        objects: `kind namespace/name` of each.
    """

    dispatch: str
    term: int
    objects: tuple[str, ...] = ()


#: What the hub's own log consists of.
HubPayload = (
    ClusterRegistered
    | ClusterDrained
    | ClusterResumed
    | ClusterRemoved
    | LeaseRenewed
    | QueueBounded
    | QueueCharged
    | DispatchSubmitted
    | DispatchGiven
    | DispatchKeptWaiting
    | DispatchStarted
    | DispatchRecalled
    | DispatchReturned
    | DispatchReleased
    | DispatchFinished
    | DispatchWithdrawn
)
