"""The actions that evict running pods: Consolidate, Reclaim and Preempt, on one base.

Consolidate moves running pods so that a group fits; every moved pod has another place. Preempt evicts pods of lower
priority within a queue. Reclaim takes back the resources that other queues use beyond their fair share. They differ in
the pods that they may evict. All keep the same rules. Nothing is evicted unless the whole step provably fits
afterwards, zones included. A gang goes as a whole or keeps its minimum. Budgets, minimum runtimes and delays are
honoured. The room is reserved for the preemptor. No pod is evicted for a step that fits as soon as pods that already
leave are gone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from kaicore.rules.engine.actions.action import AlikeGroups, CycleAction, GroupOrder
from kaicore.rules.engine.config import Action, PlacementStrategy
from kaicore.rules.engine.cycle_input import moved_within_a_day
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.candidates import Candidates
from kaicore.rules.engine.victims.room import (
    FreedRoom,
    RoomSearch,
    Shortfall,
    VictimRules,
    gain_of,
    is_full,
    is_scattered,
    obstacle,
    won_by,
)
from kaicore.rules.engine.victims.victim_set import Choice
from kaicore.rules.engine.work.gang_planner import Steps
from kaicore.rules.engine.work.pending_group import AlikeLine, PendingGroup
from kaicore.rules.engine.work.workload import Member, Workload
from kaicore.rules.events.payloads import EvictionDecided
from kaicore.rules.events.reasons import making_room
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.membership import display_key
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts
from kaicore.rules.queues.cycle_queues import GroupRequests

_SEARCH_ENDED = making_room.VictimSearchEnded()
_NEVER_PREEMPTS = making_room.NeverPreempts()


@dataclass(slots=True)
class _Failure:
    """A search that found no room.

    Attributes:
        candidates: the pods that might have been evicted.
        shortfall: why there was no room.
        reasons: what is left with groups for it, by their priority.
    """

    candidates: Candidates
    shortfall: Shortfall
    reasons: dict[int, tuple[Reason, ...]] = field(default_factory=dict)


class EvictionAction(CycleAction, VictimRules):
    """An action that has running pods evicted so that waiting pods can start.

    Attributes:
        action: its name in the configuration.
    """

    action: ClassVar[Action]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        #: By the kind of the group that victims are sought for (`_kind`).
        self._candidates: dict[object, Candidates] = {}
        self._failures: dict[object, _Failure] = {}
        #: Whether there is a running group that might make way for groups of a kind.
        self._has_victims: dict[object, bool] = {}

    def run(self) -> None:
        """Make room for one group after the other, and leave reasons with those for which there is none."""
        if not self.is_on:
            return
        self.serve_all(*self.wanting())

    def wanting(self) -> tuple[list[PendingGroup], list[AlikeLine]]:
        """Return the groups that room may be made for, those of uniform lines by line."""
        return self.session.pending_groups.apart(
            lambda one: not (one.nominated or one.deferred) and any(one.waiting.values())
        )

    def serve_all(self, apart: list[PendingGroup], in_lines: list[AlikeLine]) -> None:
        """Make room for groups in their order, but for those for which there is none in any case."""
        alike = AlikeGroups(self.session)
        apart, in_lines = self._without_vain(apart, in_lines, alike)
        if apart or in_lines:
            self.serve(GroupOrder(self.session, apart, alike, in_lines=in_lines), alike)

    def serve(self, order: GroupOrder, alike: AlikeGroups | None) -> None:
        """Make room for groups in their order.

        Args:
            alike: notes groups for which there is none; None where none is alike another.
        """
        growing: set[str] = set()
        while (pending_group := order.next()) is not None:
            if pending_group.nominated and pending_group.key not in growing:
                continue
            before = pending_group.reasons
            if not self.make_room(pending_group):
                if alike is not None:
                    alike.note(pending_group, before)
            else:
                if pending_group.workload.satisfied(pending_group.workload.counts):
                    # It has its minimum already; what is above that follows pod by pod.
                    growing.add(pending_group.key)
                    order.put_back(pending_group)
                # Evictions move the victims' queues forward.
                order.renew()

    def _without_vain(
        self, apart: list[PendingGroup], in_lines: list[AlikeLine], alike: AlikeGroups
    ) -> tuple[list[PendingGroup], list[AlikeLine]]:
        """Return groups without those that would get neither room nor a reason, found out once for all that are alike.

        Where none has any victims, nodes only get fuller. So a group of one pod gets none if no node will have as much
        free as its pod asks for. Of several queues all groups are returned: the first of each settles its turn.
        """
        session = self.session
        if self.moves or session.reservations or session.observer is not None:
            return apart, in_lines
        kinds = {line.kind: session.pending_groups[line.entries[0][1]] for line in in_lines}
        kinds |= {kind: one for one in apart if (kind := alike.kind_of(one))}
        others = [one for one in apart if not alike.kind_of(one)]
        if any(self.might_help(pending_group) for pending_group in (*kinds.values(), *others)):
            return apart, in_lines
        classes = {kind: session.pods.key_of(one.unplaced[0]) for kind, one in kinds.items()}
        vain = {kind for kind, key in classes.items() if self._fits_nowhere({key: 1})}
        lines_left = [line for line in in_lines if line.kind not in vain]
        left = [one for one in apart if one.kind not in vain]
        queues = {line.queue for line in lines_left} | {session.accounts.queue_of(one.group) for one in left}
        return (apart, in_lines) if len(queues) > 1 else (left, lines_left)

    def _fits_nowhere(self, class_counts: Mapping[str, int]) -> bool:
        """Tell whether the nodes will not take so many pods by class, if no more is evicted; by amounts alone."""
        session = self.session
        classes = [(session.pods.classes[key], count) for key, count in class_counts.items()]
        # Policies are asked all the same.
        if session.reservations or any(pod_class.work is not None for pod_class, _ in classes):
            return False
        return any(session.nodes.takes_in_future(pod_class) < count for pod_class, count in classes)

    @property
    def is_on(self) -> bool:
        """True if the shard's settings let the action do anything."""
        return True

    def might_help(self, pending_group: PendingGroup) -> bool:
        """Tell whether there is any running group that might make way for a group."""
        kind = self._kind(pending_group)
        if kind not in self._has_victims:
            self._has_victims[kind] = self._any_eligible(pending_group)
        return self._has_victims[kind]

    def _kind(self, pending_group: PendingGroup) -> object:
        """Return what groups have in common for which the same running groups might make way."""
        return self.session.accounts.queue_of(pending_group.group), pending_group.group.priority

    def making_way(self, pending_group: PendingGroup) -> GroupRequests:
        """Return what a group's own queue may be rid of for it: the sum, with one of the groups that hold it."""
        return ()

    def held_by(self, workloads: Sequence[Workload]) -> list[tuple[Group, Amounts]]:
        """Return what pods of groups hold that the cycle has not decided to evict: the sum, with the first group."""
        evicted = self.session.record.evicted
        held = self.session.pods.requests_of(
            one for workload in workloads for uid, one in workload.active.items() if uid not in evicted
        )
        return [(workloads[0].group, held)] if held else []

    # One group.

    def make_room(self, pending_group: PendingGroup) -> bool:
        """Make room for what a group is to start next; otherwise leave the reasons with it."""
        session = self.session
        steps, _ = session.gangs.joint_steps(pending_group)
        if not steps or any(other.nominated for other, _ in steps if other is not pending_group):
            return False
        class_counts = session.gangs.class_counts_of(steps)
        if any(session.never_fits(key) for key in class_counts):
            return False
        if refusal := self._own_refusal(steps):
            self._leave_reasons(pending_group, refusal)
            return False
        if self.moves and not is_scattered(session, steps):
            return False
        helpless = session.observer is None and not self.might_help(pending_group)
        attempt = self._attempt(steps, class_counts)
        # What finds no move may yet wait for the room of pods that leave.
        noted = self.moves, attempt
        in_vain = helpless and (self._fits_nowhere(class_counts) or session.nodes.failed_in_future(noted))
        # Without anything to evict, no reason is left but by what keeps pods from being moved.
        if in_vain and not self.moves:
            # Another group's victims may leave more room than it takes: what failed for one is not found by the next.
            self._failures.setdefault(attempt, _Failure(self._candidates_for(pending_group), Shortfall()))
            return False
        if attempt not in self._failures:
            refusal = (_SEARCH_ENDED,) if session.steps_left <= 0 else self._refusal_without_takeable(steps)
            if refusal:
                self._leave_reasons(pending_group, refusal)
                return False
            candidates = self._candidates_for(pending_group)
            shortfall = Shortfall() if in_vain else self._search(steps, candidates)
            if shortfall is None:
                return True
            if helpless and not session.reservations:
                session.nodes.note_failed_in_future(noted)
            self._failures[attempt] = _Failure(candidates, shortfall)
        failure, priority = self._failures[attempt], pending_group.group.priority
        if priority not in failure.reasons:
            failure.reasons[priority] = self._why_no_room(steps, failure)
        self._leave_reasons(pending_group, failure.reasons[priority])
        return False

    def _attempt(self, steps: Steps, class_counts: Counter[str]) -> object:
        """Return a key of searches of which all fail if one does.

        Of two such groups of one queue, the later one has no more victims than the earlier one, except for the groups
        that the earlier one starts together with and may not evict.
        """
        session, workloads = self.session, self.session.cycle_input.workloads
        group = steps[0][0].group
        own = session.gangs.started_with([pending_group.key for pending_group, _ in steps])
        spared = tuple(sorted(key for key in own if key in workloads and workloads[key].active))
        counts = tuple(sorted(class_counts.items()))
        # Where priority grows by waiting, a later group may have the higher one of its own.
        own_priority = group.priority if session.config.priority_aging else 0
        payer = session.accounts.queue_of(group), group.preemptible, group.admitted, own_priority
        return payer, counts, spared, session.step_placer.shape(steps)

    def _own_refusal(self, steps: Steps) -> tuple[Reason, ...]:
        """Return what of groups themselves keeps them from having pods evicted."""
        now = self.session.cycle_input.now
        for pending_group, step in steps:
            group = pending_group.group
            if any((group.preemption_policy or member.pod.preemption_policy) == "Never" for member in step.members):
                return (_NEVER_PREEMPTS,)
            evicted_at = pending_group.workload.evicted_at
            until = max(group.created_at * 1_000_000, evicted_at) + group.preemption_delay_us
            if now < until:
                self.session.record.wait_until(until)
                return (making_room.PreemptionDelayNotElapsed(until=until),)
        return ()

    def _refusal_without_takeable(self, steps: Steps) -> tuple[Reason, ...]:
        """Return why the action does nothing for steps, whatever victims there are."""
        session = self.session
        accounts = session.accounts.savepoint()
        session.reservations.take_off_accounts(session.reservations.takeable(steps))
        refusal = self.refusal(session.gangs.requests_of(steps))
        session.accounts.undo(accounts)
        return refusal

    # Victims.

    def _eligible(self, pending_group: PendingGroup) -> Sequence[Workload]:
        """Return the running groups that might make way for a waiting one, by what both are."""
        return self.session.running_groups.where(lambda workload: self.is_eligible(pending_group, workload))

    def _any_eligible(self, pending_group: PendingGroup) -> bool:
        return self.session.running_groups.any_where(lambda workload: self.is_eligible(pending_group, workload))

    def _candidates_for(self, pending_group: PendingGroup) -> Candidates:
        session, group, key = self.session, pending_group.group, self._kind(pending_group)
        if key not in self._candidates:
            workloads = self._eligible(pending_group) if self.might_help(pending_group) else ()
            now = session.cycle_input.now
            protected: dict[str, int] = {}
            least: dict[tuple[str, str], int] = {}
            for workload in workloads:
                victim = workload.group
                payer = victim.queue, "" if victim.queue else victim.namespace
                if payer not in least:
                    least[payer] = session.accounts.min_runtime_us(victim, for_group=group)
                if now < (until := workload.started_at + least[payer]):
                    protected[victim.key] = until
            self._candidates[key] = Candidates(session, workloads, protected=protected)
        return self._candidates[key]

    def _search(self, steps: Steps, candidates: Candidates) -> Shortfall | None:
        """Look for victims, and decide on those that are found; otherwise return why there are none."""
        session = self.session
        takeable = session.reservations.takeable(steps)
        statement = session.nodes.future.statement
        savepoint, accounts = statement.savepoint(), session.accounts.savepoint()
        suspended = session.reservations.suspend(takeable, future=True)
        session.reservations.take_off_accounts(takeable)
        reserved = session.reservations.except_of(takeable)
        search = RoomSearch(session, self, steps, candidates, reserved=reserved)
        with session.half_of_the_steps():
            room = search.run()
            search.shortfall.ended = session.steps_left <= 0
        session.accounts.undo(accounts)
        promise = session.promise
        assignments = room.victims.assignments if room is not None else ()
        if room is None or (promise is not None and not promise.admits(steps, assignments, suspended)):
            statement.rollback(savepoint)
            return search.shortfall
        self._take_room(steps, room, takeable)
        return None

    def _take_room(self, steps: Steps, room: FreedRoom, takeable: list[PendingGroup]) -> None:
        """Decide that victims are evicted and that their room is reserved for what is to start."""
        session, victim_sets = self.session, room.victims.victim_sets
        for victim_set in victim_sets:
            for group, held in victim_set.held_by(session.pods):
                session.accounts.release(group, held)
        preemptor = steps[0][0].key
        ended = {key for victim_set in victim_sets if not victim_set.shrinks for key in victim_set.groups}
        won = won_by(session, steps) if self.moves else 0
        evictions = [
            (member, self._eviction(member, preemptor, room, choice, shrinks=member.group not in ended, won=won))
            for victim_set, choice in zip(victim_sets, room.victims.choices, strict=True)
            for member in victim_set.members
        ]
        suspended = session.reservations.suspend(takeable)
        session.nominate(steps, room.victims.assignments, evictions, suspended, successors=room.successors.values())

    def _eviction(
        self, member: Member, preemptor: str, room: FreedRoom, choice: Choice, *, shrinks: bool, won: int
    ) -> EvictionDecided:
        session = self.session
        successor = room.successors.get(member.pod.uid)
        reason, rule = self.ground(session.cycle_input.workloads[member.group])
        return session.record.eviction(
            member,
            reason,
            failures_left=session.failures.left(member),
            preemptor=preemptor,
            shrinks=shrinks,
            fits_on="" if successor is None else session.nodes.columns.names[successor.row],
            choice=choice,
            won=won,
            rule=rule,
        )

    def ground(self, victim: Workload) -> tuple[EvictionReason, str]:
        """Return what is recorded as the reason for a victim, and the rule that lets it go if there is one."""
        return self.reason, ""

    # Reasons.

    def _leave_reasons(self, pending_group: PendingGroup, reasons: tuple[Reason, ...]) -> None:
        """Leave reasons with a group, if there is any running group that might make way for it."""
        if reasons and (self.might_help(pending_group) or (self.moves and self._obstacles)):
            news = [reason for reason in reasons if reason not in pending_group.reasons]
            pending_group.reasons = (*pending_group.reasons, *news)

    def _why_no_room(self, steps: Steps, failure: _Failure) -> tuple[Reason, ...]:
        """Return why a search found no room: what protects the pods that might have helped."""
        if failure.shortfall.ended:
            return (_SEARCH_ENDED,)
        session = self.session
        pending_group, _ = steps[0]
        reasons: list[Reason] = []
        if self.moves:
            reasons += [*self._why_not_moved(steps, failure.shortfall), *self._obstacles]
        elif self.might_help(pending_group):
            reasons.append(making_room.NoVictimsWouldHelp(action=self.reason))
        for keys in sorted(failure.shortfall.budgets):
            members = failure.candidates.members(lambda victim: self.is_eligible(pending_group, victim))
            if under := session.budgets.under(keys, members):
                reasons.append(self._protected_by(keys, pods=under))
        protected, until = self._protected(steps, failure.candidates)
        if protected:
            session.record.wait_until(until)
            reasons.append(making_room.WithinMinimumRuntime(pods=protected, until=until))
        return tuple(reasons)

    def _protected_by(self, budgets: tuple[str, ...], *, pods: int) -> Reason:
        if len(budgets) > 1:
            return making_room.UnderSeveralDisruptionBudgets(budgets=", ".join(budgets), pods=pods)
        allowed = self.session.budgets.allowed(budgets[0])
        return making_room.ProtectedByDisruptionBudget(budget=budgets[0], pods=pods, disruptions_allowed=allowed)

    def _protected(self, steps: Steps, candidates: Candidates) -> tuple[int, int]:
        """Count the pods that only a minimum runtime protects; with when the first of these runtimes ends."""
        accounts = self.session.accounts
        pending_group, _ = steps[0]
        requests = self.session.gangs.requests_of(steps)
        before = accounts.savepoint()
        for group, request in requests:
            accounts.charge(group, request)
        protected = candidates.protected(
            lambda victim: self.is_eligible(pending_group, victim) and self.may_evict(requests, victim)
        )
        accounts.undo(before)
        return protected

    def _why_not_moved(self, steps: Steps, shortfall: Shortfall) -> Iterator[Reason]:
        """Yield why no running pods were moved for steps."""
        if shortfall.stuck:
            yield making_room.NoOtherPlaceForThem(
                groups=len(shortfall.stuck), example_group=display_key(min(shortfall.stuck))
            )
        if shortfall.failing:
            example = display_key(min(shortfall.failing))
            yield making_room.JobWouldFail(groups=len(shortfall.failing), example_group=example)
        if shortfall.groups:
            yield making_room.TooManyToMove(groups=shortfall.groups, max_groups=self.session.config.consolidate_groups)
        if shortfall.pods:
            per_day = self.session.config.consolidate_pods_per_day
            yield making_room.TooManyToMove(pods=shortfall.pods, pods_left=self.most_pods or 0, per_day=per_day)
        if shortfall.cost:
            yield making_room.NotWorthMoving(cost=shortfall.cost, gain=gain_of(self.session, steps))
        if shortfall.lost:
            yield making_room.LosesTooMuchWork(lost=shortfall.lost, won=won_by(self.session, steps))
        if shortfall == Shortfall(budgets=shortfall.budgets):
            yield making_room.NoMoveWouldHelp()

    @cached_property
    def _obstacle_of(self) -> dict[str, making_room.Obstacle | None]:
        """The obstacle to moving each running group, by its key; None for those that may be moved."""
        session = self.session
        return {one.group.key: obstacle(session, one) for one in session.running_groups.workloads}

    @cached_property
    def _obstacles(self) -> tuple[Reason, ...]:
        """The obstacles to moving running pods, whatever that would be good for.

        Their number is left out: it changes all the time, and with it what is recorded of all waiting pods.
        """
        obstacles: dict[str, making_room.Obstacle] = {}
        for reason in self._obstacle_of.values():
            if reason is not None:
                before = obstacles.get(reason.code)
                obstacles[reason.code] = reason if before is None else reason.joined(before)
        moved = obstacles.get(making_room.MovedLately.__name__)
        if moved is not None:
            self.session.record.wait_until(moved.until)
        return tuple(obstacles[code] for code in sorted(obstacles))


