"""Room for a step: one or more searches for victims, until the victims may really be exchanged for it.

Search results fit. Whether the exchange is allowed is checked afterwards, for all victims together, by the rules of the
evicting action. Queues may refuse the exchange as a whole, and pods that are to be moved must fit elsewhere and be
worth it. If not, the search begins anew without the refused victims.

Exchanges: one or two running pods change places so that a waiting pod fits, by the work that they lose.

On full nodes what is left is stranded: GPUs beside too few CPUs, CPUs beside no GPU, and parts of GPUs that are smaller
than what is asked for. A pod that goes there fits nowhere else either, so the cheapest victims of one node rarely help.
An exchange looks at both ends. The waiting pod goes to `row`, in place of the first pod. That one goes to another row,
if need be in place of the second pod, which takes what is left on `row`.

A first pod that another row takes as it is needs no second one: all pods are compared at once, by amounts and by parts
of GPUs. Otherwise `row` is one of the few with the most idle devices, and the second pod is sought among all. The
caller makes sure of the rest: zones, devices, rules about other pods, queues and budgets.

Only pods count that go alone and lose less work than the start wins; the exchange that loses least comes first.

Moves: running groups go elsewhere so that another group fits. Gain and cost are both in ten-thousandths of the largest
node (`kaicore.rules.engine.victims.eviction_cost.PodSizes`): the started pods against the moved ones. A group of
several pods that ends as a whole counts twice, because all of it begins anew at once. A move is worth it when the gain
exceeds the cost.

Where the configuration has a rate (`EngineConfig.consolidate_win_us`), a start wins so much GPU time for each of its
GPUs. A move loses work: GPU-seconds since the last checkpoints of the moved pods, or since they run. It is worth it
when it loses less than the start wins, whatever the sizes. A start without GPUs wins nothing by that, and goes by size.

A moved group stays for a while (`EngineConfig.consolidate_cooldown_us`), by the log: work that is moved again and again
makes no progress. The same holds for a group with pods that were evicted for any other reason, or could not be evicted.
A moved group's pods come again as others. Among equals of its queue they come first (`PendingGroup.moved`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import ClassVar

import msgspec
import numpy as np

from kaicore.rules.engine.cycle_input import moved_at
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.candidates import Candidates
from kaicore.rules.engine.victims.eviction_cost import gpu_seconds_lost
from kaicore.rules.engine.victims.search import Victims, VictimSearch, charge_all
from kaicore.rules.engine.victims.victim_set import Choice, VictimSet, name_of
from kaicore.rules.engine.work.gang_planner import Steps, is_misunderstood, members_of
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.engine.work.workload import Member, Workload
from kaicore.rules.events.reasons import making_room
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.gpu_share import GPU, WHOLE
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import PODS
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.queues.cycle_queues import GroupRequests
from kaicore.rules.queues.tree import gpus_per_unit, thousandths_of_gpus, without_parts

#: Rows with idle devices that are looked at for two pods, those with the most first.
_MOST_ROWS = 32
#: Partners of one first pod that are compared.
_MOST_PARTNERS = 4


@dataclass(frozen=True, slots=True)
class Exchange:
    """Pods that change places.

    Attributes:
        row: where the waiting pod goes.
        victim_sets: the first pod, and the second if there is one.
        lost: the work that they lose, in GPU-seconds.
    """

    row: int
    victim_sets: tuple[VictimSet, ...]
    lost: int

    @property
    def key(self) -> tuple[int, int, tuple[tuple[str, str, str], ...]]:
        """Order in which exchanges are preferred: by lost work, fewer pods first, then by name."""
        return self.lost, len(self.victim_sets), tuple(name_of(one.members[0]) for one in self.victim_sets)


class Exchanges:
    """The exchanges for one waiting pod, by amounts, on the future's nodes."""

    def __init__(self, session: Session, candidates: Candidates, member: Member, *, won: int, most_pods: int) -> None:
        """Args:
        candidates: the pods that may be moved.
        won: what its start wins, in GPU-seconds.
        most_pods: how many pods may be moved.
        """
        self._candidates = candidates
        self._placer = session.nodes.future
        self._columns = columns = self._placer.statement.columns
        self._won, self._most_pods = won, most_pods
        self._asked = self._placer.feasible_nodes(self._placer.class_of(member))
        members, lost = candidates.losses()
        known = np.flatnonzero(lost < won)
        self._members = [members[index] for index in known.tolist()]
        self._lost: Ints = lost[known]
        self._rows: Ints = np.array([columns.rows[one.node] for one in self._members], np.int64)
        numbers: dict[str, int] = {}
        self._classes: Ints = np.array(
            [numbers.setdefault(one.class_key, len(numbers)) for one in self._members], np.int64
        )
        examples = {one.class_key: one for one in self._members}
        self._feasible = [self._placer.feasible_nodes(self._placer.class_of(examples[key])) for key in numbers]
        vectors = [columns.vector(examples[key].requests) for key in numbers]
        self._idle: Ints = columns.allocatable - columns.used
        #: By class.
        self._held: Ints = np.array(vectors).reshape(len(numbers), self._idle.shape[1])
        self._fits_for: dict[int, Flags] = {}
        #: What of its row is free once a pod is gone, and the largest part of a GPU then, in thousandths.
        self._left: Ints = self._idle[self._rows] + self._held[self._classes]
        self._part_left: Ints = columns.gpus.largest(len(columns.present))[self._rows]
        self._let_go_of_parts()
        gpu = columns.resources.get(GPU)
        #: The largest part of a GPU that is to be had, by row; `WHOLE` where a GPU can be opened.
        self._part: Ints = columns.gpus.largest(len(columns.present)).copy()
        if gpu is not None:
            self._part[self._idle[:, gpu] > 0] = WHOLE
            self._part_left[self._left[:, gpu] > 0] = WHOLE

    def _let_go_of_parts(self) -> None:
        """Count what pods leave of the GPUs that they share; with the last pod, the whole GPU is free."""
        gpus, resources = self._columns.gpus, self._columns.resources
        for index, one in enumerate(self._members):
            for part in one.gpus:
                self._part_left[index] = max(self._part_left[index], WHOLE - gpus.used(part.group) + part.milli)
                if gpus.pods(part.group) == 1 and gpus.is_open(part.group):
                    self._left[index, [resources[GPU], resources[PODS]]] += 1

    def cheapest(self, most: int) -> Sequence[Exchange]:
        """Return exchanges, at most so many, the one that loses least first."""
        if not self._members:
            return ()
        makes_room = self._fit(self._asked, self._left, self._part_left, self._rows)
        return nsmallest(most, self._all(makes_room, most), key=lambda exchange: exchange.key)

    def _all(self, makes_room: Flags, most: int) -> Iterator[Exchange]:
        yield from islice(self._alone(makes_room), most)
        if self._most_pods > 1:
            for row in self._rows_with_devices():
                yield from self._on(row, makes_room)

    @staticmethod
    def _fit(feasible: FeasibleNodes, left: Ints, part: Ints, rows: Ints) -> Flags:
        """Tell whether a pod of a class fits on rows with so much left, and so large a part of a GPU."""
        fits: Flags = (feasible.need <= left).all(axis=1) & feasible.eligible[rows]
        if feasible.share is not None:
            fits &= feasible.share.parts[rows] <= part
        return fits

    def _alone(self, makes_room: Flags) -> Iterator[Exchange]:
        """Yield in order how one pod goes to any row that takes it as it is, and the waiting pod in its place."""
        every, goes = np.arange(len(self._idle)), np.zeros(len(makes_room), np.bool_)
        for number in np.unique(self._classes[makes_room]).tolist():
            taking = np.flatnonzero(self._fit(self._feasible[number], self._idle, self._part, every))
            # A share may go to another GPU of its node.
            if len(taking) > 1 or (len(taking) and self._feasible[number].share is not None):
                goes |= makes_room & (self._classes == number)
            elif len(taking):
                goes |= makes_room & (self._classes == number) & (self._rows != taking[0])
        # Pods are in order of name.
        indexes = np.flatnonzero(goes)
        for index in indexes[np.argsort(self._lost[indexes], kind="stable")].tolist():
            yield from self._exchange(int(self._rows[index]), index)

    def _rows_with_devices(self) -> list[int]:
        """Return the rows with any idle devices of those that the pod asks for; the most first, equal ones by name."""
        need, share = self._asked.need, self._asked.share
        asked = [index for name, index in self._columns.resources.items() if gpus_per_unit(name) and need[index]]
        free = self._idle[:, asked].sum(axis=1) if share is None else self._part
        idle = np.where(self._asked.eligible, free, 0)
        rows = np.flatnonzero(idle > 0)
        places = self._columns.name_order()[rows]
        return [int(row) for row in rows[np.lexsort((places, -idle[rows]))[:_MOST_ROWS]]]

    def _on(self, row: int, makes_room: Flags) -> Iterator[Exchange]:
        """Yield how a pod of a row makes way for the waiting one, and another one for it."""
        for first in np.flatnonzero((self._rows == row) & makes_room).tolist():
            fits = (self._held <= self._left[first] - self._asked.need).all(axis=1)[self._classes]
            lost = self._lost + self._lost[first]
            fits &= (self._rows != row) & (lost < self._won) & self._fits_for_class(int(self._classes[first]))
            found = np.flatnonzero(fits)
            ordered = found[np.argsort(lost[found], kind="stable")]
            others = (one for one in map(int, ordered) if self._takes(row, first, one))
            for other in islice(others, _MOST_PARTNERS):
                yield from self._exchange(row, first, other)

    def _fits_for_class(self, number: int) -> Flags:
        """Tell in place of which pods a pod of a class fits."""
        if number not in self._fits_for:
            fits = self._fit(self._feasible[number], self._left, self._part_left, self._rows)
            self._fits_for[number] = fits
        return self._fits_for[number]

    def _takes(self, row: int, first: int, index: int) -> bool:
        """Tell whether a row may take a pod; of its GPUs, whether a part is to be had that is large enough.

        The waiting pod may leave one beside it, where the first pod goes.
        """
        feasible, asked = self._feasible[int(self._classes[index])], self._asked.share
        part = 0 if feasible.share is None else int(feasible.share.parts[row])
        beside = 0 if asked is None else int(self._part_left[first]) - int(asked.parts[row])
        return bool(feasible.eligible[row]) and part <= max(int(self._part[row]), beside)

    def _exchange(self, row: int, *indexes: int) -> Iterator[Exchange]:
        """Yield the exchange of these pods, if each of them may go, and goes alone."""
        victim_sets = tuple(self._candidates.victim_set(self._members[index]) for index in indexes)
        alone = tuple(one for one in victim_sets if one is not None and len(one.members) == 1)
        if len(alone) == len(indexes):
            yield Exchange(row, alone, sum(int(self._lost[index]) for index in indexes))


