"""Queues in a cycle: their accounts by group and by requests, their order, and their right to each other's room.

Every charge of a cycle is put back on demand.

At each level of the hierarchy the queues below one parent stand in an order. From the roots down, the first of each
level leads to the next work.

A queue may have work of another one evicted by a comparison where the two part: of the topmost ancestors that differ,
or the queues themselves. The reclaimer's side must have a right to its requests, the victim's side must hold more than
it may keep, and taking must not reverse the roles. A resource that the reclaimer does not ask for gives it no right.

Sources: KAI-Scheduler v0.17, `pkg/scheduler/plugins/proportion/`, of the order `queue_order/queue_order.go`, of the
right `reclaimable/reclaimable.go` and `reclaimable/strategies/strategies.go` (decision 0080 lists the differences).
Between ClusterQueues the order is that of Kueue ff69552e79, `pkg/scheduler/scheduler.go` (its entries: by how far up
they borrow, by priority, by age).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kaicore.rules.events.reasons.queue import OverLimit, QueueMayNotPreempt, QueueMayNotReclaim, VictimWithinShare
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.queue import PreemptionRule, Queue
from kaicore.rules.queues.accounts import QueueAccounts
from kaicore.rules.queues.division import FairShareConfig
from kaicore.rules.queues.preemption_rules import RuledWork, ruling
from kaicore.rules.queues.tree import Demand

#: Shares of what a queue is owed are compared to this precision; with nothing owed, any use is this many times it.
_PRECISION = 10**9
_NOTHING_OWED = 1000

#: A queue's place among its siblings; the smallest comes first.
Standing = tuple[tuple[int, ...], tuple[int, str, str]]

#: A part of a key by which something is ordered, and how its value reads: of `highest` ones the negative is compared,
#: a `time` is in seconds, `billionths` are of a whole.
PartKind = Literal["flag", "count", "highest", "time", "billionths", "text"]
KeyPart = tuple[str, PartKind]


def standing_parts(places: int, *, by_priority: bool) -> tuple[KeyPart, ...]:
    """Return the names of the parts of a `standing`, in order.

    Args:
        places: how many policies give the queue.
        by_priority: whether it is a ClusterQueue of a cohort.
    """
    policies: tuple[KeyPart, ...] = (("place by a policy", "count"),) * places
    first, later = (policies, ()) if by_priority else ((), policies)
    return (
        ("over its fair share", "flag"),
        ("levels above from which it borrows", "count"),
        ("priority of its next work", "highest"),
        *first,
        ("age of its next work", "time"),
        ("over its quotas with its next work", "flag"),
        ("priority of the queue", "highest"),
        *later,
        ("uses what it is owed nothing of", "flag"),
        ("use of what it may keep, with its next work", "billionths"),
        ("use of what it may keep", "billionths"),
        ("part of all that it is owed", "billionths"),
        ("age of the queue", "time"),
        ("uid of the queue", "text"),
        ("name of the queue", "text"),
    )


def standing(
    accounts: QueueAccounts,
    number: int,
    demand: Demand,
    *,
    priority: int = 0,
    created_at: int = 0,
    places: tuple[int, ...] = (),
) -> Standing:
    """Return what a queue is ordered by among its siblings, with its next work; the smallest comes first.

    In this order: not over its fair share (it is over only where it is in all resources); between ClusterQueues of one
    cohort as Kueue has it: borrowing from nearer above, work of higher priority, older work. Between others, and then:
    within its quotas also with the work; of higher priority; nothing used that it is owed nothing of; with the smaller
    dominant share, of what it may keep, with the work; without it; owed less; the older one; by uid and name.

    Policies decide after the priorities, so never against fair shares, quotas or priorities.

    Args:
        demand: what its next work asks for.
        created_at: when that work was created, seconds since the epoch.
        places: that policies give the queue, as many as its siblings have; lower comes first.
    """
    tree, shares = accounts.tree, accounts.shares
    used, fair, keeps = accounts.used[number], shares.fair[number], shares.allocatable[number]
    quotas, queue = tree.quotas[number], tree.queues[number]
    uncounted = tree.not_counted_by(number)
    over_fair_share = bool(used) and all(
        now > share or place in uncounted for place, (now, share) in enumerate(zip(used, fair, strict=True))
    )
    over_quota = unowed = False
    with_work = without = owed = 0
    for now, more, keep, quota, total in zip(used, demand.amounts, keeps, quotas, shares.totals, strict=True):
        then = now + more
        over_quota |= then > quota
        unowed |= then > 0 and keep <= 0
        with_work = max(with_work, _part(then, keep))
        without = max(without, _part(now, keep))
        owed = max(owed, _part(keep, total))
    as_kueue: tuple[int, ...] = (0, 0, 0)
    if number in tree.by_priority:
        as_kueue, places = (_borrowed_from(accounts, number, demand), -priority, *places, created_at), ()
    bounds = (int(over_quota), -queue.priority, *places, int(unowed))
    return (
        (int(over_fair_share), *as_kueue, *bounds, with_work, without, owed),
        (queue.created_at, queue.uid, queue.name),
    )


def _borrowed_from(accounts: QueueAccounts, number: int, demand: Demand) -> int:
    """Return how far above a queue its work finds the quota that it borrows: 0 for its own, 1 for its parent's.

    The root's is the last, whether it suffices or not. Only what the work asks for counts.
    """
    path, quotas, used = accounts.tree.paths[number], accounts.tree.quotas, accounts.used
    asked = [place for place, amount in enumerate(demand.amounts) if amount] or range(len(demand.amounts))
    for level, above in enumerate(path):
        if all(used[above][place] + demand.amounts[place] <= quotas[above][place] for place in asked):
            return level
    return len(path) - 1


def _part(amount: int, whole: int) -> int:
    return amount * _PRECISION // whole if whole > 0 else amount * _PRECISION * _NOTHING_OWED


#: Work of a queue: what it asks for, or holds.
Claim = tuple[int, Demand]


def may_reclaim(accounts: QueueAccounts, reclaimer: int, demand: Demand, *, preemptible: bool) -> tuple[Reason, ...]:
    """Return why work may not have others evicted at all; empty when it may.

    With the work its queue must be within its fair share of all that it asks for and, if the work cannot be preempted,
    within the quotas; and no bound may be in the way that victims cannot lift. A limit of an ancestor is none of these:
    what others of that ancestor's queues give back makes way below it. A queue that borrows from lower priorities needs
    no share.
    """
    queue = accounts.tree.queues[reclaimer]
    if not queue.may_reclaim:
        return (QueueMayNotReclaim(queue=queue.name),)
    refused = accounts.refusals(reclaimer, demand, preemptible=preemptible)
    return (
        *(() if queue.borrows_from_lower else accounts.over_fair_share(reclaimer, demand)),
        *(reason for reason in refused if not isinstance(reason, OverLimit) or reason.queue == queue.name),
    )


def lends(queue: Queue, *, priority: int, to: int) -> bool:
    """Tell whether a queue may borrow what work of a priority holds, for work of another (`borrowWithinCohort`)."""
    most = queue.most_priority_lent
    return queue.borrows_from_lower and priority < to and (most is None or priority <= most)


def is_victim(accounts: QueueAccounts, reclaimer: int, demand: Demand, victim: int, *, lent: bool = False) -> bool:
    """True if work of a queue may be evicted for other queues' work, the accounts being those of just before.

    Either the victim's side uses more than it may keep (the larger of quota and fair share) of something that the
    reclaimer asks for; or more than its quota of it, while the reclaimer's side stays within its own quotas also with
    the work. Work that was evicted before is taken off the accounts already, and the reclaimer's work is on them.

    Args:
        lent: whether what the victim holds beyond its quota may be borrowed (`lends`).
    """
    sides = accounts.tree.diverging(reclaimer, victim)
    if sides is None:
        return False
    mine, theirs = sides
    places = [place for place, amount in enumerate(demand.amounts) if amount > 0]
    borrows = accounts.tree.queues[reclaimer].borrows_from_lower and not lent
    if borrows and accounts.exceeds(reclaimer, accounts.shares.fair, places):
        return False
    if accounts.exceeds(theirs, accounts.shares.allocatable, places):
        return True
    quotas = accounts.tree.quotas
    return accounts.exceeds(theirs, quotas, places) and (lent or not accounts.exceeds(mine, quotas, places))


def keeps_quotas(accounts: QueueAccounts, reclaimer: int, demand: Demand, victim: int, held: Demand) -> bool:
    """True if a victim's queue, and the queues above up to the common one, keep their quotas without some work.

    Looked at is what the reclaimer asks for and the victim's side uses more than its quota of: of anything else it is
    below its quota already, or nothing is taken for it. The accounts are those of just before, as for `is_victim`.
    """
    sides = accounts.tree.diverging(reclaimer, victim)
    if sides is None:
        return True
    path, quotas, used = accounts.tree.paths[victim], accounts.tree.quotas, accounts.used
    below = path[: path.index(sides[1]) + 1]
    return all(
        used[queue][place] - held.amounts[place] >= quotas[queue][place]
        for place, amount in enumerate(demand.amounts)
        if amount > 0 and held.amounts[place] > 0 and used[sides[1]][place] > quotas[sides[1]][place]
        for queue in below
    )


def reclaim_refusals(
    accounts: QueueAccounts,
    asked: Sequence[Claim],
    victims: Sequence[Claim],
    *,
    margin_milli: int = 1000,
    lent: Sequence[bool] = (),
) -> tuple[Reason, ...]:
    """Return why work may not start in place of others' work; empty when it may. The accounts are left as they are.

    1. Each victim, in the given order, must be one when its turn comes.
    2. Where a side is over its fair share afterwards, it must be less so than every side that had to give it something,
       by the margin: who has more than its share takes nothing from who has less.

    A reason's `queue` is one that every victim it is about is of, or is below.

    Args:
        accounts: of the queues as they are, victims included, the reclaimer's work not.
        asked: what is to start, by queue.
        victims: what would be evicted, in order.
        margin_milli: see `FairShareConfig.reclaim_margin_milli`.
        lent: of each victim, whether what it holds may be borrowed; empty for none.
    """
    changes = [(number, demand, 1) for number, demand in asked]
    for claim in asked:
        accounts.charge(*claim, preemptible=True)
    try:
        lent = lent or [False] * len(victims)
        for (number, amounts), may_borrow in zip(victims, lent, strict=True):
            if not any(is_victim(accounts, *claim, number, lent=may_borrow) for claim in asked):
                return (VictimWithinShare(queue=accounts.tree.queues[number].name),)
            accounts.take_back(number, amounts, preemptible=True)
            changes.append((number, amounts, -1))
        owing = {number for (number, _), may_borrow in zip(victims, lent, strict=True) if not may_borrow}
        return _turned_tables(accounts, asked, sorted(owing), margin_milli)
    finally:
        for number, amounts, sign in reversed(changes):
            (accounts.take_back if sign > 0 else accounts.charge)(number, amounts, preemptible=True)


def _turned_tables(
    accounts: QueueAccounts, asked: Sequence[Claim], victims: Sequence[int], margin: int
) -> tuple[Reason, ...]:
    """Look at sides that gave something and at those that got it, all of it being on the accounts."""
    fair, used = accounts.shares.fair, accounts.used
    for reclaimer, demand in asked:
        for number in victims:
            sides = accounts.tree.diverging(reclaimer, number)
            if sides is None:
                continue
            mine, theirs = sides
            for place, amount in enumerate(demand.amounts):
                have, my_share, their_share = used[mine][place], fair[mine][place], fair[theirs][place]
                if amount <= 0 or have <= my_share or their_share <= 0:
                    continue
                # have / my_share * margin >= used / their_share, without the divisions.
                if have * margin * their_share >= used[theirs][place] * 1000 * my_share:
                    return (VictimWithinShare(queue=accounts.tree.queues[theirs].name),)
    return ()


#: Groups, each with what it is to start, or with what of it would be evicted.
GroupRequests = Sequence[tuple[Group, Amounts]]


@dataclass(slots=True)
class CycleQueues:
    """The queues of a cluster during a cycle.

    Attributes:
        accounts: of the queues; charged and put back here.
        places: of queues, by number, that policies give them; none where no policy orders queues.
    """

    accounts: QueueAccounts
    config: FairShareConfig
    places: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    _journal: list[tuple[int, Demand, bool, int]] = field(default_factory=list)
    _demands: dict[tuple[tuple[tuple[str, int], ...], int], Demand] = field(default_factory=dict)
    _numbers: dict[tuple[str, str], int | None] = field(default_factory=dict)

    def payer(self, group: Group) -> Queue | None:
        """Return the queue that pays for a group; None where there is no such queue."""
        number = self._number(group)
        return None if number is None else self.accounts.tree.queues[number]

    def queue_of(self, group: Group) -> str:
        """Return the name of the queue that pays for a group; what the group says, where there is no such queue."""
        queue = self.payer(group)
        return group.queue if queue is None else queue.name

    def order_key(
        self, queue: str, request: Amounts, *, priority: int = 0, created_at: int = 0
    ) -> tuple[Standing, ...]:
        """Return a queue's place in the order of queues if its next work asks for `request`; the lowest goes first.

        The ancestors are judged first, from the root down, each by what it uses; the queue itself with the work. An
        ancestor is not judged with the work that would be next below it, so that places of queues can be compared one
        by one. No charge of any queue makes a place better.
        """
        number = self.accounts.tree.find(queue)
        if number is None:
            return ()
        path, nothing = self.accounts.tree.paths[number], self._demand({}, number)
        places = self.places
        above = (standing(self.accounts, one, nothing, places=places.get(one, ())) for one in reversed(path[1:]))
        own, placed = self._demand(request, number), places.get(number, ())
        return (*above, standing(self.accounts, number, own, priority=priority, created_at=created_at, places=placed))

    def is_owed(self, requests: GroupRequests, making_way: GroupRequests) -> bool:
        """Tell whether queues are owed that groups start so much, once some work has made way.

        They are where none of them, nor any queue above them, has more than its fair share of what is asked for then.
        """
        if not requests or not all(any(demand.amounts) for _, demand in self._claims(requests)):
            return False
        before = self.savepoint()
        for group, amounts in making_way:
            self.release(group, amounts)
        owed = self.keeps_shares(requests)
        self.undo(before)
        return owed

    def keeps_shares(self, requests: GroupRequests) -> bool:
        """Tell whether no queue, nor any above it, has more than its fair share once groups start so much.

        More may be used of resources that work does not ask for; where nothing is divided, nothing exceeds a share.
        """
        before = self.savepoint()
        for group, request in requests:
            self.charge(group, request)
        fair, paths = self.accounts.shares.fair, self.accounts.tree.paths
        kept = not any(
            self.accounts.exceeds(above, fair, [place for place, amount in enumerate(demand.amounts) if amount > 0])
            for number, demand in self._claims(requests)
            for above in paths[number]
        )
        self.undo(before)
        return kept

    def refusal(self, group: Group, request: Amounts) -> tuple[Reason, ...]:
        """Say why a group may not start so much now, whatever is free; empty if it may.

        What Kueue has admitted to a queue that Kueue keeps is within its bounds, however they are counted here.
        """
        number = self._resolve(group)
        if not isinstance(number, int):
            return (number,)
        if group.admitted and self.accounts.tree.queues[number].controlled:
            return ()
        return self.accounts.refusals(number, self._demand(request, number), preemptible=group.preemptible)

    def refusals(self, requests: GroupRequests) -> tuple[Reason, ...]:
        """Say why groups may not start so much, one after the other; empty if they may."""
        refused: list[Reason] = []
        before = self.savepoint()
        for group, request in requests:
            refused += self.refusal(group, request)
            self.charge(group, request)
        self.undo(before)
        return tuple(refused)

    def rules_of(self, group: Group) -> tuple[PreemptionRule, ...]:
        """Return the rules of preemption for a group; none for a group of no queue."""
        number = self._number(group)
        return () if number is None else self.accounts.tree.rules_of(number)

    def ruled(self, group: Group, labels: Mapping[str, str]) -> RuledWork | None:
        """Return a group as rules of preemption see it; None for one of no queue."""
        number = self._number(group)
        return None if number is None else RuledWork(number, group.queue, group.priority, labels)

    def ruling(self, mine: RuledWork, theirs: RuledWork, triggers: Sequence[str]) -> str:
        """Name the rules with one of some triggers that let work be evicted for other work; empty for none."""
        return ruling(mine, theirs, self.accounts.tree, triggers)

    def exceeded(self, group: Group, request: Amounts) -> tuple[Reason, ...]:
        """Say why a group might not start so much, that being on the accounts already; empty if it might."""
        self.release(group, request)
        refused = self.refusal(group, request)
        self.charge(group, request)
        return refused

    def relief(self, victim: Group, request: Amounts, refused: Iterable[Reason]) -> int:
        """Return how much of the excess over limits is gone when work that holds so much ends.

        In thousandths, summed over the limits; 0 if that is no help.
        """
        number = self._number(victim)
        if number is None:
            return 0
        tree, amounts = self.accounts.tree, self._demand(request, number).amounts
        above = {tree.queues[one].name for one in tree.paths[number]}
        total = 0
        for reason in refused:
            if isinstance(reason, OverLimit) and reason.queue in above:
                excess, amount = reason.excess, amounts[tree.resources.index(reason.resource)]
                total += -(-1000 * min(amount, excess) // excess)
        return total

    def reclaim_refusal(self, requests: GroupRequests) -> tuple[Reason, ...]:
        """Say why groups may not have other queues' work evicted to start so much, together; empty if they may."""
        refused: list[Reason] = []
        before = self.savepoint()
        for group, request in requests:
            number = self._resolve(group)
            if not isinstance(number, int):
                refused.append(number)
            else:
                refused += may_reclaim(
                    self.accounts, number, self._demand(request, number), preemptible=group.preemptible
                )
                self.charge(group, request)
        self.undo(before)
        return tuple(refused)

    def preempt_refusal(self, group: Group) -> tuple[Reason, ...]:
        """Say why a group may not have other work of its queue evicted; empty if it may."""
        queue = self.payer(group)
        if queue is None or queue.may_preempt:
            return ()
        return (QueueMayNotPreempt(queue=queue.name),)

    def reclaims_from(self, group: Group, victim: Group) -> bool:
        """Tell whether a group may have the victim evicted as one of another queue, by priority."""
        mine = self._number(group)
        lower = mine is not None and self.accounts.tree.queues[mine].reclaims_lower
        return self.queue_of(victim) != self.queue_of(group) and (not lower or victim.priority < group.priority)

    def is_over_quota(self, victim: Group, *, beside: Group) -> bool:
        """Tell whether the victim's side, where the two queues part, uses more than its quota of anything."""
        mine, theirs = self._number(beside), self._number(victim)
        sides = None if mine is None or theirs is None else self.accounts.tree.diverging(mine, theirs)
        if sides is None:
            return False
        return self.accounts.exceeds(sides[1], self.accounts.tree.quotas, range(len(self.accounts.tree.resources)))

    def may_reclaim(self, requests: GroupRequests, victim: Group) -> bool:
        """Tell whether work of the victim's queue may be evicted so that groups can start so much.

        The accounts are those of just before, what is to start being on them.
        """
        theirs = self._number(victim)
        if theirs is None or not victim.preemptible:
            return False
        lent = self._lends(requests, victim)
        return any(is_victim(self.accounts, mine, demand, theirs, lent=lent) for mine, demand in self._claims(requests))

    def _lends(self, requests: GroupRequests, victim: Group) -> bool:
        """Tell whether what a group holds may be borrowed for all that is to start."""
        numbers = [(self._number(group), group.priority) for group, _ in requests]
        queues = self.accounts.tree.queues
        return all(one is not None and lends(queues[one], priority=victim.priority, to=to) for one, to in numbers)

    def keeps_quotas(self, requests: GroupRequests, victim: Group, held: Amounts) -> bool:
        """Tell whether the victim's queues keep their quotas if so much of its work goes for groups to start."""
        theirs = self._number(victim)
        return theirs is None or all(
            keeps_quotas(self.accounts, mine, wanted, theirs, self._demand(held, theirs))
            for mine, wanted in self._claims(requests)
        )

    def exchange_refusal(self, requests: GroupRequests, victims: GroupRequests) -> tuple[Reason, ...]:
        """Say why groups may not start in place of some work, still on the accounts, as a whole; empty if they may."""
        margin, known = self.config.reclaim_margin_milli, [one for one in victims if self._number(one[0]) is not None]
        lent = [self._lends(requests, victim) for victim, _ in known]
        asked, held = self._claims(requests), self._claims(known)
        return reclaim_refusals(self.accounts, asked, held, margin_milli=margin, lent=lent)

    def is_about(self, refused: Iterable[Reason], victim: Group) -> bool:
        """Tell whether an exchange was refused because of a victim's queue."""
        number = self._number(victim)
        path = () if number is None else self.accounts.tree.paths[number]
        names = {self.accounts.tree.queues[above].name for above in path}
        return any(reason.queue_name in names for reason in refused)

    def min_runtime_us(self, victim: Group, *, for_group: Group) -> int:
        """Return how long the victim must have run before it may be evicted for a group, microseconds."""
        mine, theirs = self._number(for_group), self._number(victim)
        if theirs is None:
            return 0
        tree, config = self.accounts.tree, self.config
        if mine is None or mine == theirs:
            return tree.preempt_min_runtime_us(theirs, default=config.preempt_min_runtime_us)
        return tree.reclaim_min_runtime_us(theirs, mine, default=config.reclaim_min_runtime_us)

    def charge(self, group: Group, request: Amounts) -> None:
        """Count work as started."""
        self._count(group, request, 1)

    def release(self, group: Group, request: Amounts) -> None:
        """Count work as ended."""
        self._count(group, request, -1)

    def savepoint(self) -> int:
        """Return the mark that `undo` needs to restore the present accounts."""
        return len(self._journal)

    def undo(self, savepoint: int) -> None:
        """Put the accounts back."""
        while len(self._journal) > savepoint:
            number, demand, preemptible, sign = self._journal.pop()
            self._apply(number, demand, preemptible, -sign)

    def _count(self, group: Group, request: Amounts, sign: int) -> None:
        number = self._number(group)
        if number is not None:
            demand = self._demand(request, number)
            self._journal.append((number, demand, group.preemptible, sign))
            self._apply(number, demand, group.preemptible, sign)

    def _apply(self, number: int, demand: Demand, preemptible: bool, sign: int) -> None:
        change = self.accounts.charge if sign > 0 else self.accounts.take_back
        change(number, demand, preemptible=preemptible)

    def _claims(self, work: GroupRequests) -> list[Claim]:
        numbered = ((self._number(group), request) for group, request in work)
        return [(number, self._demand(request, number)) for number, request in numbered if number is not None]

    def _resolve(self, group: Group) -> int | Reason:
        return self.accounts.tree.resolve(group.queue, namespace=group.namespace, admitted=group.admitted)

    def _number(self, group: Group) -> int | None:
        key = (group.queue, "" if group.queue else group.namespace)
        if key not in self._numbers:
            self._numbers[key] = self.accounts.tree.find(key[0], namespace=key[1])
        return self._numbers[key]

    def _demand(self, request: Amounts, number: int) -> Demand:
        tree = self.accounts.tree
        # Few hierarchies count otherwise than the others.
        key = tuple(request.items()), tree.paths[number][-1] if tree.uncounted else -1
        demand = self._demands.get(key)
        if demand is None:
            demand = self._demands[key] = tree.demand(request, number)
        return demand
