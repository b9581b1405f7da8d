"""Candidate domains for a set, by the counts, in the order in which they are tried, and the trial of pods on nodes.

Equal parts go over the fewest domains, as in Kueue's balanced placement (KEP-2724, `pkg/cache/scheduler`,
v0.20.0-devel). The smallest part is made as large as it can be without using more domains than filling the largest
first would. Pods are put on nodes on trial, in order, so that they can be taken off again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kaicore.rules.topology.placing.descent import Capacity, Scope, Wish, capacity, nearness
from kaicore.rules.topology.placing.request import Policy, Room
from kaicore.rules.topology.placing.work import Work
from kaicore.rules.topology.tree import Numbers, OrderedTree, Truths

#: So many times pods of several classes are put on a node to find out which mixtures it takes, all in all.
MIXTURES = 4096


class Trial:
    """The pods that a search has put so far.

    Attributes:
        pods: in the order in which they were put.
        mixtures: how many more times a mixture may be tried on a node.
    """

    def __init__(self, tree: OrderedTree, room: Room) -> None:
        self._tree, self._room = tree, room
        self.mixtures = MIXTURES
        self.pods: list[int] = []
        self.spots: list[int] = []

    def counts(self, pod_class: int, scope: Scope, closed: Truths | None) -> Numbers:
        """Return how many pods of a class each spot of a scope takes now; closed ones take none."""
        counts = self._room.counts(pod_class)[self._tree.rows[scope.low : scope.high]]
        if closed is not None:
            counts[closed[scope.low : scope.high]] = 0
        return counts

    def preferences(self, pod_class: int, scope: Scope) -> Numbers | None:
        """Return how much a class prefers each spot of a scope; None where all are alike."""
        preferences = self._room.preferences(pod_class)
        return None if preferences is None else preferences[self._tree.rows[scope.low : scope.high]]

    def remaining(self, scope: Scope) -> Numbers | None:
        """Return what each spot of a scope has left, by resource; None where that is not known."""
        remaining = self._room.remaining()
        return None if remaining is None else remaining[self._tree.rows[scope.low : scope.high]]

    def takes(self, pod_class: int) -> Numbers:
        """Return what a pod of a class takes, by resource."""
        return self._room.takes(pod_class)

    def put(self, pods: tuple[int, ...], taken: Numbers, scope: Scope) -> tuple[int, int] | None:
        """Put pods in order onto a scope's spots in order, so many each.

        Returns:
            None if all are there; otherwise which spot of the scope took too few, and how many it took.
        """
        there = np.flatnonzero(taken)
        rows, counts = self._tree.rows[scope.low + there].tolist(), taken[there].tolist()
        begin = 0
        for at, row, count in zip(there.tolist(), rows, counts, strict=True):
            end = begin + count
            put = self._room.put(pods[begin:end], row)
            if put < count:
                return at, put
            begin = end
        self.pods.extend(pods)
        self.spots.extend(np.repeat(scope.low + there, counts).tolist())
        return None

    def put_some(self, pods: tuple[int, ...], spot: int) -> int:
        """Put pods on a spot until one finds no room; returns how many are there now."""
        put = self._room.put(pods, int(self._tree.rows[spot])) if pods else 0
        self.pods.extend(pods[:put])
        self.spots.extend([spot] * put)
        return put

    def mark(self) -> tuple[int, int]:
        """Return where to go back to later."""
        return len(self.pods), self._room.savepoint()

    def undo(self, mark: tuple[int, int]) -> None:
        """Take off all that was put since a mark."""
        count, savepoint = mark
        self._room.rollback(savepoint)
        del self.pods[count:]
        del self.spots[count:]

    def placed_since(self, begin: int) -> Numbers | None:
        """The number of pods on each spot that were put as number `begin` and later; None for none."""
        there = self.spots[begin:]
        return np.bincount(there, minlength=len(self._tree.rows)) if there else None


#: With more domains or pods than this the fewest domains are taken largest first, the last one the tightest.
EXACT_DOMAINS, EXACT_ROOM = 64, 1024


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Equal parts among the domains of one wider domain, in parts that stay together.

    Attributes:
        least: the smallest part.
        used: how many domains of the preferred depth are used.
        units: what takes the parts, such that each takes the smallest part or nothing.
        first: number of the first unit.
        of: of each unit, the domain's index.
    """

    least: int
    used: int
    domains: Numbers
    units: Numbers
    first: int
    of: Numbers