class Consolidate(EvictionAction):
    """Evict pods that fit elsewhere, where that makes room for a group that is larger than what is moved.

    It does nothing where any pods are to be spread, since it would pack what spreading has put apart.
    """

    action = Action.CONSOLIDATE
    reason = EvictionReason.CONSOLIDATED
    moves = True

    @property
    def is_on(self) -> bool:
        """See `EvictionAction`."""
        config = self.session.config
        packed = all(config.strategy(devices=devices) is PlacementStrategy.BINPACK for devices in (True, False))
        moves = packed and config.consolidate_groups > 0
        return moves and (not config.consolidate_from_per_cent or is_full(self.session))

    def _eligible(self, pending_group: PendingGroup) -> Sequence[Workload]:
        """See `EvictionAction`: it is the same for all waiting groups, and another matter for each running one."""
        return self._movable

    def _any_eligible(self, pending_group: PendingGroup) -> bool:
        """See `EvictionAction`."""
        return bool(self._movable)

    @cached_property
    def _movable(self) -> list[Workload]:
        return [one for one in self.session.running_groups.workloads if self._obstacle_of[one.group.key] is None]

    def is_eligible(self, pending_group: PendingGroup, victim: Workload) -> bool:
        """Any group may make way that may be moved at all."""
        return obstacle(self.session, victim) is None

    @property
    def most_pods(self) -> int | None:
        """See `VictimRules`: what is left of the day's moves."""
        per_day = self.session.config.consolidate_pods_per_day
        if not per_day:
            return None
        decided = sum(one.reason == self.reason for one in self.session.record.evicted.values())
        return max(per_day - moved_within_a_day(self.session.cycle_input) - decided, 0)

    def refusal(self, requests: GroupRequests) -> tuple[Reason, ...]:
        """Moving pods gives no queue more than its limits, so the limits have to admit what is to start."""
        refused = self.session.accounts.refusals(requests)
        if self.most_pods != 0:
            return refused
        per_day = self.session.config.consolidate_pods_per_day
        return (making_room.TooManyToMove(pods=1, per_day=per_day), *refused)


