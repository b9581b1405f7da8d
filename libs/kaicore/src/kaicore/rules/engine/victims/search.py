"""The search for pods to evict so that all of a group fits, on the future nodes.

Everything is tried on the future nodes (`kaicore.rules.engine.placement.placer`). Victims are removed, the
preemptor is placed with its zones, and unneeded victims are put back at their old places. So the result is known to
fit.

1. Place pod by pod. Where one fits no node, evict at the lowest cost. Only nodes with a lowest possible cost below the
   best known one are searched. While a limit of the preemptor's queue, or of one above it, is in the way, only pods are
   evicted that also make room below it.
2. If a limit is still in the way, evict the pods that relieve it most cheaply. Where that fails, because the pods below
   the limit are not where room is needed, do this first.
3. Put back the victims that are not needed, the dearest first.

A group with a topology constraint is searched domain by domain, the cheapest first. In a domain the search sees the
free amounts of all rows, and the amounts of the victims on the rows with the lowest eviction cost. Rows are added, the
cheapest first, until all pods fit or all rows of the domain are in. KAI-Scheduler v0.17.0 cannot do this in a packed
domain (issue 1591).

The cost of an eviction, and the pods that go together, are in `kaicore.rules.engine.victims.candidates`.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from kaicore.rules.engine.placement.placer import Assignment, in_placement_order, most_by_amounts
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.topology.step_placer import waiting_of
from kaicore.rules.engine.topology.unit_trial import PlacerRoom, UnitTrial
from kaicore.rules.engine.victims.candidates import Candidates
from kaicore.rules.engine.victims.node_victims import NodeVictims
from kaicore.rules.engine.victims.victim_set import Choice, VictimSet, name_of
from kaicore.rules.engine.work.gang_planner import Steps, members_of
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.events.reasons.queue import OverLimit
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.queues.cycle_queues import CycleQueues, GroupRequests
from kaicore.rules.topology.placing.request import NO_LEVEL, PodsByRow, Refused


def charge_all(accounts: CycleQueues, requests: GroupRequests) -> bool:
    """Charge groups with so much as far as their queues admit it; tells whether they admit all."""
    for group, request in requests:
        if accounts.refusal(group, request):
            return False
        accounts.charge(group, request)
    return True


#: So many domains are tried at most once one will do, as long as others may be cheaper.
_MORE_DOMAINS = 8


class DomainVictims:
    """Victims for the pods of one trial."""

    def __init__(self, trial: UnitTrial, evictions: "VictimSearch", candidates: Candidates) -> None:
        """Args:
        trial: of the pods, on the nodes as they will be.
        candidates: the pods that may be evicted.
        """
        self._trial = trial
        self._evictions = evictions
        self._candidates = candidates
        self._rooms = _Capacities(trial, candidates)

    def place(self) -> list[Assignment] | None:
        """Place the pods where evicting costs least.

        Returns:
            where they go; None, and nothing is changed, if no domain takes them whatever is evicted.
        """
        begin = self._evictions.savepoint()
        before = self._evictions.cost
        best: tuple[int, Ints] | None = None
        more = 0
        for estimate, rows in self._domains():
            if self._evictions.exhausted or (best is not None and (estimate >= best[0] or more >= _MORE_DOMAINS)):
                break
            more += best is not None
            if self._place_in(rows) is not None:
                cost = self._evictions.cost - before
                if best is None or cost < best[0]:
                    best = cost, rows
            self._evictions.rollback(begin)
        return None if best is None else self._place_in(best[1])

    def _domains(self) -> list[tuple[int, Ints]]:
        """Return the rows of each domain that may do, the cheapest first, by what it costs about."""
        level = self._trial.topology.required_level
        everything = np.flatnonzero(self._rooms.present)
        if level == NO_LEVEL:
            domains = [everything]
        else:
            of_rows = self._trial.topology.tree.of_rows[level]
            held = self._trial.asked.request.held
            numbers = np.unique(of_rows[everything] if held is None else of_rows[np.flatnonzero(held)])
            domains = [np.flatnonzero(of_rows == number) for number in numbers.tolist() if number >= 0]
        costs = [(self._rooms.cost(rows), rows) for rows in domains if self._rooms.may_take(rows)]
        return sorted(costs, key=lambda item: item[0])

    def _place_in(self, rows: Ints) -> list[Assignment] | None:
        """Place the pods on some rows, with victims of as few of these as will do."""
        begin = self._evictions.savepoint()
        for evicting in self._rooms.growing(rows):
            room = _EvictingRoom(self._trial, self._evictions, self._rooms, rows, evicting)
            if self._trial.search_in(room) is None:
                return room.assignments
            self._evictions.rollback(begin)
            if self._evictions.exhausted:
                break
        return None


class _Capacities:
    """The pods that rows take and the cost of that, as the nodes are when it is made."""

    def __init__(self, trial: UnitTrial, candidates: Candidates) -> None:
        self._candidates = candidates
        room = PlacerRoom(trial.placer, trial.asked.members)
        self.samples = room.samples
        self._wanted = [room.classes.count(number) for number in range(len(room.samples))]
        self._placer = trial.placer
        self._free = [room.counts(number) for number in range(len(room.samples))]
        self._after = [self.after(number) for number in range(len(room.samples))]
        #: The class with the most pods, by which rows are counted and ordered.
        self._main = self._wanted.index(max(self._wanted))
        self.present: Flags = trial.placer.statement.columns.present
        self._victims: dict[int, list[VictimSet]] = {}

    def after(self, pod_class: int) -> PodsByRow:
        """Return how many pods of a class rows take at most if all candidates there are gone, zones aside."""
        feasible = self._placer.feasible_nodes(self._placer.class_of(self.samples[pod_class]))
        columns = self._placer.statement.columns
        room = columns.allocatable - columns.used + self._candidates.sums()[0]
        requested = np.flatnonzero(feasible.need)
        counts: PodsByRow = (room[:, requested] // feasible.need[requested]).min(axis=1)
        return np.where(feasible.eligible, np.maximum(counts, 0), 0)

    def may_take(self, rows: Ints) -> bool:
        """Tell whether rows take all pods by counts, each class for itself, if all candidates there are gone."""
        numbers = range(len(self._wanted))
        return all(
            int(np.maximum(self._after[one], self._free[one])[rows].sum()) >= self._wanted[one] for one in numbers
        )

    def cost(self, rows: Ints) -> int:
        """Return what it costs about that rows take all pods: the victims on the cheapest, each set once."""
        by_cost = self._by_cost(rows)
        total, counted = 0, set[tuple[str, ...]]()
        for row, _ in by_cost[: self._fewest(rows, by_cost)]:
            for victim_set in self._victims_of(row):
                if victim_set.key[1:] not in counted:
                    counted.add(victim_set.key[1:])
                    total += victim_set.cost
        return total

    def growing(self, rows: Ints) -> Iterator[Ints]:
        """Yield rows where pods may be evicted: the fewest of the cheapest that may do, then more, at last all."""
        by_cost = self._by_cost(rows)
        ordered, count = [row for row, _ in by_cost], max(self._fewest(rows, by_cost), 1)
        while count < len(ordered):
            yield np.array(ordered[:count], np.int64)
            count *= 2
        yield np.array(ordered, np.int64)

    def _fewest(self, rows: Ints, by_cost: Sequence[tuple[int, int]]) -> int:
        """Return of how many rows, the cheapest first, the victims may be enough; of all if they never are."""
        lacking = self._wanted[self._main] - int(self._free[self._main][rows].sum())
        gained = accumulate((gain for _, gain in by_cost), initial=0)
        return next((count for count, gain in enumerate(gained) if gain >= lacking), len(by_cost))

    def _by_cost(self, rows: Ints) -> list[tuple[int, int]]:
        """Return the rows where evicting may help, with how many more pods each takes; cheapest for a pod first."""
        order = self._placer.statement.columns.name_order()
        gains = np.maximum(self._after[self._main] - self._free[self._main], 0)
        costs = []
        for row in rows.tolist():
            victims = self._victims_of(row)
            if victims:
                gain = int(gains[row])
                costs.append((sum(one.cost for one in victims) // max(gain, 1), int(order[row]), row, gain))
        return [(row, gain) for _, _, row, gain in sorted(costs)]

    def _victims_of(self, row: int) -> list[VictimSet]:
        if row not in self._victims:
            distinct: dict[tuple[str, ...], VictimSet] = {}
            for member in sorted(self._candidates.on_row.get(row, {}).values(), key=name_of):
                victim_set = self._candidates.victim_set(member)
                if victim_set is not None:
                    distinct.setdefault(victim_set.key[1:], victim_set)
            self._victims[row] = list(distinct.values())
        return self._victims[row]


class _EvictingRoom(PlacerRoom):
    """Rows of which some evict what holds their room."""

    def __init__(
        self, trial: UnitTrial, evictions: "VictimSearch", rooms: _Capacities, rows: Ints, evicting: Ints
    ) -> None:
        among = np.zeros(len(rooms.present), np.bool_)
        among[rows] = True
        super().__init__(trial.placer, trial.asked.members, among=among)
        self._evictions = evictions
        self._rooms = rooms
        self._evicting: Flags = np.zeros(len(rooms.present), np.bool_)
        self._evicting[evicting] = True

    def savepoint(self) -> int:
        return self._evictions.savepoint()

    def remaining(self) -> None:
        """See `Room.remaining`; more than that where pods are evicted."""

    def _count(self, pod_class: int) -> PodsByRow:
        free = super()._count(pod_class)
        return np.where(self._evicting, np.maximum(free, self._rooms.after(pod_class)), free)

    def _place(self, member: Member, row: int) -> Assignment | None:
        if self._evicting[row]:
            return self._evictions.place_evicting(member, row)
        return super()._place(member, row)

    def _undo(self, savepoint: int) -> None:
        self._evictions.rollback(savepoint)


#: How many times victims on one node are worked out anew for one pod.
_MOST_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Victims:
    """A way to make room.

    Attributes:
        assignments: where the preemptor's pods go.
        victim_sets: the pods that are evicted, in the order in which they were chosen.
        choices: why each set was chosen.
    """

    assignments: tuple[Assignment, ...]
    victim_sets: tuple[VictimSet, ...]
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class _Mark:
    """The state of a search, to restore it later.

    Attributes:
        exceeded: the limits that are in the way.
        groups: of which pods are taken.
        banned: groups of which none may be.
    """

    statement: int
    accounts: int
    victim_sets: int
    exceeded: tuple[Reason, ...]
    groups: set[str]
    banned: set[str]


class VictimSearch:
    """One group's search."""

    def __init__(
        self,
        session: Session,
        candidates: Candidates,
        steps: Steps,
        *,
        admits: Callable[[VictimSet], bool],
        reserved: Sequence[Assignment],
        most_groups: int | None = None,
        spared: Iterable[str] = (),
    ) -> None:
        """Args:
        candidates: the pods that may be evicted.
        admits: whether pods may go together, budgets aside, as things stand with what is to start charged.
        reserved: reservations of other groups that stay, charged already.
        most_groups: of how many groups pods are taken until the search gives up; those included that can stay in the
            end.
        spared: keys of groups of which nothing is evicted.
        """
        #: PodDisruptionBudgets that protected pods; several together for pods under several.
        self.budgets: set[tuple[str, ...]] = set()
        #: Of how many groups pods were taken when the search gave up because of that; 0 if it did not.
        self.too_many = 0
        #: Whether all would fit, by whole nodes' amounts, if every candidate were gone.
        self.conceivable = False
        self._session = session
        self._candidates = candidates
        self._admits = admits
        self._reserved = reserved
        self._most_groups = most_groups
        self._requests = session.gangs.requests_of(steps)
        self._kept = {*session.gangs.started_with([pending_group.key for pending_group, _ in steps]), *spared}
        self._steps = steps
        self._members = members_of(steps)
        self._placer = session.nodes.future
        self._node_victims = NodeVictims(session, candidates, self._placer)
        #: The limits that what is to start would exceed, as things stand.
        self._exceeded: tuple[Reason, ...] = ()
        self._victim_sets: list[VictimSet] = []
        self._choices: list[Choice] = []
        self._groups: set[str] = set()
        self._marks: list[_Mark] = []
        #: By class, a heap of the rows where evicting may help: what it costs at least, and the place of its name.
        self._heaps: dict[str, list[tuple[int, int]]] = {}

    @cached_property
    def _place_of_row(self) -> list[int]:
        places: list[int] = self._session.nodes.columns.name_order().tolist()
        return places

    @cached_property
    def _row_of_place(self) -> dict[int, int]:
        return {self._place_of_row[row]: row for row in range(len(self._session.nodes.columns.names))}

    def run(self) -> Victims | None:
        """Find a way.

        Returns:
            what it takes, which is on the future's nodes, the accounts and the budgets then; None, and nothing is
            changed, if there is none.
        """
        accounts, statement = self._session.accounts, self._placer.statement
        self._candidates.begin(self._kept)
        self.conceivable = self._is_conceivable()
        if not self.conceivable:
            return None
        before, savepoint = accounts.savepoint(), statement.savepoint()
        for group, request in self._requests:
            accounts.charge(group, request)
        charged = accounts.savepoint()
        exceeded = self._exceeded_limits()
        if all(isinstance(reason, OverLimit) for reason in exceeded):
            for limits_first in (False, True) if exceeded else (False,):
                self._exceeded = exceeded
                victims = self._run(limits_first=limits_first)
                if victims is not None:
                    return victims
                accounts.undo(charged)
                statement.rollback(savepoint)
                self.put_back(self._victim_sets)
                self._victim_sets, self._choices, self._groups, self._heaps = [], [], set(), {}
                self._candidates.begin(self._kept)
        accounts.undo(before)
        return None

    # What was placed and evicted for groups with topology constraints; see `DomainVictims`.

    @property
    def cost(self) -> int:
        """Of all victims so far."""
        return sum(victim_set.cost for victim_set in self._victim_sets)

    @property
    def exhausted(self) -> bool:
        """True if this cycle may try no more."""
        return self._session.steps_left <= 0

    def savepoint(self) -> int:
        """Return where to roll back to later."""
        accounts, statement = self._session.accounts.savepoint(), self._placer.statement.savepoint()
        groups, banned = set(self._groups), set(self._candidates.banned)
        self._marks.append(_Mark(statement, accounts, len(self._victim_sets), self._exceeded, groups, banned))
        return len(self._marks) - 1

    def rollback(self, savepoint: int) -> None:
        """Take back all that was placed and evicted since a savepoint."""
        mark = self._marks[savepoint]
        del self._marks[savepoint + 1 :]
        self._placer.statement.rollback(mark.statement)
        self._session.accounts.undo(mark.accounts)
        self.put_back(self._victim_sets[mark.victim_sets :])
        del self._victim_sets[mark.victim_sets :], self._choices[mark.victim_sets :]
        self._exceeded, self._groups, self._heaps = mark.exceeded, set(mark.groups), {}
        self._candidates.banned = set(mark.banned)

    def place_evicting(self, member: Member, row: int) -> Assignment | None:
        """Place a pod on a row and evict there what costs least; None if that cannot be."""
        for _ in range(_MOST_ROUNDS):
            assignment = self._placer.place_on(member, row)
            cheapest = None if assignment is not None else self._node_victims.cheapest(member, row)
            if cheapest is None:
                return assignment
            cost, victim_sets = cheapest
            refused = next((one for one in victim_sets if not self._may_go(one)), None)
            if refused is None:
                refused = self._evict_all(victim_sets, self._choice_for_pod(member, cost, ()))
            if refused is not None:
                self._candidates.ban(refused)
        return None

    def put_back(self, victim_sets: Sequence[VictimSet]) -> None:
        """Count victims as not evicted after all; the caller has to undo the nodes and the accounts."""
        for victim_set in victim_sets:
            self._session.count_eviction(victim_set.members, sign=-1)
            self._candidates.put_back(victim_set)

    def _run(self, *, limits_first: bool) -> Victims | None:
        if limits_first and not self._relieve_limits():
            return None
        assignments: list[Assignment] = []
        trials, plain = self._session.step_placer.trials(waiting_of(self._steps), self._placer)
        for trial in trials:
            outcome = trial.search()
            placed = DomainVictims(trial, self, self._candidates).place() if isinstance(outcome, Refused) else outcome
            if placed is None or self._takes_too_many():
                return None
            assignments += placed
        for member, _ in in_placement_order(plain, self._session.pods.class_of):
            assignment = self._placer.place(member) or self._evict_and_place(member)
            if assignment is None or self._takes_too_many():
                return None
            assignments.append(assignment)
        if not self._relieve_limits() or not self._rules_admit(assignments):
            return None
        kept = self._needed(assignments)
        victim_sets = tuple(self._victim_sets[index] for index in kept)
        return Victims(tuple(assignments), victim_sets, tuple(self._choices[index] for index in kept))

    def _takes_too_many(self) -> bool:
        """Tell, and note, whether pods of more groups are taken than may be."""
        if self._most_groups is None or len(self._groups) <= self._most_groups:
            return False
        self.too_many = len(self._groups)
        return True

    def _is_conceivable(self) -> bool:
        """Tell whether all would fit by whole nodes' amounts if every candidate were gone; if not, no search helps."""
        columns = self._placer.statement.columns
        counts: dict[str, int] = {}
        for member in self._members:
            key = self._session.pods.key_of(member)
            counts[key] = counts.get(key, 0) + 1
        room = columns.allocatable - columns.used + self._candidates.sums()[0]
        for key, count in counts.items():
            pod_class = self._session.pods.classes[key]
            fits = most_by_amounts(room, columns.vector(pod_class.requests))
            # Most often all nodes have too little, whichever may take such a pod. Policies are asked all the same.
            if pod_class.work is None and int(fits.sum()) < count:
                return False
            if int(fits[self._placer.feasible_nodes(pod_class).eligible].sum()) < count:
                return False
        return True

    # Victims that are not needed.

    def _rules_admit(self, placed: Sequence[Assignment]) -> bool:
        """Tell whether the rules about other pods let pods be where they were placed, as the nodes are now.

        An assignment was good when it was found. Since then pods may have gone that it needs near it, or pods are put
        back that it must not be near. The same holds for reservations of other groups. The order is that in which the
        next cycle restores the reservations.
        """
        session, placer = self._session, self._placer
        assignments = sorted(
            [*self._reserved, *placed],
            key=lambda assignment: session.pending_groups[assignment.member.group].reservation_order_key,
        )
        feasible_nodes = [placer.feasible_nodes(session.pods.class_of(assignment.member)) for assignment in assignments]
        if not any(nodes.non_monotonic for nodes in feasible_nodes):
            return True
        for assignment in assignments:
            placer.statement.leave(assignment.pod_charge, sign=-1)
        admitted = True
        for assignment, nodes in zip(assignments, feasible_nodes, strict=True):
            admitted = admitted and not nodes.ruled_out(assignment.row)
            placer.statement.leave(assignment.pod_charge)
        return admitted

    def _needed(self, placed: Sequence[Assignment]) -> list[int]:
        """Put back the victims that are not needed, the dearest first, on the zones that they have.

        Returns:
            the numbers of the sets that are needed, in order.
        """
        session, victim_sets = self._session, self._victim_sets
        put_back: set[int] = set()
        ended: set[str] = set()
        by_cost = sorted(range(len(victim_sets)), key=lambda index: victim_sets[index].key, reverse=True)
        for index in by_cost:
            victim_set = victim_sets[index]
            if victim_set.shrinks and not ended.isdisjoint(victim_set.groups):
                continue
            before = session.accounts.savepoint()
            if charge_all(session.accounts, victim_set.held_by(session.pods)) and self._stay_put(victim_set, placed):
                self.put_back([victim_set])
                put_back.add(index)
                continue
            session.accounts.undo(before)
            if not victim_set.shrinks:
                ended.update(victim_set.groups)
        return [index for index in range(len(victim_sets)) if index not in put_back]

    def _stay_put(self, victim_set: VictimSet, placed: Sequence[Assignment]) -> bool:
        """Take the eviction of a whole set back, if everything else can be as it is."""
        statement, columns = self._placer.statement, self._placer.statement.columns
        if not all(columns.fits(columns.rows[member.node], member.requests) for member in victim_set.members):
            return False
        savepoint = statement.savepoint()
        stay = all(statement.stays_put(self._session.pods.charge_of(member)) for member in victim_set.members)
        if stay and self._rules_admit(placed):
            return True
        statement.rollback(savepoint)
        return False

    # Limits of queues.

    def _exceeded_limits(self) -> tuple[Reason, ...]:
        accounts = self._session.accounts
        return tuple(reason for group, request in self._requests for reason in accounts.exceeded(group, request))

    def _relieve_limits(self) -> bool:
        """Evict until no limit is in the way, first the pods that cost least for what they relieve."""
        if self._exceeded:
            for victim_set, choice in self._relieving():
                self._evict(victim_set, choice)
                if not self._exceeded:
                    break
        return not self._exceeded

    def _relieving(self) -> Iterator[tuple[VictimSet, Choice]]:
        """Yield the pods that may go and relieve the limits, as things stand when each is asked for, with why."""
        candidates = self._candidates
        members = sorted((one for on_row in candidates.on_row.values() for one in on_row.values()), key=name_of)
        victim_sets = [candidate for member in members if (candidate := candidates.victim_set(member)) is not None]
        relieving = [(one, relief) for one in victim_sets if (relief := self._relief(one))]
        relieving.sort(key=lambda pair: (pair[0].cost * 1000 // pair[1], pair[0].key))
        for number, (victim_set, _) in enumerate(relieving, 1):
            first = victim_set.members[0]
            current = candidates.victim_set(first) if candidates.has(first) else None
            if current is not None and self._may_go(current):
                yield current, self._choice_for_limit(current.cost, relieving[number:])

    def _choice_for_limit(self, cost: int, others: Sequence[tuple[VictimSet, int]]) -> Choice:
        """Return why pods were chosen to relieve a limit; the others are those that would be chosen next."""
        chosen_for = f"queue/{self._exceeded[0].queue_name}"
        if not others:
            return Choice(cost, chosen_for)
        following, _ = others[0]
        return Choice(cost, chosen_for, f"pod/{following.members[0].pod.subject}", following.cost)

    def _relief(self, victim_set: VictimSet) -> int:
        accounts, held_by = self._session.accounts, victim_set.held_by(self._session.pods)
        return sum(accounts.relief(group, held, self._exceeded) for group, held in held_by)

    # Evictions.

    def _may_go(self, victim_set: VictimSet) -> bool:
        """Tell whether pods may go: they relieve the limits that are in the way, and nothing protects them."""
        session = self._session
        if self._exceeded and not self._relief(victim_set):
            return False
        if not self._admits(victim_set):
            return False
        if not session.budgets.refuse(victim_set.members):
            return True
        self.budgets |= session.budgets.refusing(victim_set.members)
        return False

    def _evict(self, victim_set: VictimSet, choice: Choice) -> None:
        session, statement = self._session, self._placer.statement
        for member in victim_set.members:
            statement.evict(session.pods.charge_of(member))
        self._candidates.take(victim_set)
        for group, held in victim_set.held_by(session.pods):
            session.accounts.release(group, held)
        session.count_eviction(victim_set.members)
        self._victim_sets.append(victim_set)
        self._choices.append(choice)
        self._groups.update(victim_set.groups)
        if self._exceeded:
            self._exceeded = self._exceeded_limits()
        for heap in self._heaps.values():
            for row in {statement.columns.rows[member.node] for member in victim_set.members}:
                heapq.heappush(heap, (0, self._place_of_row[row]))

    def _evict_and_place(self, member: Member) -> Assignment | None:
        """Evict on the node where that costs least for one more pod, and place it there."""
        pod_class = self._session.pods.class_of(member)
        heap = self._heaps.get(pod_class.key)
        if heap is None:
            heap = self._heaps[pod_class.key] = self._node_victims.lower_bounds(pod_class)
        while heap:
            _, place = heapq.heappop(heap)
            row = self._row_of_place[place]
            cheapest = self._node_victims.cheapest(member, row)
            if cheapest is None:
                continue
            cost, victim_sets = cheapest
            if heap and heap[0] < (cost, place):
                heapq.heappush(heap, (cost, place))
                continue
            if not all(self._may_go(victim_set) for victim_set in victim_sets):
                for victim_set in victim_sets:
                    if not self._may_go(victim_set):
                        self._candidates.ban(victim_set)
                heapq.heappush(heap, (0, place))
                continue
            refused = self._evict_all(victim_sets, self._choice_for_pod(member, cost, heap))
            if refused is not None:
                self._candidates.ban(refused)
                heapq.heappush(heap, (0, place))
            assignment = self._placer.place_on(member, row) or self._placer.place(member)
            if assignment is not None:
                heapq.heappush(heap, (0, place))
                return assignment
        return None

    def _choice_for_pod(self, member: Member, cost: int, heap: Sequence[tuple[int, int]]) -> Choice:
        """Return why evicting on a node was chosen; the heap has the other nodes."""
        chosen_for = f"pod/{member.pod.subject}"
        if not heap:
            return Choice(cost, chosen_for)
        least, place = heap[0]
        node = self._placer.statement.columns.names[self._row_of_place[place]]
        return Choice(cost, chosen_for, f"node/{node}", least)

    def _evict_all(self, victim_sets: Sequence[VictimSet], choice: Choice) -> VictimSet | None:
        """Evict, each only if it still may go after those before it; returns the first that may not."""
        for victim_set in victim_sets:
            first = victim_set.members[0]
            if not self._candidates.has(first):
                continue
            current = self._candidates.victim_set(first)
            if current is None or not self._may_go(current):
                return victim_set
            within = {one.pod.uid for one in current.members} <= {one.pod.uid for one in victim_set.members}
            if not within or victim_set.shrinks > current.shrinks:
                # The group has no more single pods to spare: what this node takes has to be worked out again.
                return None
            self._evict(current, replace(choice, cost=current.cost))
        return None
