"""The rule of reserved starts, EASY backfilling (decision 0660): when a group that does not fit can start, and what
would delay it.

Source: D. Lifka, "The ANL/IBM SP Scheduling System" (JSSPP 1995), with declared limits in the place of estimates.

`Outlook` takes pods off the nodes in the order in which they end, until a group fits and its queue has
a right to it. Nothing starts because of an end that is only assumed.

The ends of running pods, in the order in which they come, as vectors: what nodes and queues are rid of by them.

A pod ends by its declared limit, else by the runs of pods like it. One without both is assumed to go on for as long as
it has run: that only orders those pods. A reservation pod has no end of its own: it goes with the last pod that shares
its GPU.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from kaicore.rules.engine.decisions import GiveUpReason
from kaicore.rules.engine.placement.placer import Assignment, Placer
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.placement.share_fit import reservation_class
from kaicore.rules.engine.placement.statement import PodCharge
from kaicore.rules.engine.session.reservations import Suspended
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.ending_groups import stays
from kaicore.rules.engine.work.gang_planner import Steps, members_of
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.events.reasons.making_room import WouldDelay
from kaicore.rules.groups.membership import display_key
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.queues.cycle_queues import GroupRequests
from kaicore.rules.topology.placing.request import NO_LEVEL, GroupTopology

#: A pod without a limit is assumed to run for so long at least, microseconds.
_LEAST_US = 1_000_000


class End(NamedTuple):
    """The end of a pod.

    Attributes:
        at: microseconds since the epoch; for a pod without a limit assumed.
        group: key of the group with the queue that it counts for; empty where it counts for none.
        known: whether it ends by then by its limit, or leaves already.
        expected: whether runs like its own say so, where it has no limit.
        charge: what this cycle gave it; None for a pod that ran before.
    """

    at: int
    group: str
    member: Member
    row: int
    known: bool
    expected: bool
    charge: PodCharge | None = None

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.member.pod.uid


class Ends:
    """Ends in order. Those at one time are a moment.

    Attributes:
        each: in the order in which they come; of one time by group and uid.
        rows: of the nodes; shape (ends,).
        first: how many ends come before each moment, and how many there are in all; shape (moments + 1,).
    """

    def __init__(self, session: Session, each: Collection[End]) -> None:
        self._session = session
        self.each = sorted(each, key=lambda end: (end.at, end.group, end.member.pod.uid))
        self._at: Ints = np.array([end.at for end in self.each], np.int64)
        self.rows: Ints = np.array([end.row for end in self.each], np.int64)
        changes = np.flatnonzero(np.diff(self._at)) + 1
        self.first: Ints = np.concatenate([[0], changes, [len(self.each)]]) if self.each else np.zeros(1, np.int64)

    def __len__(self) -> int:
        """Return the number of moments."""
        return len(self.first) - 1

    def at(self, moment: int) -> int:
        """Return when a moment is, microseconds since the epoch."""
        return int(self._at[self.first[moment]])

    def until(self, at: int) -> int:
        """Return how many moments there are until a time, that time included."""
        return int(np.searchsorted(self.first[:-1], np.searchsorted(self._at, at, side="right")))

    def waited_for(self, rows: Collection[int], moments: int) -> list[End]:
        """Return the ends of the first moments that are yet to come: those on some rows, and all of the last moment.

        Where nodes are not all that is waited for, the last one is what queues wait for.
        """
        if not moments:
            return []
        stop, now = int(self.first[moments]), self._session.cycle_input.now
        wanted = np.isin(self.rows[:stop], list(rows))
        wanted[self.first[moments - 1] :] = True
        return [self.each[number] for number in np.flatnonzero(wanted & (self._at[:stop] > now)).tolist()]

    def released(self, begin: int, stop: int) -> GroupRequests:
        """Return what queues are rid of by some ends, summed up by what the accounts tell apart.

        Args:
            begin: number of the first of them.
            stop: number of the first one after them.
        """
        workloads, queue_of = self._session.cycle_input.workloads, self._session.accounts.queue_of
        members: dict[str, list[Member]] = {}
        for end in self.each[begin:stop]:
            if end.group:
                members.setdefault(end.group, []).append(end.member)
        alike: dict[tuple[object, bool, bool], list[str]] = {}
        for key in members:
            group = workloads[key].group
            alike.setdefault((queue_of(group), group.preemptible, group.admitted), []).append(key)
        requests_of = self._session.pods.requests_of
        return [
            (workloads[keys[0]].group, requests_of([member for key in keys for member in members[key]]))
            for keys in alike.values()
        ]

    def freed(self, resource: int, stop: int, among: Flags) -> Ints:
        """Return the amounts of a resource that the first ends leave free at most, by row.

        Args:
            stop: so many ends come first.
            among: the ends that count; shape (ends,).
        """
        freed = np.zeros(len(self._session.nodes.columns.present), np.int64)
        counted, (kinds, amounts) = among[:stop], self._by_kind
        np.add.at(freed, self.rows[:stop][counted], amounts[:, resource][kinds[:stop][counted]])
        return freed

    @cached_property
    def _by_kind(self) -> tuple[Ints, Ints]:
        """By end the number of its kind, and the amounts of each kind over the resources.

        Where pods have parts of GPUs, what holds these open may go, too.
        """
        columns, numbers = self._session.nodes.columns, dict[tuple[str, int], int]()
        kinds, amounts = np.zeros(len(self.each), np.int64), list[Ints]()
        for place, end in enumerate(self.each):
            member = end.member
            key = member.class_key, len(member.gpus)
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(numbers)
                held = columns.vector(member.requests)
                if member.gpus:
                    held = held + len(member.gpus) * columns.vector(reservation_class().requests)
                amounts.append(held)
            kinds[place] = number
        width = columns.used.shape[1]
        padded = [np.pad(one, (0, width - len(one))) for one in amounts]
        return kinds, np.array(padded, np.int64).reshape(len(padded), width)


class RunningEnds:
    """The ends of all pods that run in a cycle, worked out once for as long as it evicts no more."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._evicted = -1
        self._ends = Ends(session, [])

    def all(self) -> Ends:
        """Return the ends of all pods, those included that this cycle has put on nodes."""
        placed = list(_placed(self._session))
        return Ends(self._session, [*self._running().each, *placed]) if placed else self._running()

    def on(self, nodes: Collection[str]) -> Ends:
        """Return the ends of pods on some nodes."""
        names = self._session.nodes.columns.names
        placed = [end for end in _placed(self._session) if names[end.row] in nodes]
        return Ends(self._session, [*_running(self._session, nodes), *placed])

    @cached_property
    def known(self) -> bool:
        """True if a running pod ends later at a time that limits or runs of like pods say."""
        now = self._session.cycle_input.now
        return any((end.known and end.at > now) or end.expected for end in self._running().each)

    def _running(self) -> Ends:
        evicted = len(self._session.record.evicted)
        if evicted != self._evicted:
            self._evicted = evicted
            self._ends = Ends(self._session, list(_running(self._session, None)))
        return self._ends


