"""Which place a pod has among the pods of its set: its own, or that in which it came."""

from collections.abc import Iterable, Mapping, Sequence

from kaicore.rules.engine.workload import Member
from kaicore.rules.groups.ranks import NO_RANK, own_rank, rank_order
from kaicore.rules.model.group import RankSource


def ranked(
    waiting: Sequence[Member], held: Iterable[int], source: RankSource | None
) -> tuple[list[Member], Mapping[str, int]]:
    """Return pods of a leaf in order of their ranks, and their ranks by uid.

    Where a pod that waits names no rank, or the same as another, none counts: then they take the lowest ranks that
    running pods leave, in the order given (Kueue pkg/controller/tas/topology_ungater.go, v0.20.0-devel). Where only the
    order of the numbers counts, they take those ranks in that order. A pod that is placed anew keeps the rank that it
    has.

    Args:
        waiting: to be placed, in order of age and name.
        held: ranks of the pods of the leaf that stay where they are.
        source: where pods tell their rank.
    """
    if source is not None and source.order_only:
        waiting = sorted(waiting, key=lambda member: rank_order(member.pod, source))
    elif source is not None:
        own_ranks = [own_rank(member.pod, source) for member in waiting]
        if NO_RANK not in own_ranks and len(set(own_ranks)) == len(own_ranks):
            order = sorted(range(len(own_ranks)), key=own_ranks.__getitem__)
            return [waiting[index] for index in order], {waiting[index].pod.uid: own_ranks[index] for index in order}
    ranks: dict[str, int] = {}
    taken = set(held)
    for member in waiting:
        if member.rank != NO_RANK and member.rank not in taken:
            ranks[member.pod.uid] = member.rank
            taken.add(member.rank)
    rank = 0
    for member in waiting:
        if member.pod.uid not in ranks:
            while rank in taken:
                rank += 1
            ranks[member.pod.uid] = rank
            rank += 1
    return sorted(waiting, key=lambda member: ranks[member.pod.uid]), ranks
