"""The tree of a topology's domains over the existing nodes.

Rows are in order of the tree, so that the rows of every domain are next to each other. Sums over domains are then sums
over runs, and the domains below a domain are a run as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kaicore.errors import OverlappingDomains
from kaicore.rules.model.node import TopologyLevel
from kaicore.rules.topology.paths import Path, Paths

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
        #: Of each domain, the first domain at the next depth, and the number of those at the end.
        self.children: list[Numbers] = [np.searchsorted(below, above) for above, below in pairwise(self.starts)]

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


@dataclass(frozen=True)
class TopologyColumns:
    """A tree as columns over rows of nodes; a domain is a number within its level, in order of its path.

    Attributes:
        levels: from the widest to the narrowest.
        of_rows: of each level, the domain of each row (int32); -1 where the node is in none.
        parents: of each level, the domain of the level above that each domain is in (int32); -1 at the widest level.
    """

    levels: tuple[TopologyLevel, ...]
    domains: tuple[tuple[Path, ...], ...]
    of_rows: tuple[NDArray[np.int32], ...]
    parents: tuple[NDArray[np.int32], ...]
    name_order: NDArray[np.int64]

    @cached_property
    def ordered(self) -> OrderedTree:
        """The rows in order of the tree, made once."""
        return OrderedTree(self.of_rows, self.name_order)

    def sums(self, values: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """Return, of each level, the sum over each domain's rows of a value per row."""
        sums_by_level = []
        for domains, of_rows in zip(self.domains, self.of_rows, strict=True):
            total = np.zeros(len(domains), np.int64)
            inside = of_rows >= 0
            np.add.at(total, of_rows[inside], values[inside])
            sums_by_level.append(total)
        return tuple(sums_by_level)


class TopologyTree:
    """A tree that follows the nodes: a node that comes, goes or is relabelled changes its own path and nothing else.

    Attributes:
        changes: how many times a node's path has changed.
    """

    def __init__(self, paths: Paths) -> None:
        self.changes = 0
        self._paths = paths
        self._nodes: dict[str, Path] = {}
        #: Nodes that are in several domains, of which none is in another, and in none for that.
        self.overlaps: dict[str, OverlappingDomains] = {}
        self._levels = [_Level() for _ in paths.levels]

    @property
    def levels(self) -> tuple[TopologyLevel, ...]:
        """From the widest to the narrowest."""
        return self._paths.levels

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems of the definitions, and nodes in several domains, in order of the nodes' names."""
        return (*self._paths.problems, *(str(self.overlaps[node]) for node in sorted(self.overlaps)))

    @property
    def outside(self) -> tuple[int, ...]:
        """The number of nodes in no domain, by level."""
        return tuple(len(self._nodes) - level.nodes for level in self._levels)

    def put(self, name: str, labels: Mapping[str, str]) -> None:
        """Take in a node, or its labels as they are now."""
        self.overlaps.pop(name, None)
        try:
            path = self._paths.path(name, labels)
        except OverlappingDomains as error:
            path = ()
            self.overlaps[name] = error
        before = self._nodes.get(name, ())
        self._nodes[name] = path
        if path != before:
            self.changes += 1
            self._enter(path)
            self._leave(before)

    def remove(self, name: str) -> None:
        """Forget a node; one that is not there is no error."""
        self.overlaps.pop(name, None)
        path = self._nodes.pop(name, ())
        self.changes += bool(path)
        self._leave(path)

    def domains(self, level: int) -> Mapping[Path, int]:
        """Return the domains of a level, each with the number of its nodes."""
        return self._levels[level].counts

    def path_of(self, name: str) -> Path:
        """Return the names of a node's domains, as far as it is in any; of an unknown node none."""
        return self._nodes.get(name, ())

    def columns(self, names: Sequence[str]) -> TopologyColumns:
        """Return the tree over rows of nodes; a node that the tree does not know is in no domain."""
        paths = [self._nodes.get(name, ()) for name in names]
        domains, of_rows, parents = [], [], []
        above: dict[Path, int] = {}
        for depth, level in enumerate(self._levels, start=1):
            numbers = level.numbers()
            domains.append(tuple(numbers))
            rows = (numbers[path[:depth]] if len(path) >= depth else -1 for path in paths)
            of_rows.append(np.fromiter(rows, np.int32, len(paths)))
            parents.append(np.fromiter((above.get(path[:-1], -1) for path in numbers), np.int32, len(numbers)))
            above = numbers
        by_name = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
        return TopologyColumns(self.levels, tuple(domains), tuple(of_rows), tuple(parents), by_name)

    def _enter(self, path: Path) -> None:
        for depth in range(len(path)):
            self._levels[depth].enter(path[: depth + 1])

    def _leave(self, path: Path) -> None:
        for depth in range(len(path)):
            self._levels[depth].leave(path[: depth + 1])


class _Level:
    """The domains of a level, each with the number of its nodes."""

    def __init__(self) -> None:
        self.nodes = 0
        self.counts: dict[Path, int] = {}
        self._numbers: dict[Path, int] | None = None

    def enter(self, domain: Path) -> None:
        self.nodes += 1
        if domain not in self.counts:
            self._numbers = None
        self.counts[domain] = self.counts.get(domain, 0) + 1

    def leave(self, domain: Path) -> None:
        self.nodes -= 1
        self.counts[domain] -= 1
        if not self.counts[domain]:
            del self.counts[domain]
            self._numbers = None

    def numbers(self) -> dict[Path, int]:
        """Return the domains in order of their paths, each with its number."""
        if self._numbers is None:
            self._numbers = {domain: number for number, domain in enumerate(sorted(self.counts))}
        return self._numbers
