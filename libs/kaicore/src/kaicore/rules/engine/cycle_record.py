"""What a cycle has decided so far, batch by batch."""

from collections.abc import Mapping, Sequence

from kaicore.rules.engine.cycle_pods import CyclePods
from kaicore.rules.engine.decisions import (
    Cleared,
    ClearReason,
    CycleResult,
    Decision,
    DecisionUnit,
    Eviction,
    Healing,
    Nominated,
)
from kaicore.rules.engine.explain.pending import Left, told
from kaicore.rules.engine.pending_group import PendingGroup
from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.reasons.reason import Reason


class CycleRecord:
    """Writes down decisions in the order in which they are made.

    Attributes:
        evicted: the evictions decided so far, by the uid of the pod.
    """

    def __init__(self, *, pods: CyclePods, nodes: Sequence[str]) -> None:
        """Args:
        pods: looks up the cycle's pods.
        nodes: names of the nodes, by row.
        """
        self.evicted: dict[str, Eviction] = {}
        self._pods = pods
        self._nodes = nodes
        self._batches: list[DecisionUnit] = []
        self._repairs: list[Healing] = []
        self._due = 0

    @property
    def batches(self) -> int:
        """How many batches there are, which is the number of the next one."""
        return len(self._batches)

    def place(self, assignments: Sequence[Assignment], cleared: tuple[Cleared, ...], *, depends_on: int) -> None:
        """Record that pods are placed, and which nominations that clears.

        Args:
            assignments: where the pods go.
            cleared: the nominations.
            depends_on: number of the batch without which this does not hold; -1 if there is none.
        """
        placed = tuple(self._placed(assignment) for assignment in assignments)
        self._batches.append(DecisionUnit(placed=placed, cleared=cleared, stands_on=depends_on))

    def nominate(
        self, assignments: Sequence[Assignment], evictions: Sequence[Eviction], cleared: tuple[Cleared, ...]
    ) -> None:
        """Record that room is reserved for pods, which pods are evicted for it, and which nominations that clears."""
        nominated = tuple(self._nominated(assignment) for assignment in assignments)
        self._batches.append(DecisionUnit(evicted=tuple(evictions), nominated=nominated, cleared=cleared))

    def evict(self, evictions: Sequence[Eviction]) -> None:
        """Record that pods are evicted although no other pod gets their room."""
        self._batches.append(DecisionUnit(evicted=tuple(evictions)))

    def clear(self, cleared: Sequence[Cleared]) -> None:
        """Record that room is no longer reserved."""
        self._batches.append(DecisionUnit(cleared=tuple(cleared)))

    def repair(self, healing: Healing) -> None:
        """Record that a pod is evicted so that its successor gets other zones."""
        self._repairs.append(healing)

    def wait_until(self, at: int) -> None:
        """Record that something is held back until a time that is yet to come, microseconds since the epoch."""
        self._due = min(self._due or at, at)

    def cleared(self, assignment: Assignment, reason: ClearReason) -> Cleared:
        """Return the decision that room is no longer reserved for a pod."""
        pod, nomination = assignment.member.pod, assignment.member.nomination
        node = self._nodes[assignment.row] if nomination is None else nomination.node
        return Cleared(pod.uid, pod.namespace, pod.name, node, reason)

    def result(
        self,
        pending_groups: Mapping[str, PendingGroup],
        class_reasons: Mapping[str, tuple[Reason, ...]],
        *,
        scheduler_name: str,
    ) -> CycleResult:
        """Return what was decided, and what is left, with the reasons."""
        pods: dict[str, int] = {}
        left: list[Left] = []
        for key in sorted(pending_groups):
            pending_group = pending_groups[key]
            placed = pending_group.placed_uids
            by_class: dict[str, int] = {}
            for uid, member in pending_group.workload.waiting.items():
                if uid not in placed and member.pod.scheduler_name == scheduler_name:
                    class_key = self._pods.key_of(member)
                    by_class[class_key] = by_class.get(class_key, 0) + 1
            for class_key, count in by_class.items():
                pods[class_key] = pods.get(class_key, 0) + count
            if by_class:
                count = sum(by_class.values())
                left.append(Left(pending_group.workload, tuple(by_class), count, pending_group.reasons))
        pending, groups = told(left, pods, class_reasons)
        return CycleResult(tuple(self._batches), pending, groups, tuple(self._repairs), self._due)

    def _placed(self, assignment: Assignment) -> Decision:
        pod = assignment.member.pod
        return Decision(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            node=self._nodes[assignment.row],
            pod_class=self._pods.key_of(assignment.member),
            placement=assignment.placement,
            group=assignment.member.group,
            volumes=tuple(volume.name for volume in assignment.volumes),
        )

    def _nominated(self, assignment: Assignment) -> Nominated:
        pod = assignment.member.pod
        return Nominated(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            node=self._nodes[assignment.row],
            pod_class=self._pods.key_of(assignment.member),
            placement=assignment.placement,
            charge=assignment.charge,
            group=assignment.member.group,
        )
