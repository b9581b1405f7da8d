"""The descent from a domain to its spots: the number of pods that each gets.

Pods are distributed over the domains below, level by level. Each part of several shares goes to its own domains, all
shares at once.

The number of pods of a class that each domain takes, from the nodes up.
"""

from dataclasses import dataclass

import numpy as np

from kaicore.rules.topology.placing.request import Order, Policy
from kaicore.rules.topology.tree import Numbers, OrderedTree


@dataclass(frozen=True, slots=True)
class Layer:
    """So many pods stay in one domain at a depth.

    Attributes:
        spares: how many spots of each such domain stay free.
        alone: whether a domain takes only one such part.
    """

    size: int
    depth: int
    spares: int = 0
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """A domain, or the whole cluster, as a run of spots.

    Attributes:
        low: first spot.
        high: behind the last spot.
    """

    depth: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of the domains in a scope, at each depth from the scope's down to the spots.

    Attributes:
        firsts: at each depth, the first domain in the scope; depths above the scope's have nothing.
        whole: at each depth, of each domain how many pods in whole parts.
        pods: the same, but the last part need not be whole; for ties.
    """

    firsts: tuple[int, ...]
    whole: tuple[Numbers, ...]
    pods: tuple[Numbers, ...]


_NOTHING = np.zeros(0, np.int64)


def capacity(
    tree: OrderedTree, counts: Numbers, layers: tuple[Layer, ...], scope: Scope, held: Numbers | None = None
) -> Capacity:
    """Sum up what spots take.

    Args:
        counts: of each spot in the scope, how many pods it takes.
        layers: parts that stay together, from the widest to the narrowest.
        held: of each spot of the tree, how many pods of the set are there already; None for none.
    """
    at_depth: dict[int, list[Layer]] = {}
    for layer in layers:
        at_depth.setdefault(max(layer.depth, scope.depth), []).append(layer)
        if not tree.complete[layer.depth]:
            counts = np.where(tree.real[layer.depth][tree.of[layer.depth][scope.low : scope.high]], counts, 0)
        if layer.spares:
            counts = without_spares(tree, counts, layer, scope, held)
    firsts, whole, pods = [0] * (tree.depth + 1), [_NOTHING] * (tree.depth + 1), [_NOTHING] * (tree.depth + 1)
    for depth in range(tree.depth, scope.depth - 1, -1):
        low, high = tree.span(depth, scope.low, scope.high)
        firsts[depth] = low
        if depth == tree.depth:
            summed = loose = counts
        elif high - low == len(whole[depth + 1]):
            # Each domain has one below it, such as a host's one spot.
            summed, loose = whole[depth + 1], pods[depth + 1]
        else:
            begins = tree.children[depth][low:high] - firsts[depth + 1]
            summed = np.add.reduceat(whole[depth + 1], begins) if high > low else _NOTHING
            loose = summed if whole[depth + 1] is pods[depth + 1] else np.add.reduceat(pods[depth + 1], begins)
        here = at_depth.get(depth)
        if here:
            loose = summed
            for layer in reversed(here):
                summed = summed - summed % layer.size
                if layer.alone:
                    summed = np.minimum(summed, layer.size)
        whole[depth], pods[depth] = summed, loose
    return Capacity(tuple(firsts), tuple(whole), tuple(pods))


@dataclass(frozen=True, slots=True)
class Wish:
    """Pods of one class that prefer some spots of a scope.

    Attributes:
        counts: of each spot, how many of them it takes.
        preferences: of each spot, how much they prefer it; more is better.
    """

    wanted: int
    counts: Numbers
    preferences: Numbers

    def means(self, tree: OrderedTree, depth: int, scope: Scope) -> Numbers:
        """Return of each domain at a depth how much the spots are preferred that the pods would get there.

        As if the domain took all it can, on the spots that are preferred most; the mean over the pods, in thousandths.
        """
        if depth == tree.depth:
            return self.preferences * 1000
        low, high = tree.span(depth, scope.low, scope.high)
        of = tree.of[depth][scope.low : scope.high] - low
        sequence = np.lexsort((-self.preferences, of))
        begins = of.searchsorted(np.arange(high - low))
        room = np.minimum(self.counts, self.wanted)[sequence]
        before = room.cumsum() - room
        taken = np.minimum(np.maximum(self.wanted - (before - before[begins][of]), 0), room)
        pods = np.add.reduceat(taken, begins)
        means: Numbers = np.add.reduceat(taken * self.preferences[sequence], begins) * 1000 // np.maximum(pods, 1)
        return means


def without_spares(tree: OrderedTree, counts: Numbers, layer: Layer, scope: Scope, held: Numbers | None) -> Numbers:
    """Return the counts with those spots of each domain at nothing that stay free.

    These are the ones that take the most pods, so that each of them can stand in for any other of its domain. A
    spot that holds pods of the set is none.
    """
    of = tree.of[layer.depth][scope.low : scope.high]
    able = counts if held is None else np.where(held[scope.low : scope.high] > 0, -1, counts)
    sequence = np.lexsort((-able, of))
    heads = np.searchsorted(of, of)
    spare = sequence[np.arange(len(of)) - heads < layer.spares]
    counts = counts.copy()
    counts[spare] = 0
    return counts


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """The rules of a descent in a scope.

    Attributes:
        policy: in which order several domains are filled.
        layers: parts that stay together, from the widest to the narrowest.
        gaps: whether any place will do, so that the smallest gaps are filled first.
        gather: down to this depth the fewest domains are used, even where the policy evens out.
        pull: of each spot of the tree how many pods attract these; None for none.
        start: a depth, and what each of its domains gets, which it then keeps; None for the scope as a whole.
        wish: the spots that the pods prefer; None where all are alike.
    """

    tree: OrderedTree
    scope: Scope
    policy: Policy
    layers: tuple[Layer, ...]
    gaps: bool
    gather: int
    pull: Numbers | None
    start: tuple[int, Numbers] | None
    wish: Wish | None

    def taken(self, within: Capacity, wanted: int) -> Numbers:
        """Return how many pods each spot of the scope gets, which takes them all.

        Down to the depth of the outermost parts the domains below all chosen domains are one pool, so that at each
        depth the fewest are used. Further down each part stays in its domain.

        Args:
            wanted: how many pods, a multiple of the outermost part's size.
        """
        begin = self.start or (self.scope.depth, np.array([wanted], np.int64))
        if self.wish is None:
            return self._down(within, wanted, begin, self.tree.depth)
        asked = max((begin[0], self.gather, *(layer.depth for layer in self.layers)))
        shares = self._down(within, wanted, begin, asked, self.wish)
        return shares if asked == self.tree.depth else self._down_by_wish(within, wanted, (asked, shares), self.wish)

    def _down(
        self, within: Capacity, wanted: int, begin: tuple[int, Numbers], end: int, wish: Wish | None = None
    ) -> Numbers:
        """Return how many pods each domain at a depth gets, from what domains at a wider depth get."""
        tree = self.tree
        depth, shares = begin
        while depth < end:
            order = self._order(depth)
            above, depth = depth, end if self.gaps and not self.layers else depth + 1
            first, room = within.firsts[depth], within.whole[depth]
            of = np.zeros(len(room), np.int64)
            if depth == above + 1:
                of = tree.parents[depth][first : first + len(room)] - within.firsts[above]
            open_ = ((shares[of] > 0) & (room > 0)).nonzero()[0]
            of = of[open_]
            if self._pools(depth):
                given, of = np.array([wanted], np.int64), np.zeros_like(of)
            else:
                kept = np.flatnonzero(shares)
                given, of = shares[kept], np.searchsorted(kept, of)
            shares = np.zeros(len(room), np.int64)
            shares[open_] = fill(
                room[open_],
                given,
                of,
                order=order,
                last_tightest=self.policy.last_tightest,
                ties=() if depth == tree.depth else (within.pods[depth][open_],),
                pull=None if self.pull is None else nearness(tree, self.pull, depth, first + open_),
                dislikes=None if wish is None else -wish.means(tree, depth, self.scope)[open_],
                unit=next((layer.size for layer in self.layers if layer.depth >= depth), 1),
                places=first + open_,
            )
        return shares

    def _down_by_wish(self, within: Capacity, wanted: int, begin: tuple[int, Numbers], wish: Wish) -> Numbers:
        """Return how many pods each spot gets: the spots that are preferred most are filled before any others."""
        depth, left = begin
        of = self.tree.of[depth][self.scope.low : self.scope.high] - within.firsts[depth]
        counts = within.whole[self.tree.depth]
        able = (left[of] > 0) & (counts > 0)
        pools = self._pools(depth + 1)
        taken = np.zeros(len(of), np.int64)
        for preference in np.unique(wish.preferences[able])[::-1]:
            alike = able & (wish.preferences == preference)
            among = capacity(self.tree, np.where(alike, counts, 0), (), self.scope)
            room = among.whole[depth]
            shares = room if pools else np.minimum(left, room)
            part = min(wanted, int(shares.sum()))
            if part:
                taken += self._down(among, part, (depth, shares), self.tree.depth)
            wanted -= part
            left = left if pools else left - shares
            if not wanted:
                break
        return taken

    def _pools(self, depth: int) -> bool:
        """Tell whether the domains at a depth below all chosen domains are one pool."""
        pooled_to = self.layers[0].depth if self.layers else self.tree.depth
        return self.start is None and depth <= pooled_to and (self.policy.pooled or self.gaps)

    def _order(self, depth: int) -> Order:
        order = self.policy.gaps if self.gaps else self.policy.order
        return Order.LARGEST if order is Order.EVEN and depth < self.gather else order


def nearness(tree: OrderedTree, pull: Numbers, depth: int, domains: Numbers) -> Numbers:
    """Return ranks of domains: those with the most attracting pods first, then the nearest to such.

    Near is by edges of the tree: what shares a narrower domain with more of those pods.
    """
    sums = np.append(0, np.cumsum(pull))
    keys = []
    for up in range(depth, 0, -1):
        starts = tree.starts[up]
        keys.append(-(sums[starts[domains + 1]] - sums[starts[domains]]))
        domains = tree.parents[up][domains]
    if not keys:
        return np.zeros(len(domains), np.int64)
    sequence = np.lexsort(keys[::-1])
    ordered = np.stack(keys)[:, sequence]
    steps = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    ranks = np.zeros(len(sequence), np.int64)
    ranks[sequence[1:]] = np.cumsum(steps)
    return ranks
