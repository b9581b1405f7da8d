"""The right of a queue to have work of another queue evicted.

The comparison is made where the two part: the topmost ancestors that differ (or the queues themselves). The reclaimer's
side must have a right to its requests, the victim's side must hold more than it may keep, and taking must not reverse
the roles. A resource that the reclaimer does not ask for gives it no right to anything.

Source: KAI-Scheduler v0.17, `pkg/scheduler/plugins/proportion/reclaimable/reclaimable.go` and
`reclaimable/strategies/strategies.go`. Decision 0080 lists the differences.
"""

from collections.abc import Sequence

from kaicore.rules.queues.accounts import QueueAccounts
from kaicore.rules.queues.tree import Demand
from kaicore.rules.reasons.queue import OverLimit, QueueMayNotReclaim, VictimWithinShare
from kaicore.rules.reasons.reason import Reason

#: Work of a queue: what it asks for, or holds.
Claim = tuple[int, Demand]


def may_reclaim(accounts: QueueAccounts, reclaimer: int, demand: Demand, *, preemptible: bool) -> tuple[Reason, ...]:
    """Return why work may not have others evicted at all; empty when it may.

    With the work its queue must be within its fair share of all that it asks for and, if the work cannot be preempted,
    within the quotas; and no bound may be in the way that victims cannot lift. A limit of an ancestor is none of these:
    what others of that ancestor's queues give back makes way below it.
    """
    queue = accounts.tree.queues[reclaimer]
    if not queue.may_reclaim:
        return (QueueMayNotReclaim(queue=queue.name),)
    refused = accounts.refusals(reclaimer, demand, preemptible=preemptible)
    return (
        *accounts.over_fair_share(reclaimer, demand),
        *(reason for reason in refused if not isinstance(reason, OverLimit) or reason.queue == queue.name),
    )


def is_victim(accounts: QueueAccounts, reclaimer: int, demand: Demand, victim: int) -> bool:
    """Whether work of a queue may be evicted for other queues' work, the accounts being those of just before.

    Either the victim's side uses more than it may keep (the larger of quota and fair share) of something that the
    reclaimer asks for; or more than its quota of it, while the reclaimer's side stays within its own quotas also with
    the work. Work that was evicted before is taken off the accounts already, and the reclaimer's work is on them.
    """
    sides = accounts.tree.diverging(reclaimer, victim)
    if sides is None:
        return False
    mine, theirs = sides
    places = [place for place, amount in enumerate(demand.amounts) if amount > 0]
    if accounts.exceeds(theirs, accounts.shares.allocatable, places):
        return True
    quotas = accounts.tree.quotas
    return accounts.exceeds(theirs, quotas, places) and not accounts.exceeds(mine, quotas, places)


def keeps_quotas(accounts: QueueAccounts, reclaimer: int, demand: Demand, victim: int, held: Demand) -> bool:
    """Whether a victim's queue, and those above it up to where the two part, have their quotas without some work.

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
    accounts: QueueAccounts, asked: Sequence[Claim], victims: Sequence[Claim], *, margin_milli: int = 1000
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
    """
    changes = [(number, demand, 1) for number, demand in asked]
    for claim in asked:
        accounts.charge(*claim, preemptible=True)
    try:
        for number, amounts in victims:
            if not any(is_victim(accounts, *claim, number) for claim in asked):
                return (VictimWithinShare(queue=accounts.tree.queues[number].name),)
            accounts.take_back(number, amounts, preemptible=True)
            changes.append((number, amounts, -1))
        return _turned_tables(accounts, asked, sorted({number for number, _ in victims}), margin_milli)
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
