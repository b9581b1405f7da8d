"""Places what starts at once: groups with topology constraints by the search, other pods by the best node for each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kaicore.rules.engine.gang_planner import Steps, members_of
from kaicore.rules.engine.pending_group import PendingGroup
from kaicore.rules.engine.placement.placer import Assignment, Placer, in_placement_order
from kaicore.rules.engine.topology.group_topology import GroupTopology
from kaicore.rules.engine.topology.keeping import keeps
from kaicore.rules.engine.topology.set_requests import OF_GROUP, GroupPart, HeldPod, placing_request
from kaicore.rules.engine.topology.trial import PlacerRoom
from kaicore.rules.engine.workload import Member, Step, Workload
from kaicore.rules.numa.zone_arrays import Flags
from kaicore.rules.reasons.topology_room import TopologyHasNoRoom
from kaicore.rules.topology.placing.request import Refused
from kaicore.rules.topology.placing.search import search
from kaicore.rules.topology.placing.strategies import Strategy


@dataclass(frozen=True, slots=True)
class TopologyRefusal:
    """Groups that found no place in their topology.

    Attributes:
        topology: of the first.
        refused: by the search.
    """

    topology: GroupTopology
    refused: Refused

    @property
    def reason(self) -> TopologyHasNoRoom:
        """Why they found none."""
        refused, topology = self.refused, self.topology
        pod_set = refused.set_name.rpartition(OF_GROUP)[2]
        constraint = topology.constraints.get(pod_set)
        path = topology.tree.domains[refused.level][refused.domain] if refused.domain >= 0 <= refused.level else ()
        return TopologyHasNoRoom(
            topology=topology.name,
            level=topology.level_name(refused.level),
            pod_set=pod_set,
            wanted=refused.wanted,
            fitting=refused.fitting,
            slice_size=constraint.slices[0].size if constraint is not None and constraint.slices else 0,
            domain="/".join(path),
            tried=refused.tried,
            domains=refused.domains,
        )


@dataclass(frozen=True, slots=True)
class PlacingResult:
    """What came of placing steps.

    Attributes:
        assignments: where pods went; charged.
        unplaced: the first pod that found no node, or one of the groups that found no place; None if all found one.
        refusal: the groups that found no place in their topology; None if it is not that.
    """

    assignments: list[Assignment]
    unplaced: Member | None = None
    refusal: TopologyRefusal | None = None


class StepPlacer:
    """Places the steps of one cycle.

    Attributes:
        ranks: of the pods of constrained groups, as they were placed last, by uid.
    """

    def __init__(
        self,
        *,
        topology_of: Callable[[Workload], GroupTopology | None],
        companions: Callable[[Workload], Iterable[Workload]],
        placed: Callable[[Workload], Iterable[HeldPod]],
        strategy: Strategy,
    ) -> None:
        """Args:
        topology_of: returns what a group asks of its topology; None for nothing.
        companions: returns the other groups that start together with a group.
        placed: returns the pods of a group that have a place: that run and stay, or that the cycle has decided on.
        strategy: of the search.
        """
        self.ranks: dict[str, int] = {}
        self._topology_of = topology_of
        self._companions = companions
        self._placed = placed
        self._strategy = strategy
        #: Where pods go if all of their group start, by uid.
        self._planned: dict[str, int] = {}
        #: Keys of groups of which not all that waits fits.
        self._unplanned: set[str] = set()

    def place(self, steps: Steps, placer: Placer, *, plans: bool = False) -> PlacingResult:
        """Place all pods of steps; what was placed stays charged, also where not all were.

        Args:
            steps: what starts at once.
            placer: on the nodes at one time.
            plans: whether a group is placed so that all that waits of it has a place, where there is one.
        """
        if not any(pending_group.workload.constrained for pending_group, _ in steps):
            return PlacingResult(*placer.place_all(members_of(steps)))
        assignments: list[Assignment] = []
        plain: list[Member] = []
        for unit in self._units(steps):
            topology = self._topology_of(unit[0][0].workload)
            if topology is None:
                plain += members_of(unit)
                continue
            trial = self._trial(placer, [(one.workload, step.members) for one, step in unit])
            self.ranks.update(trial.asked.ranks)
            plain += trial.asked.plain
            if trial.asked.members:
                found = self._place_unit(unit, trial, plans=plans)
                if isinstance(found, Refused):
                    return PlacingResult(assignments, trial.asked.members[0], TopologyRefusal(topology, found))
                assignments += found
        placed, unplaced = placer.place_all(plain)
        return PlacingResult([*assignments, *placed], unplaced)

    def place_again(
        self, workload: Workload, members: Sequence[Member], placer: Placer, *, among: Flags | None = None
    ) -> list[Assignment] | None:
        """Place constrained pods of a running group anew, near those that stay.

        Args:
            workload: the group.
            members: the pods.
            placer: on the nodes at one time.
            among: rows that may take them; None for all.

        Returns:
            where they go; None, and nothing is changed, if not all fit.
        """
        savepoint = placer.statement.savepoint()
        found: list[Assignment] | Refused = []
        plain = list(members)
        if self._topology_of(workload) is not None:
            trial = self._trial(placer, [(workload, members)])
            plain = trial.asked.plain
            found = trial.search(among) if trial.asked.members else []
        if not isinstance(found, Refused):
            others, unplaced = placer.place_all(plain)
            if unplaced is None:
                return [*found, *others]
        placer.statement.rollback(savepoint)
        return None

    def _place_unit(self, unit: Steps, trial: "_Trial", *, plans: bool) -> list[Assignment] | Refused:
        """Place pods where room is reserved for them, where all that waits with them fits, or by themselves."""
        kept = trial.as_nominated() or (self._as_planned(unit, trial) if plans else None)
        return kept or trial.search()

    def _as_planned(self, unit: Steps, trial: "_Trial") -> list[Assignment] | None:
        """Place pods so that all that waits of their groups fits as well; None where it does not."""
        keys = [pending_group.key for pending_group, _ in unit]
        if not self._unplanned.isdisjoint(keys):
            return None
        if any(member.pod.uid not in self._planned for member in trial.asked.members):
            waiting = [(pending_group.workload, pending_group.unplaced) for pending_group, _ in unit]
            if sum(len(members) for _, members in waiting) == len(members_of(unit)):
                return None
            whole = self._trial(trial.placer, waiting)
            savepoint = trial.placer.statement.savepoint()
            found = whole.search()
            trial.placer.statement.rollback(savepoint)
            if not isinstance(found, Refused):
                self._planned.update((assignment.member.pod.uid, assignment.row) for assignment in found)
        kept = trial.on_rows(self._planned)
        if kept is None:
            self._unplanned.update(keys)
        return kept

    def _units(self, steps: Steps) -> list[Steps]:
        """Return steps, those in one that share a constraint."""
        units: dict[object, list[tuple[PendingGroup, Step]]] = {}
        for pending_group, step in steps:
            topology = self._topology_of(pending_group.workload)
            shared = topology is not None and topology.together and topology.of_root is not None
            key = _shared(topology) if topology is not None and shared else pending_group.key
            units.setdefault(key, []).append((pending_group, step))
        return list(units.values())

    def _trial(self, placer: Placer, waiting: Sequence[tuple[Workload, Sequence[Member]]]) -> "_Trial":
        """Return a trial of pods that are to be placed in one go, by group."""
        parts = []
        for workload, members in waiting:
            topology = self._topology_of(workload)
            assert topology is not None, "a unit of groups with constraints"
            uids = {member.pod.uid for member in members}
            held = [pod for pod in self._placed(workload) if pod.member.pod.uid not in uids]
            parts.append(GroupPart(workload, topology, members, held))
        return _Trial(placer, parts, self._also_held(parts), self._strategy)

    def _also_held(self, parts: Sequence[GroupPart]) -> list[HeldPod]:
        """Return the pods of groups that are not to be placed now, and that share the constraint of the others."""
        first = parts[0]
        if not first.topology.together:
            return []
        keys = {part.workload.group.key for part in parts}
        found: list[HeldPod] = []
        for other in self._companions(first.workload):
            topology = self._topology_of(other)
            if other.group.key not in keys and topology is not None and _shared(topology) == _shared(first.topology):
                found += self._placed(other)
        return found


def _shared(topology: GroupTopology) -> object:
    """Return a key that is equal for groups that share a constraint."""
    return id(topology.tree), topology.of_root, topology.together


class _Trial:
    """Pods that are placed in one go on the nodes of one time.

    Attributes:
        placer: on the nodes.
        asked: what is to be placed.
    """

    def __init__(
        self, placer: Placer, parts: Sequence[GroupPart], also_held: Sequence[HeldPod], strategy: Strategy
    ) -> None:
        self.placer = placer
        self.asked = placing_request(parts, also_held)
        self._parts = parts
        self._also_held = also_held
        self._tree = parts[0].topology.tree
        self._strategy = strategy

    def search(self, among: Flags | None = None) -> list[Assignment] | Refused:
        """Place the pods by the search, on some rows or on any; where it refuses, nothing is changed."""
        savepoint = self.placer.statement.savepoint()
        room = PlacerRoom(self.placer, self.asked.members, among=among)
        found = search(self.asked.request, self._tree, room, self._strategy)
        if isinstance(found, Refused):
            self.placer.statement.rollback(savepoint)
            return found
        return room.assignments

    def on_rows(self, rows: Mapping[str, int]) -> list[Assignment] | None:
        """Place the pods on rows by their uids; None, and nothing is changed, where not all can be there."""
        savepoint = self.placer.statement.savepoint()
        found: list[Assignment] = []
        for member in in_placement_order(self.asked.members, self.placer.class_of):
            row = rows.get(member.pod.uid)
            assignment = None if row is None else self.placer.place_on(member, row)
            if assignment is None:
                break
            found.append(assignment)
        if len(found) == len(self.asked.members) and self._is_kept(found):
            return found
        self.placer.statement.rollback(savepoint)
        return None

    def as_nominated(self) -> list[Assignment] | None:
        """Place the pods that are nominated where room is reserved for them, and the others near them.

        Returns:
            where they go; None, and nothing is changed, where none is nominated, or not all can be placed so.
        """
        rows = self.placer.statement.columns.rows
        nominated = {
            member.pod.uid: rows[member.nomination.node]
            for member in self.asked.members
            if member.nomination is not None and member.nomination.node in rows
        }
        if not nominated:
            return None
        first = _Trial(
            self.placer, [_split(part, nominated)[0] for part in self._parts], self._also_held, self._strategy
        )
        rest = _Trial(
            self.placer, [_split(part, nominated)[1] for part in self._parts], self._also_held, self._strategy
        )
        savepoint = self.placer.statement.savepoint()
        found = first.on_rows(nominated)
        if found is not None:
            others = rest.search() if rest.asked.members else []
            if not isinstance(others, Refused) and self._is_kept([*found, *others]):
                return [*found, *others]
        self.placer.statement.rollback(savepoint)
        return None

    def _is_kept(self, assignments: Sequence[Assignment]) -> bool:
        row_of = {assignment.member.pod.uid: assignment.row for assignment in assignments}
        rows = {number: row_of[member.pod.uid] for number, member in enumerate(self.asked.members)}
        return keeps(self.asked.request, self._tree, rows)


def _split(part: GroupPart, nominated: Mapping[str, int]) -> tuple[GroupPart, GroupPart]:
    """Return a part with the nominated pods alone, and one with the others, for which those have their places."""
    first = [member for member in part.waiting if member.pod.uid in nominated]
    rest = [member for member in part.waiting if member.pod.uid not in nominated]
    held = [*part.held, *(HeldPod(member, nominated[member.pod.uid]) for member in first)]
    return replace(part, waiting=first), replace(part, waiting=rest, held=held)
