"""From a domain down to the spots: how many pods each gets."""

import numpy as np

from kaicore.rules.topology.ordered import Numbers, OrderedTree
from kaicore.rules.topology.placing.capacity import Capacity, Layer, Scope
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
    depth, shares = start or (scope.depth, np.array([wanted], np.int64))
    while depth < tree.depth:
        order = _order(policy, gaps=gaps, gathers=depth < gather)
        above, depth = depth, tree.depth if gaps and not layers else depth + 1
        first, room = within.firsts[depth], within.whole[depth]
        of = np.zeros(len(room), np.int64)
        if depth == above + 1:
            of = tree.parents[depth][first : first + len(room)] - within.firsts[above]
        open_ = ((shares[of] > 0) & (room > 0)).nonzero()[0]
        of = of[open_]
        if depth <= parts and (policy.pooled or gaps) and start is None:
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
            last_tightest=policy.last_tightest,
            ties=() if depth == tree.depth else (within.pods[depth][open_],),
            pull=None if pull is None else nearness(tree, pull, depth, first + open_),
            unit=next((layer.size for layer in layers if layer.depth >= depth), 1),
            places=first + open_,
        )
    return shares


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
