"""Queues as a cycle asks about them: by group and by what it requests, with everything charged put back on demand."""

from dataclasses import dataclass, field

from kaicore.events.payloads import Reason
from kaicore.model.group import Group
from kaicore.model.pod import Amounts
from kaicore.queues.accounts import QueueAccounts
from kaicore.queues.config import FairShareConfig
from kaicore.queues.order import QueueOrder, Turn, standing
from kaicore.queues.reclaim import is_victim, may_reclaim, reclaim_refusals
from kaicore.queues.tree import Demand


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
    _demands: dict[tuple[tuple[str, int], ...], Demand] = field(default_factory=dict)
    _numbers: dict[tuple[str, str], int | None] = field(default_factory=dict)

    def queue_of(self, group: Group) -> str:
        """Return the name of the queue that pays for a group; what the group says, where there is no such queue."""
        number = self._number(group)
        return group.queue if number is None else self.accounts.tree.queues[number].name

    def turn(self, queue: str, request: Amounts) -> tuple[Turn, ...]:
        """Return a queue's place in the order of queues if its next work asks for `request`; the lowest goes first.

        The ancestors are judged first, from the root down, each by what it uses; the queue itself with the work. Unlike
        `QueueOrder`, an ancestor is not judged with the work that would be next below it, so that places of queues can
        be compared one by one. No charge of any queue makes a place better.
        """
        number = self.accounts.tree.find(queue)
        if number is None:
            return ()
        path, nothing = self.accounts.tree.paths[number], self._demand({})
        above = (standing(self.accounts, one, nothing) for one in reversed(path[1:]))
        return (*above, standing(self.accounts, number, self._demand(request)))

    def order(self) -> QueueOrder:
        """Return an order of queues that follows these accounts."""
        return QueueOrder(self.accounts)

    def refusal(self, group: Group, request: Amounts) -> tuple[Reason, ...]:
        """Say why a group may not start so much now, whatever is free; empty if it may."""
        number = self.accounts.tree.resolve(group.queue, namespace=group.namespace)
        if isinstance(number, Reason):
            return (number,)
        return self.accounts.refusals(number, self._demand(request), preemptible=group.preemptible)

    def reclaim_refusal(self, group: Group, request: Amounts) -> tuple[Reason, ...]:
        """Say why a group may not have other queues' work evicted to start so much; empty if it may."""
        number = self.accounts.tree.resolve(group.queue, namespace=group.namespace)
        if isinstance(number, Reason):
            return (number,)
        return may_reclaim(self.accounts, number, self._demand(request), preemptible=group.preemptible)

    def may_preempt(self, group: Group) -> bool:
        """Tell whether a group may have other work of its queue evicted."""
        number = self._number(group)
        return number is not None and self.accounts.tree.queues[number].may_preempt

    def may_reclaim(self, group: Group, request: Amounts, victim: Group) -> bool:
        """Tell whether work of the victim's queue, as it now stands, may be evicted so that a group can start."""
        mine, theirs = self._number(group), self._number(victim)
        if mine is None or theirs is None or not victim.preemptible:
            return False
        return is_victim(self.accounts, mine, self._demand(request), theirs)

    def exchange_refusal(
        self, group: Group, request: Amounts, victims: list[tuple[Group, Amounts]]
    ) -> tuple[Reason, ...]:
        """Say why a group may not start in place of some work, still on the accounts, as a whole; empty if it may."""
        mine = self._number(group)
        taken = [
            (number, self._demand(amounts), victim.preemptible)
            for victim, amounts in victims
            if (number := self._number(victim)) is not None
        ]
        if mine is None:
            return self.refusal(group, request)
        margin = self.config.reclaim_margin_milli
        return reclaim_refusals(self.accounts, mine, self._demand(request), taken, margin_milli=margin)

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
            demand = self._demand(request)
            self._journal.append((number, demand, group.preemptible, sign))
            self._apply(number, demand, group.preemptible, sign)

    def _apply(self, number: int, demand: Demand, preemptible: bool, sign: int) -> None:
        change = self.accounts.charge if sign > 0 else self.accounts.take_back
        change(number, demand, preemptible=preemptible)

    def _number(self, group: Group) -> int | None:
        key = (group.queue, "" if group.queue else group.namespace)
        if key not in self._numbers:
            self._numbers[key] = self.accounts.tree.find(key[0], namespace=key[1])
        return self._numbers[key]

    def _demand(self, request: Amounts) -> Demand:
        key = tuple(request.items())
        demand = self._demands.get(key)
        if demand is None:
            demand = self._demands[key] = self.accounts.tree.demand(request)
        return demand
