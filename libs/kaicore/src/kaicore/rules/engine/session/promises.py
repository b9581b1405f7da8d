"""The rule of reserved starts, EASY backfilling (decision 0660): when a group that does not fit can start, and what
would delay it.

Source: D. Lifka, "The ANL/IBM SP Scheduling System" (JSSPP 1995), with declared limits in the place of estimates.

`Outlook` takes pods off the nodes in the order in which they end, until a group fits and its queue has a right to it. A
pod ends by its declared limit, else by the runs of pods like it. One without both is assumed to go on for as long as it
has run: that only orders those pods, and nothing starts because of it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, Self

import numpy as np

from kaicore.rules.engine.decisions import GiveUpReason
from kaicore.rules.engine.placement.placer import Assignment, Placer
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.placement.statement import PodCharge
from kaicore.rules.engine.session.reservations import Suspended
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.ending_groups import STAYING
from kaicore.rules.engine.work.gang_planner import Steps, members_of
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.events.reasons.promise import WouldDelay
from kaicore.rules.groups.membership import display_key
from kaicore.rules.model.group import Group
from kaicore.rules.queues.cycle_queues import GroupRequests

#: A pod without a limit is assumed to run for so long at least, microseconds.
_LEAST_US = 1_000_000

#: How many more ends are looked at one by one where pods of several classes, each of which fits, do not fit together.
_MOST_FURTHER = 8


class _End(NamedTuple):
    """The end of a pod.

    Attributes:
        at: microseconds since the epoch; for a pod without a limit assumed.
        known: whether it ends by then by its limit, or leaves already.
        expected: whether runs like its own say so, where it has no limit.
        group: key of the group with the queue that it counts for; empty where it counts for none.
    """

    at: int
    known: bool
    expected: bool
    group: str
    member: Member
    charge: PodCharge


class _Moment:
    """Pods that end at the same time."""

    def __init__(self, session: Session, at: int, ends: tuple[_End, ...]) -> None:
        self._session, self.at, self.ends = session, at, ends

    @cached_property
    def released(self) -> GroupRequests:
        """The amounts that queues are rid of with them."""
        by_group: dict[str, list[Member]] = {}
        for end in self.ends:
            if end.group:
                by_group.setdefault(end.group, []).append(end.member)
        workloads, requests_of = self._session.cycle_input.workloads, self._session.pods.requests_of
        return [(workloads[key].group, requests_of(members)) for key, members in by_group.items()]


class Promise:
    """The promise to a group in a cycle.

    Attributes:
        pending_group: the group.
        assignments: where it is to start.
        starts_at: the earliest time at which it can, by declared limits and by runs of like pods, microseconds since
            the epoch; 0 where there is none that is yet to come.
        unlimited: how many pods without a limit are waited for.
        expected: of how many of them runs of like pods say the end.
        fits: whether nothing is waited for: it fits on the nodes without what leaves already.
        overridden: whether groups of higher priority started since it was worked out.
        steps: what is to start.
        at: when the last of what it waits for ends, microseconds since the epoch, known or assumed.
    """

    def __init__(
        self,
        session: Session,
        steps: Steps,
        assignments: Sequence[Assignment],
        *,
        placer: Placer,
        passed: Sequence[_Moment],
        after: Sequence["Promise"] = (),
    ) -> None:
        """Args:
        session: the cycle.
        steps: what is to start.
        assignments: where its pods go; charged.
        placer: on the nodes as they are by then.
        passed: what ends before.
        after: promises that were made before, and are kept first.
        """
        self._session, self.steps, self._placer = session, steps, placer
        self._after = [earlier.steps for earlier in after]
        self._admitted = placer.statement.savepoint()
        self._keys = {pending_group.key for pending_group, _ in steps}
        self.pending_group = steps[0][0]
        self.assignments = assignments
        self.rows = frozenset(assignment.row for assignment in assignments)
        now = session.cycle_input.now
        ends = [end for moment in passed for end in moment.ends if end.charge.row in self.rows and end.at > now]
        # Where nodes are not all that it waits for, the last end is what its queue waits for.
        ends += [end for end in passed[-1].ends if end.at > now] if passed else []
        self.starts_at = max((end.at for end in ends if end.known or end.expected), default=0)
        self.unlimited = len({end.charge.uid for end in ends if not end.known})
        self.expected = len({end.charge.uid for end in ends if end.expected})
        self.fits = not ends
        self.at = max(passed[-1].at if passed else now, now)
        self.overridden = False
        self._released = _by_queue(session, passed)

    @property
    def reason(self) -> WouldDelay:
        """The reason why other groups wait for this one."""
        names = self.names
        group = display_key(self.pending_group.key)
        return WouldDelay(nodes=len(names), example=names[0], group=group, starts_at=self.starts_at)

    @property
    def names(self) -> list[str]:
        """The nodes on which the group is to start, sorted."""
        return sorted(self._session.nodes.columns.names[row] for row in self.rows)

    def is_for(self, steps: Steps) -> bool:
        """Tell whether the promise is to these steps."""
        return any(pending_group.key in self._keys for pending_group, _ in steps)

    def binds(self, steps: Steps) -> bool:
        """Tell whether steps may start only where they do not delay the group.

        Groups of higher priority may, and what ends before the group can start: by its declared limits, or else by the
        runs of like pods.
        """
        if self.is_for(steps):
            return False
        if max(pending_group.priority for pending_group, _ in steps) > self.pending_group.priority:
            return False
        left = self.starts_at - self._session.cycle_input.now
        given = self._session.cycle_input
        limits = ((member, given.limit_us(member)) for member in members_of(steps))
        runs = (limit if limit >= 0 else given.expected_us(member, 0) for member, limit in limits)
        return not all(0 <= run <= left for run in runs)

    def admits(self, steps: Steps, assignments: Sequence[Assignment], suspended: Suspended) -> bool:
        """Tell whether steps that start now leave the group the room and the right to start when it can.

        What they need by then is charged if they do.

        Args:
            steps: charged to no queue yet.
            assignments: where their pods go now.
            suspended: reservations that they take up, which are charged to the nodes by then.
        """
        if not self.binds(steps):
            priority = self.pending_group.priority
            self.overridden |= any(pending_group.priority > priority for pending_group, _ in steps)
            return True
        statement = self._placer.statement
        savepoint = self._admitted = statement.savepoint()
        for reservation in (one for _, kept in suspended for one in kept if one.row in self.rows):
            statement.evict(reservation.pod_charge)
        there = [assignment for assignment in assignments if assignment.row in self.rows]
        for assignment in there:
            if self._placer.place_on(assignment.member, assignment.row) is None:
                statement.rollback(savepoint)
                return False
        if self._keeps_right(steps):
            return True
        statement.rollback(savepoint)
        return False

    def take_back(self, steps: Steps) -> None:
        """Have steps not start that were admitted last."""
        if self.binds(steps):
            self._placer.statement.rollback(self._admitted)

    def _keeps_right(self, steps: Steps) -> bool:
        """Tell whether the group's queue still has a right to start it by then, with other steps started now."""
        session = self._session
        before = session.accounts.savepoint()
        for group, amounts in self._released:
            session.accounts.release(group, amounts)
        for others in (*self._after, steps):
            for group, request in session.gangs.requests_of(others):
                session.accounts.charge(group, request)
        kept = has_right(session, self.steps)
        session.accounts.undo(before)
        return kept


