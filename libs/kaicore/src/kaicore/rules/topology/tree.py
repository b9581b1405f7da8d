"""The tree of a topology's domains over the existing nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kaicore.errors import OverlappingDomains
from kaicore.rules.model.network_topology import TopologyLevel
from kaicore.rules.topology.ordered import OrderedTree
from kaicore.rules.topology.paths import Path, Paths


@dataclass(frozen=True)
class TopologyColumns:
    """A tree as columns over rows of nodes; a domain is a number within its level, in order of its path.

    Attributes:
        levels: from the widest to the narrowest.
        domains: of each level, the paths of its domains.
        of_rows: of each level, the domain of each row (int32); -1 where the node is in none.
        parents: of each level, the domain of the level above that each domain is in (int32); -1 at the widest level.
        name_order: the rows in order of their nodes' names.
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
        """What is wrong with the definitions, and nodes that are in several domains, in order of the nodes' names."""
        return (*self._paths.problems, *(str(self.overlaps[node]) for node in sorted(self.overlaps)))

    @property
    def outside(self) -> tuple[int, ...]:
        """Of each level, how many nodes are in none of its domains."""
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
