"""Topology requests of groups in one cycle, and the present places of their pods."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.engine.topology.group_topology import GroupTopology
from kaicore.rules.engine.topology.set_requests import HeldPod, known_ranks, ranks_by_place
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.engine.work.workload import Member, Workload
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.labels import NO_RANK
from kaicore.rules.topology.placing.request import NO_LEVEL


class CycleTopologies:
    """Looks up the requests of groups, and the pods of them that have a place."""

    def __init__(
        self,
        cycle_input: CycleInput,
        *,
        pending_groups: Mapping[str, PendingGroup],
        reserved: Mapping[str, Sequence[Assignment]],
        evicted: Collection[str],
    ) -> None:
        """Args:
        cycle_input: what the cycle decides on.
        pending_groups: groups with waiting pods, by key.
        reserved: the room that is reserved for nominated pods, by group.
        evicted: uids of the pods that the cycle evicts.
        """
        self._input = cycle_input
        self._pending_groups = pending_groups
        self._reserved = reserved
        self._evicted = evicted
        self._ranks: dict[str, Mapping[str, int]] = {}

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
        rows, ranks = self._input.columns.rows, self.ranks(workload)
        for uid, member in workload.active.items():
            if uid not in self._evicted:
                yield HeldPod(member, rows[member.node], ranks.get(uid, NO_RANK))
        key = workload.group.key
        pending_group = self._pending_groups.get(key)
        if pending_group is not None:
            for assignment in (*pending_group.assignments, *self._reserved.get(key, ())):
                yield HeldPod(assignment.member, assignment.row, assignment.member.rank)

    def may_stay(self, workload: Workload) -> Iterator[HeldPod]:
        """Yield the pods of a group that are to be evicted and are not ending yet: where that fails, they stay."""
        rows, ranks = self._input.columns.rows, self.ranks(workload)
        for members, evicted in ((workload.active, self._evicted), (workload.leaving, workload.leaving)):
            for uid, member in members.items():
                if uid in evicted and member.pod.deletion_at is None:
                    yield HeldPod(member, rows[member.node], ranks.get(uid, NO_RANK))

    def ranks(self, workload: Workload) -> Mapping[str, int]:
        """Return the ranks of a group's pods that have a place, as the cycle found them, by uid."""
        kept = self._ranks.get(workload.group.key)
        if kept is None:
            kept = self._ranks[workload.group.key] = self._read_ranks(workload)
        return kept

    def _read_ranks(self, workload: Workload) -> dict[str, int]:
        by_leaf: dict[str, tuple[list[Member], list[Member], list[Member]]] = {}
        for number, members in enumerate((workload.active, workload.leaving, workload.waiting)):
            for member in members.values():
                by_leaf.setdefault(workload.leaf(member), ([], [], []))[number].append(member)
        topology = self.of(workload)
        ranks: dict[str, int] = {}
        for leaf, (active, leaving, waiting) in by_leaf.items():
            known = known_ranks(active, leaving, waiting, workload.rank_source(leaf))
            ranks |= known
            if topology is not None and any(member.pod.uid not in known for member in active):
                ranks |= self._ranks_by_place(topology, leaf, active, known)
        return ranks

    def _ranks_by_place(
        self, topology: GroupTopology, leaf: str, active: Sequence[Member], known: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the ranks of pods that name none, by the domains that slices have to be in."""
        constraint = topology.constraints.get(leaf)
        layers = [one for one in constraint.slices if one.required != NO_LEVEL] if constraint is not None else []
        if not layers:
            return {}
        rows, of_rows = self._input.columns.rows, topology.tree.of_rows
        places = {
            member.pod.uid: [int(of_rows[layer.required][rows[member.node]]) for layer in layers] for member in active
        }
        of_active = {uid: rank for uid, rank in known.items() if uid in places}
        return ranks_by_place(places, of_active, [layer.size for layer in layers])

    def _look_up(self, workload: Workload) -> GroupTopology | Reason | None:
        return self._input.topology_of(workload.group) if workload.constrained else None