class Promises:
    """The promises to a shard's groups: to one with EASY backfilling, to several with conservative.

    Attributes:
        each: those that were made first before the others.
    """

    def __init__(self, session: Session, each: Sequence[Promise]) -> None:
        """Args: session: the cycle; each: at least one."""
        self._session, self.each, self._refusing = session, each, each[0]

    @property
    def reason(self) -> WouldDelay:
        """The reason why other groups wait: the last promise in the way."""
        return self._refusing.reason

    @cached_property
    def elsewhere(self) -> Placer:
        """Places pods now on the nodes that none of the groups needs."""
        rows = np.ones(len(self._session.nodes.columns.present), np.bool_)
        for promise in self.each:
            rows[list(promise.rows)] = False
        return self._session.placer_now_on(rows)

    def left_by(self, steps: Steps) -> "Promises | None":
        """Return what is still promised once steps have started."""
        started = [pending_group for pending_group, _ in steps]
        left = [promise for promise in self.each if promise.pending_group not in started]
        return self if len(left) == len(self.each) else together(self._session, left)

    def _before(self, steps: Steps) -> Iterator[Promise]:
        """Yield the promises that were made before one to these steps: later ones must not keep them from starting."""
        for promise in self.each:
            if promise.is_for(steps):
                return
            yield promise

    def binds(self, steps: Steps) -> bool:
        """Tell whether steps may start only where they do not delay some of the groups."""
        binding = next((promise for promise in self._before(steps) if promise.binds(steps)), None)
        self._refusing = binding or self._refusing
        return binding is not None

    def admits(self, steps: Steps, assignments: Sequence[Assignment], suspended: Suspended) -> bool:
        """Tell whether steps that start now leave all groups the room and the right to start when they can."""
        for number, promise in enumerate(self._before(steps)):
            if not promise.admits(steps, assignments, suspended):
                for earlier in self.each[:number]:
                    earlier.take_back(steps)
                self._refusing = promise
                return False
        return True


