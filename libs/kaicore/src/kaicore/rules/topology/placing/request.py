"""A placement request on a topology, and the nodes in the view of the search.

The search knows no pods, classes or filters: it asks `Room` how many pods a node takes, and puts pods there on trial.
Levels are numbers, 0 for the widest of `TopologyColumns.levels`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kaicore.rules.model.group import PodSet
from kaicore.rules.topology.tree import TopologyColumns

#: Of each row of nodes, a number of pods.
PodsByRow = NDArray[np.int64]

#: The level of a constraint that has none.
NO_LEVEL = -1


@dataclass(frozen=True, slots=True)
class Slices:
    """So many pods of consecutive ranks share a domain (`kaicore.rules.model.group.SliceLayer`).

    Attributes:
        required: level; `NO_LEVEL` for none.
        preferred: level; `NO_LEVEL` for none.
        spares: how many nodes of a domain are left free.
    """

    size: int
    required: int = NO_LEVEL
    preferred: int = NO_LEVEL
    spares: int = 0


@dataclass(frozen=True, slots=True)
class LevelConstraint:
    """A topology constraint with resolved names (`kaicore.rules.model.group.TopologyConstraint`).

    Attributes:
        required: level at which all pods of the set must share a domain; `NO_LEVEL` for none.
        preferred: level at which they should; `NO_LEVEL` for none; never wider than `required`.
        unconstrained: whether any place in the topology will do, the smallest gaps first.
        slices: from the widest layer to the narrowest.
        exclusive: whether sets of the same parent share no domain of the required level.
    """

    required: int = NO_LEVEL
    preferred: int = NO_LEVEL
    unconstrained: bool = False
    slices: tuple[Slices, ...] = ()
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class SetRequest:
    """A pod set with pods that are to be placed in one go.

    Attributes:
        pods: of a leaf: numbers of the pods in order of rank; see `Room`.
        children: of an inner set.
        constraint: None for none of its own.
        held: how many pods of the set, those of its child sets included, each row has already; None for none.
        ranks: of a leaf: the rank of each of `pods`; empty for 0, 1, … Slices are of ranks.
        held_ranks: of a leaf: the rows of pods that have a node already, by their ranks. A slice that has some of its
            pods takes those that are missing in its own domain; without ranks what is held belongs to whole slices.
    """

    name: str = ""
    pods: tuple[int, ...] = ()
    children: tuple["SetRequest", ...] = ()
    constraint: LevelConstraint | None = None
    held: PodsByRow | None = None
    ranks: tuple[int, ...] = ()
    held_ranks: Mapping[int, int] = field(default_factory=dict)


class Room(Protocol):
    """The nodes as they are now. Pods are numbers 0, 1, … of the request; pods of one class are alike."""

    @property
    def classes(self) -> Sequence[int]:
        """The class of each pod, as a number."""

    def counts(self, pod_class: int) -> PodsByRow:
        """Return how many pods of a class each row takes as it is now, if it gets no others; not to be changed.

        All that find room, not only those that are asked for: how much room is left over decides between domains.
        Every filter counts. What depends on other rows (pods nearby, volumes) is counted as if each row were alone,
        so that a trial may place fewer, never more.
        """

    def preferences(self, pod_class: int) -> PodsByRow | None:
        """Return how much a class prefers each row, more is better; None where all are alike.

        The same answer as long as the search lasts: pods that it puts change no preference.
        """

    def remaining(self) -> NDArray[np.int64] | None:
        """Return what each row has left as it is now, shape (rows, resources); None where that is not known."""

    def takes(self, pod_class: int) -> NDArray[np.int64]:
        """Return what a pod of a class takes of each resource of `remaining`."""

    def put(self, pods: Sequence[int], row: int) -> int:
        """Put pods on a row in their order until one finds no room; returns how many are there now."""

    def savepoint(self) -> int:
        """Return where to roll back to later."""

    def rollback(self, savepoint: int) -> None:
        """Take off all that was put since a savepoint."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The reason why a set was not placed: for each domain tried, the pods that it could take.

    Attributes:
        set_name: the set that found no domain.
        level: level at which it must be in one domain; `NO_LEVEL` for anywhere.
        wanted: how many pods, or slices where it has any.
        fitting: how many the best domain takes; by the counts, or by the trial that came farthest.
        domain: number of that domain at its level; -1 for none.
        tried: how many domains were tried with pods.
        domains: how many domains there are at the level.
        joined: whether only one domain counts: that in which pods of the set have a place.
        pods: how many pods, also where it has slices.
    """

    set_name: str
    level: int
    wanted: int
    fitting: int
    domain: int
    tried: int
    domains: int
    joined: bool = False
    pods: int = 0


@dataclass(frozen=True, slots=True)
class Placed:
    """The places of pods that were put there.

    Attributes:
        domains: by set that has a constraint, the level and the number of the domain that its pods share; the level is
            `NO_LEVEL` where they share none.
    """

    rows: Mapping[int, int]
    domains: Mapping[str, tuple[int, int]] = field(default_factory=dict)


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