def _running(session: Session, nodes: Collection[str] | None) -> Iterator[End]:
    given, evicted = session.cycle_input, session.record.evicted
    rows, now, own = given.columns.rows, given.now, session.config.scheduler_name
    reserves = given.columns.gpus.is_reservation
    for workload in given.workloads.values():
        for member in workload.leaving.values():
            if nodes is None or member.node in nodes:
                yield End(now, "", member, rows[member.node], known=True, expected=False)
        for uid, member in workload.active.items():
            if nodes is not None and member.node not in nodes:
                continue
            pod = member.pod
            if reserves(pod):
                continue
            if member.releasing or uid in evicted:
                yield End(now, "", member, rows[member.node], known=True, expected=False)
            elif not stays(pod):
                group = member.group if pod.scheduler_name == own else ""
                yield _end(session, member, group, rows[member.node], since=member.running_since)


def _placed(session: Session) -> Iterator[End]:
    """Yield the ends of pods that this cycle has put on nodes."""
    for pending_group in session.pending_groups.made:
        for assignment in pending_group.assignments:
            end = _end(session, assignment.member, pending_group.key, assignment.row, since=session.cycle_input.now)
            yield end._replace(charge=assignment.pod_charge)


def _end(session: Session, member: Member, group: str, row: int, *, since: int) -> End:
    given = session.cycle_input
    now, limit = given.now, given.limit_us(member)
    if limit >= 0:
        return End(max(since + limit, now), group, member, row, known=True, expected=False)
    age = max(now - since, 0)
    remaining = given.expected_us(member, age)
    if remaining >= 0:
        return End(now + remaining, group, member, row, known=False, expected=True)
    return End(now + max(age, _LEAST_US), group, member, row, known=False, expected=False)


#: How many more ends are looked at one by one where pods of several classes, each of which fits, do not fit together.
_MOST_FURTHER = 8


