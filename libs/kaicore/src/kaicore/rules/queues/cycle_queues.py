"""Queues in a cycle, by group and by requests, with every charge put back on demand."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts
from kaicore.rules.queues.accounts import QueueAccounts
from kaicore.rules.queues.config import FairShareConfig
from kaicore.rules.queues.order import Standing, standing
from kaicore.rules.queues.reclaim import Claim, is_victim, keeps_quotas, may_reclaim, reclaim_refusals
from kaicore.rules.queues.tree import Demand
from kaicore.rules.reasons.queue import OverLimit, QueueMayNotPreempt
from kaicore.rules.reasons.reason import Reason

#: Groups, each with what it is to start, or with what of it would be evicted.
GroupRequests = Sequence[tuple[Group, Amounts]]


@dataclass(slots=True)
class CycleQueues:
    """The queues of a cluster during a cycle.

    Attributes:
        accounts: of the queues; charged and put back here.
        config: the shard's settings.
    """

    accounts: QueueAccounts
    config: FairShareConfig
    _journal: list[tuple[int, Demand, bool, int]] = field(default_factory=list)
    _demands: dict[tuple[tuple[tuple[str, int], ...], int], Demand] = field(default_factory=dict)
    _numbers: dict[tuple[str, str], int | None] = field(default_factory=dict)

    def queue_of(self, group: Group) -> str:
        """Return the name of the queue that pays for a group; what the group says, where there is no such queue."""
        number = self._number(group)
        return group.queue if number is None else self.accounts.tree.queues[number].name

    def order_key(self, queue: str, request: Amounts, *, priority: int = 0) -> tuple[Standing, ...]:
        """Return a queue's place in the order of queues if its next work asks for `request`; the lowest goes first.

        The ancestors are judged first, from the root down, each by what it uses; the queue itself with the work. An
        ancestor is not judged with the work that would be next below it, so that places of queues can be compared one
        by one. No charge of any queue makes a place better.
        """
        number = self.accounts.tree.find(queue)
        if number is None:
            return ()
        path, nothing = self.accounts.tree.paths[number], self._demand({}, number)
        above = (standing(self.accounts, one, nothing) for one in reversed(path[1:]))
        return (*above, standing(self.accounts, number, self._demand(request, number), priority=priority))

    def is_owed(self, requests: GroupRequests, making_way: GroupRequests) -> bool:
        """Tell whether queues are owed that groups start so much, once some work has made way.

        They are where none of them, nor any queue above them, has more than its fair share of what is asked for then.
        """
        before = self.savepoint()
        for group, amounts in making_way:
            self.release(group, amounts)
        for group, request in requests:
            self.charge(group, request)
        owed = bool(requests)
        for number, demand in self._claims(requests):
            places = [place for place, amount in enumerate(demand.amounts) if amount > 0]
            fair = self.accounts.shares.fair
            owed &= bool(places)
            owed &= not any(self.accounts.exceeds(above, fair, places) for above in self.accounts.tree.paths[number])
        self.undo(before)
        return owed

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
        number = self._number(group)
        queue = None if number is None else self.accounts.tree.queues[number]
        if queue is None or queue.may_preempt:
            return ()
        return (QueueMayNotPreempt(queue=queue.name),)

    def reclaims_from(self, group: Group, victim: Group) -> bool:
        """Tell whether a group may have the victim evicted as one of another queue, by priority."""
        mine = self._number(group)
        lower = mine is not None and self.accounts.tree.queues[mine].reclaims_lower
        return self.queue_of(victim) != self.queue_of(group) and (not lower or victim.priority < group.priority)

    def may_reclaim(self, requests: GroupRequests, victim: Group) -> bool:
        """Tell whether work of the victim's queue may be evicted so that groups can start so much.

        The accounts are those of just before, what is to start being on them.
        """
        theirs = self._number(victim)
        if theirs is None or not victim.preemptible:
            return False
        return any(is_victim(self.accounts, mine, demand, theirs) for mine, demand in self._claims(requests))

    def keeps_quotas(self, requests: GroupRequests, victim: Group, held: Amounts) -> bool:
        """Tell whether the victim's queues keep their quotas if so much of its work goes for groups to start."""
        theirs = self._number(victim)
        return theirs is None or all(
            keeps_quotas(self.accounts, mine, wanted, theirs, self._demand(held, theirs))
            for mine, wanted in self._claims(requests)
        )

    def exchange_refusal(self, requests: GroupRequests, victims: GroupRequests) -> tuple[Reason, ...]:
        """Say why groups may not start in place of some work, still on the accounts, as a whole; empty if they may."""
        margin = self.config.reclaim_margin_milli
        return reclaim_refusals(self.accounts, self._claims(requests), self._claims(victims), margin_milli=margin)

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
        """Return what `undo` is told to put the accounts back to where they are now."""
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