class VictimRules(ABC):
    """The rules of one evicting action.

    Attributes:
        reason: what is recorded with its evictions.
        moves: whether every victim must find another place, and the move be worth it.
        spares_quotas: whether victims are taken last where their queue would lose part of its quota.
    """

    reason: ClassVar[EvictionReason]
    moves: ClassVar[bool] = False
    spares_quotas: ClassVar[bool] = False

    @abstractmethod
    def is_eligible(self, pending_group: PendingGroup, victim: Workload) -> bool:
        """Tell whether a running group may make way for a waiting one, by what both are."""

    @abstractmethod
    def refusal(self, requests: GroupRequests) -> tuple[Reason, ...]:
        """Return why groups may not have any pod evicted to start so much; empty if they may."""

    def owes(self, victim: Workload) -> bool:
        """Tell whether a group makes way only because its queue owes something: if that is refused, it stays."""
        return True

    @property
    def most_pods(self) -> int | None:
        """The number of pods that may be evicted yet; None for any."""
        return None

    def may_evict(self, requests: GroupRequests, victim: Workload) -> bool:
        """Tell whether its queue lets a running group make way, as the accounts are with what is to start charged."""
        return True

    def keeps_quota(self, requests: GroupRequests, victim: Group, held: Amounts) -> bool:
        """Tell whether a queue keeps its quota if so much of its work goes; asked if `spares_quotas`."""
        return True

    def exchange_refusal(self, requests: GroupRequests, victims: GroupRequests) -> tuple[Reason, ...]:
        """Return why groups may not start in place of all that would be evicted; empty if they may."""
        return ()


