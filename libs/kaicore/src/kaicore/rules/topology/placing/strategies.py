"""The strategies by name: rules of one algorithm for choosing among domains that all have room."""

from dataclasses import dataclass
from enum import StrEnum


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
