"""A group's topology constraints, with the tree that they refer to."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from kaicore.rules.model.group import PodSet
from kaicore.rules.topology.placing.request import NO_LEVEL, LevelConstraint
from kaicore.rules.topology.tree import TopologyColumns


@dataclass(frozen=True)
class GroupTopology:
    """A group's topology constraints, looked up in one tree.

    Attributes:
        name: of the topology, for people.
        tree: over the rows of the cycle's nodes.
        constraints: by the name of the set; of sets that have one.
        together: whether the root's constraint is about the pods of all groups that start at once with this one.
    """

    name: str
    sets: tuple[PodSet, ...]
    tree: TopologyColumns
    constraints: Mapping[str, LevelConstraint]
    together: bool = False

    @cached_property
    def bound_leaves(self) -> frozenset[str]:
        """Names of the leaves that are in a set with a constraint."""
        bound: set[str] = set()
        parents = {one.parent for one in self.sets[1:]}
        for one in self.sets:
            if one.name in self.constraints or (one is not self.sets[0] and one.parent in bound):
                bound.add(one.name)
        return frozenset(name for name in bound if name not in parents)

    @cached_property
    def _domains(self) -> dict[int, dict[str, str]]:
        """The answers of `domains_of` so far, by row."""
        return {}

    @property
    def of_root(self) -> LevelConstraint | None:
        """The constraint that is about all pods; None for none."""
        return self.constraints.get(self.sets[0].name)

    @property
    def required_level(self) -> int:
        """The level at which all pods must share a domain; `NO_LEVEL` for none."""
        return NO_LEVEL if self.of_root is None else self.of_root.required

    def level_name(self, level: int) -> str:
        """Return the name of a level; empty for `NO_LEVEL`."""
        return "" if level == NO_LEVEL else self.tree.levels[level].name

    def domains_of(self, row: int) -> dict[str, str]:
        """Return the domain of a row at each level, by the names of the levels; one for all who ask, never changed."""
        kept = self._domains.get(row)
        if kept is not None:
            return kept
        name_by_level = self._domains[row] = {}
        for level, domains, of_rows in zip(self.tree.levels, self.tree.domains, self.tree.of_rows, strict=True):
            if of_rows[row] >= 0:
                name_by_level[level.name] = domains[of_rows[row]][-1]
        return name_by_level