#: A search is given up once it has taken pods of so many times the groups that may be moved.
_MOST_GROUPS_FACTOR = 4
#: How many times victims are sought, if some of those that were found fit nowhere else.
_MOST_ATTEMPTS = 4
#: How many exchanges are tried for one pod, those that lose least first.
_MOST_EXCHANGES = 16


@dataclass(slots=True)
class Shortfall:
    """The reasons for which there is no room.

    Attributes:
        budgets: PodDisruptionBudgets that protected pods; several together for pods under several.
        stuck: keys of groups that would have had to move, and fit nowhere else.
        failing: keys of groups of Jobs that would fail if they were moved.
        groups: how many groups would have had to move, if those were too many; 0 if they were not.
        pods: how many pods would have had to move, if the day has not so many moves left; 0 if it has.
        cost: what moving would have cost, if that was not less than what it gains; 0 if it was.
        lost: how much work moving would have lost, if that was not less than what the start wins, in GPU-seconds; 0 if
            it was.
        ended: whether the search might try no more.
    """

    budgets: set[tuple[str, ...]] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    groups: int = 0
    pods: int = 0
    cost: int = 0
    lost: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class FreedRoom:
    """Room that can be had.

    Attributes:
        victims: the pods that are evicted, and where what is to start goes.
        successors: where the victims' successors fit, by the uids of the victims.
    """

    victims: Victims
    successors: dict[str, Assignment]


