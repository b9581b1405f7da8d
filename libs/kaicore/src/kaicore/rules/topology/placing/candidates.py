"""Which domains may take a set, by the counts, and in which order they are tried."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kaicore.rules.topology.ordered import Numbers, OrderedTree, Truths
from kaicore.rules.topology.placing.capacity import Capacity, Scope, capacity
from kaicore.rules.topology.placing.descent import nearness
from kaicore.rules.topology.placing.strategies import Policy
from kaicore.rules.topology.placing.trial import Trial
from kaicore.rules.topology.placing.work import Work


@dataclass(frozen=True, slots=True)
class Bound:
    """So many pods of a set must fit into a domain, so many does each take at most.

    Attributes:
        wanted: pods.
        within: what domains take.
        of: which of the sets in it, one of those that are alike; None for pods of one class of all of them.
    """

    wanted: int
    within: Capacity
    of: Work | None = None


def reach(tree: OrderedTree, work: Work, scope: Scope) -> Scope | None:
    """Return where of a scope a set may be: in the topology, and in the domain that its running pods are in.

    None if those are in several domains of the required level, or not in the scope.
    """
    if scope.depth == 0 and work.constrained and scope.high > tree.inside:
        scope = Scope(0, scope.low, tree.inside)
    if work.held is None or not work.required:
        return scope
    there = np.flatnonzero(work.held)
    of = tree.of[work.required]
    domain = int(of[there[0]])
    low, high = tree.starts[work.required][domain : domain + 2].tolist()
    if domain != int(of[there[-1]]) or tree.numbers[work.required][domain] < 0:
        return None
    if work.required <= scope.depth:
        # What is around the set is in a domain that is narrower, because it prefers one.
        return scope if low <= scope.low and scope.high <= high else None
    return None if low < scope.low or high > scope.high else Scope(work.required, low, high)


def first_depth(tree: OrderedTree, work: Work, widest: int, policy: Policy) -> int:
    """Return the depth at which the search for one domain begins; it goes on to wider ones."""
    if work.gaps or not work.constrained:
        return widest
    if policy.begin is not None:
        return max(tree.depth - policy.begin, widest)
    return max(work.preferred, widest)


def bounds(tree: OrderedTree, trial: Trial, work: Work, scope: Scope, closed: Truths | None) -> list[Bound]:
    """Return what must fit in one domain, the most pods first: all of each class, and what stays together of them."""
    totals: dict[int, int] = {}
    for pod_class, count in work.totals():
        totals[pod_class] = totals.get(pod_class, 0) + count
    counts = {pod_class: trial.counts(pod_class, scope, closed) for pod_class in totals}
    needs = []
    for batch in work.batches:
        if batch.lot is not None and batch.lot.layers:
            within = capacity(tree, counts[batch.lot.pod_class], batch.lot.layers, scope, work.held)
            needs.append(Bound(len(batch.lot.pods), within, batch.works[0]))
    if len(needs) != 1 or needs[0].wanted != work.size:
        needs += [Bound(total, capacity(tree, counts[one], (), scope)) for one, total in totals.items()]
    return sorted(needs, key=lambda bound: -bound.wanted)


def candidates(
    tree: OrderedTree,
    work: Work,
    limits: list[Bound],
    depth: int,
    scope: Scope,
    *,
    policy: Policy,
    pull: Numbers | None,
) -> Iterator[Scope]:
    """Yield the domains at a depth that may take a set, the best first; of equals the first by name.

    Args:
        tree: the spots.
        work: the set.
        limits: what must fit.
        depth: of the domains.
        scope: where.
        policy: whether those with the least or with the most room come first.
        pull: pods of other sets that attract this one towards their wider domains; None for none.
    """
    main = limits[0].within
    first = main.firsts[depth]
    last = first + len(main.whole[depth])
    fits = tree.real[depth][first:last].copy()
    if work.required < depth:
        fits &= tree.real[work.required][tree.of[work.required][tree.starts[depth][first:last]]]
    for bound in limits:
        fits &= bound.within.whole[depth] >= bound.wanted
    there = np.flatnonzero(fits)
    sign = 1 if policy.tightest else -1
    keys = [sign * main.pods[depth][there], sign * main.whole[depth][there]]
    if policy.fewest and work.preferred > depth and len(there) > 1:
        keys.append(_needed(tree, limits[0], depth, work.preferred)[there])
    if len(limits) > 1:
        keys.append(_filled(limits, depth, there))
    if pull is not None and depth:
        keys.append(nearness(tree, pull, depth - 1, tree.parents[depth][first + there]))
    if work.held is not None:
        keys.append(nearness(tree, work.held, depth, first + there))
    starts = tree.starts[depth]
    for domain in (first + there[np.lexsort(keys)]).tolist():
        yield Scope(depth, max(int(starts[domain]), scope.low), min(int(starts[domain + 1]), scope.high))


def _needed(tree: OrderedTree, limit: Bound, depth: int, narrow: int) -> Numbers:
    """Return of each domain at a depth how many domains at a narrower one it takes at least to hold all pods."""
    room, first = limit.within.whole[narrow], limit.within.firsts[depth]
    of = tree.of[depth][tree.starts[narrow][limit.within.firsts[narrow] :][: len(room)]] - first
    sequence = np.lexsort((-room, of))
    room, of = room[sequence], of[sequence]
    before = np.cumsum(room) - room
    before -= before[np.searchsorted(of, of)]
    return np.bincount(of[before < limit.wanted], minlength=len(limit.within.whole[depth]))


def _filled(limits: list[Bound], depth: int, domains: Numbers) -> Numbers:
    """Return of each domain by how much pods of several classes fill it more than once, each class its share of it.

    A guess, for classes may use different things: a domain that is too small by it is tried after the others.
    """
    whole = 1_000_000
    shares = [bound.wanted * whole // bound.within.whole[depth][domains] for bound in limits if bound.of is None]
    return np.maximum(np.sum(shares, axis=0) - whole, 0) if shares else np.zeros(len(domains), np.int64)