def together(session: Session, promises: Sequence[Promise]) -> Promises | None:
    """Return promises as one; None without any."""
    return Promises(session, promises) if promises else None


class Outlook:
    """The nodes and queues of a cycle as pods end, one after the other.

    A context: while it is entered, the accounts of queues are as they will be; afterwards as before.
    """

    def __init__(
        self, session: Session, after: Sequence[Promise] = (), *, nodes: Collection[str] | None = None
    ) -> None:
        """Args:
        session: the cycle.
        after: promises that were made before: what is promised now begins no sooner.
        nodes: only pods on these are seen to end; None for all.
        """
        self._session, self._after = session, after
        self._placer = session.placer_ahead()
        # What ends, in order; what leaves already ends now.
        self._moments = list(_in_order(session, _ends(session, nodes)))
        #: The savepoints of the nodes and of the accounts before each moment that has passed.
        self._before: list[tuple[int, int]] = []
        #: The savepoint before what was promised last; -1 for nothing.
        self._charged = -1
        self._accounts = session.accounts.savepoint()
        #: So many moments have passed for what was promised before.
        self._least = 0
        self._is_kept = all(map(self._keep, after))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.accounts.undo(self._accounts)

    def promise(self, steps: Steps) -> Promise | GiveUpReason:
        """Return what can be promised to what does not start now, or why nothing can.

        What it returned before is void.
        """
        session, statement = self._session, self._placer.statement
        if self._charged >= 0:
            statement.rollback(self._charged)
            self._charged = -1
        if not self._is_kept:
            return GiveUpReason.NO_LONGER_FITS
        if not self._is_ever_owed(steps):
            return GiveUpReason.NOT_OWED
        first = self._first(steps)
        if first is None:
            return GiveUpReason.NO_LONGER_FITS
        for number in range(first, min(first + _MOST_FURTHER, len(self._moments)) + 1):
            self._go_to(number)
            self._charged = statement.savepoint()
            outcome = session.step_placer.place(steps, self._placer)
            if outcome.unplaced is None:
                passed = self._moments[:number]
                return Promise(
                    session, steps, outcome.assignments, placer=self._placer, passed=passed, after=self._after
                )
            statement.rollback(self._charged)
        self._charged = -1
        return GiveUpReason.NO_LONGER_FITS

    def _keep(self, promise: Promise) -> bool:
        """Charge what was promised before, from its start on; returns whether it fits there."""
        session = self._session
        self._least = sum(moment.at <= promise.at for moment in self._moments)
        self._go_to(self._least)
        ends = [end for moment in self._moments[self._least :] for end in moment.ends]
        for assignment in promise.assignments:
            placed = self._placer.place_on(assignment.member, assignment.row)
            if placed is None:
                return False
            limit = session.cycle_input.limit_us(placed.member)
            runs = limit if limit >= 0 else session.cycle_input.expected_us(placed.member, 0)
            if runs >= 0:
                key = promise.pending_group.key
                ends.append(_End(promise.at + runs, limit >= 0, limit < 0, key, placed.member, placed.pod_charge))
        for group, request in session.gangs.requests_of(promise.steps):
            session.accounts.charge(group, request)
        self._moments[self._least :] = _in_order(session, ends)
        return True

    def _is_ever_owed(self, steps: Steps) -> bool:
        """Tell whether queues have a right to start steps, now or with all ended; no node is looked at for that."""
        if has_right(self._session, steps):
            return True
        accounts = self._session.accounts
        before = accounts.savepoint()
        for moment in self._moments[len(self._before) :]:
            for group, amounts in moment.released:
                accounts.release(group, amounts)
        owed = has_right(self._session, steps)
        accounts.undo(before)
        return owed

    def _first(self, steps: Steps) -> int | None:
        """Return after how many moments steps fit first; None, with all passed, if they never do."""
        low, high = self._least - 1, self._least
        while not self._possible(steps, high):
            if high == len(self._moments):
                return None
            low, high = high, min(2 * high + 1, len(self._moments))
        while high - low > 1:
            middle = (low + high) // 2
            if self._possible(steps, middle):
                high = middle
            else:
                low = middle
        return high

    def _possible(self, steps: Steps, number: int) -> bool:
        self._go_to(number)
        return has_right(self._session, steps) and self._fits(steps)

    def _fits(self, steps: Steps) -> bool:
        """Tell whether steps find room as the nodes are; of pods that are all alike they are only counted."""
        session = self._session
        classes = {pod_class.key: pod_class for pod_class in map(session.pods.class_of, members_of(steps))}
        constrained = any(pending_group.workload.constrained for pending_group, _ in steps)
        (pod_class, *others) = classes.values()
        if not (constrained or others) and self._counts(pod_class):
            wanted = len(members_of(steps))
            return int(self._placer.counts(pod_class, most=wanted).sum()) >= wanted
        savepoint = self._placer.statement.savepoint()
        unplaced = session.step_placer.place(steps, self._placer).unplaced
        self._placer.statement.rollback(savepoint)
        return unplaced is None

    def _counts(self, pod_class: PodClass) -> bool:
        """Tell whether pods of a class take room of their own node only."""
        plain = not (pod_class.volumes.wanted or pod_class.devices.wanted)
        return plain and not self._placer.feasible_nodes(pod_class).non_monotonic

    def _go_to(self, number: int) -> None:
        """Have so many moments pass."""
        session, statement = self._session, self._placer.statement
        if number < len(self._before):
            savepoint, accounts = self._before[number]
            statement.rollback(savepoint)
            session.accounts.undo(accounts)
            del self._before[number:]
        for moment in self._moments[len(self._before) : number]:
            self._before.append((statement.savepoint(), session.accounts.savepoint()))
            for end in moment.ends:
                statement.evict(end.charge)
            for group, amounts in moment.released:
                session.accounts.release(group, amounts)


