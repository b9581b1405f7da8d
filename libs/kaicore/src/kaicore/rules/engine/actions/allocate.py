"""The action Allocate: starts groups that fit, by the order of queues and, within a queue, of groups.

A gang starts as a whole or not at all. Pods above its minimum follow step by step, each in the order of queues at that
time. Before a group takes room, room is made for groups of higher priority that do not fit and have a right to it
(decision 0625).
"""

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import count
from typing import Any

import msgspec

from kaicore.rules.engine.actions.action import AlikeGroups, CycleAction, GroupOrder
from kaicore.rules.engine.actions.eviction import EvictionAction
from kaicore.rules.engine.config import Action
from kaicore.rules.engine.placement.placer import Assignment, Placer
from kaicore.rules.engine.session.session import PromisedStart, Session
from kaicore.rules.engine.work.gang_planner import Steps, members_of
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.events.reasons.group import GangDoesNotFit
from kaicore.rules.events.reasons.making_room import RoomKeptForOthers, WaitsForVictims
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.membership import display_key

#: After so long a group is tried again that another replica is to decide before, microseconds.
_DEFERRED_US = 50_000


class Allocate(CycleAction):
    """Start what fits on what is free now."""

    def __init__(self, session: Session, evicting: Sequence[EvictionAction] = ()) -> None:
        """Args:
        evicting: the actions that come afterwards and make room for what does not fit, in their order.
        """
        super().__init__(session)
        self._evicting = [action for action in evicting if action.is_on]
        self._alike = AlikeGroups(session)
        apart, in_lines = session.pending_groups.apart(lambda _: True)
        self._order = GroupOrder(session, apart, self._alike, in_lines=in_lines)
        self._failures = _Failures()
        #: Of steps with topology constraints that found no room, why, by their shape.
        self._no_room: dict[object, tuple[Reason, ...]] = {}
        #: By shape of steps, the group with the reservation that keeps them from starting; None for no group.
        self._kept_from: dict[object, RoomKeptForOthers | None] = {}
        #: Steps that would delay the group that room is promised to, wherever they start, by their shape.
        self._delaying: set[object] = set()
        #: Groups that did not fit and might be helped, as a heap by their order; and by queue as they were passed: by
        #: the place in the queue that was reached, where lines are passed, and one after the other.
        self._unhelped: list[tuple[tuple[int, int, int, str, str, str], str]] = []
        self._unhelped_in: dict[str, list[tuple[tuple[Any, ...], int, PendingGroup]]] = {}
        self._entered = count()
        #: Whether evicting might help groups, by their queue and priority.
        self._helpable: dict[tuple[str, str, int], bool] = {}
        #: Keys of groups for which room was made, or could not be.
        self._tried: set[str] = set()

    def run(self) -> None:
        """See `CycleAction.run`."""
        session, order = self.session, self._order
        while (pending_group := order.next(self._leave)) is not None:
            if pending_group.blocked:
                continue
            steps, reasons = session.gangs.joint_steps(pending_group)
            if not steps:
                pending_group.reasons, pending_group.blocked = reasons or pending_group.reasons, True
            elif self._start(steps):
                if order.is_last(pending_group):
                    pending_group.blocked = True
                else:
                    order.put_back(pending_group)
            else:
                self._block(steps)
        for pending_group in session.reservations.idle():
            # It came before those that have opened the GPU that it was to share.
            if session.observer is not None:
                session.observer.takes_up(pending_group.key)
            steps, _ = session.gangs.joint_steps(pending_group)
            if steps:
                self._start(steps)

    def _block(self, steps: Steps) -> None:
        """Take notice that steps do not start in this cycle."""
        pending_group, _ = steps[0]
        for other, _ in steps:
            # A group that can start without this one is tried again for itself.
            together = other is pending_group or pending_group.key in other.group.together
            other.blocked = other.blocked or together
        self._enter_unhelped(pending_group, self._order.reached)

    def _leave(self, pending_group: PendingGroup) -> None:
        """Take notice that a group does not start in this cycle, as one that is alike does not."""
        pending_group.blocked = True
        self._enter_unhelped(pending_group, pending_group.order_key if self._order.reached else ())

    def _enter_unhelped(self, pending_group: PendingGroup, place: tuple[Any, ...]) -> None:
        """Remember a group that does not fit, if it might be helped."""
        idle = not (pending_group.nominated or pending_group.deferred)
        if idle and self._might_be_helped(pending_group):
            heapq.heappush(self._unhelped, (pending_group.order_key, pending_group.key))
            queue = self.session.accounts.queue_of(pending_group.group)
            insort(self._unhelped_in.setdefault(queue, []), (place, next(self._entered), pending_group))

    # Groups of higher priority.

    def _takes_room_of_higher(self, steps: Steps) -> bool:
        """Tell whether room may have to be made for groups of higher priority before steps start, which are placed."""
        if not self._evicting:
            return False
        order, priority = self._order, _priority_of(steps)
        order.pass_lines(self._leave)
        own = self._unhelped_in.get(self.session.accounts.queue_of(steps[0][0].group))
        if own and own[0][2].priority > priority:
            return True
        while self._unhelped and -self._unhelped[0][0][0] > priority:
            if self._is_owed(self.session.pending_groups[self._unhelped[0][1]]):
                return True
            heapq.heappop(self._unhelped)
        while (claimant := order.first_above(priority)) is not None:
            idle = not claimant.blocked and self._might_be_helped(claimant)
            # Most fit, and that is found out sooner than what is owed.
            if idle and not self._fits_beside(claimant) and self._is_owed(claimant):
                return True
            order.pass_over()
        return False

    def _fits_beside(self, pending_group: PendingGroup) -> bool:
        """Tell whether a group that has had no turn fits as the nodes are."""
        session = self.session
        steps, _ = session.gangs.joint_steps(pending_group)
        if self._refusal(steps):
            return False
        members, now = members_of(steps), session.nodes.now
        if len(members) == 1 and not pending_group.workload.constrained:
            return (
                now.feasible_nodes(session.pods.class_of(members[0])).best(created_at=members[0].pod.created_at)
                is not None
            )
        savepoint = now.statement.savepoint()
        unplaced = session.step_placer.place(steps, now, plans=True).unplaced
        now.statement.rollback(savepoint)
        return unplaced is None

    def _make_room_for_higher(self, steps: Steps) -> None:
        """Make room for the groups of higher priority that come before steps: each of them is tried once.

        Of the same queue these are all that do not fit; of other queues those that their queues are owed.
        """
        session, order, priority = self.session, self._order, _priority_of(steps)
        unhelped = self._unhelped_in.get(session.accounts.queue_of(steps[0][0].group), [])
        while unhelped and unhelped[0][2].priority > priority:
            self._make_room(unhelped.pop(0)[2], if_owed=False)
        while self._unhelped and -self._unhelped[0][0][0] > priority:
            _, key = heapq.heappop(self._unhelped)
            self._make_room(session.pending_groups[key], if_owed=True)
        while (claimant := order.first_above(priority)) is not None:
            order.pass_over()
            if claimant.blocked or not self._is_owed(claimant):
                continue
            wanted, _ = session.gangs.joint_steps(claimant)
            if not self._start(wanted, decides=False):
                order.remove(claimant)
                self._block(wanted)
                if not claimant.deferred:
                    self._make_room(claimant, if_owed=True)

    def _make_room(self, pending_group: PendingGroup, *, if_owed: bool) -> None:
        """Have running pods evicted for a group, by the first action that can.

        Args:
            if_owed: whether that is done only if its queue is owed what it asks for; otherwise an elastic group gets
                room for further pods, too.
        """
        observer = self.session.observer
        going_on = pending_group.key not in self._tried and not (if_owed and not self._is_owed(pending_group))
        while going_on:
            self._tried.add(pending_group.key)
            going_on = False
            for action in self._evicting:
                if observer is not None:
                    observer.begins(action.action)
                    observer.takes_up(pending_group.key)
                if action.make_room(pending_group):
                    going_on = not if_owed and pending_group.workload.satisfied(pending_group.workload.counts)
                    # Evictions move the victims' queues forward.
                    self._order.renew()
                    break
            if observer is not None:
                observer.begins(Action.ALLOCATE)

    def _might_be_helped(self, pending_group: PendingGroup) -> bool:
        group = pending_group.group
        key = group.queue, group.namespace, group.priority
        helpable = self._helpable.get(key)
        if helpable is None:
            helpable = self._helpable[key] = any(action.might_help(pending_group) for action in self._evicting)
        return helpable

    def _is_owed(self, pending_group: PendingGroup) -> bool:
        """Tell whether a group that evicting might help comes before groups of lower priority of other queues.

        Its queue must be owed what the group asks for, once those have made way that may be preempted for it.
        """
        tried = pending_group.nominated or pending_group.key in self._tried
        if tried or not self._might_be_helped(pending_group):
            return False
        steps, _ = self.session.gangs.joint_steps(pending_group)
        making_way = {
            one.key: (one, held)
            for action in self._evicting
            for other, _ in steps
            for one, held in action.making_way(other)
        }
        accounts, requests = self.session.accounts, self.session.gangs.requests_of(steps)
        return accounts.is_owed(requests, list(making_way.values()))

    def _start(self, steps: Steps, *, decides: bool = True) -> bool:  # long: what is tried, and what is left of it
        """Place the pods of steps that start at once; otherwise leave the reasons with their groups.

        Args:
            decides: whether they do start; otherwise it is only found out whether they could.
        """
        session = self.session
        members = members_of(steps)
        class_counts = session.gangs.class_counts_of(steps)
        own, takeable = session.reservations.usable_by(steps)
        constrained = any(pending_group.workload.constrained for pending_group, _ in steps)
        shape = session.step_placer.shape(steps) if constrained else ()
        no_room = self._no_room.get(shape, ())
        known_to_fail = not own and not takeable and (bool(no_room) or self._failures.include(class_counts))
        placed: int | None = None
        refusal: tuple[Reason, ...] = ()
        promise = session.promise
        known_to_delay = decides and self._delaying and self._delay_shape(steps, class_counts) in self._delaying
        if promise is not None and known_to_delay and promise.binds(steps):
            self._hold_back(steps, promise)
            return False
        delays: list[PromisedStart] = []
        for placer, taken in self._tries(steps, takeable, delays):
            before_try = session.savepoint()
            suspended = session.reservations.suspend([*own, *taken])
            refusal = self._refusal(steps)
            if not refusal and not known_to_fail:
                outcome = session.step_placer.place(steps, placer, plans=True)
                fits = outcome.unplaced is None
                if fits and not decides:
                    session.undo(before_try)
                    return True
                if fits and self._takes_room_of_higher(steps):
                    session.undo(before_try)
                    self._make_room_for_higher(steps)
                    return self._start_what_is_left(steps[0][0])
                if fits and session.placers.defers(outcome.assignments):
                    session.undo(before_try)
                    self._defer(steps)
                    return False
                if fits and promise is not None and not promise.admits(steps, outcome.assignments, suspended):
                    session.undo(before_try)
                    delays.append(promise)
                    continue
                if outcome.unplaced is None:
                    if session.nodes.has_future:
                        session.reservations.suspend([*own, *taken], future=True)
                    session.start(steps, outcome.assignments, suspended)
                    if promise is not None:
                        session.promise = promise.left_by(steps)
                    return True
                placed = len(outcome.assignments)
                if outcome.refusal is None:
                    self._explain(outcome.unplaced)
                else:
                    no_room = (outcome.refusal.reason, *self._node_reasons(members))
            session.undo(before_try)
        alike = not own and not takeable and not self._delaying
        first, before = steps[0][0], steps[0][0].reasons
        if refusal:
            for pending_group, _ in steps:
                pending_group.reasons = refusal
            if alike:
                self._alike.note(first, before)
            return False
        if delays:
            self._delaying.add(self._delay_shape(steps, class_counts))
            self._hold_back(steps, delays[0])
            return False
        may_fit_later = (session.nodes.now.may_fit_later(session.pods.classes[key]) for key in class_counts)
        if placed is not None and not own and not any(may_fit_later):
            if not constrained:
                self._failures.add(class_counts)
            elif no_room:
                self._no_room[shape] = no_room
        self._leave_reasons(steps, class_counts, placed=placed, no_room=no_room)
        if alike and self._failures.include(class_counts):
            self._alike.note(first, before)
        return False

    def _start_what_is_left(self, pending_group: PendingGroup) -> bool:
        """Start what a group starts next after others had room made, for which pods of it may have been evicted."""
        steps, reasons = self.session.gangs.joint_steps(pending_group)
        pending_group.reasons = reasons or pending_group.reasons
        return bool(steps) and self._start(steps)

    def _defer(self, steps: Steps) -> None:
        """Leave groups with room on the nodes of another replica to a cycle after that replica's."""
        for pending_group, _ in steps:
            pending_group.deferred = True
        self.session.record.wait_until(self.session.cycle_input.now + _DEFERRED_US)

    def _tries(
        self, steps: Steps, takeable: Sequence[PendingGroup], delays: Sequence[PromisedStart]
    ) -> Iterator[tuple[Placer, Sequence[PendingGroup]]]:
        """Yield how steps are tried: on which placer, and over the reservations of which groups.

        Those that found room where they delay a promised start are tried beside its nodes.
        """
        for placer in self.session.placers.for_steps(steps):
            yield placer, ()
            if takeable:
                yield placer, takeable
        if delays:
            yield delays[0].elsewhere, ()

    def _delay_shape(self, steps: Steps, class_counts: Counter[str]) -> object:
        """Return a key of steps of which none starts without delaying the promised start if one does not."""
        queues = tuple(self.session.accounts.queue_of(pending_group.group) for pending_group, _ in steps)
        return self.session.step_placer.shape(steps), tuple(sorted(class_counts.items())), queues

    def _hold_back(self, steps: Steps, promise: PromisedStart) -> None:
        """Leave groups for which there is room to the time after the start of the group that room is promised to."""
        for pending_group, _ in steps:
            pending_group.reasons = (promise.reason,)

    def _explain(self, member: Member) -> None:
        """Keep the reasons why no node is for the class of a pod, as they are when its first pod finds none."""
        session = self.session
        pod_class = session.pods.class_of(member)
        if pod_class.key not in session.class_reasons:
            session.class_reasons[pod_class.key] = session.reasons_of_nodes(pod_class)

    def _node_reasons(self, members: Sequence[Member]) -> tuple[Reason, ...]:
        """Return why nodes are not for the classes of pods as they are now, whatever domains they are in."""
        session = self.session
        classes = {session.pods.key_of(member): session.pods.class_of(member) for member in members}
        return tuple(reason for key in sorted(classes) for reason in session.reasons_of_nodes(classes[key]))

    def _refusal(self, steps: Steps) -> tuple[Reason, ...]:
        """Return why queues do not let steps start together; empty if they do."""
        accounts = self.session.accounts
        before = accounts.savepoint()
        refusal: tuple[Reason, ...] = ()
        for group, request in self.session.gangs.requests_of(steps):
            refusal = accounts.refusal(group, request)
            if refusal:
                break
            if len(steps) > 1:
                accounts.charge(group, request)
        accounts.undo(before)
        return refusal

    def _leave_reasons(
        self, steps: Steps, class_counts: Counter[str], *, placed: int | None, no_room: tuple[Reason, ...]
    ) -> None:
        """Leave with groups why their steps do not start.

        Args:
            class_counts: how many pods of each class that is.
            placed: how many pods found a node before one did not; None if none was tried.
            no_room: why no domain of a network topology has room; empty if it is not that.
        """
        session = self.session
        members = members_of(steps)
        nominated = sum(member.nomination is not None for member in members)
        classes = sorted({session.pods.key_of(member) for member in members})
        reasons = tuple(reason for key in classes for reason in session.class_reasons.get(key, ()))
        kept_from = self._room_kept_from(steps, class_counts)
        kept = () if kept_from is None else (kept_from,)
        for pending_group, _ in steps:
            if pending_group.nominated:
                pending_group.reasons = _waits_for_victims(pending_group, nominated) or pending_group.reasons
            elif no_room:
                pending_group.reasons = (*kept, *no_room)
            elif len(members) > 1 and placed is not None:
                pending_group.reasons = (*kept, GangDoesNotFit(pods=len(members), fitting_pods=placed), *reasons)
            elif len(members) > 1:
                pending_group.reasons = (*kept, GangDoesNotFit(pods=len(members)), *reasons)
            else:
                pending_group.reasons = (*kept, *reasons)

    def _room_kept_from(self, steps: Steps, class_counts: Counter[str]) -> RoomKeptForOthers | None:
        """Return the group with the reservation that keeps steps from starting; None if they do not fit without any.

        Nodes only get fuller while a cycle allocates, so it is found out once for steps that are alike.
        """
        session = self.session
        homes = session.reservations.homes
        if not (session.reservations or homes) or all(pending_group.nominated for pending_group, _ in steps):
            return None
        shape = session.step_placer.shape(steps), tuple(sorted(class_counts.items()))
        if shape not in self._kept_from:
            others = session.reservations.except_of(pending_group for pending_group, _ in steps)
            statement = session.nodes.statement
            savepoint = statement.savepoint()
            for assignment in others:
                statement.evict(assignment.reserved_charge)
            for home in homes:
                statement.evict(msgspec.structs.replace(home.reserved_charge, marks=()))
            outcome = session.step_placer.place(steps, session.nodes.now, plans=True)
            statement.rollback(savepoint)
            rows = {assignment.row for assignment in outcome.assignments}
            kept = [*others, *homes]
            fits = outcome.unplaced is None and kept
            self._kept_from[shape] = self._first_of(kept, among=rows) if fits else None
        return self._kept_from[shape]

    def _first_of(self, reserved: Sequence[Assignment], *, among: AbstractSet[int]) -> RoomKeptForOthers:
        """Return the reservation that comes first of those on some rows, or of all if there are none on these."""
        session = self.session
        there = [assignment for assignment in reserved if assignment.row in among] or reserved
        known = session.pending_groups
        waiting = {assignment.member.group for assignment in there if assignment.member.group in known}
        first = min(waiting, key=lambda key: known[key].reservation_order_key, default=there[0].member.group)
        rows = {assignment.row for assignment in there if assignment.member.group == first}
        example = min(session.nodes.columns.names[row] for row in rows)
        return RoomKeptForOthers(nodes=len(rows), example=example, group=display_key(first))


