"""The input of a cycle: all that it decides by, at one position of the log.

Groups that were moved lately are part of it. A moved pod comes again under another uid, and is known by its owner.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from kaicore.rules.engine.constraints.claims.supplies import GivenClaim, PodDevices
from kaicore.rules.engine.constraints.class_filters import ExcludedNodes
from kaicore.rules.engine.constraints.zones.doubts import OpenMatters
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.placement.room_for_work import RecentClass
from kaicore.rules.engine.policies.guarded import GuardedPolicy
from kaicore.rules.engine.victims.eviction_cost import Budgets, FailuresLeft
from kaicore.rules.engine.work.provisioning import StandingRequest
from kaicore.rules.engine.work.workload import Kind, Member, RestingLine, Workload
from kaicore.rules.events.payloads import NodeCleared, NodeSuspected
from kaicore.rules.events.reasons.making_room import PromiseGivenUp, RoomPromised
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.membership import POD
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Pod
from kaicore.rules.queues.cycle_queues import CycleQueues
from kaicore.rules.topology.placing.request import GroupTopology


@dataclass(frozen=True, slots=True)
class MisalignedPod:
    """A pod that runs on other zones than its own NUMA policy asks for, and is due to be evicted and placed anew.

    Attributes:
        missed: what differs from what it asks for.
    """

    member: Member
    missed: str


class NodeFailure(StrEnum):
    """The failure of a node."""

    DELETED = "Deleted"
    NOT_READY = "NotReady"
    TAINTED = "Tainted"


@dataclass(frozen=True, slots=True)
class FailedNode:
    """A node on which pods cannot go on.

    Attributes:
        once_pods_end: it has failed for groups of which pods are terminating there, or lack already.
    """

    name: str
    failure: NodeFailure
    once_pods_end: bool = False


class UnboundClaims(Protocol):
    """Says what becomes of a placed pod's claims that are not bound yet."""

    def __call__(
        self, pod: Pod, chosen: Sequence[str], *, also: Mapping[str, str]
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the names of claims that are to be provisioned, and the volumes that others are to be bound to.

        Args:
            chosen: a volume's name for each that its class's demand wants, empty where none was chosen.
            also: what the same cycle has given to claims that other pods may use as well, by `namespace/name`.
        """


@dataclass(frozen=True, slots=True)
class CycleInput:
    """The input of one cycle; nothing of it is changed.

    Attributes:
        columns: all nodes; the cycle copies what it changes.
        class_of: returns the class as which a pod is decided on.
        workloads: all groups with their pods, by key.
        running: of them, those that run and may be preempted (`kaicore.rules.engine.work.workload`).
        needed_by: keys of the groups that start together with a group, by its key.
        pending: keys of the groups that have waiting pods, without those of `resting`.
        resting: lines of such groups of one pod; of none of these there is anything to find out.
        leaving: pods that still hold their node and are charged as being released.
        nominated: waiting pods of other schedulers for which room is kept.
        reserved: waiting pods of other replicas' groups for which room is kept.
        homes: moved pods, and the nodes where room is kept for their successors that have not come yet.
        below: keys of the groups that may be below their minimum.
        waiting: how many pods may be placed.
        now: microseconds since the epoch.
        accounts: the queues; the cycle puts them back where it found them.
        rejected_before: returns how often a node's kubelet has rejected pods of a class, by the node's name and the
            class's key.
        unbound_claims: returns what becomes of a placed pod's claims that are not bound yet.
        given_devices: returns what becomes of a placed pod's resource claims, by what it gets for each claim that its
            class's demand wants.
        cycle: id of the cycle, with which its decisions are recorded; empty where nothing is recorded.
        budgets: how many pods may be evicted of those under a PodDisruptionBudget.
        failures_left: returns how many failures the Job of a pod bears; None where evictions do not count as such.
        moved_at: when pods were last moved to make room, microseconds since the epoch, by
            `kaicore.rules.engine.cycle_input.move_key`.
        moved_pods: how many pods were moved to make room, by hour since the epoch.
        in_backoff: uids of waiting pods that are not to be placed yet, after failed binds.
        marks_of: returns what a pod leaves on the node that it is charged to, by its uid
            (`kaicore.rules.engine.constraints.pod_marks`).
        excluded_nodes: rows that are not for certain classes.
        misaligned: pods that are to be evicted and placed anew, in order.
        matters: what is not known for certain of nodes; None where nothing is open.
        failed_nodes: by name, those with pods of groups that have a topology constraint.
        on_failed_nodes: the pods of such groups there, by uid.
        topology_of: returns a group's topology constraints, looked up; a reason where that cannot be done, and None
            where it has none.
        provisioning: the ProvisioningRequests that stand, by the key of the group that each was made for.
        recent_work: classes of recent work, the heaviest first; none where too little is known.
        limit_us: returns how long a pod may run by its declared limits, microseconds; -1 where it declares none.
        expected_us: returns how much longer a pod that has run for so many microseconds runs, by the runs of pods like
            it; -1 where they do not say.
        promised: what was recorded last of room that is promised to waiting groups, or was, by their keys.
        to_drain: pods that are to leave their nodes, with the time by which they must, microseconds since the epoch.
        is_own: tells whether a group, by its key, is this scheduler's to decide about.
        policies: the operator's, without those that failed in this cycle.
        policy_inputs: facts from outside for them, by name and node; of the whole cluster, under an empty node.
        gpu_seconds_before: returns the GPU-seconds of a group's pods that have ended, by `move_key`.
        namespace_use: returns the past use of each namespace, in millionths of the cluster's GPUs.
        probed: by row of a suspect node that is to be probed, the kinds of work of which one start is let in.
        node_news: which nodes are found suspect, or cleared; recorded with the cycle.
    """

    columns: NodeColumns
    class_of: Callable[[Member], PodClass]
    workloads: Mapping[str, Workload]
    pending: Sequence[str]
    now: int
    accounts: CycleQueues
    rejected_before: Callable[[str, str], int]
    unbound_claims: UnboundClaims
    given_devices: Callable[[Pod, Sequence[GivenClaim]], PodDevices]
    cycle: str = ""
    waiting: int = 0
    resting: Sequence[RestingLine] = ()
    leaving: Sequence[Member] = ()
    nominated: Sequence[Member] = ()
    reserved: Sequence[Member] = ()
    homes: Sequence[tuple[Member, str]] = ()
    below: Sequence[str] = ()
    running: Mapping[Kind, Mapping[str, Workload]] = field(default_factory=dict)
    needed_by: Mapping[str, Collection[str]] = field(default_factory=dict)
    budgets: Budgets = field(default_factory=Budgets)
    failures_left: Callable[[Pod], FailuresLeft | None] = lambda _: None
    moved_at: Mapping[str, int] = field(default_factory=dict)
    moved_pods: Mapping[int, int] = field(default_factory=dict)
    in_backoff: frozenset[str] = frozenset()
    marks_of: Callable[[str], tuple[str, ...]] = lambda _: ()
    excluded_nodes: ExcludedNodes = field(default_factory=ExcludedNodes)
    misaligned: Sequence[MisalignedPod] = ()
    matters: OpenMatters | None = None
    failed_nodes: Mapping[str, FailedNode] = field(default_factory=dict)
    on_failed_nodes: Sequence[Member] = ()
    topology_of: Callable[[Group], GroupTopology | Reason | None] = lambda _: None
    provisioning: Mapping[str, StandingRequest] = field(default_factory=dict)
    recent_work: Sequence[RecentClass] = ()
    limit_us: Callable[[Member], int] = lambda _: -1
    expected_us: Callable[[Member, int], int] = lambda _, __: -1
    promised: Mapping[str, RoomPromised | PromiseGivenUp] = field(default_factory=dict)
    to_drain: Sequence[tuple[Member, int]] = ()
    is_own: Callable[[str], bool] = lambda _: True
    policies: Sequence[GuardedPolicy] = ()
    policy_inputs: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)
    gpu_seconds_before: Callable[[str], int] = lambda _: 0
    namespace_use: Callable[[], Mapping[str, int]] = dict
    probed: Mapping[int, Collection[str]] = field(default_factory=dict)
    node_news: Sequence[NodeSuspected | NodeCleared] = ()


#: Creation times are in whole seconds.
_SECOND_US = 1_000_000
HOUR_US = 3_600_000_000
HOURS_OF_DAY = 24


def moved_within_a_day(cycle_input: CycleInput) -> int:
    """Return how many pods were moved in the last 24 hours that have begun."""
    first = cycle_input.now // HOUR_US - HOURS_OF_DAY
    return sum(pods for hour, pods in cycle_input.moved_pods.items() if hour > first)


def move_key(group: str, pod: Pod) -> str:
    """Return under what it is remembered when pods of a group were moved: the group, or the owner of a lone pod."""
    if group.startswith(f"{POD}/") and pod.owner is not None:
        return f"{pod.owner.kind}/{pod.namespace}/{pod.owner.name}/{pod.owner.uid}"
    return group


def moved_at(cycle_input: CycleInput, workload: Workload) -> int:
    """Return when pods of a group, or those before them, were moved; microseconds since the epoch, or 0.

    A pod that is a group of its own is identified by its owner, and only pods created since then count: they are the
    moved ones.
    """
    if not cycle_input.moved_at:
        return 0
    member = next(iter((workload.active or workload.waiting).values()), None)
    if member is None:
        return 0
    group = workload.group.key
    key = move_key(group, member.pod)
    at = cycle_input.moved_at.get(key, 0)
    return at if key == group or (member.pod.created_at + 1) * _SECOND_US > at else 0
