"""Room for what is to start: one or more searches for victims, until those found may really be exchanged for it.

What a search finds fits. Whether it may be had for that price is asked afterwards, of all victims together: queues may
refuse the exchange as a whole, and whoever is to be moved must fit elsewhere and be worth it. Then the search begins
anew, without those for whom it will not do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kaicore.rules.engine.accounts import QueueAccounts
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.pending_group import PendingGroup
from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.engine.session import Session
from kaicore.rules.engine.victims.candidates import Candidates, Unit
from kaicore.rules.engine.victims.moving import cost_of_moving, gain_of
from kaicore.rules.engine.victims.search import Found, Search, asked_of, charge_all
from kaicore.rules.engine.workload import Step, Workload
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts
from kaicore.rules.queues.cycle_queues import Asked
from kaicore.rules.reasons.reason import Reason

Steps = list[tuple[PendingGroup, Step]]

#: A search that has taken pods of so many times more groups than may be moved will not end with few enough.
_HOPE = 4
#: How many sets of victims are looked at until some can all move elsewhere.
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Rule:
    """What tells one action from another.

    Attributes:
        eligible: whether a running group may make way for a waiting one, by what both are.
        refusal: why the waiting one may not make use of it at all.
        may_evict: whether its queue lets a running group make way, as things stand with what is to start charged.
        exchange: why all that is to start may not take the place of all that would be evicted.
        spares: whether a queue keeps what it should keep where another choice lets it, when so much of its work goes;
            None where that does not matter.
        moves: whether every victim must find another place, and the move be worth it.
    """

    reason: EvictionReason
    eligible: Callable[[Session, PendingGroup, Workload], bool]
    refusal: Callable[[QueueAccounts, Asked], tuple[Reason, ...]]
    may_evict: Callable[[QueueAccounts, Asked, Workload], bool]
    exchange: Callable[[QueueAccounts, Asked, Asked], tuple[Reason, ...]]
    spares: Callable[[QueueAccounts, Asked, Group, Amounts], bool] | None = None
    moves: bool = False


@dataclass(slots=True)
class Shortfall:
    """Why there is no room.

    Attributes:
        budgets: PodDisruptionBudgets that kept anybody; several together for pods under several.
        stuck: keys of groups that would have had to move, and fit nowhere else.
        failing: keys of groups whose Jobs would fail if they were moved.
        groups: how many groups would have had to move, if those were too many; 0 if they were not.
        cost: what moving would have cost, if that was not less than what it gains; 0 if it was.
    """

    budgets: set[tuple[str, ...]] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    groups: int = 0
    cost: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """Room that can be had.

    Attributes:
        found: who goes, and where what is to start goes.
        places: where successors fit, by the uids of who goes.
    """

    found: Found
    places: dict[str, Assignment]


class RoomSearch:
    """The searches for what is to start at once."""

    def __init__(
        self, session: Session, rule: Rule, steps: Steps, pool: Candidates, *, kept: Sequence[Assignment]
    ) -> None:
        """Args:
        session: the cycle.
        rule: of the action.
        steps: what is to start.
        pool: who may be evicted.
        kept: room that stays kept for others, charged already.
        """
        self.shortfall = Shortfall()
        self._session = session
        self._rule = rule
        self._steps = steps
        self._pool = pool
        self._kept = kept
        self._asked = asked_of(session, steps)
        self._gain = gain_of(session, steps) if rule.moves else 0
        self._sparing = False
        #: Whether anybody was left out for the sake of what his queue should keep.
        self._spared = False
        self._refused: list[Reason] = []
        self._left_out: set[str] = set()

    def run(self) -> Room | None:
        """Find room.

        Returns:
            it. The victims are off the future's columns and budgets then, and the successors on the columns. None if
            there is none, with the reasons in `shortfall`; what is on the columns is the caller's to undo. The accounts
            are left as they are.
        """
        for sparing in (True, False) if self._rule.spares is not None else (False,):
            self._sparing, self._spared = sparing, False
            self._refused, self._left_out = [], set()
            room = self._search()
            if room is not None or not self._spared:
                return room
        return None

    def _search(self) -> Room | None:
        session, trail = self._session, self._session.future.trail
        most = _HOPE * session.config.consolidate_groups if self._rule.moves else None
        tries = 1
        while True:
            accounts, savepoint = session.accounts.savepoint(), trail.savepoint()
            search = Search(session, self._pool, self._steps, admits=self._admits, kept=self._kept, most_groups=most)
            found = search.run()
            self.shortfall.budgets |= search.budgets
            session.accounts.undo(accounts)
            if found is None:
                self.shortfall.groups = max(self.shortfall.groups, search.too_many)
                return None
            victims = [part for unit in found.units for part in unit.held_by(session)]
            again = self._rule.exchange(session.accounts, self._asked, victims)
            left_out: set[str] = set()
            if not again:
                places, stuck = _replace(session, self._asked, found)
                objections = self._objections(found, stuck) if self._rule.moves else None
                if objections is None:
                    return Room(found, places)
                left_out = objections
            search.give_up(found)
            trail.rollback(savepoint)
            # Once more without those for whom it will not do, if that is not all the same.
            once_more = bool(left_out) and tries < _TRIES
            if not once_more and not any(session.accounts.is_about(again, group) for group, _ in victims):
                return None
            self._left_out |= left_out
            self._refused.extend(again)
            tries += 1

    def _admits(self, unit: Unit) -> bool:
        """Tell whether a unit may go, each of its groups after those before it."""
        session = self._session
        if not self._left_out.isdisjoint(unit.groups):
            return False
        if self._rule.moves and session.failures.refuse(unit.members):
            self.shortfall.failing.update(unit.groups)
            return False
        before = session.accounts.savepoint()
        admitted = True
        for (workload, _), (group, held) in zip(unit.parts, unit.held_by(session), strict=True):
            admitted = admitted and self._may_go(workload, held)
            session.accounts.release(group, held)
        session.accounts.undo(before)
        return admitted

    def _may_go(self, victim: Workload, held: Amounts) -> bool:
        queues, rule = self._session.accounts, self._rule
        if self._refused and queues.is_about(self._refused, victim.group):
            return False
        if not rule.may_evict(queues, self._asked, victim):
            return False
        if not self._sparing or rule.spares is None or rule.spares(queues, self._asked, victim.group, held):
            return True
        self._spared = True
        return False

    def _objections(self, found: Found, stuck: set[str]) -> set[str] | None:
        """Return the groups without whom the search may go on, if victims are not to be moved; None if they are."""
        session, shortfall = self._session, self.shortfall
        if stuck:
            shortfall.stuck |= stuck
            return stuck
        groups = {key for unit in found.units for key in unit.groups}
        if len(groups) > session.config.consolidate_groups:
            shortfall.groups = len(groups)
            return set()
        costs = [(cost_of_moving(session, unit), unit.key, unit) for unit in found.units]
        cost = sum(each for each, _, _ in costs)
        if cost >= self._gain:
            shortfall.cost = cost
            return set(max(costs, key=lambda one: one[:2])[2].groups)
        return None


def _replace(session: Session, asked: Asked, found: Found) -> tuple[dict[str, Assignment], set[str]]:
    """Look where the victims' successors would fit, if their queues let them start; and of which groups one does not.

    The room is charged, so that nobody else counts on it.

    The successors leave no marks there: nothing says that they come, so nobody may count on being near them either.
    """
    places: dict[str, Assignment] = {}
    without: set[str] = set()
    queues = session.accounts
    accounts = queues.savepoint()
    for group, request in asked:
        queues.charge(group, request)
    for unit in found.units:
        for group, held in unit.held_by(session):
            queues.release(group, held)
    for unit in found.units:
        trail = session.future.trail
        savepoint, before = trail.savepoint(), queues.savepoint()
        if not charge_all(queues, unit.held_by(session)):
            queues.undo(before)
            without.update(unit.groups)
            continue
        spots, stuck = session.place_all(unit.members, session.future)
        if stuck is None:
            places.update({spot.member.pod.uid: spot for spot in spots})
            for tenancy in (spot.tenancy for spot in spots if spot.marks):
                trail.evict(tenancy)
                trail.place(replace(tenancy, marks=()))
        else:
            trail.rollback(savepoint)
            queues.undo(before)
            without.update(unit.groups)
    queues.undo(accounts)
    return places, without
