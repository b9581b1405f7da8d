"""Equal parts over the fewest domains: Kueue's balanced placement (KEP-2724, `pkg/cache/scheduler`, v0.20.0-devel).

The smallest part is made as large as it can be without using more domains than filling the largest first would.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kaicore.rules.topology.ordered import Numbers, OrderedTree
from kaicore.rules.topology.placing.capacity import Capacity

#: With more domains or pods than this the fewest domains are taken largest first, the last one the tightest.
EXACT_DOMAINS, EXACT_ROOM = 64, 1024


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Equal parts among the domains of one wider domain, in parts that stay together.

    Attributes:
        least: the smallest part.
        used: how many domains of the preferred depth are used.
        domains: what those take.
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
        tree: the spots.
        within: what domains take.
        wanted: how many pods.
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
    """Return the domains' indices: those with the most room first, then those whose units are most alike."""
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