def has_right(session: Session, steps: Steps) -> bool:
    """Tell whether queues let steps start, and are owed what they ask for."""
    accounts, requests = session.accounts, session.gangs.requests_of(steps)
    before = accounts.savepoint()
    allowed = True
    for group, request in requests:
        allowed = allowed and not accounts.refusal(group, request)
        accounts.charge(group, request)
    accounts.undo(before)
    return allowed and accounts.keeps_shares(requests)


def knows_ends(session: Session) -> bool:
    """Tell whether a running pod ends later at a time that limits or runs of like pods say."""
    given = session.cycle_input
    return any(
        given.limit_us(member) >= 0 or given.expected_us(member, max(given.now - member.running_since, 0)) >= 0
        for workload in given.workloads.values()
        for member in workload.active.values()
    )


def _in_order(session: Session, unordered: Iterable[_End]) -> Iterator[_Moment]:
    for at, ends in groupby(sorted(unordered, key=lambda end: (end.at, end.group, end.charge.uid)), attrgetter("at")):
        yield _Moment(session, at, tuple(ends))


def _ends(session: Session, nodes: Collection[str] | None) -> Iterable[_End]:
    given = session.cycle_input
    for workload in given.workloads.values():
        for member in (*workload.active.values(), *workload.leaving.values()):
            if nodes is not None and member.node not in nodes:
                continue
            owner, charge = member.pod.owner, session.pods.charge_of(member)
            if member.releasing or member.pod.uid in workload.leaving or member.pod.uid in session.record.evicted:
                yield _End(given.now, known=True, expected=False, group="", member=member, charge=charge)
            elif owner is None or owner.kind not in STAYING:
                group = member.group if member.pod.scheduler_name == session.config.scheduler_name else ""
                yield _end(session, member, charge, group, since=member.running_since)
    for pending_group in session.pending_groups.values():
        for assignment in pending_group.assignments:
            yield _end(session, assignment.member, assignment.pod_charge, pending_group.key, since=given.now)


def _end(session: Session, member: Member, charge: PodCharge, group: str, *, since: int) -> _End:
    now, limit = session.cycle_input.now, session.cycle_input.limit_us(member)
    if limit >= 0:
        return _End(max(since + limit, now), True, False, group, member, charge)
    age = max(now - since, 0)
    remaining = session.cycle_input.expected_us(member, age)
    if remaining >= 0:
        return _End(now + remaining, False, True, group, member, charge)
    return _End(now + max(age, _LEAST_US), False, False, group, member, charge)


def _by_queue(session: Session, passed: Sequence[_Moment]) -> GroupRequests:
    """Return what queues are rid of in all, summed up by what the accounts tell apart."""
    sums: dict[tuple[str, bool, bool], tuple[Group, dict[str, int]]] = {}
    for moment in passed:
        for group, amounts in moment.released:
            key = session.accounts.queue_of(group), group.preemptible, group.admitted
            _, total = sums.setdefault(key, (group, {}))
            for resource, amount in amounts.items():
                total[resource] = total.get(resource, 0) + amount
    return list(sums.values())


def unstarted(pending_group: PendingGroup) -> bool:
    """Tell whether a group waits for room that this cycle has neither given nor kept for it."""
    workload = pending_group.workload
    if pending_group.nominated or pending_group.deferred or pending_group.assignments:
        return False
    return not (workload.is_gang and workload.satisfied(pending_group.counts))
