"""When a queue may have work of another queue evicted.

What counts is where the two part: the topmost ancestors that differ (or the queues themselves). The reclaimer's side
must have a right to what it asks for, the victim's side must hold more than it may keep, and taking must not turn the
tables. A resource that the reclaimer does not ask for gives it no right to anything. Source: `facts/kai-scheduler.md`
3.3, "Reclaim entry"; decision 0081 tells where this differs.
"""

from collections.abc import Sequence

from kaicore.events.payloads import Reason
from kaicore.queues.accounts import QueueAccounts
from kaicore.queues.refusals import QueueRefusal
from kaicore.queues.tree import Demand


def may_reclaim(accounts: QueueAccounts, reclaimer: int, demand: Demand, *, preemptible: bool) -> tuple[Reason, ...]:
    """Return why work may not have others evicted at all; empty when it may.

    With the work its queue must be within its fair share of all that it asks for and, if the work cannot be preempted,
    within the quotas; and it must be allowed to start, were there room.
    """
    queue = accounts.tree.queues[reclaimer]
    if not queue.may_reclaim:
        return (Reason(code=QueueRefusal.MAY_NOT_RECLAIM, queue=queue.name),)
    return (
        *accounts.over_fair_share(reclaimer, demand),
        *accounts.refusals(reclaimer, demand, preemptible=preemptible),
    )


def is_victim(accounts: QueueAccounts, reclaimer: int, demand: Demand, victim: int) -> bool:
    """Whether work of a queue may be evicted for other queues' work, the accounts being those of just before.

    Either the victim's side uses more than it may keep (the larger of quota and fair share) of something that the
    reclaimer asks for; or more than its quota of it, while the reclaimer's side stays within its own quotas also with
    the work. Work that was evicted before is taken off the accounts already, and the reclaimer's work is not on them.
    """
    sides = accounts.tree.diverging(reclaimer, victim)
    if sides is None:
        return False
    mine, theirs = sides
    places = [place for place, amount in enumerate(demand.amounts) if amount > 0]
    if accounts.exceeds(theirs, accounts.shares.allocatable, places):
        return True
    quotas = accounts.tree.quotas
    return accounts.exceeds(theirs, quotas, places) and all(
        accounts.used[mine][place] + demand.amounts[place] <= quotas[mine][place] for place in places
    )


def reclaim_refusals(
    accounts: QueueAccounts,
    reclaimer: int,
    demand: Demand,
    victims: Sequence[tuple[int, Demand, bool]],
    *,
    margin_milli: int = 1000,
) -> tuple[Reason, ...]:
    """Return why work may not start in place of others' work; empty when it may. The accounts are left as they are.

    1. Each victim, in the given order, must be one when its turn comes.
    2. Afterwards no ancestor that comes to use more than before may be over its fair share.
    3. Where a side would be over all the same, it must be less so than every side that had to give something, by the
       margin: who has more than its share takes nothing from who has less.

    Args:
        accounts: of the queues as they are, victims included, the reclaimer's work not.
        reclaimer: the queue of the work.
        demand: what it asks for.
        victims: queue, amounts, and whether it may be preempted, of each piece of work that would be evicted.
        margin_milli: see `FairShareConfig.reclaim_margin_milli`.
    """
    tree, path = accounts.tree, accounts.tree.paths[reclaimer]
    before = {number: tuple(accounts.used[number]) for number in path}
    taken: list[tuple[int, Demand, bool]] = []
    try:
        for victim in victims:
            if not is_victim(accounts, reclaimer, demand, victim[0]):
                return (Reason(code=QueueRefusal.VICTIM_WITHIN_SHARE, queue=tree.queues[victim[0]].name),)
            accounts.take_back(victim[0], victim[1], preemptible=victim[2])
            taken.append(victim)
        refused = []
        for number in path:
            for place, amount in enumerate(demand.amounts):
                then = accounts.used[number][place] + amount
                fair = accounts.shares.fair[number][place]
                if amount > 0 and then > fair and then > before[number][place]:
                    refused.append(
                        Reason(
                            code=QueueRefusal.OVER_FAIR_SHARE,
                            resource=tree.resources[place],
                            need=amount,
                            free=fair - (then - amount),
                            queue=tree.queues[number].name,
                        )
                    )
        return tuple(refused) or _turned_tables(accounts, reclaimer, demand, taken, margin_milli)
    finally:
        for number, amounts, preemptible in reversed(taken):
            accounts.charge(number, amounts, preemptible=preemptible)


def _turned_tables(
    accounts: QueueAccounts, reclaimer: int, demand: Demand, taken: Sequence[tuple[int, Demand, bool]], margin: int
) -> tuple[Reason, ...]:
    fair, used = accounts.shares.fair, accounts.used
    for number in sorted({victim[0] for victim in taken}):
        sides = accounts.tree.diverging(reclaimer, number)
        assert sides is not None, "a victim's queue parts from the reclaimer's"
        mine, theirs = sides
        for place, amount in enumerate(demand.amounts):
            then, my_share, their_share = used[mine][place] + amount, fair[mine][place], fair[theirs][place]
            if amount <= 0 or then <= my_share or their_share <= 0:
                continue
            # then / my_share * margin >= used / their_share, without the divisions.
            if then * margin * their_share >= used[theirs][place] * 1000 * my_share:
                return (Reason(code=QueueRefusal.VICTIM_WITHIN_SHARE, queue=accounts.tree.queues[theirs].name),)
    return ()
