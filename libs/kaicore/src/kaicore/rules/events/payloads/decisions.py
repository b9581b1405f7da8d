"""Decisions of a cycle about pods and nodes."""

import msgspec

from kaicore.rules.events.payloads.base import Payload
from kaicore.rules.model.device import Allocation, ExtendedClaim
from kaicore.rules.model.placement import Placement


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


class NodeCharged(Payload, frozen=True, gc=False):
    """What a node is accounted to hold has changed: any decision taken on an older state of that node is stale.

    Attributes:
        node: its name.
        cycle: whose decisions charged it; empty where a fact did, which was recorded together with this.
        pods: uids of those that it is accounted to hold otherwise.
    """

    node: str
    cycle: str
    pods: tuple[str, ...]


class EvictionCost(msgspec.Struct, frozen=True, omit_defaults=True):
    """What it costs to evict pods that go together: of two costs, the first field that differs decides.

    Attributes:
        rank: of their groups' priority among all candidates, 1 for the lowest, times how bad the end is for the group:
            1 if it goes on, 2 if it ends, 4 if its Job fails; summed over the groups.
        pods: how many pods go.
        size: what they hold, in ten-thousandths of the largest node.
        minutes: how long they have run, summed over the pods.
    """

    rank: int = 0
    pods: int = 0
    size: int = 0
    minutes: int = 0


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


class PodNominated(Payload, frozen=True, gc=False):
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
