"""The rows of a topology in order of the tree, so that the rows of every domain are next to each other.

Sums over domains are then sums over runs, and the domains below a domain are a run as well.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_LAST = np.iinfo(np.int32).max

#: One number of each spot, domain or other thing in question.
Numbers = NDArray[np.int64]

#: A truth of each spot, domain or other thing in question.
Truths = NDArray[np.bool_]


class OrderedTree:
    """A tree over spots: rows in order of their domains' paths, within a domain in order of their nodes' names.

    Depth 0 is the whole cluster as one domain, depth d is level d - 1 of the tree, and at the last depth each spot
    is a domain. A node that is in no domain of a level is a stand-in of its own there, behind the real domains: so
    every domain has domains below it at every depth.

    Attributes:
        depth: the last one, that of the spots.
        rows: the row at each spot.
        spots: the spot of each row.
        starts: at each depth, the first spot of each domain, and the number of spots at the end.
        of: at each depth, the domain of each spot.
        numbers: at each depth, the number of each domain at its level; -1 for a stand-in. At the ends all are real.
        parents: at each depth, the domain of the depth above that each domain is in; of the first depth nothing.
        children: at each depth but the last, the first domain below each domain, and the number of those at the end.
        real: at each depth, which domains are in the topology, and are no stand-ins.
        complete: at each depth, whether all are.
        inside: how many spots are in a domain of the widest level; they come first.
    """

    def __init__(self, of_rows: Sequence[NDArray[np.int32]], name_order: Numbers) -> None:
        count = len(name_order)
        self.depth = len(of_rows) + 1
        named = [np.where(level[name_order] < 0, _LAST, level[name_order]) for level in of_rows]
        order = np.lexsort(named[::-1]) if named else np.arange(count)
        self.rows: Numbers = name_order[order]
        self.spots: Numbers = np.empty(count, np.int64)
        self.spots[self.rows] = np.arange(count)
        self.starts, self.of, self.numbers = _runs([level[order] for level in named], count)
        self.real = [numbers >= 0 for numbers in self.numbers]
        self.complete = [bool(real.all()) for real in self.real]
        self.inside = int((named[0] != _LAST).sum()) if named else count
        self.parents = [np.zeros(0, np.int64)]
        self.parents += [above[below[:-1]] for above, below in zip(self.of, self.starts[1:], strict=False)]
        self.children = [_first_below(above, below) for above, below in zip(self.starts, self.starts[1:], strict=False)]

    def span(self, depth: int, low: int, high: int) -> tuple[int, int]:
        """Return the domains at a depth, from the first up to but not including the last, of a run of spots."""
        if low >= high:
            return 0, 0
        return int(self.of[depth][low]), int(self.of[depth][high - 1]) + 1


def _runs(keys: list[NDArray[np.int32]], count: int) -> tuple[list[Numbers], list[Numbers], list[Numbers]]:
    every = np.arange(count)
    starts: list[Numbers] = [np.array([0, count] if count else [0])]
    of: list[Numbers] = [np.zeros(count, np.int64)]
    numbers: list[Numbers] = [np.zeros(min(count, 1), np.int64)]
    first = every == 0
    for key in keys:
        first = first | (key == _LAST)
        first[1:] |= key[1:] != key[:-1]
        begin = np.flatnonzero(first)
        starts.append(np.append(begin, count))
        of.append(np.cumsum(first) - 1)
        numbers.append(np.where(key[begin] == _LAST, -1, key[begin]).astype(np.int64))
    starts.append(np.arange(count + 1))
    of.append(every)
    numbers.append(every)
    return starts, of, numbers


def _first_below(above: Numbers, below: Numbers) -> Numbers:
    """Of each domain, the first domain at the next depth, and the number of those at the end."""
    return np.searchsorted(below, above)
