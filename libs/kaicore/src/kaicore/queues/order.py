"""Which queue's work is next.

At each level of the hierarchy the queues below one parent stand in an order, each with the work that would be next
below it; from the roots down, the first of each level leads to the next work (KAI's queue order,
`facts/kai-scheduler.md` 3.3). A charge changes the standing of a queue and its ancestors only, so only these are put in
their places again.
"""

import heapq
from dataclasses import dataclass, field

from kaicore.queues.accounts import QueueAccounts
from kaicore.queues.tree import Demand

#: Shares of what a queue is owed are compared to this precision; with nothing owed, any use is this many times it.
_PRECISION = 10**9
_NOTHING_OWED = 1000

#: A queue's place among its siblings; the smallest comes first.
Turn = tuple[tuple[int, ...], tuple[int, str, str]]


def standing(accounts: QueueAccounts, number: int, demand: Demand) -> Turn:
    """Return what a queue is ordered by among its siblings, with its next work; the smallest comes first.

    In this order: not over its fair share (it is over only where it is in all resources); within its quotas also with
    the work; of higher priority; nothing used that it is owed nothing of; with the smaller dominant share, of what it
    may keep, with the work; without it; owed less; the older one; by uid and name.
    """
    tree, shares = accounts.tree, accounts.shares
    used, fair, keeps = accounts.used[number], shares.fair[number], shares.allocatable[number]
    quotas, queue = tree.quotas[number], tree.queues[number]
    over_fair_share = bool(used) and all(now > share for now, share in zip(used, fair, strict=True))
    over_quota = unowed = False
    with_work = without = owed = 0
    for now, more, keep, quota, total in zip(used, demand.amounts, keeps, quotas, shares.totals, strict=True):
        then = now + more
        over_quota |= then > quota
        unowed |= then > 0 and keep <= 0
        with_work = max(with_work, _part(then, keep))
        without = max(without, _part(now, keep))
        owed = max(owed, _part(keep, total))
    return (
        (int(over_fair_share), int(over_quota), -queue.priority, int(unowed), with_work, without, owed),
        (queue.created_at, queue.uid, queue.name),
    )


def _part(amount: int, whole: int) -> int:
    return amount * _PRECISION // whole if whole > 0 else amount * _PRECISION * _NOTHING_OWED


@dataclass(slots=True)
class QueueOrder:
    """The order of the queues that have work, kept while accounts change.

    Give each leaf's next work with `set_next`; `first` is the leaf whose work is next. Charges of the accounts are
    noticed.
    """

    accounts: QueueAccounts
    _next: dict[int, Demand] = field(default_factory=dict)
    # By parent (-1 for the roots): a heap of children by their standing; entries of an old turn are passed over.
    _heaps: dict[int, list[tuple[Turn, int, int]]] = field(default_factory=dict)
    _turns: dict[int, int] = field(default_factory=dict)
    _first_below: dict[int, int] = field(default_factory=dict)
    _changed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.accounts.watchers.append(self._changed.add)

    def set_next(self, leaf: int, demand: Demand | None) -> None:
        """Say what a leaf's next work asks for; None when it has no more."""
        if demand is None:
            self._next.pop(leaf, None)
        else:
            self._next[leaf] = demand
        self._changed.update(self.accounts.tree.paths[leaf])

    def first(self) -> int | None:
        """Return the leaf whose work is next; None when there is none."""
        # Children have the higher numbers: a parent's place depends on the first one below it.
        for number in sorted(self._changed, reverse=True):
            self._place(number)
        self._changed.clear()
        return self._top(-1)

    def _place(self, number: int) -> None:
        tree = self.accounts.tree
        leaf = self._top(number) if tree.children[number] else number
        turn = self._turns[number] = self._turns.get(number, 0) + 1
        demand = None if leaf is None else self._next.get(leaf)
        if leaf is None or demand is None:
            self._first_below.pop(number, None)
            return
        self._first_below[number] = leaf
        heap = self._heaps.setdefault(tree.parents[number], [])
        heapq.heappush(heap, (standing(self.accounts, number, demand), number, turn))

    def _top(self, parent: int) -> int | None:
        heap = self._heaps.get(parent)
        while heap:
            _, number, turn = heap[0]
            if self._turns[number] == turn:
                return self._first_below[number]
            heapq.heappop(heap)
        return None