class Promise:
    """The promise to a group in a cycle.

    Attributes:
        assignments: where it is to start.
        starts_at: the earliest time at which it can, by declared limits and by runs of like pods, microseconds since
            the epoch; 0 where there is none that is yet to come.
        unlimited: how many pods without a limit are waited for.
        expected: of how many of them runs of like pods say the end.
        fits: whether nothing is waited for: it fits on the nodes without what leaves already.
        overridden: whether groups that come first started since it was worked out.
        at: when the last of what it waits for ends, microseconds since the epoch, known or assumed.
    """

    def __init__(
        self,
        session: Session,
        steps: Steps,
        assignments: Sequence[Assignment],
        *,
        placer: Placer,
        ends: Ends,
        passed: int,
        after: Sequence["Promise"] = (),
    ) -> None:
        """Args:
        assignments: where its pods go; charged.
        placer: on the nodes as they are by then.
        ends: of the pods on the nodes.
        passed: so many moments come before.
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
        waited_for = ends.waited_for(self.rows, passed)
        self.starts_at = max((end.at for end in waited_for if end.known or end.expected), default=0)
        self.unlimited = len({end.uid for end in waited_for if not end.known})
        self.expected = len({end.uid for end in waited_for if end.expected})
        self.fits = not waited_for
        self.at = max(ends.at(passed - 1) if passed else now, now)
        self.overridden = False
        self._ends, self._passed = ends, passed

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
            suspended: reservations that they take up, which are charged to the nodes by then.
        """
        if not self.binds(steps):
            priority = self.pending_group.priority
            self.overridden |= any(pending_group.priority > priority for pending_group, _ in steps)
            return True
        statement = self._placer.statement
        savepoint = self._admitted = statement.savepoint()
        for reservation in (one for _, kept in suspended for one in kept if one.row in self.rows):
            statement.evict(reservation.reserved_charge)
        there = [assignment for assignment in assignments if assignment.row in self.rows]
        for assignment in there:
            if self._placer.place_on(assignment.member, assignment.row) is None:
                statement.rollback(savepoint)
                yields = self._yields_to(steps, assignments)
                self.overridden |= yields
                return yields
        if self._keeps_right(steps):
            return True
        statement.rollback(savepoint)
        return False

    def _yields_to(self, steps: Steps, assignments: Sequence[Assignment]) -> bool:
        """Tell whether steps come first, in room that the group could start in if its queue were owed it yet.

        Theirs is. If the group took the room, its queue would be over its fair share, and lose other work for theirs.
        """
        session, now = self._session, self._session.nodes.now
        if has_right(session, self.steps) or not has_right(session, steps) or not self._keeps_right(steps):
            return False
        savepoint = now.statement.savepoint()
        for assignment in assignments:
            now.statement.evict(assignment.pod_charge)
        fits = session.step_placer.place(self.steps, now).unplaced is None
        now.statement.rollback(savepoint)
        return fits

    def take_back(self, steps: Steps) -> None:
        """Have steps not start that were admitted last."""
        if self.binds(steps):
            self._placer.statement.rollback(self._admitted)

    @cached_property
    def _released(self) -> GroupRequests:
        """The amounts that queues are rid of by then."""
        return self._ends.released(0, int(self._ends.first[self._passed]))

    def _keeps_right(self, steps: Steps) -> bool:
        """Tell whether the group's queue still has a right to start it by then, with other steps started now."""
        session = self._session
        before = session.accounts.savepoint()
        for others in (*self._after, steps):
            for group, request in session.gangs.requests_of(others):
                session.accounts.charge(group, request)
        # An end takes no right away.
        kept = has_right(session, self.steps)
        if not kept:
            for group, amounts in self._released:
                session.accounts.release(group, amounts)
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
        return self._session.placers.on(rows)

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

    Amounts as a whole say before which end steps certainly do not fit; only from there on nodes are looked at, and only
    those that may take a pod of theirs by the time.

    A context: while it is entered, the accounts of queues are as they will be; afterwards as before.
    """

    def __init__(self, session: Session, ends: Ends, after: Sequence[Promise] = ()) -> None:
        """Args:
        ends: of pods that are seen to end.
        after: promises that were made before: what is promised now begins no sooner.
        """
        self._session, self._after, self._ends = session, after, ends
        self._placer = session.placers.ahead()
        self._accounts = session.accounts.savepoint()
        #: So many moments have passed for what was promised before.
        self._least = 0
        count = len(session.nodes.columns.present)
        #: Rows from which pods are taken off: of what was promised before, and for what is looked at now.
        self._before, self._rows = np.zeros(count, np.bool_), np.ones(count, np.bool_)
        #: So many moments have passed, and the savepoints then, of the nodes and of the accounts.
        self._passed_on_nodes, self._passed_in_queues = [(0, 0)], [(0, self._accounts)]
        #: Whether queues have a right to start what is looked at before any moment has passed.
        self._is_owed = False
        self._is_kept = all(map(self._keep, after))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.accounts.undo(self._accounts)

    def promise(self, steps: Steps) -> Promise | GiveUpReason:
        """Return what can be promised to what does not start now, or why nothing can.

        What it returned before is void.
        """
        session, ends = self._session, self._ends
        if not self._is_kept:
            return GiveUpReason.NO_LONGER_FITS
        self._have_queues_pass(self._least)
        # An end takes no right away: queues matter only where they do not let it start before any.
        self._is_owed = has_right(session, steps)
        if not self._is_owed:
            # Nor once all have ended: no node is looked at for that.
            self._have_queues_pass(len(ends))
            if not has_right(session, steps):
                return GiveUpReason.NOT_OWED
        first = self._first(steps)
        if first is None:
            return GiveUpReason.NO_LONGER_FITS
        for number in range(first, min(first + _MOST_FURTHER, len(ends)) + 1):
            self._have_nodes_pass(number)
            outcome = session.step_placer.place(steps, self._placer)
            if outcome.unplaced is None:
                placed, after = outcome.assignments, self._after
                return Promise(session, steps, placed, placer=self._placer, ends=ends, passed=number, after=after)
        return GiveUpReason.NO_LONGER_FITS

    def _keep(self, promise: Promise) -> bool:
        """Charge what was promised before, from its start on; returns whether it fits there."""
        session = self._session
        self._least = max(self._ends.until(promise.at), self._least)
        classes = map(self._placer.class_of, members_of(promise.steps))
        rows = np.zeros(len(self._rows), np.bool_)
        rows[list(promise.rows)] = True
        self._rows = rows if all(map(self._counts, classes)) else np.ones_like(rows)
        self._have_queues_pass(self._least)
        self._have_nodes_pass(self._least)
        ends = list[End]()
        for assignment in promise.assignments:
            placed = self._placer.place_on(assignment.member, assignment.row)
            if placed is None:
                return False
            limit = session.cycle_input.limit_us(placed.member)
            runs = limit if limit >= 0 else session.cycle_input.expected_us(placed.member, 0)
            if runs >= 0:
                key, known = promise.pending_group.key, limit >= 0
                end = End(promise.at + runs, key, placed.member, placed.row, known, not known, placed.pod_charge)
                ends.append(end)
        for group, request in session.gangs.requests_of(promise.steps):
            session.accounts.charge(group, request)
        self._before |= self._rows
        self._passed_on_nodes = [(0, self._placer.statement.savepoint())]
        self._passed_in_queues = [(self._least, session.accounts.savepoint())]
        self._ends = Ends(session, [*self._ends.each, *ends])
        return True

    def _first(self, steps: Steps) -> int | None:
        """Return after how many moments steps fit first; None, with all passed, if they never do."""
        self._begin()
        amounts = _Amounts(self._session, self._placer, self._ends, steps, self._is_ahead)
        high = amounts.first(self._least)
        if high is None:
            return None
        own = all(map(self._counts, amounts.classes))
        low, further, reach = high - 1, 1, -1
        while True:
            if high > reach:
                self._begin()
                reach = min(high + _MOST_FURTHER, len(self._ends))
                self._rows = amounts.rows(reach) if own else np.ones_like(self._rows)
            if self._possible(steps, high):
                break
            if high == len(self._ends):
                return None
            low, high, further = high, min(high + further, len(self._ends)), 2 * further
        while high - low > 1:
            middle = (low + high) // 2
            if self._possible(steps, middle):
                high = middle
            else:
                low = middle
        return high

    @property
    def _is_ahead(self) -> Flags:
        """The ends of pods that are on the nodes yet, beside what was promised before; shape (ends,)."""
        ahead: Flags = ~self._before[self._ends.rows]
        ahead[int(self._ends.first[self._least]) :] = True
        return ahead

    def _possible(self, steps: Steps, number: int) -> bool:
        if not self._is_owed:
            self._have_queues_pass(number)
            if not has_right(self._session, steps):
                return False
        self._have_nodes_pass(number)
        return self._fits(steps)

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

    def _begin(self) -> None:
        """Have the nodes as they are with what was promised before, and no more pods off them."""
        self._placer.statement.rollback(self._passed_on_nodes[0][1])
        del self._passed_on_nodes[1:]

    def _have_nodes_pass(self, number: int) -> None:
        statement, ends = self._placer.statement, self._ends
        passed = _back_to(self._passed_on_nodes, number)
        statement.rollback(self._passed_on_nodes[-1][1])
        begin, stop = int(ends.first[passed]), int(ends.first[number])
        wanted = self._rows[ends.rows[begin:stop]] & self._is_ahead[begin:stop]
        for place in (np.flatnonzero(wanted) + begin).tolist():
            end = ends.each[place]
            statement.evict(end.charge or self._session.pods.charge_of(end.member))
        self._passed_on_nodes.append((number, statement.savepoint()))

    def _have_queues_pass(self, number: int) -> None:
        accounts, ends = self._session.accounts, self._ends
        passed = _back_to(self._passed_in_queues, number)
        accounts.undo(self._passed_in_queues[-1][1])
        for group, amounts in ends.released(int(ends.first[passed]), int(ends.first[number])):
            accounts.release(group, amounts)
        self._passed_in_queues.append((number, accounts.savepoint()))


def _back_to(passed: list[tuple[int, int]], number: int) -> int:
    """Forget what came after so many moments; return after how many the last savepoint is that is left."""
    while passed[-1][0] > number:
        passed.pop()
    return passed[-1][0]


class _Amounts:
    """The amounts that nodes have free as a whole after some moments, as far as steps ask for them.

    They are never less than what a pod can have there (`classes`: of the pods of the steps).
    """

    def __init__(self, session: Session, placer: Placer, ends: Ends, steps: Steps, ahead: Flags) -> None:
        """Args:
        ahead: the ends of pods that are on the nodes yet; shape (ends,).
        """
        self._placer, self._ends, self._ahead = placer, ends, ahead
        self.classes: list[PodClass] = []
        #: By group and class: the class, how many pods, and the domain of each row that all of them must share.
        self._wanted: list[tuple[PodClass, int, Ints | None]] = []
        for pending_group, step in steps:
            by_key = {session.pods.key_of(member): session.pods.class_of(member) for member in step.members}
            counts = session.pods.class_counts(step.members)
            for key, pod_class in by_key.items():
                self.classes.append(pod_class)
                self._wanted.append((pod_class, counts[key], _domains(session, pending_group)))

    def first(self, least: int) -> int | None:
        """Return before how many moments steps certainly do not fit, `least` or more; None if they never do."""
        every = len(self._ends)
        return bisect_left(range(every), True, least, key=self._enough) if self._enough(every) else None

    def rows(self, moments: int) -> Flags:
        """Return the rows that may take any of the pods after so many moments."""
        rows: Flags = np.logical_or.reduce([self._counts(pod_class, moments) > 0 for pod_class in self.classes])
        return rows

    def _enough(self, moments: int) -> bool:
        for pod_class, wanted, domains in self._wanted:
            counts = np.minimum(self._counts(pod_class, moments), wanted)
            if domains is None:
                most = counts.sum()
            else:
                there = np.flatnonzero(domains >= 0)
                most = np.bincount(domains[there], counts[there], minlength=1).max()
            if most < wanted:
                return False
        return True

    def _counts(self, pod_class: PodClass, moments: int) -> Ints:
        feasible, columns = self._placer.feasible_nodes(pod_class), self._placer.statement.columns
        stop = int(self._ends.first[moments])
        counts = np.where(feasible.eligible, np.iinfo(np.int64).max, 0)
        for resource in np.flatnonzero(feasible.need).tolist():
            free = columns.allocatable[:, resource] - columns.used[:, resource]
            free += self._ends.freed(resource, stop, self._ahead)
            counts = np.minimum(counts, free // feasible.need[resource])
        return np.maximum(counts, 0)


def _domains(session: Session, pending_group: PendingGroup) -> Ints | None:
    """Return by row the domain that all of a group's pods must share, -1 where a row is in none; None without one."""
    topology = session.topologies.of(pending_group.workload) if pending_group.workload.constrained else None
    if not isinstance(topology, GroupTopology) or topology.required_level == NO_LEVEL:
        return None
    return np.asarray(topology.tree.of_rows[topology.required_level])


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


def unstarted(pending_group: PendingGroup) -> bool:
    """Tell whether a group waits for room that this cycle has neither given nor kept for it."""
    workload = pending_group.workload
    if pending_group.nominated or pending_group.deferred or pending_group.assignments:
        return False
    return not (workload.is_gang and workload.satisfied(pending_group.counts))
