"""The descent from a domain to its spots: the number of pods that each gets."""

from dataclasses import dataclass

import numpy as np

from kaicore.rules.topology.ordered import Numbers, OrderedTree
from kaicore.rules.topology.placing.capacity import Capacity, Layer, Scope, Wish, capacity
from kaicore.rules.topology.placing.filling import fill
from kaicore.rules.topology.placing.strategies import Order, Policy


def descend(
    tree: OrderedTree,
    within: Capacity,
    wanted: int,
    layers: tuple[Layer, ...],
    scope: Scope,
    *,
    policy: Policy,
    gaps: bool = False,
    gather: int = 0,
    pull: Numbers | None = None,
    start: tuple[int, Numbers] | None = None,
    wish: Wish | None = None,
) -> Numbers:
    """Return how many pods each spot of a scope gets; the scope takes them all.

    Down to the depth of the outermost parts the domains below all chosen domains are one pool, so that at each depth
    the fewest are used. Further down each part stays in its domain.

    Args:
        tree: the spots.
        within: what the domains take.
        wanted: how many pods, a multiple of the outermost part's size.
        layers: which of them stay together.
        scope: where.
        policy: how domains are chosen.
        gaps: whether any place will do.
        gather: down to this depth the fewest domains are used, even where the policy evens out.
        pull: of each spot of the tree how many pods attract these; None for none.
        start: a depth, and what each of its domains gets, which it then keeps; None for the scope as a whole.
    """
    parts = layers[0].depth if layers else tree.depth
    begin = start or (scope.depth, np.array([wanted], np.int64))
    way = _Way(
        tree, scope, policy, layers, gaps=gaps, gather=gather, pull=pull, pooled_to=parts if start is None else 0
    )
    if wish is None:
        return way.down(within, wanted, begin, tree.depth)
    asked = max((begin[0], gather, *(layer.depth for layer in layers)))
    shares = way.down(within, wanted, begin, asked, wish)
    return shares if asked == tree.depth else way.down_by_wish(within, wanted, (asked, shares), wish)


@dataclass(frozen=True, slots=True)
class _Way:
    """What a descent keeps to; see `descend`.

    Attributes:
        pooled_to: down to this depth the domains below all chosen domains may be one pool.
    """

    tree: OrderedTree
    scope: Scope
    policy: Policy
    layers: tuple[Layer, ...]
    gaps: bool
    gather: int
    pull: Numbers | None
    pooled_to: int

    def down(
        self, within: Capacity, wanted: int, begin: tuple[int, Numbers], end: int, wish: Wish | None = None
    ) -> Numbers:
        """Return how many pods each domain at a depth gets, from what domains at a wider depth get."""
        tree = self.tree
        depth, shares = begin
        while depth < end:
            order = _order(self.policy, gaps=self.gaps, gathers=depth < self.gather)
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

    def down_by_wish(self, within: Capacity, wanted: int, begin: tuple[int, Numbers], wish: Wish) -> Numbers:
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
                taken += self.down(among, part, (depth, shares), self.tree.depth)
            wanted -= part
            left = left if pools else left - shares
            if not wanted:
                break
        return taken

    def _pools(self, depth: int) -> bool:
        return depth <= self.pooled_to and (self.policy.pooled or self.gaps)


def _order(policy: Policy, *, gaps: bool, gathers: bool) -> Order:
    order = policy.gaps if gaps else policy.order
    return Order.LARGEST if order is Order.EVEN and gathers else order


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