def balanced(
    tree: OrderedTree, within: Capacity, wanted: int, size: int, *, preferred: int, parts: int
) -> tuple[int, Numbers] | None:
    """Return a depth, and how many pods each of the scope's domains there gets; None where no balance is found.

    Args:
        size: so many stay together.
        preferred: depth at which they should share a domain, below the scope's.
        parts: depth at which what stays together shares a domain; behind the last depth for none.
    """
    depth = preferred + 1 if preferred < min(parts, tree.depth) else preferred
    need = wanted // size
    best: _Attempt | None = None
    for parent in range(len(within.whole[preferred - 1])):
        attempt = _attempt(tree, within, parent, need, size, preferred=preferred, depth=depth)
        if attempt is None or (best is not None and attempt.least < best.least):
            continue
        if best is None or attempt.least > best.least or attempt.used < best.used:
            best = attempt
    if best is None:
        return None
    units = best.units
    if depth > preferred:
        chosen = _fewest(best.domains, best.used, need, _by_evenness(best))
        units = np.where(np.isin(best.of, chosen), units, 0)
    count, _ = _greedy(units, need)
    chosen = _fewest(units, count, need, np.lexsort((np.arange(len(units)), -units)))
    least = min(best.least, need // count)
    shares = np.zeros(len(within.whole[depth]), np.int64)
    extra = need - least * count
    for unit in sorted(chosen.tolist(), key=lambda unit: (-int(units[unit]), unit)):
        more = min(extra, int(units[unit]) - least)
        extra -= more
        shares[best.first + unit] = (least + more) * size
    return depth, shares


def _attempt(
    tree: OrderedTree, within: Capacity, parent: int, need: int, size: int, *, preferred: int, depth: int
) -> _Attempt | None:
    begin, end = tree.children[preferred - 1][within.firsts[preferred - 1] + parent :][:2].tolist()
    end = min(end, within.firsts[preferred] + len(within.whole[preferred]))
    first, last = begin, end
    of = np.arange(end - begin)
    if depth > preferred:
        first, last = tree.children[preferred][begin].item(), tree.children[preferred][end].item()
        of = tree.parents[depth][first:last] - begin
    units = within.whole[depth][first - within.firsts[depth] : last - within.firsts[depth]] // size
    if int(units.sum()) < need:
        return None
    count, smallest = _greedy(units, need)
    least = min(need // count, smallest)
    units = np.where(units < least, 0, units)
    if not least or int(units.sum()) < need:
        return None
    domains = np.bincount(of, units, end - begin).astype(np.int64)
    return _Attempt(least, _greedy(domains, need)[0], domains, units, first - within.firsts[depth], of)


def _greedy(room: Numbers, need: int) -> tuple[int, int]:
    """Return how many domains suffice, the largest first, and what the last of them takes."""
    sums = np.cumsum(-np.sort(-room))
    count = int(np.searchsorted(sums, need)) + 1
    return count, int(sums[count - 1] - (sums[count - 2] if count > 1 else 0))


def _by_evenness(attempt: _Attempt) -> Numbers:
    """Return the domains' indices: those with the most room first, then those with the most similar units."""
    total = np.maximum(attempt.domains, 1)[attempt.of]
    # In millionths, as the sum of squared shares: the smaller, the more alike.
    shares = attempt.units * 1_000_000 // total
    unevenness = np.bincount(attempt.of, shares * shares, len(attempt.domains)).astype(np.int64)
    return np.lexsort((np.arange(len(attempt.domains)), unevenness, -attempt.domains))


def _fewest(room: Numbers, count: int, need: int, order: Sequence[int] | Numbers) -> Numbers:
    """Return so many domains that suffice and have the least room; of equals those that come first in an order."""
    able = [int(one) for one in order if room[one] > 0]
    if len(able) > EXACT_DOMAINS or need > EXACT_ROOM:
        chosen = sorted(able, key=lambda one: -int(room[one]))[:count]
        left = need - sum(int(room[one]) for one in chosen[:-1])
        last = min(
            (one for one in able if one not in chosen[:-1] and room[one] >= left), key=lambda one: int(room[one])
        )
        return np.array([*chosen[:-1], last])
    ways: list[dict[int, tuple[int, ...]]] = [{0: ()}, *({} for _ in range(count))]
    for one in able:
        for used in range(count - 1, -1, -1):
            for total, way in ways[used].items():
                if total < need:
                    ways[used + 1].setdefault(total + int(room[one]), (*way, one))
    least = min(total for total in ways[count] if total >= need)
    return np.array(ways[count][least])


@dataclass(frozen=True, slots=True)
class Bound:
    """So many pods of a set must fit into a domain, so many does each take at most.

    Attributes:
        of: which of the sets in it, one of those that are alike; None for pods of one class of all of them.
    """

    wanted: int
    within: Capacity
    of: Work | None = None


@dataclass(frozen=True, slots=True)
class TopologyDemand:
    """A set's demand to the domains in a scope.

    Attributes:
        limits: what must fit in one domain, the most pods first.
        wishes: where pods would rather be, of classes to which it matters.
        amounts: what pods of several classes take together, by resource; None where that is not asked.
        free: of each spot that takes any of them, what it has left; shape (spots, resources).
    """

    limits: list[Bound]
    wishes: list[Wish]
    amounts: Numbers | None = None
    free: Numbers | None = None


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


def demand(tree: OrderedTree, trial: Trial, work: Work, scope: Scope, closed: Truths | None) -> TopologyDemand:
    """Return what a set asks of a scope: room for all of each class, and for what stays together of them."""
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
    limits = sorted(needs, key=lambda bound: -bound.wanted)
    preferences = {pod_class: trial.preferences(pod_class, scope) for pod_class in totals}
    wishes = [
        Wish(totals[pod_class], counts[pod_class], preferred)
        for pod_class, preferred in preferences.items()
        if preferred is not None
    ]
    free = trial.remaining(scope) if len(totals) > 1 else None
    if free is None:
        return TopologyDemand(limits, wishes)
    amounts = np.sum([total * trial.takes(pod_class) for pod_class, total in totals.items()], axis=0)
    able = np.any([each > 0 for each in counts.values()], axis=0)
    return TopologyDemand(limits, wishes, amounts, np.where(able[:, None], free, 0))


def candidates(
    tree: OrderedTree,
    work: Work,
    asked: TopologyDemand,
    depth: int,
    scope: Scope,
    *,
    policy: Policy,
    pull: Numbers | None,
) -> Iterator[Scope]:
    """Yield the domains at a depth that may take a set, the best first.

    Of equals the preferred one comes first. Then, unless those with the most room come first, the one in the wider
    domain with the least room (Koordinator, coscheduling/core/network_topology_solver.go, a7a1b76b). Then the first by
    name.

    Args:
        asked: what must fit, and what the pods prefer.
        policy: whether those with the least or with the most room come first.
        pull: pods of other sets that attract this one towards their wider domains; None for none.
    """
    main = asked.limits[0].within
    first = main.firsts[depth]
    last = first + len(main.whole[depth])
    fits = tree.real[depth][first:last].copy()
    if work.required < depth:
        fits &= tree.real[work.required][tree.of[work.required][tree.starts[depth][first:last]]]
    for bound in asked.limits:
        fits &= bound.within.whole[depth] >= bound.wanted
    there = np.flatnonzero(fits)
    sign = 1 if policy.tightest else -1
    keys: list[Numbers] = []
    wider = first + there
    for up in range(depth - 1, scope.depth if policy.tightest else depth, -1):
        wider = tree.parents[up + 1][wider]
        keys.insert(0, main.pods[up][wider - main.firsts[up]])
    if asked.wishes:
        keys.append(-np.sum([wish.wanted * wish.means(tree, depth, scope)[there] for wish in asked.wishes], axis=0))
    keys += [sign * main.pods[depth][there], sign * main.whole[depth][there]]
    if policy.fewest and work.preferred > depth and len(there) > 1:
        keys.append(_needed(tree, asked.limits[0], depth, work.preferred)[there])
    if asked.amounts is not None and asked.free is not None:
        keys.append(_overfilled(tree, asked.amounts, asked.free, depth, scope)[there])
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


def _overfilled(tree: OrderedTree, amounts: Numbers, free: Numbers, depth: int, scope: Scope) -> Numbers:
    """Return of each domain at a depth of how many resources it has less left than all pods take together.

    With any, a domain is too small for certain, whatever each class would find there by itself.
    """
    low, high = tree.span(depth, scope.low, scope.high)
    begins = np.maximum(tree.starts[depth][low:high] - scope.low, 0)
    lacking = (np.add.reduceat(free, begins, axis=0) < amounts).astype(np.int64)
    overfilled: Numbers = np.add.reduce(lacking, axis=1)
    return overfilled
