"""Decisions of cycles: about pods and nodes, about ProvisioningRequests, and the records of pods that are left waiting.

Decisions of a shadow are about the pods of another scheduler, and are never carried out.
"""

import msgspec

from kaicore.rules.events.payloads.base import Payload
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.device import Allocation, ExtendedClaim
from kaicore.rules.model.gpu_share import GpuPart
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.provisioning import ProvisioningRequest


class ProvisioningRequestObserved(Payload, frozen=True):
    """The watcher saw a ProvisioningRequest that is new or has changed."""

    request: ProvisioningRequest


class ProvisioningRequestDeleted(Payload, frozen=True):
    """A ProvisioningRequest is gone."""

    uid: str
    namespace: str
    name: str


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


class ProvisioningWithdrawn(Payload, frozen=True):
    """A cycle decided that a ProvisioningRequest is of no use any more; the binder deletes it and its PodTemplates.

    Attributes:
        group: key of the group that it was made for.
        reason: see `kaicore.rules.engine.decisions.WithdrawalReason`.
        pod_sets: how many it has.
    """

    group: str
    namespace: str
    name: str
    cycle: str
    reason: str
    pod_sets: int


class ProvisioningRequestCreated(Payload, frozen=True):
    """The API server took a ProvisioningRequest."""

    group: str
    namespace: str
    name: str
    attempts: int = 1


class ProvisioningRequestRemoved(Payload, frozen=True):
    """A ProvisioningRequest that was withdrawn is gone, and so are its PodTemplates."""

    group: str
    namespace: str
    name: str
    attempts: int = 1


class ProvisioningRequestRefused(Payload, frozen=True):
    """The API server refused to make, or to delete, a ProvisioningRequest, or did not do so in time.

    Attributes:
        code: HTTP status, 0 when there was none.
        reason: the API server's; `NotServed` where it knows no ProvisioningRequests.
        removing: whether it was to be deleted.
    """

    group: str
    namespace: str
    name: str
    code: int
    reason: str
    message: str = ""
    attempts: int = 1
    removing: bool = False


class PodPlaced(Payload, frozen=True, gc=False):
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

    uid: str
    namespace: str
    name: str
    node: str
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
    devices: dict[str, Allocation] = msgspec.field(default_factory=dict)
    reserved_claims: tuple[str, ...] = ()
    extended_claim: ExtendedClaim | None = None
    gpus: tuple[GpuPart, ...] = ()


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
        rank: of their groups' priority among all candidates, 1 for the lowest, times how bad the end is for the group:
            1 if it goes on, 2 if it ends, 4 if its Job fails; summed over the groups.
        pods: how many pods go.
        size: what they hold, in ten-thousandths of the largest node.
        minutes: of work that they lose, summed over the pods: since the last checkpoint of each, or since it runs.
        policies: what the operator's policies add; it decides after the rank.
    """

    rank: int = 0
    pods: int = 0
    size: int = 0
    minutes: int = 0
    policies: int = 0


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
        cost: of all pods that go together with it; None where pods are not chosen by cost.
        chosen_for: what it makes room for: `pod/<namespace>/<name>` on its node, or below the limit of `queue/<name>`;
            empty where pods are not chosen by cost.
        runner_up: what came next: to evict on `node/<name>`, or to evict `pod/<namespace>/<name>`; empty for nothing.
        runner_up_cost: what the runner-up costs at least.
        lost_gpu_seconds: the work that it loses: since its last checkpoint, or since it runs, times its GPUs.
        won_gpu_seconds: what all that starts in place of it wins, at the rate of `consolidate_win_us`; 0 where no such
            rate was asked for.
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
    cost: EvictionCost | None = None
    chosen_for: str = ""
    runner_up: str = ""
    runner_up_cost: EvictionCost | None = None
    lost_gpu_seconds: int = 0
    won_gpu_seconds: int = 0


class PodNominated(Payload, frozen=True, gc=False):
    """A cycle decided to keep room for a waiting pod until the pods on it are gone.

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


class RepairRequested(Payload, frozen=True):
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


class WaitingPod(Payload, frozen=True):
    """A pod that a cycle left waiting, and under what the reasons for that are recorded.

    Attributes:
        pod_class: key of the class as which it was decided on, as `ClassPending` has it.
        group: key of its group, as `GroupPending` has it.
        alone: whether it starts without others of its group, so that `AlonePending` of its queue and priority holds.
        queue: as its group names it.
        priority: of its group.
        problem: why its group cannot be decided on with it (`kaicore.rules.events.reasons.group`); None if it can.
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