class _Failures:
    """Sets of pods that do not fit. Nodes only get fuller while a cycle allocates, so larger sets do not fit either."""

    def __init__(self) -> None:
        #: By class, the least number of pods of it alone that does not fit.
        self._least: dict[str, int] = {}
        #: Sets of pods of several classes.
        self._mixed: set[tuple[tuple[str, int], ...]] = set()

    def include(self, class_counts: Counter[str]) -> bool:
        """Tell whether so many pods by class are known not to fit."""
        if any(count >= self._least.get(key, count + 1) for key, count in class_counts.items()):
            return True
        return len(class_counts) > 1 and tuple(sorted(class_counts.items())) in self._mixed

    def add(self, class_counts: Counter[str]) -> None:
        """Note that so many pods by class do not fit."""
        if len(class_counts) == 1:
            ((key, count),) = class_counts.items()
            self._least[key] = min(count, self._least.get(key, count))
        else:
            self._mixed.add(tuple(sorted(class_counts.items())))


def _priority_of(steps: Steps) -> int:
    return max(pending_group.priority for pending_group, _ in steps)


def _waits_for_victims(pending_group: PendingGroup, nominated: int) -> tuple[Reason, ...]:
    """Return the reason of a group for which earlier cycles made room; none if only this one did, which said so."""
    nominations = [member.nomination for member in pending_group.unplaced]
    nodes: Sequence[str] = sorted(nomination.node for nomination in nominations if nomination is not None)
    return (WaitsForVictims(nodes=len(set(nodes)), example=nodes[0], pods=nominated),) if nodes else ()