class Preempt(EvictionAction):
    """Evict pods of lower priority of the same queue."""

    action = Action.PREEMPT
    reason = EvictionReason.PREEMPTED

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        #: See `making_way`; by queue and priority, with how many pods the cycle had evicted by then.
        self._making_way: dict[tuple[str, int], tuple[int, list[tuple[Group, Amounts]]]] = {}

    def making_way(self, pending_group: PendingGroup) -> GroupRequests:
        """See `EvictionAction`; nothing if the queue does not let it preempt."""
        session, group = self.session, pending_group.group
        key, evicted = (session.accounts.queue_of(group), group.priority), session.record.evicted
        known = self._making_way.get(key)
        if known is None or known[0] != len(evicted):
            eligible = [] if session.accounts.preempt_refusal(group) else self._eligible(pending_group)
            known = self._making_way[key] = len(evicted), self.held_by(eligible)
        return known[1]

    def is_eligible(self, pending_group: PendingGroup, victim: Workload) -> bool:
        """Groups of lower priority of the same queue may make way."""
        group, accounts = pending_group.group, self.session.accounts
        return victim.group.priority < group.priority and accounts.queue_of(victim.group) == accounts.queue_of(group)

    def refusal(self, requests: GroupRequests) -> tuple[Reason, ...]:
        """A queue may forbid preemption within it."""
        return tuple(reason for group, _ in requests for reason in self.session.accounts.preempt_refusal(group))


