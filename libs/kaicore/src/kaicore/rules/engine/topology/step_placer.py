"""Places a step: groups with topology constraints by the search, other pods by the best node for each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kaicore.rules.engine.placement.placer import Assignment, Placer
from kaicore.rules.engine.topology.set_requests import OF_GROUP, CycleTopologies, GroupPart, HeldPod
from kaicore.rules.engine.topology.unit_trial import UnitTrial
from kaicore.rules.engine.work.gang_planner import GangPlanner, Steps, members_of
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.engine.work.workload import Member, Workload
from kaicore.rules.events.reasons.group import TopologyHasNoRoom
from kaicore.rules.numa.columns import Flags
from kaicore.rules.topology.placing.request import GroupTopology, Refused, TopologyStrategy

#: Pods that start, or are placed anew, each group's.
Waiting = Sequence[tuple[Workload, Sequence[Member]]]


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
        """The reason for which they found none."""
        refused, topology = self.refused, self.topology
        pod_set = refused.set_name.rpartition(OF_GROUP)[2]
        constraint = topology.constraints.get(pod_set)
        slice_size = constraint.slices[0].size if constraint is not None and constraint.slices else 0
        path = topology.tree.domains[refused.level][refused.domain] if refused.domain >= 0 <= refused.level else ()
        return TopologyHasNoRoom(
            topology=topology.name,
            level=topology.level_name(refused.level),
            pod_set=pod_set,
            wanted=refused.wanted,
            fitting=refused.fitting,
            slice_size=slice_size,
            domain="/".join(path),
            tried=refused.tried,
            domains=refused.domains,
            joined=refused.joined,
            pods_in_slices=refused.pods if slice_size else 0,
            crowded=refused.crowded,
        )


@dataclass(frozen=True, slots=True)
class PlacingResult:
    """The outcome of placing steps.

    Attributes:
        assignments: where pods went; charged.
        unplaced: the first pod that found no node, or one of the groups that found no place; None if all found one.
        refusal: the groups that found no place in their topology; None if it is not that.
    """

    assignments: list[Assignment]
    unplaced: Member | None = None
    refusal: TopologyRefusal | None = None


class StepPlacer:
    """Places the steps of one cycle. `ranks`: of the pods of constrained groups, as they were placed last, by uid."""

    def __init__(
        self,
        *,
        topologies: CycleTopologies,
        gangs: GangPlanner,
        pending_groups: Mapping[str, PendingGroup],
        class_key: Callable[[Member], str],
        strategy: TopologyStrategy,
    ) -> None:
        """Args:
        topologies: what groups ask of them, and the pods of groups that have a place.
        pending_groups: groups with waiting pods, by key.
        class_key: returns the key of a pod's class.
        """
        self.ranks: dict[str, int] = {}
        self._topologies = topologies
        self._gangs = gangs
        self._pending_groups = pending_groups
        self._class_key = class_key
        self._strategy = strategy
        #: Where pods go if all of their group start, by uid.
        self._planned: dict[str, int] = {}
        #: Keys of groups of which not all that waits fits.
        self._unplanned: set[str] = set()

    def place(self, steps: Steps, placer: Placer, *, plans: bool = False) -> PlacingResult:
        """Place all pods of steps; what was placed stays charged, also where not all were.

        Args:
            placer: on the nodes at one time.
            plans: whether a group is placed so that all that waits of it has a place, where there is one.
        """
        if not any(pending_group.workload.constrained for pending_group, _ in steps):
            return PlacingResult(*placer.place_all(members_of(steps)))
        assignments: list[Assignment] = []
        trials, plain = self.trials(waiting_of(steps), placer)
        for trial in trials:
            self.ranks.update(trial.asked.ranks)
            savepoint = placer.statement.savepoint()
            # Where room is reserved for them, where all that waits with them fits, or by themselves.
            kept = trial.as_nominated() or (self._as_planned(trial) if plans else None)
            outcome = kept or trial.search()
            if not isinstance(outcome, Refused):
                outcome = self._beside_those_that_may_stay(trial, outcome, savepoint)
            if isinstance(outcome, Refused):
                return PlacingResult(assignments, trial.asked.members[0], TopologyRefusal(trial.topology, outcome))
            assignments += outcome
        placed, unplaced = placer.place_all(plain)
        return PlacingResult([*assignments, *placed], unplaced)

    def place_again(
        self, moved: Waiting, placer: Placer, *, among: Flags | None = None, as_close: bool = False
    ) -> list[Assignment] | None:
        """Place pods of running groups anew, where constrained near those that stay.

        Args:
            placer: on the nodes at one time.
            among: rows that may take constrained pods; None for all.
            as_close: whether the pods of a group must share as narrow a domain as they do now.

        Returns:
            where they go; None, and nothing is changed, if not all fit.
        """
        savepoint = placer.statement.savepoint()
        assignments: list[Assignment] = []
        trials, plain = self.trials(moved, placer)
        for trial in trials:
            outcome = trial.search(among)
            if isinstance(outcome, Refused) or (as_close and not trial.is_as_close(outcome)):
                placer.statement.rollback(savepoint)
                return None
            assignments += outcome
        placed, unplaced = placer.place_all(plain)
        if unplaced is None:
            return [*assignments, *placed]
        placer.statement.rollback(savepoint)
        return None

    def are_allowed(self, key: str, rows: Mapping[str, int], placer: Placer) -> bool:
        """Tell whether waiting pods are on rows where their group's constraints let them be, by where the group runs.

        Args:
            rows: by the uids of the pods.
        """
        workload = self._pending_groups[key].workload
        if not workload.constrained:
            return True
        trials, _ = self.trials([(workload, [workload.waiting[uid] for uid in rows])], placer)
        return all(trial.is_kept(rows) for trial in trials)

    def trials(self, waiting: Waiting, placer: Placer) -> tuple[list[UnitTrial], list[Member]]:
        """Return the trials of groups with constraints, those in one that share one, and the pods without."""
        units: dict[object, list[tuple[Workload, Sequence[Member]]]] = {}
        plain: list[Member] = []
        for workload, members in waiting:
            topology = self._topologies.of(workload)
            if topology is None:
                plain += members
            else:
                key = _shared(topology) if topology.together else workload.group.key
                units.setdefault(key, []).append((workload, members))
        trials = [self._trial(placer, unit) for unit in units.values()]
        for trial in trials:
            plain += trial.asked.plain
        return [trial for trial in trials if trial.asked.members], plain

    def shape(self, steps: Steps) -> object:
        """Return a key that is equal for steps with constraints that are alike; empty without any."""
        parts: list[object] = []
        for workload, members in waiting_of(steps):
            topology = self._topologies.of(workload)
            if topology is None:
                continue
            ranked = any(one.rank is not None for one in topology.sets)
            spread = any(one.spread for one in topology.constraints.values())
            if topology.together or ranked or spread or any(True for _ in self._topologies.placed(workload)):
                parts.append(workload.group.key)
                continue
            leaves = tuple((workload.leaf(member), self._class_key(member)) for member in members)
            parts.append((id(topology.tree), topology.sets, tuple(sorted(leaves))))
        return tuple(parts)

    def _beside_those_that_may_stay(
        self, trial: UnitTrial, outcome: list[Assignment], savepoint: int
    ) -> list[Assignment] | Refused:
        """Return where pods go so that all that is required holds also if evictions of their groups' pods fail."""
        parts = []
        for part in trial.parts:
            staying = list(self._topologies.may_stay(part.workload))
            parts.append(replace(part, held=[*part.held, *staying]) if staying else part)
        if all(one is part for one, part in zip(parts, trial.parts, strict=True)):
            return outcome
        beside = UnitTrial(trial.placer, parts, self._also_held(parts), self._strategy)
        if beside.is_kept({assignment.member.pod.uid: assignment.row for assignment in outcome}):
            return outcome
        trial.placer.statement.rollback(savepoint)
        self.ranks.update(beside.asked.ranks)
        return beside.search()

    def _as_planned(self, trial: UnitTrial) -> list[Assignment] | None:
        """Place pods so that all that waits of their groups fits as well; None where it does not."""
        keys = [part.workload.group.key for part in trial.parts]
        if not self._unplanned.isdisjoint(keys):
            return None
        if any(member.pod.uid not in self._planned for member in trial.asked.members):
            waiting = [
                (part.workload, self._pending_groups[key].unplaced) for key, part in zip(keys, trial.parts, strict=True)
            ]
            if sum(len(members) for _, members in waiting) == sum(len(part.waiting) for part in trial.parts):
                return None
            outcome = self._on_trial(trial.placer, waiting)
            if isinstance(outcome, Refused) and 0 < outcome.fitting < outcome.wanted == sum(
                len(each) for _, each in waiting
            ):
                # Of a group that cannot start as a whole, as many as the best domain takes.
                [(workload, members), *others] = waiting
                if not others:
                    outcome = self._on_trial(trial.placer, [(workload, members[: outcome.fitting])])
            if not isinstance(outcome, Refused):
                self._planned.update((assignment.member.pod.uid, assignment.row) for assignment in outcome)
        kept = trial.on_rows(self._planned)
        if kept is None:
            self._unplanned.update(keys)
        return kept

    def _on_trial(self, placer: Placer, waiting: Waiting) -> list[Assignment] | Refused:
        """Return where pods would go; they are taken off again."""
        savepoint = placer.statement.savepoint()
        outcome = self._trial(placer, waiting).search()
        placer.statement.rollback(savepoint)
        return outcome

    def _trial(self, placer: Placer, waiting: Waiting) -> UnitTrial:
        """Return a trial of pods that are to be placed in one go, by group."""
        parts = []
        for workload, members in waiting:
            topology = self._topologies.of(workload)
            assert topology is not None, "a unit of groups with constraints"
            uids = {member.pod.uid for member in members}
            held = [
                replace(pod, rank=self.ranks.get(pod.member.pod.uid, pod.rank))
                for pod in self._topologies.placed(workload)
                if pod.member.pod.uid not in uids
            ]
            ranks, among = self._topologies.ranks(workload), self._topologies.spread(workload, topology)
            parts.append(GroupPart(workload, topology, members, held, ranks, among))
        return UnitTrial(placer, parts, self._also_held(parts), self._strategy)

    def _also_held(self, parts: Sequence[GroupPart]) -> list[HeldPod]:
        """Return the pods of groups that are not to be placed now, and that share the constraint of the others."""
        first = parts[0]
        if not first.topology.together:
            return []
        keys = {part.workload.group.key for part in parts}
        held: list[HeldPod] = []
        for other in self._gangs.companions(first.workload):
            topology = self._topologies.of(other)
            if other.group.key not in keys and topology is not None and _shared(topology) == _shared(first.topology):
                held += self._topologies.placed(other)
        return held


def waiting_of(steps: Steps) -> Waiting:
    """Return the pods of steps by group."""
    return [(pending_group.workload, step.members) for pending_group, step in steps]


def _shared(topology: GroupTopology) -> object:
    """Return a key that is equal for groups that share a constraint."""
    return id(topology.tree), topology.of_root, topology.together