class RoomSearch:
    """The searches for what is to start at once."""

    def __init__(
        self,
        session: Session,
        rules: VictimRules,
        steps: Steps,
        candidates: Candidates,
        *,
        reserved: Sequence[Assignment],
    ) -> None:
        """Args:
        candidates: the pods that may be evicted.
        reserved: reservations that stay, charged already.
        """
        self.shortfall = Shortfall()
        self._session = session
        self._rules = rules
        self._steps = steps
        self._candidates = candidates
        self._reserved = reserved
        self._requests = session.gangs.requests_of(steps)
        self._gain = gain_of(session, steps) if rules.moves else 0
        self._won = won_by(session, steps) if rules.moves else 0
        self._gpus = thousandths_of_gpus(session.pods.requests_of(members_of(steps)))
        self._most_pods = rules.most_pods
        #: Whether victims are left out where their queue would lose part of its quota, and whether any were.
        self._sparing = self._spared = False
        self._refusals: list[Reason] = []
        self._left_out: set[str] = set()

    def run(self) -> FreedRoom | None:
        """Find room.

        Returns:
            the room; the victims are off the future's nodes and the budgets then, and their successors on the nodes.
            None if there is none, with the reasons in `shortfall`; the caller has to undo what is on the nodes. The
            accounts are left as they are.
        """
        if self._may_exchange():
            room = self._exchange()
            # A GPU is not worth three moves.
            if room is not None or self._gpus <= WHOLE:
                return room
        for sparing in (True, False) if self._rules.spares_quotas else (False,):
            self._sparing, self._spared = sparing, False
            self._refusals, self._left_out = [], set()
            room = self._run()
            if room is not None:
                return room
            if not self._spared:
                break
        return None

    def _may_exchange(self) -> bool:
        """Tell whether pods may change places: for one pod, where its start wins anything."""
        constrained = any(one.workload.constrained for one, _ in self._steps)
        return self._won > 0 and len(members_of(self._steps)) == 1 and not constrained

    def _exchange(self) -> FreedRoom | None:
        """Find room for one pod by pods that change places."""
        session, members = self._session, members_of(self._steps)
        self._candidates.begin(session.gangs.started_with([one.key for one, _ in self._steps]))
        most_pods = 2 if self._most_pods is None else self._most_pods
        exchanges = Exchanges(session, self._candidates, members[0], won=self._won, most_pods=most_pods)
        for exchange in exchanges.cheapest(_MOST_EXCHANGES):
            if session.steps_left <= 0:
                return None
            session.steps_left -= 1
            room = self._exchanged(exchange, members[0])
            if room is not None:
                return room
        _, self.shortfall.lost = self._candidates.losing(self._won)
        return None

    def _exchanged(self, exchange: Exchange, member: Member) -> FreedRoom | None:
        """Let pods change places, if they may and all fit; otherwise nothing is changed."""
        session, statement = self._session, self._session.nodes.future.statement
        moved = [one for victim_set in exchange.victim_sets for one in victim_set.members]
        if not all(map(self._admits, exchange.victim_sets)) or session.budgets.refuse(moved):
            return None
        savepoint = statement.savepoint()
        for one in moved:
            statement.evict(session.pods.charge_of(one))
        assignment = session.nodes.future.place_on(member, exchange.row)
        if assignment is not None:
            chosen_for = [member, *moved]
            choices = [
                Choice(victim_set.cost, f"pod/{for_pod.pod.subject}")
                for victim_set, for_pod in zip(exchange.victim_sets, chosen_for, strict=False)
            ]
            victims = Victims((assignment,), exchange.victim_sets, tuple(choices))
            successors, stuck = self._place_successors(victims)
            if not stuck:
                for victim_set in exchange.victim_sets:
                    self._candidates.take(victim_set)
                session.count_eviction(moved)
                return FreedRoom(victims, successors)
        statement.rollback(savepoint)
        return None

    def _run(self) -> FreedRoom | None:
        session, statement = self._session, self._session.nodes.future.statement
        most_groups = _MOST_GROUPS_FACTOR * session.config.consolidate_groups if self._rules.moves else None
        # What loses too much by itself is not worth a look.
        spared, loss = self._candidates.losing(self._won) if self._won else (set[str](), 0)
        attempts = 1
        while True:
            accounts, savepoint = session.accounts.savepoint(), statement.savepoint()
            search = VictimSearch(
                session,
                self._candidates,
                self._steps,
                admits=self._admits,
                reserved=self._reserved,
                most_groups=most_groups,
                spared=spared,
            )
            victims = search.run()
            self.shortfall.budgets |= search.budgets
            session.accounts.undo(accounts)
            if victims is None:
                self.shortfall.groups = max(self.shortfall.groups, search.too_many)
                if spared and search.conceivable:
                    self.shortfall.lost = max(self.shortfall.lost, loss)
                return None
            held = [part for victim_set in victims.victim_sets for part in victim_set.held_by(session.pods)]
            refusal = self._rules.exchange_refusal(self._requests, held)
            left_out: set[str] = set()
            if not refusal:
                successors, stuck = self._place_successors(victims)
                objections = self._objections(victims, stuck) if self._rules.moves else None
                if objections is None:
                    return FreedRoom(victims, successors)
                left_out = objections
            search.put_back(victims.victim_sets)
            statement.rollback(savepoint)
            # Another attempt is made only if it can come out otherwise.
            again = bool(left_out) and attempts < _MOST_ATTEMPTS
            if not again and not any(session.accounts.is_about(refusal, group) for group, _ in held):
                return None
            self._left_out |= left_out
            self._refusals.extend(refusal)
            attempts += 1

    def _admits(self, victim_set: VictimSet) -> bool:
        """Tell whether pods may go together, each group after those before it."""
        session = self._session
        if not self._left_out.isdisjoint(victim_set.groups):
            return False
        if self._rules.moves and session.failures.refuse(victim_set.members):
            self.shortfall.failing.update(victim_set.groups)
            return False
        before = session.accounts.savepoint()
        admitted = True
        for (workload, _), (group, held) in zip(victim_set.parts, victim_set.held_by(session.pods), strict=True):
            admitted = admitted and self._may_go(workload, held)
            session.accounts.release(group, held)
        session.accounts.undo(before)
        return admitted

    def _may_go(self, victim: Workload, held: Amounts) -> bool:
        """Tell whether the action's rules let so much of a group go."""
        rules = self._rules
        if self._refusals and rules.owes(victim) and self._session.accounts.is_about(self._refusals, victim.group):
            return False
        if not rules.may_evict(self._requests, victim):
            return False
        if not self._sparing or rules.keeps_quota(self._requests, victim.group, held):
            return True
        self._spared = True
        return False

    def _objections(self, victims: Victims, stuck: set[str]) -> set[str] | None:
        """Return the groups without which the search may go on, if victims are not to be moved; None if they are."""
        session, shortfall = self._session, self.shortfall
        if stuck:
            shortfall.stuck |= stuck
            return stuck
        groups = {key for victim_set in victims.victim_sets for key in victim_set.groups}
        pods = sum(len(victim_set.members) for victim_set in victims.victim_sets)
        most = pods if self._most_pods is None else self._most_pods
        if len(groups) > session.config.consolidate_groups:
            shortfall.groups = len(groups)
            return set()
        if pods > most:
            shortfall.pods = pods
            return set()
        won, price = self._won, lost_by_moving if self._won else cost_of_moving
        costs = [(price(session, one), one.key, one) for one in victims.victim_sets]
        total = sum(cost for cost, _, _ in costs)
        # Room that is there once pods that leave are gone costs nothing.
        if not costs or total < (won or self._gain):
            return None
        if won:
            shortfall.lost = total
        else:
            shortfall.cost = total
        return set(max(costs, key=lambda entry: entry[:2])[2].groups)

    def _place_successors(self, victims: Victims) -> tuple[dict[str, Assignment], set[str]]:
        """Place the victims' successors on the future's nodes, as far as their queues let them start.

        The successors leave no marks there: nothing says that they come, so no other pod may count on being near them.
        Nor may one be where another keeps it away.

        Returns:
            where they fit, by the uids of the victims, and the keys of the groups of which one does not.
        """
        session = self._session
        accounts, future = session.accounts, session.nodes.future
        successors: dict[str, Assignment] = {}
        stuck: set[str] = set()
        before = accounts.savepoint()
        for group, request in self._requests:
            accounts.charge(group, request)
        for victim_set in victims.victim_sets:
            for group, held in victim_set.held_by(session.pods):
                accounts.release(group, held)
        for victim_set in victims.victim_sets:
            savepoint, charged = future.statement.savepoint(), accounts.savepoint()
            if not charge_all(accounts, victim_set.held_by(session.pods)):
                accounts.undo(charged)
                stuck.update(victim_set.groups)
                continue
            assignments = session.step_placer.place_again(victim_set.parts, future, as_close=True)
            if assignments is None or all(map(self._comes_back, assignments)):
                future.statement.rollback(savepoint)
                accounts.undo(charged)
                stuck.update(victim_set.groups)
                continue
            successors.update({assignment.member.pod.uid: assignment for assignment in assignments})
            for pod_charge in (assignment.pod_charge for assignment in assignments if assignment.marks):
                future.statement.evict(pod_charge)
                future.statement.place(msgspec.structs.replace(pod_charge, marks=()))
        accounts.undo(before)
        return successors, stuck | self._kept_away(tuple(successors.values()))

    def _comes_back(self, successor: Assignment) -> bool:
        """Tell whether a successor gets what the pod has now, so that it was in the way by rules about pods at most."""
        member = successor.member
        same = successor.row == self._session.nodes.columns.rows[member.node] and successor.charge == member.zone_charge
        return same and not member.gpus and not successor.devices

    def _kept_away(self, successors: Sequence[Assignment]) -> set[str]:
        """Return the groups with successors that may not be where they are once the others are there, too."""
        future = self._session.nodes.future
        marks = future.statement.columns.marks
        if not any(one.marks for one in successors):
            return set()
        for one in successors:
            marks.charge(one.row, one.marks)
        groups: set[str] = set()
        for one in successors:
            marks.charge(one.row, one.marks, sign=-1)
            if future.feasible_nodes(future.class_of(one.member)).ruled_out(one.row):
                groups.add(one.member.group)
            marks.charge(one.row, one.marks)
        for one in successors:
            marks.charge(one.row, one.marks, sign=-1)
        return groups