class Reclaim(EvictionAction):
    """Evict pods of queues that use more than their share, for groups of queues that use less."""

    action = Action.RECLAIM
    reason = EvictionReason.RECLAIMED
    spares_quotas = True

    def is_eligible(self, pending_group: PendingGroup, victim: Workload) -> bool:
        """Groups of other queues may make way, of lower priority only if the waiting group's queue says so."""
        return self.session.accounts.reclaims_from(pending_group.group, victim.group)

    def refusal(self, requests: GroupRequests) -> tuple[Reason, ...]:
        """A queue may not reclaim beyond its own share."""
        return self.session.accounts.reclaim_refusal(requests)

    def may_evict(self, requests: GroupRequests, victim: Workload) -> bool:
        """Only a queue that uses more than its share loses pods."""
        return self.session.accounts.may_reclaim(requests, victim.group)

    def keeps_quota(self, requests: GroupRequests, victim: Group, held: Amounts) -> bool:
        """A queue that uses more than its share keeps its quota if other victims suffice."""
        return self.session.accounts.keeps_quotas(requests, victim, held)

    def exchange_refusal(self, requests: GroupRequests, victims: GroupRequests) -> tuple[Reason, ...]:
        """All victims together may not be more than what the queues owe."""
        return self.session.accounts.exchange_refusal(requests, victims)
