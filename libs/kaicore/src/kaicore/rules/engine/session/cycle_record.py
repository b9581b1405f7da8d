"""The record of a cycle's decisions so far, batch by batch, in the form of the log."""

from collections.abc import Iterable, Mapping, Sequence

from kaicore.rules.engine.constraints.claims.supplies import PodDevices
from kaicore.rules.engine.cycle_input import CycleInput, MisalignedPod
from kaicore.rules.engine.decisions import (
    ClearReason,
    CycleResult,
    Decision,
    DecisionBatch,
    EvictionReason,
)
from kaicore.rules.engine.explain.waiting_reasons import GroupLeftWaiting, summarize
from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.engine.placement.share_fit import opened_gpus
from kaicore.rules.engine.session.cycle_pods import CyclePods
from kaicore.rules.engine.victims.eviction_cost import cost_parts, gpu_seconds_lost
from kaicore.rules.engine.victims.victim_set import Choice
from kaicore.rules.engine.work.pending_group import PendingGroups
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.gpu_share import GpuPart

#: Of most pods; one for all of them, never changed.
_NO_VOLUMES: dict[str, str] = {}
_NO_DEVICES = PodDevices({})
_NO_UIDS: frozenset[str] = frozenset()

#: The rank of a pod, and the domains of its node; see `PodPlaced`.
TopologyPlace = tuple[int, dict[str, str]]


