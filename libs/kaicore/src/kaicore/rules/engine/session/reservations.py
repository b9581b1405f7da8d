"""Room that is reserved for nominated pods until the pods on it are gone.

A reservation is charged to the nodes and to its queue, so that no other pod gets the room. A group with a higher place
may still take it: the reservation is suspended while the group is tried, and reconciled with what the group got. For
groups that start together room is reserved for all or for none: they are searched for victims together.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property

import msgspec

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.decisions import ClearReason
from kaicore.rules.engine.placement.placer import Assignment, NodeTimeline
from kaicore.rules.engine.session.cycle_pods import CyclePods
from kaicore.rules.engine.session.cycle_record import CycleRecord
from kaicore.rules.engine.topology.step_placer import StepPlacer
from kaicore.rules.engine.work.gang_planner import GangPlanner, Steps
from kaicore.rules.engine.work.pending_group import PendingGroup, PendingGroups
from kaicore.rules.engine.work.workload import Member, Nomination
from kaicore.rules.events.payloads import NominationCleared

#: A group, and the assignments that are reserved for its pods.
Suspended = list[tuple[PendingGroup, list[Assignment]]]


class Reservations:
    """The reservations of one cycle, by group."""

    def __init__(
        self,
        cycle_input: CycleInput,
        config: EngineConfig,
        *,
        pods: CyclePods,
        nodes: NodeTimeline,
        pending_groups: PendingGroups,
        record: CycleRecord,
        reserved: dict[str, list[Assignment]],
        step_placer: StepPlacer,
        gangs: GangPlanner,
    ) -> None:
        """Args:
        pending_groups: groups with waiting pods, by key.
        reserved: empty, for the reservations by group; others may read it.
        step_placer: knows where the constraints of groups let their pods be.
        """
        self._input = cycle_input
        self._config = config
        self._accounts = cycle_input.accounts
        self._pods = pods
        self._nodes = nodes
        self._pending_groups = pending_groups
        self._record = record
        self._step_placer = step_placer
        self._gangs = gangs
        self._by_group = reserved
        #: Keys of groups for which this cycle has decided to reserve room.
        self._new: set[str] = set()
        #: Groups for which another scheduler reserved room where no pod is leaving.
        self._idle: list[PendingGroup] = []
        #: Room that is kept for successors of moved pods, without marks.
        self.homes: list[Assignment] = []

    def __bool__(self) -> bool:
        """True if room is reserved for any group."""
        return bool(self._by_group)

    def restore(self) -> None:
        """Reserve the room that pods are nominated for already, higher priority first; clear what cannot be reserved.

        A nomination of another scheduler, or of this one in an earlier life, holds as long as a pod leaves that node.
        It holds in the first cycle in which no pod does any more, too, so that the nominated pod may start before
        others take the room; but no longer (`clear_idle`).
        """
        for member in self._input.nominated:
            if member.nomination is not None and self._nodes.row(member.nomination.node) in self._rows_with_leaving:
                assignment = self._try_foreign(member, member.nomination)
                if assignment is not None:
                    self._nodes.statement.place(assignment.reserved_charge)
                    self._nodes.future.statement.place(assignment.pod_charge)
        for member in self._input.reserved:
            self._restore_for_others(member)
        nominated = [pending_group for pending_group in self._pending_groups.made if pending_group.nominated]
        for pending_group in sorted(nominated, key=lambda pending_group: pending_group.reservation_order_key):
            self._restore(pending_group)
        for member, node in self._input.homes:
            self._keep_home(member, node)
        if cleared := self._clear_left_alone(ClearReason.NO_LONGER_FITS):
            self._record.add(cleared)

    def _clear_left_alone(self, reason: ClearReason, *, by: AbstractSet[str] = frozenset()) -> list[NominationCleared]:
        """Clear what is reserved for groups that can only start at once with others for which nothing is.

        Args:
            by: keys of the others, where others than these do not count.
        """
        cleared: list[NominationCleared] = []
        for key in list(self._by_group):
            pending_group = self._pending_groups[key]
            if not pending_group.group.together or key in self._new:
                continue
            lacking = [one for one in self._gangs.lacking_with(pending_group) if one not in self._by_group]
            if any(not by or one in by for one in lacking):
                self.suspend([pending_group])
                if self._nodes.has_future:
                    self.suspend([pending_group], future=True)
                reserved = self._by_group.pop(key)
                if not by and all(_is_home(assignment.member) for assignment in reserved):
                    # The others are yet to come.
                    self._keep_homes(pending_group, [assignment.member for assignment in reserved])
                else:
                    cleared += self._cleared(pending_group, reserved, reason)
        return cleared

    def _restore_for_others(self, member: Member) -> None:
        """Reserve the room that another replica keeps for a pod, as long as it is there; that one clears it."""
        nomination = member.nomination
        row = -1 if nomination is None else self._nodes.row(nomination.node)
        if nomination is None or row < 0 or not self._nodes.columns.present[row]:
            return
        recorded = Assignment(member, row, nomination.charge, nomination.placement, self._pods.class_of(member))
        assignment = self._try_foreign(member, nomination) if nomination.foreign else recorded
        if assignment is not None:
            self._keep(assignment)

    def _keep_homes(self, pending_group: PendingGroup, members: Iterable[Member]) -> None:
        """Keep the room of moved pods' successors that have come, until those that they start with have, too."""
        pending_group.nominated = False
        for member in members:
            if member.nomination is not None:
                self._keep_home(member, member.nomination.node)

    def _keep_home(self, member: Member, node: str) -> None:
        """Keep the room of a moved pod's successor, which cannot take it yet; without marks, for it may not come."""
        row = self._nodes.row(node)
        assignment = self._try_on_future(member, row) if row >= 0 and self._nodes.columns.present[row] else None
        if assignment is not None and self._keep(assignment, marks=False):
            self.homes.append(assignment)

    def _keep(self, assignment: Assignment, *, marks: bool = True) -> bool:
        """Keep room if it is there; return whether it is."""
        now, charge = self._nodes.now.statement, assignment.reserved_charge
        savepoint = now.savepoint()
        now.place(charge if marks else msgspec.structs.replace(charge, marks=()))
        kept = self._nodes.columns.lasts(assignment.row)
        if not kept:
            now.rollback(savepoint)
        elif self._nodes.has_future:
            charge = assignment.pod_charge
            self._nodes.future.statement.place(charge if marks else msgspec.structs.replace(charge, marks=()))
        return kept

    def _restore(self, pending_group: PendingGroup) -> None:
        assignments: list[Assignment] = []
        expired = lost = False
        idle = True
        for member in pending_group.unplaced:
            nomination = member.nomination
            if nomination is None:
                continue
            row = self._nodes.row(nomination.node)
            expired |= self._input.now - nomination.at >= self._config.nomination_us
            pod_class = self._pods.class_of(member)
            recorded = Assignment(member, row, nomination.charge, nomination.placement, pod_class)
            assignment = self._try_foreign(member, nomination) if nomination.foreign else recorded
            lost |= assignment is None
            idle &= nomination.foreign and row not in self._rows_with_leaving
            assignments.append(assignment or recorded)
        # An eviction that failed leaves pods of the group where it requires the others to be.
        rows = {assignment.member.pod.uid: assignment.row for assignment in assignments if assignment.row >= 0}
        lost = lost or not self._are_allowed(pending_group.key, rows)
        if expired:
            self._clear(pending_group, assignments, ClearReason.GAVE_UP)
        elif pending_group.step().missing and all(_is_home(assignment.member) for assignment in assignments):
            # The others are yet to come.
            self._keep_homes(pending_group, pending_group.unplaced)
        elif lost or pending_group.step().missing or not self._reserve(pending_group, assignments):
            self._clear(pending_group, assignments, ClearReason.NO_LONGER_FITS)
        elif idle:
            self._idle.append(pending_group)

    def idle(self) -> list[PendingGroup]:
        """Return the groups that no cycle reserved room for, which have it still, and where no pod is leaving."""
        return [pending_group for pending_group in self._idle if self._by_group.get(pending_group.key)]

    def clear_idle(self) -> None:
        """Clear foreign nominations of pods that did not start, on nodes that no pod leaves any more."""
        for pending_group in self.idle():
            assignments = self._by_group.pop(pending_group.key)
            self._clear(pending_group, assignments, ClearReason.NOTHING_LEAVES)

    def take_off_accounts(self, pending_groups: Iterable[PendingGroup]) -> None:
        """Take the reservations of groups off their queues' accounts."""
        for pending_group in pending_groups:
            assignments = self._by_group.get(pending_group.key, ())
            request = self._pods.requests_of(assignment.member for assignment in assignments)
            self._accounts.release(pending_group.group, request)

    def suspend(self, pending_groups: Sequence[PendingGroup], *, future: bool = False) -> Suspended:
        """Take the reservations of groups off the nodes and the accounts, or with `future` off the future's nodes.

        Rolling back the statement and the accounts restores them.

        Returns:
            the reservations.
        """
        suspended: Suspended = []
        if not pending_groups:
            return suspended
        if not future:
            self.take_off_accounts(pending_groups)
        statement = self._nodes.future.statement if future else self._nodes.statement
        for pending_group in pending_groups:
            assignments = self._by_group.get(pending_group.key)
            if assignments:
                suspended.append((pending_group, assignments))
                for assignment in assignments:
                    statement.evict(assignment.pod_charge if future else assignment.reserved_charge)
        return suspended

    def reconcile(self, suspended: Suspended, assignments: Sequence[Assignment]) -> tuple[NominationCleared, ...]:
        """Reserve what is left of suspended reservations after pods were placed, and clear what no longer fits.

        Args:
            suspended: off the nodes of both times; in the order in which the reservations are to be made again.
            assignments: where pods were placed. What was reserved for these pods is used up.

        Returns:
            the nominations that are cleared.
        """
        if not suspended:
            return ()
        placed = {assignment.member.pod.uid for assignment in assignments}
        groups = {assignment.member.group for assignment in assignments}
        cleared: list[NominationCleared] = []
        taken: set[str] = set()
        for pending_group, reserved in suspended:
            key = pending_group.key
            del self._by_group[key]
            rest = [assignment for assignment in reserved if assignment.member.pod.uid not in placed]
            if not rest:
                pending_group.nominated = False
            elif not self._reserve(pending_group, rest):
                reason = ClearReason.NO_LONGER_FITS if key in groups else ClearReason.TAKEN
                cleared += self._cleared(pending_group, rest, reason)
                taken.add(key)
        if taken:
            cleared += self._clear_left_alone(ClearReason.TAKEN, by=taken)
        return tuple(cleared)

    def add(self, pending_group: PendingGroup, assignments: Sequence[Assignment]) -> list[Assignment]:
        """Reserve room that this cycle found, charged to the nodes already; return all that the group has then."""
        key = pending_group.key
        reserved = self._by_group[key] = [*self._by_group.get(key, ()), *assignments]
        self._new.add(key)
        return reserved

    def of(self, group: str) -> Sequence[Assignment]:
        """Return what is reserved for the pods of a group."""
        return self._by_group.get(group, ())

    def is_new(self, group: str) -> bool:
        """Tell whether this cycle has decided to reserve room for a group."""
        return group in self._new

    def takeable(self, steps: Steps, *, behind: PendingGroup | None = None) -> list[PendingGroup]:
        """Return the groups with reservations that steps may take: of lower priority, the higher ones first.

        Of another queue only if the queues of the steps are owed what these ask for. Those that this cycle has decided
        on are left out: a cycle decides once about a pod.

        Args:
            behind: a group of them with a reservation; also the groups that come after it.
        """
        if not self._by_group:
            return []
        below = min(pending_group.group.priority for pending_group, _ in steps)
        groups = [self._pending_groups[key] for key in self._by_group if key not in self._new]

        def may_be_taken(pending_group: PendingGroup) -> bool:
            return pending_group.group.priority < below or (
                behind is not None and pending_group.reservation_order_key > behind.reservation_order_key
            )

        groups = sorted(filter(may_be_taken, groups), key=lambda pending_group: pending_group.reservation_order_key)
        queue_of = self._accounts.queue_of
        queues = {queue_of(pending_group.group) for pending_group, _ in steps}
        own = [pending_group for pending_group in groups if queue_of(pending_group.group) in queues]
        return groups if len(own) == len(groups) or self._is_owed(steps) else own

    def _is_owed(self, steps: Steps) -> bool:
        """Tell whether queues are owed what steps ask for, what is reserved for them already included."""
        requests_of = self._pods.requests_of
        requests = [(pending_group.group, requests_of(step.members)) for pending_group, step in steps]
        reserved = [
            (pending_group.group, requests_of(assignment.member for assignment in self.of(pending_group.key)))
            for pending_group, _ in steps
        ]
        return self._accounts.is_owed(requests, reserved)

    def usable_by(self, steps: Steps) -> tuple[list[PendingGroup], list[PendingGroup]]:
        """Return the groups of steps that have reservations, and the other groups with reservations for the taking."""
        own = [pending_group for pending_group, _ in steps if pending_group.nominated]
        takeable = self.takeable(steps, behind=own[0] if own else None)
        return own, [pending_group for pending_group in takeable if pending_group not in own]

    def except_of(self, pending_groups: Iterable[PendingGroup]) -> list[Assignment]:
        """Return everything that is reserved for other groups than these."""
        keys = {pending_group.key for pending_group in pending_groups}
        return [assignment for key, reserved in self._by_group.items() if key not in keys for assignment in reserved]

    def _reserve(self, pending_group: PendingGroup, assignments: list[Assignment]) -> bool:
        """Charge nominated pods if all of them fit once the pods that leave are gone, and are allowed by then."""
        columns, group = self._nodes.columns, pending_group.group
        pending_group.nominated = False
        if any(assignment.row < 0 or not columns.present[assignment.row] for assignment in assignments):
            return False
        request = self._pods.requests_of(assignment.member for assignment in assignments)
        if self._accounts.refusal(group, request):
            return False
        now = self._nodes.now
        non_monotonic = any(
            self._pods.class_of(assignment.member).gpu_share is not None
            or now.feasible_nodes(self._pods.class_of(assignment.member)).non_monotonic
            for assignment in assignments
        )
        future = self._nodes.future if non_monotonic or self._nodes.has_future else None
        savepoint = now.statement.savepoint(), future.statement.savepoint() if future is not None else 0
        reserved: list[Assignment] = []
        for recorded in assignments:
            assignment, pod_class = recorded, self._pods.class_of(recorded.member)
            if pod_class.volumes.wanted:
                # The volume that it was nominated with may be given to another pod by now.
                assignment = msgspec.structs.replace(
                    recorded, volumes=now.feasible_nodes(pod_class).volumes(recorded.row)
                )
            if pod_class.devices.wanted and future is not None:
                devices = future.feasible_nodes(pod_class).devices(recorded.row)
                assignment = msgspec.structs.replace(assignment, devices=devices)
            if pod_class.gpu_share is not None and future is not None:
                # The GPUs that it was nominated with may be gone, or are opened only once it starts.
                chosen = self._try_on_future(recorded.member, recorded.row)
                if chosen is None:
                    break
                assignment = msgspec.structs.replace(assignment, gpus=chosen.gpus)
            now.statement.place(assignment.reserved_charge)
            if not columns.lasts(assignment.row):
                break
            if future is not None:
                if non_monotonic and future.feasible_nodes(pod_class).ruled_out(assignment.row):
                    break
                future.statement.place(assignment.pod_charge)
            reserved.append(assignment)
        else:
            self._by_group[group.key] = reserved
            self._accounts.charge(group, request)
            pending_group.nominated = True
            return True
        now.statement.rollback(savepoint[0])
        if future is not None:
            future.statement.rollback(savepoint[1])
        return False

    def _clear(self, pending_group: PendingGroup, assignments: list[Assignment], reason: ClearReason) -> None:
        self._record.add(self._cleared(pending_group, assignments, reason))

    def _cleared(
        self, pending_group: PendingGroup, assignments: list[Assignment], reason: ClearReason
    ) -> list[NominationCleared]:
        pending_group.nominated = False
        return [self._record.cleared(assignment, reason) for assignment in assignments]

    def _try_foreign(self, member: Member, nomination: Nomination) -> Assignment | None:
        """Return what a pod would get on the node that its status names, once the pods that leave are gone."""
        row = self._nodes.row(nomination.node)
        if row < 0 or (
            member.group in self._pending_groups and not self._are_allowed(member.group, {member.pod.uid: row})
        ):
            return None
        return self._try_on_future(member, row)

    def _try_on_future(self, member: Member, row: int) -> Assignment | None:
        """Return what a pod gets on a node once the pods that leave are gone."""
        future = self._nodes.future
        savepoint = future.statement.savepoint()
        assignment = future.place_on(member, row)
        future.statement.rollback(savepoint)
        return assignment

    def _are_allowed(self, key: str, rows: Mapping[str, int]) -> bool:
        """Tell whether a group, by its key, lets pods, by their uids, be on rows by its constraints."""
        return self._step_placer.are_allowed(key, rows, self._nodes.now)

    @cached_property
    def _rows_with_leaving(self) -> set[int]:
        return {self._nodes.row(member.node) for member in self._input.leaving}


def _is_home(member: Member) -> bool:
    """Tell whether a pod is nominated for the place of a moved one, which no status names."""
    nomination = member.nomination
    return nomination is not None and nomination.foreign and nomination.node != member.pod.nominated_node
