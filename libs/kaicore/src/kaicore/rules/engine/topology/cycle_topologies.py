"""What groups ask of topologies in one cycle, and where their pods are by now."""

from collections.abc import Collection, Iterator, Mapping

from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.pending_group import PendingGroup
from kaicore.rules.engine.reservations import Reservations
from kaicore.rules.engine.topology.group_topology import GroupTopology
from kaicore.rules.engine.topology.set_requests import HeldPod
from kaicore.rules.engine.workload import Workload
from kaicore.rules.reasons.reason import Reason


class CycleTopologies:
    """Tells what groups ask for, and which of their pods have a place."""

    def __init__(
        self,
        cycle_input: CycleInput,
        *,
        pending_groups: Mapping[str, PendingGroup],
        reservations: Reservations,
        evicted: Collection[str],
    ) -> None:
        """Args:
        cycle_input: what the cycle decides on.
        pending_groups: groups with waiting pods, by key.
        reservations: the room that is reserved for nominated pods.
        evicted: uids of the pods that the cycle evicts.
        """
        self._input = cycle_input
        self._pending_groups = pending_groups
        self._reservations = reservations
        self._evicted = evicted

    def of(self, workload: Workload) -> GroupTopology | None:
        """Return what a group asks of its topology; None where it asks for nothing, or nothing that there is."""
        looked_up = self._look_up(workload)
        return looked_up if isinstance(looked_up, GroupTopology) else None

    def problem(self, workload: Workload) -> Reason | None:
        """Return why nothing of a group starts, whatever nodes there are; None if it may."""
        looked_up = self._look_up(workload)
        return None if looked_up is None or isinstance(looked_up, GroupTopology) else looked_up

    def placed(self, workload: Workload) -> Iterator[HeldPod]:
        """Yield the pods of a group that have a place: that run and stay, that were placed, and with reserved room."""
        rows = self._input.columns.rows
        for uid, member in workload.active.items():
            if uid not in self._evicted:
                yield HeldPod(member, rows[member.node], member.rank)
        key = workload.group.key
        pending_group = self._pending_groups.get(key)
        if pending_group is not None:
            for assignment in (*pending_group.assignments, *self._reservations.of(key)):
                yield HeldPod(assignment.member, assignment.row, assignment.member.rank)

    def _look_up(self, workload: Workload) -> GroupTopology | Reason | None:
        return self._input.topology_of(workload.group) if workload.constrained else None