class CycleRecord:
    """Writes down decisions in the order in which they are made.

    Attributes:
        evicted: the evictions decided so far, by the uid of the pod.
    """

    def __init__(
        self,
        cycle_input: CycleInput,
        *,
        pods: CyclePods,
        nodes: Sequence[str],
        gpu_namespace: str = "",
    ) -> None:
        """Args:
        nodes: names of the nodes, by row.
        gpu_namespace: the namespace of pods that hold GPUs that are opened for sharing.
        """
        self._gpu_namespace = gpu_namespace
        self.evicted: dict[str, payloads.EvictionDecided] = {}
        self._input = cycle_input
        self._cycle = cycle_input.cycle
        self._pods = pods
        self._nodes = nodes
        self._batches: list[DecisionBatch] = []
        #: Volumes that this cycle has given to claims, by `namespace/name`.
        self._volumes: dict[str, str] = {}
        self._due = 0

    @property
    def batches(self) -> int:
        """The number of batches so far, which is the next one's number."""
        return len(self._batches)

    def place(
        self,
        assignments: Sequence[Assignment],
        cleared: Sequence[payloads.NominationCleared],
        places: Sequence[TopologyPlace],
        *,
        depends_on: int,
    ) -> None:
        """Record that pods are placed, and which nominations that clears.

        Args:
            places: of each assignment in its group's topology.
            depends_on: number of the batch without which this does not hold; -1 if there is none.
        """
        placed: list[Decision] = []
        row, class_key, node, rejected = -1, "", "", 0
        for assignment, place in zip(assignments, places, strict=True):
            if assignment.row != row or assignment.pod_class.key != class_key:
                row, class_key = assignment.row, assignment.pod_class.key
                node = self._nodes[row]
                rejected = self._input.rejected_before(node, class_key)
            if assignment.gpus:
                placed += opened_gpus(assignment.gpus, node=node, cycle=self._cycle, namespace=self._gpu_namespace)
            placed.append(self._placed(assignment, place, node, rejected))
        self.add([*cleared, *placed], depends_on=depends_on)

    def nominate(
        self,
        assignments: Sequence[Assignment],
        evictions: Sequence[payloads.EvictionDecided],
        cleared: Sequence[payloads.NominationCleared],
    ) -> None:
        """Record that room is reserved for pods, which pods are evicted for it, and which nominations that clears."""
        nominated = [self._nominated(assignment) for assignment in assignments]
        self.add([*cleared, *evictions, *nominated])

    def count_evicted(self, eviction: payloads.EvictionDecided) -> None:
        """Count a pod as evicted; its batch is recorded once all of it is decided."""
        self.evicted[eviction.uid] = eviction

    def add(self, decisions: Iterable[Decision], *, depends_on: int = -1) -> None:
        """Record decisions that only hold together (`depends_on`: see `place`)."""
        self._batches.append(DecisionBatch(tuple(decisions), depends_on))

    def repair(self, misaligned: MisalignedPod) -> None:
        """Record that a pod is evicted so that its successor gets other zones."""
        member, pod = misaligned.member, misaligned.member.pod
        decision = payloads.RepairRequested(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            node=member.node,
            cycle=self._cycle,
            pod_class=self._pods.key_of(member),
            owner="" if pod.owner is None else pod.owner.uid,
            missed=misaligned.missed,
        )
        self.add([decision])

    def wait_until(self, at: int) -> None:
        """Record that something is held back until a time that is yet to come, microseconds since the epoch."""
        self._due = min(self._due or at, at)

    def cleared(self, assignment: Assignment, reason: ClearReason) -> payloads.NominationCleared:
        """Return the decision that room is no longer reserved for a pod."""
        pod, nomination = assignment.member.pod, assignment.member.nomination
        return payloads.NominationCleared(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            node=self._nodes[assignment.row] if nomination is None else nomination.node,
            cycle=self._cycle,
            reason=reason,
        )

    def eviction(
        self,
        member: Member,
        reason: EvictionReason,
        *,
        failures_left: int | None,
        preemptor: str = "",
        shrinks: bool = False,
        fits_on: str = "",
        choice: Choice | None = None,
        won: int = 0,
        rule: str = "",
    ) -> payloads.EvictionDecided:
        """Return the decision that a pod is evicted.

        Args:
            failures_left: this and what follows means what it means in `EvictionDecided`.
            choice: why the pod was chosen; None where pods are not chosen by cost.
            won: see `EvictionDecided.won_gpu_seconds`.
            rule: that lets it be evicted, as `EvictionDecided` has it.
        """
        pod = member.pod
        runner_up = "" if choice is None else choice.runner_up
        return payloads.EvictionDecided(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            node=member.node,
            cycle=self._cycle,
            group=member.group,
            reason=reason,
            preemptor=preemptor,
            shrinks=shrinks,
            fits_on=fits_on,
            failures_left=failures_left,
            cost=None if choice is None else cost_parts(choice.cost),
            chosen_for="" if choice is None else choice.chosen_for,
            runner_up=runner_up,
            runner_up_cost=cost_parts(choice.runner_up_cost) if choice is not None and runner_up else None,
            lost_gpu_seconds=gpu_seconds_lost(member, self._pods.requests_of((member,)), now=self._input.now),
            won_gpu_seconds=won,
            rule=rule,
        )

    def result(
        self,
        pending_groups: PendingGroups,
        class_reasons: Mapping[str, tuple[Reason, ...]],
        *,
        scheduler_name: str,
    ) -> CycleResult:
        """Return what was decided, and what is left, with the reasons."""
        pods: dict[str, int] = {}
        left: list[GroupLeftWaiting] = []
        for line, keys in pending_groups.resting():
            pods[line.pod_class] = pods.get(line.pod_class, 0) + len(keys)
            first = self._input.workloads[keys[0]]
            left.append(GroupLeftWaiting(first, (line.pod_class,), 1, line.reasons, keys[1:]))
        for pending_group in pending_groups.made:
            placed = pending_group.placed_uids if pending_group.assignments else _NO_UIDS
            waiting = pending_group.workload.waiting
            if placed and placed >= waiting.keys():
                continue
            by_class: dict[str, int] = {}
            for uid, member in waiting.items():
                if uid not in placed and member.pod.scheduler_name == scheduler_name:
                    class_key = self._pods.key_of(member)
                    by_class[class_key] = by_class.get(class_key, 0) + 1
            for class_key, count in by_class.items():
                pods[class_key] = pods.get(class_key, 0) + count
            if by_class:
                count = sum(by_class.values())
                left.append(GroupLeftWaiting(pending_group.workload, tuple(by_class), count, pending_group.reasons))
        left.sort(key=lambda one: one.workload.group.key)
        pending, groups = summarize(left, pods, class_reasons)
        return CycleResult(tuple(self._batches), pending, groups, self._due)

    def _placed(self, assignment: Assignment, place: TopologyPlace, node: str, rejected: int) -> payloads.PodPlaced:
        pod = assignment.member.pod
        claims: tuple[str, ...] = ()
        volumes = _NO_VOLUMES
        if pod.claims:
            chosen = tuple(volume.name for volume in assignment.volumes)
            claims, volumes = self._input.unbound_claims(pod, chosen, also=self._volumes)
            self._volumes.update((f"{pod.namespace}/{claim}", volume) for claim, volume in volumes.items())
        devices = _NO_DEVICES
        if pod.resource_claims or assignment.devices:
            devices = self._input.given_devices(pod, assignment.devices)
        rank, domains = place
        provisioning = self._input.provisioning
        request = provisioning.get(assignment.member.group) if provisioning else None
        consumed = request if request is not None and request.answered else None
        # By position, which is faster.
        return payloads.PodPlaced(
            pod.uid,
            pod.namespace,
            pod.name,
            node,
            self._cycle,
            assignment.pod_class.key,
            assignment.placement,
            rejected,
            claims,
            volumes,
            rank,
            domains,
            "" if consumed is None else consumed.name,
            "" if consumed is None else consumed.provisioning_class,
            devices.given,
            devices.reserved,
            devices.extended,
            tuple([GpuPart(part.group, part.milli, part.mib) for part in assignment.gpus]) if assignment.gpus else (),
        )

    def _nominated(self, assignment: Assignment) -> payloads.PodNominated:
        pod = assignment.member.pod
        return payloads.PodNominated(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            node=self._nodes[assignment.row],
            cycle=self._cycle,
            pod_class=assignment.pod_class.key,
            group=assignment.member.group,
            placement=assignment.placement,
        )
