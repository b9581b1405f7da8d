"""Which pods to evict so that all of a group fits: the search, on the nodes as they will be.

Everything is tried on the future's nodes (`kaicore.rules.engine.placement.node_timeline`): victims are taken off, the
preemptor is placed with its zones, and victims that are not needed after all are put back where they were. So what
comes out is known to fit.

1. Place pod by pod. Where one fits no node, evict where that costs least; only nodes are looked at whose lowest
   possible cost is below the best that is known. While a limit of the preemptor's queue, or of one above it, is in the
   way, only pods are evicted that also make room below it.
2. If a limit is still in the way, evict the pods that relieve it most cheaply. Where that fails, because the pods below
   the limit are not where room is needed, do this first.
3. Put back the victims that are not needed, the dearest first.

What an eviction costs, and which pods go together, is in `kaicore.rules.engine.victims.candidates`.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kaicore.rules.engine.gang_planner import Steps, members_of
from kaicore.rules.engine.placement.placer import Assignment, in_placement_order
from kaicore.rules.engine.session import Session
from kaicore.rules.engine.victims.candidates import Candidates
from kaicore.rules.engine.victims.node_victims import NodeVictims
from kaicore.rules.engine.victims.victim_set import Choice, VictimSet, name_of
from kaicore.rules.engine.workload import Member
from kaicore.rules.queues.cycle_queues import CycleQueues, GroupRequests
from kaicore.rules.reasons.queue import OverLimit
from kaicore.rules.reasons.reason import Reason


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


def charge_all(accounts: CycleQueues, requests: GroupRequests) -> bool:
    """Charge groups with so much as far as their queues admit it; tells whether they admit all."""
    for group, request in requests:
        if accounts.refusal(group, request):
            return False
        accounts.charge(group, request)
    return True


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
    ) -> None:
        """Args:
        session: the cycle.
        candidates: the pods that may be evicted.
        steps: what is to start.
        admits: whether pods may go together, budgets aside, as things stand with what is to start charged.
        reserved: reservations of other groups that stay, charged already.
        most_groups: of how many groups pods are taken until the search gives up; those included that can stay in the
            end.
        """
        #: PodDisruptionBudgets that protected pods; several together for pods under several.
        self.budgets: set[tuple[str, ...]] = set()
        #: Of how many groups pods were taken when the search gave up because of that; 0 if it did not.
        self.too_many = 0
        self._session = session
        self._candidates = candidates
        self._admits = admits
        self._reserved = reserved
        self._most_groups = most_groups
        self._requests = session.gangs.requests_of(steps)
        self._own_groups = session.gangs.started_with([pending_group.key for pending_group, _ in steps])
        self._members = in_placement_order(members_of(steps), session.pods.class_of)
        self._placer = session.nodes.future
        self._node_victims = NodeVictims(session, candidates, self._placer)
        self._place_of_row: list[int] = session.nodes.columns.name_order().tolist()
        self._row_of_place = {self._place_of_row[row]: row for row in range(len(session.nodes.columns.names))}
        #: The limits that what is to start would exceed, as things stand.
        self._exceeded: tuple[Reason, ...] = ()
        self._victim_sets: list[VictimSet] = []
        self._choices: list[Choice] = []
        self._groups: set[str] = set()
        #: By class, a heap of the rows where evicting may help: what it costs at least, and the place of its name.
        self._heaps: dict[str, list[tuple[int, int]]] = {}

    def run(self) -> Victims | None:
        """Find a way.

        Returns:
            what it takes, which is on the future's nodes, the accounts and the budgets then; None, and nothing is
            changed, if there is none.
        """
        accounts, statement = self._session.accounts, self._placer.statement
        self._candidates.begin(self._own_groups)
        if not self._is_conceivable():
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
                self._put_back(self._victim_sets)
                self._victim_sets, self._choices, self._groups, self._heaps = [], [], set(), {}
                self._candidates.begin(self._own_groups)
        accounts.undo(before)
        return None

    def give_up(self, victims: Victims) -> None:
        """Take back what was found; the caller has to undo the nodes and the accounts."""
        self._put_back(victims.victim_sets)

    def _put_back(self, victim_sets: Sequence[VictimSet]) -> None:
        for victim_set in victim_sets:
            self._session.count_eviction(victim_set.members, sign=-1)
            self._candidates.put_back(victim_set)

    def _run(self, *, limits_first: bool) -> Victims | None:
        if limits_first and not self._relieve_limits():
            return None
        assignments: list[Assignment] = []
        for member in self._members:
            assignment = self._placer.place(member) or self._evict_and_place(member)
            if assignment is None:
                return None
            if self._most_groups is not None and len(self._groups) > self._most_groups:
                self.too_many = len(self._groups)
                return None
            assignments.append(assignment)
        if not self._relieve_limits() or not self._rules_admit(assignments):
            return None
        kept = self._reprieve(assignments)
        victim_sets = tuple(self._victim_sets[index] for index in kept)
        return Victims(tuple(assignments), victim_sets, tuple(self._choices[index] for index in kept))

    def _is_conceivable(self) -> bool:
        """Tell whether all would fit by whole nodes' amounts if every candidate were gone; if not, no search helps."""
        columns = self._placer.statement.columns
        counts: dict[str, int] = {}
        for member in self._members:
            key = self._session.pods.key_of(member)
            counts[key] = counts.get(key, 0) + 1
        room = columns.allocatable - columns.used + self._candidates.sums()[0]
        for key, count in counts.items():
            feasible_nodes = self._placer.outlook(self._session.pods.classes[key])
            requested = np.flatnonzero(feasible_nodes.need)
            fits = (room[:, requested] // feasible_nodes.need[requested]).min(axis=1)
            if int(np.maximum(fits, 0)[feasible_nodes.eligible].sum()) < count:
                return False
        return True

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
                        self._candidates.ban(victim_set.groups[0])
                heapq.heappush(heap, (0, place))
                continue
            refused = self._evict_all(victim_sets, self._choice_for_pod(member, cost, heap))
            if refused is not None:
                self._candidates.ban(refused.groups[0])
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
            if not {one.pod.uid for one in current.members} <= {one.pod.uid for one in victim_set.members}:
                # The group has no more single pods to spare: what this node takes has to be worked out again.
                return None
            self._evict(current, replace(choice, cost=current.cost))
        return None

    # Victims that can stay.

    def _rules_admit(self, assignments: Sequence[Assignment]) -> bool:
        """Tell whether the rules about other pods let pods be where they were placed, as the nodes are now.

        An assignment was good when it was found. Since then pods may have gone that it needs near it, or pods are put
        back that it must not be near. The same holds for reservations of other groups. The order is that in which the
        next cycle restores the reservations.
        """
        session, placer = self._session, self._placer
        assignments = sorted(
            [*self._reserved, *assignments],
            key=lambda assignment: session.pending_groups[assignment.member.group].reservation_order_key,
        )
        feasible_nodes = [placer.outlook(session.pods.class_of(assignment.member)) for assignment in assignments]
        if not any(nodes.non_monotonic for nodes in feasible_nodes):
            return True
        for assignment in assignments:
            placer.statement.leave(assignment.pod_charge, sign=-1)
        admitted = True
        for assignment, nodes in zip(assignments, feasible_nodes, strict=True):
            admitted = admitted and not nodes.ruled_out(assignment.row)
            placer.statement.leave(assignment.pod_charge)
        return admitted

    def _reprieve(self, assignments: Sequence[Assignment]) -> list[int]:
        """Put back the victims that are not needed, the dearest first, on the zones that they have.

        Returns:
            the numbers of the sets that are needed, in order.
        """
        session = self._session
        put_back: set[int] = set()
        ended: set[str] = set()
        by_cost = sorted(range(len(self._victim_sets)), key=lambda index: self._victim_sets[index].key, reverse=True)
        for index in by_cost:
            victim_set = self._victim_sets[index]
            if victim_set.shrinks and not ended.isdisjoint(victim_set.groups):
                continue
            before = session.accounts.savepoint()
            if charge_all(session.accounts, victim_set.held_by(session.pods)) and self._stay_put(
                victim_set, assignments
            ):
                session.count_eviction(victim_set.members, sign=-1)
                self._candidates.put_back(victim_set)
                put_back.add(index)
                continue
            session.accounts.undo(before)
            if not victim_set.shrinks:
                ended.update(victim_set.groups)
        return [index for index in range(len(self._victim_sets)) if index not in put_back]

    def _stay_put(self, victim_set: VictimSet, assignments: Sequence[Assignment]) -> bool:
        """Take the eviction of a whole set back, if everything else can be as it is."""
        statement = self._placer.statement
        columns = statement.columns
        if not all(columns.fits(columns.rows[member.node], member.requests) for member in victim_set.members):
            return False
        savepoint = statement.savepoint()
        stay = all(statement.stays_put(self._session.pods.charge_of(member)) for member in victim_set.members)
        if stay and self._rules_admit(assignments):
            return True
        statement.rollback(savepoint)
        return False