#: Microseconds of a second.
_SECOND_US = 1_000_000


def obstacle(session: Session, workload: Workload) -> making_room.Obstacle | None:
    """Return why a running group is not moved, whatever it would be good for; None if it may be."""
    if is_misunderstood(workload, session.cycle_input):
        return making_room.GroupsThatCannotRestart(example_pod=_example(workload))
    if not session.config.consolidate_bare_pods:
        for member in workload.active.values():
            if member.pod.owner is None:
                return making_room.PodsWithoutController(example_pod=_example(workload))
    at = max(workload.evicted_at, moved_at(session.cycle_input, workload))
    until = at + session.config.consolidate_cooldown_us
    if session.cycle_input.now >= until:
        return None
    return making_room.MovedLately(example_pod=_example(workload), until=until)


def _example(workload: Workload) -> str:
    return min(member.pod.subject for member in workload.active.values())


def is_scattered(session: Session, steps: Steps) -> bool:
    """Tell whether ready nodes have, all together, what steps ask for: where they have not, no move can help."""
    columns, idle = session.nodes.future.statement.columns, session.nodes.idle_in_future()
    asked = session.pods.requests_of_classes(session.gangs.class_counts_of(steps))
    requests = columns.vector(without_parts(asked))
    parts = _free_parts(columns)
    if parts >= WHOLE:
        idle = idle.copy()
        idle[columns.resources[GPU]] += parts // WHOLE
    return bool((idle >= requests).all())


