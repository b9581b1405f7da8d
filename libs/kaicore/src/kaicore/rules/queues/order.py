"""The order of queues among their siblings, which decides the queue with the next work.

At each level of the hierarchy the queues below one parent stand in an order; from the roots down, the first of each
level leads to the next work.

Source: KAI-Scheduler v0.17, `pkg/scheduler/plugins/proportion/queue_order/queue_order.go`; between ClusterQueues Kueue
v0.17, `pkg/scheduler/scheduler.go` (its entries, those that do not borrow first, then by priority).
"""

from kaicore.rules.queues.accounts import QueueAccounts
from kaicore.rules.queues.tree import Demand

#: Shares of what a queue is owed are compared to this precision; with nothing owed, any use is this many times it.
_PRECISION = 10**9
_NOTHING_OWED = 1000

#: A queue's place among its siblings; the smallest comes first.
Standing = tuple[tuple[int, ...], tuple[int, str, str]]


def standing(accounts: QueueAccounts, number: int, demand: Demand, *, priority: int = 0) -> Standing:
    """Return what a queue is ordered by among its siblings, with its next work; the smallest comes first.

    In this order: not over its fair share (it is over only where it is in all resources); within its quotas also with
    the work; between ClusterQueues of one cohort that are, with work of higher priority (Kueue); of higher priority;
    nothing used that it is owed nothing of; with the smaller dominant share, of what it may keep, with the work;
    without it; owed less; the older one; by uid and name.

    Args:
        accounts: of the queues.
        number: of the queue.
        demand: what its next work asks for.
        priority: of that work.
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
    by_priority = -priority if number in tree.by_priority and not over_quota else 0
    return (
        (int(over_fair_share), int(over_quota), by_priority, -queue.priority, int(unowed), with_work, without, owed),
        (queue.created_at, queue.uid, queue.name),
    )


def _part(amount: int, whole: int) -> int:
    return amount * _PRECISION // whole if whole > 0 else amount * _PRECISION * _NOTHING_OWED
