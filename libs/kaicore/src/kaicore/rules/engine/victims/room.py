"""Room for a step: one or more searches for victims, until the victims may really be exchanged for it.

Search results fit. Whether the exchange is allowed is checked afterwards, for all victims together, by the rules of the
evicting action. Queues may refuse the exchange as a whole, and pods that are to be moved must fit elsewhere and be
worth it. If not, the search begins anew without the refused victims.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.candidates import Candidates
from kaicore.rules.engine.victims.exchange import Exchange, Exchanges
from kaicore.rules.engine.victims.moving import cost_of_moving, gain_of, lost_by_moving, won_by
from kaicore.rules.engine.victims.search import Victims, VictimSearch, charge_all
from kaicore.rules.engine.victims.victim_set import Choice, VictimSet
from kaicore.rules.engine.work.gang_planner import Steps, members_of
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.engine.work.workload import Member, Workload
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts
from kaicore.rules.queues.cycle_queues import GroupRequests
from kaicore.rules.queues.tree import thousandths_of_gpus


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
    """

    budgets: set[tuple[str, ...]] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    groups: int = 0
    pods: int = 0
    cost: int = 0
    lost: int = 0


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
        session: the cycle.
        rules: of the action.
        steps: what is to start.
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
            search.give_up(victims)
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
        if self._refusals and self._session.accounts.is_about(self._refusals, victim.group):
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
        costs = [(cost_of_moving(session, one), one.key, one) for one in victims.victim_sets]
        won = self._won
        if won:
            costs = [(lost_by_moving(session, one), one.key, one) for one in victims.victim_sets]
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
            if assignments is None:
                future.statement.rollback(savepoint)
                accounts.undo(charged)
                stuck.update(victim_set.groups)
                continue
            successors.update({assignment.member.pod.uid: assignment for assignment in assignments})
            for pod_charge in (assignment.pod_charge for assignment in assignments if assignment.marks):
                future.statement.evict(pod_charge)
                future.statement.place(msgspec.structs.replace(pod_charge, marks=()))
        accounts.undo(before)
        return successors, stuck
