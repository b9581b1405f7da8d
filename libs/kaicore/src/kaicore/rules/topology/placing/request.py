"""A placement request on a topology, its strategy, and the nodes in the view of the search.

The search knows no pods, classes or filters: it asks `Room` how many pods a node takes, and puts pods there on trial.
Levels are numbers, 0 for the widest of `TopologyColumns.levels`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kaicore.rules.model.group import PodSet
from kaicore.rules.model.selector import Requirement
from kaicore.rules.topology.tree import TopologyColumns


class Order(StrEnum):
    """In which order several domains are filled."""

    LARGEST = "largest"
    """Those with the most room first, so that the fewest are used."""

    SMALLEST = "smallest"
    """Those with the least room first, so that gaps close; the smallest one that takes all comes before them."""

    EVEN = "even"
    """Each pod where the most room is left."""

    ADJACENT = "adjacent"
    """The shortest run of neighbours, in the order of the tree."""


class TopologyStrategy(StrEnum):
    """A way to choose domains; the default is BestFit."""

    BEST_FIT = "BestFit"
    """The fewest domains at each level, and the least room left over in the last one (Kueue)."""

    LEAST_FREE_CAPACITY = "LeastFreeCapacity"
    """The smallest gaps first, in as many domains as that takes (Kueue)."""

    BALANCED = "Balanced"
    """A preferred level's pods in equal parts over the fewest domains (Kueue's balanced placement); else BestFit."""

    BIN_PACK = "BinPack"
    """The domain with the least room that suffices; in it, domains with the most room first (KAI-Scheduler)."""

    SPREAD = "Spread"
    """The domain with the most room; below the level of the constraint pods are evened out (KAI-Scheduler)."""

    OFFER_SLOTS = "OfferSlots"
    """The narrowest domain that takes all, the fullest first; in it child by child, the emptiest first
    (Koordinator)."""

    LOWEST_TIER = "LowestTier"
    """The lowest tier at which a domain takes all; of its domains the nearest to running pods, then the fullest
    (Volcano)."""

    CONTIGUOUS = "Contiguous"
    """As BestFit, but several domains are neighbours: the fewest that lie side by side (Slurm's topology/block)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The parts of a strategy.

    Attributes:
        tightest: of domains that take all, the one with the least room comes first; otherwise the one with the most.
        begin: so many depths above the nodes the search begins, whatever level is preferred; None for at that level.
        fewest: of domains wider than the preferred level, the one that needs the fewest of that level comes first.
        order: of several domains.
        last_tightest: whether the rest goes to the domain with the least room that takes it.
        pooled: whether the children of all chosen domains are one pool; otherwise each domain keeps its share.
        gaps: order where any place will do.
        balanced: whether equal parts are tried first.
    """

    tightest: bool = True
    fewest: bool = False
    begin: int | None = None
    order: Order = Order.LARGEST
    last_tightest: bool = True
    pooled: bool = True
    gaps: Order = Order.SMALLEST
    balanced: bool = False


#: What each strategy is made of.
POLICIES = {
    TopologyStrategy.BEST_FIT: Policy(fewest=True),
    TopologyStrategy.LEAST_FREE_CAPACITY: Policy(order=Order.SMALLEST),
    TopologyStrategy.BALANCED: Policy(fewest=True, balanced=True),
    TopologyStrategy.BIN_PACK: Policy(last_tightest=False),
    TopologyStrategy.SPREAD: Policy(tightest=False, order=Order.EVEN, gaps=Order.EVEN),
    TopologyStrategy.OFFER_SLOTS: Policy(begin=0, last_tightest=False, pooled=False, gaps=Order.LARGEST),
    TopologyStrategy.LOWEST_TIER: Policy(begin=1, gaps=Order.LARGEST),
    TopologyStrategy.CONTIGUOUS: Policy(fewest=True, order=Order.ADJACENT),
}

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
class SpreadLimit:
    """A limit to the like work of a domain (`kaicore.rules.model.group.SpreadRule`), its level as a number."""

    level: int
    most_milli: int
    preferred: bool


@dataclass(frozen=True, slots=True)
class LevelConstraint:
    """A topology constraint with resolved names (`kaicore.rules.model.group.TopologyConstraint`).

    Attributes:
        required: level at which all pods of the set must share a domain; `NO_LEVEL` for none.
        preferred: level at which they should; `NO_LEVEL` for none; never wider than `required`.
        unconstrained: whether any place in the topology will do, the smallest gaps first.
        slices: from the widest layer to the narrowest.
        exclusive: whether sets of the same parent share no domain of the required level.
        spread: limits to the like work of a domain, of the widest level first.
        spread_with: see `TopologyConstraint`.
    """

    required: int = NO_LEVEL
    preferred: int = NO_LEVEL
    unconstrained: bool = False
    slices: tuple[Slices, ...] = ()
    exclusive: bool = False
    spread: tuple[SpreadLimit, ...] = ()
    spread_with: tuple[Requirement, ...] = ()


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
        among: rows to which the set may go: those of the first are tried, then those of the next; empty for all.
    """

    name: str = ""
    pods: tuple[int, ...] = ()
    children: tuple["SetRequest", ...] = ()
    constraint: LevelConstraint | None = None
    held: PodsByRow | None = None
    ranks: tuple[int, ...] = ()
    held_ranks: Mapping[int, int] = field(default_factory=dict)
    among: tuple[NDArray[np.bool_], ...] = ()


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
        domains: how many domains there are at the level.
        joined: whether only one domain counts: that in which pods of the set have a place.
        pods: how many pods, also where it has slices.
        crowded: how many domains are closed to it for the like work that they hold.
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
    crowded: int = 0


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