def is_full(session: Session) -> bool:
    """Tell whether so much of the GPUs of ready nodes is held that pods may be moved."""
    columns, idle = session.nodes.future.statement.columns, session.nodes.idle_in_future()
    there = columns.allocatable[columns.present & columns.ready].sum(axis=0)
    counted = [(column, gpus_per_unit(name)) for name, column in columns.resources.items()]
    total, free = (sum(int(of[column]) * gpus for column, gpus in counted if gpus) * WHOLE for of in (there, idle))
    return (free + _free_parts(columns)) * 100 <= total * (100 - session.config.consolidate_from_per_cent)


def _free_parts(columns: NodeColumns) -> int:
    """Return what is free of the GPUs that are open for sharing, in thousandths."""
    return sum(free for row in columns.gpus.rows for free, _ in columns.gpus.free(row))


def gain_of(session: Session, steps: Steps) -> int:
    """Return what it gains that steps start."""
    return sum(session.pods.size_of(member) for member in members_of(steps))


def cost_of_moving(session: Session, victim_set: VictimSet) -> int:
    """Return what it costs to move pods together."""
    total = 0
    for number, (workload, members) in enumerate(victim_set.parts):
        whole = len(workload.active) > 1 and not (victim_set.shrinks and number == 0)
        total += sum(session.pods.size_of(member) for member in members) * (2 if whole else 1)
    return total


def won_by(session: Session, steps: Steps) -> int:
    """Return what it wins that steps start, in GPU-seconds; 0 where sizes are compared."""
    gpus = thousandths_of_gpus(session.pods.requests_of(members_of(steps)))
    return gpus * session.config.consolidate_win_us // (WHOLE * _SECOND_US)


def lost_by_moving(session: Session, victim_set: VictimSet) -> int:
    """Return how much work is lost if pods are moved together, in GPU-seconds."""
    pods, now = session.pods, session.cycle_input.now
    return sum(gpu_seconds_lost(one, pods.requests_of((one,)), now=now) for one in victim_set.members)
