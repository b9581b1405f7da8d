"""Distribution of pods over domains: each part of several shares goes to its own domains, all shares at once."""

import numpy as np

from kaicore.rules.topology.ordered import Numbers
from kaicore.rules.topology.placing.strategies import Order

_MANY = np.iinfo(np.int64).max


def fill(
    capacities: Numbers,
    shares: Numbers,
    parents: Numbers,
    *,
    order: Order,
    last_tightest: bool = True,
    ties: tuple[Numbers, ...] = (),
    pull: Numbers | None = None,
    dislikes: Numbers | None = None,
    unit: int = 1,
    places: Numbers | None = None,
) -> Numbers:
    """Return how many pods each domain gets.

    Args:
        capacities: of each domain, a multiple of the unit.
        shares: of each parent, how many pods its domains get together; not more than they take.
        parents: of each domain, its parent's number in `shares`; never falling.
        order: which of a parent's domains come first.
        last_tightest: whether the rest goes to the domain with the least room that takes it.
        ties: what decides between domains with equal room, the first first; the smaller goes first.
        pull: of each domain a rank, the smallest first, before any room is compared; None for all alike.
        dislikes: of each domain, what decides between equals before they go in order, the smaller first; None for
            nothing.
        unit: so many pods stay together.
        places: of each domain its place in the tree, ascending; None for one beside the other.
    """
    if order is Order.EVEN:
        return _even(capacities, shares, parents, unit, dislikes)
    if order is Order.ADJACENT:
        return _adjacent(capacities, shares, parents, pull, places)
    if dislikes is not None:
        ties = (*ties, dislikes)
    pulled = np.zeros(len(capacities), np.int64) if pull is None else pull
    by_room = capacities if order is Order.SMALLEST else -capacities
    sequence = np.lexsort((*ties[::-1], by_room, pulled, parents))
    room, parent, pulled = capacities[sequence], parents[sequence], pulled[sequence]
    before = room.cumsum() - room
    if len(shares) > 1:
        before -= np.append(before, 0)[parent.searchsorted(np.arange(len(shares)))][parent]
    rest = shares[parent] - before
    taken = np.minimum(np.maximum(rest, 0), room)
    if last_tightest or order is Order.SMALLEST:
        _swap_last(taken, room, rest, parent, pulled, order=order)
    by_spot: Numbers = np.empty(len(taken), np.int64)
    by_spot[sequence] = taken
    return by_spot


def _swap_last(taken: Numbers, room: Numbers, rest: Numbers, parent: Numbers, pulled: Numbers, *, order: Order) -> None:
    """Give what is left to the tightest domain that takes it: the last one's, or where gaps are filled the whole."""
    if order is Order.SMALLEST:
        heads = np.flatnonzero(np.append(True, (parent[1:] != parent[:-1]) | (pulled[1:] != pulled[:-1])))
        heads = heads[rest[heads] > 0]
    else:
        heads = ((rest > 0) & (rest <= room)).nonzero()[0]
    if not len(heads):
        return
    shrinking = -room
    for head in heads.tolist():
        last = int(parent.searchsorted(parent[head], side="right"))
        end = head + int(pulled[head:last].searchsorted(pulled[head], side="right"))
        if order is Order.SMALLEST:
            best = head + int(room[head:end].searchsorted(rest[head]))
            if best == end:
                continue
        else:
            tightest = int(shrinking[head:end].searchsorted(-rest[head], side="right")) - 1
            best = head + int(shrinking[head:end].searchsorted(shrinking[head + tightest]))
        taken[head:last] = 0
        taken[best] = rest[head]


def _even(
    capacities: Numbers, shares: Numbers, parents: Numbers, unit: int, dislikes: Numbers | None = None
) -> Numbers:
    """Each unit goes where the most room is left; of equals to the first."""
    if dislikes is not None:
        sequence = np.lexsort((dislikes, parents))
        by_like = np.zeros_like(capacities)
        by_like[sequence] = _even(capacities[sequence], shares, parents, unit)
        return by_like
    taken = np.zeros_like(capacities)
    bounds = np.searchsorted(parents, np.arange(len(shares) + 1))
    for share, low, high in zip((shares // unit).tolist(), bounds, bounds[1:], strict=False):
        if share <= 0:
            continue
        room = capacities[low:high] // unit
        least, most = 0, int(room.max())
        while least < most:
            level = (least + most + 1) // 2
            if int(np.maximum(room - level, 0).sum()) >= share:
                least = level
            else:
                most = level - 1
        part = np.maximum(room - least - 1, 0)
        open_ = np.flatnonzero(room > least)[: share - int(part.sum())]
        part[open_] += 1
        taken[low:high] = part * unit
    return taken


def _adjacent(
    capacities: Numbers, shares: Numbers, parents: Numbers, pull: Numbers | None, places: Numbers | None
) -> Numbers:
    """Fill the shortest run of neighbours in order; of equals the most attracting, the one with the least room left.

    Domains without room lie between others, and make a run longer.
    """
    taken = np.zeros_like(capacities)
    bounds = np.searchsorted(parents, np.arange(len(shares) + 1))
    for share, low, high in zip(shares.tolist(), bounds, bounds[1:], strict=False):
        if share <= 0:
            continue
        room = capacities[low:high]
        sums = room.cumsum()
        before = sums - room
        ends = np.searchsorted(sums, before + share)
        begins = np.flatnonzero(ends < len(room))
        ends = ends[begins]
        place = np.arange(high - low) if places is None else places[low:high]
        ranks = np.zeros(len(room), np.int64) if pull is None else pull[low:high]
        nearest = np.array([ranks[begin : end + 1].min() for begin, end in zip(begins, ends, strict=True)])
        left = sums[ends] - before[begins] - share
        best = int(np.lexsort((left, nearest, place[ends] - place[begins]))[0])
        begin, end = int(begins[best]), int(ends[best])
        taken[low + begin : low + end + 1] = room[begin : end + 1]
        taken[low + end] -= left[best]
    return taken
