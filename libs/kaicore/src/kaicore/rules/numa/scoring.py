"""Scores of nodes by their zones: 0 to 100, for the nodes that can take a pod.

The strategies and their names are those of NodeResourceTopologyMatch (scheduler-plugins @903da7df,
`pkg/noderesourcetopology/score.go` and `least_numa.go`); The zones are predicted by the same evaluators as the verdict,
for all long-running containers together. A score ranks nodes and never excludes one.
"""

from enum import StrEnum
from functools import lru_cache, reduce
from operator import or_

import msgspec

from kaicore.rules.numa.columns import ZoneColumns
from kaicore.rules.numa.kubelet.masks import mask_table, spread, zones_of
from kaicore.rules.numa.kubelet.requests import AlignedRequest

#: Score of a node on which nothing is known to come from zones that belong together.
UNKNOWN = -1

#: The kubelet's default of `max-allowable-numa-nodes`: what a span of zones is measured by, unless a node has more.
_USUAL_MAX_ZONES = 8


class ScoringStrategy(StrEnum):
    """The method of ranking nodes by zones."""

    OFF = "Off"
    LEAST_NUMA_NODES = "LeastNUMANodes"
    LEAST_ALLOCATED = "LeastAllocated"
    MOST_ALLOCATED = "MostAllocated"
    BALANCED_ALLOCATION = "BalancedAllocation"


class NumaScoring(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ranks of nodes by zones.

    Attributes:
        strategy: `LeastNUMANodes`: fewest zones, of equally many those closest to each other; `LeastAllocated`,
            `MostAllocated`: least, most in use on the pod's zones afterwards; `BalancedAllocation`: the resources of
            the pod's zones in use alike afterwards.
        weights: of resources, in the last three; 1 where not named, and 0 leaves a resource out. Balance weighs those
            that are not left out alike.
    """

    strategy: ScoringStrategy = ScoringStrategy.LEAST_NUMA_NODES
    weights: dict[str, int] = {}

    def __post_init__(self) -> None:
        for resource, weight in self.weights.items():
            if not 0 <= weight <= 100:
                raise ValueError(f"weights[{resource}]: must be 0 to 100: {weight}")


def score(
    columns: ZoneColumns,
    row: int,
    spans: tuple[int, ...],
    request: AlignedRequest,
    *,
    scoring: NumaScoring,
    reconstruct: bool = True,
    most_zones: int = 0,
) -> int:
    """Score a node that admits a pod: 0 to 100, `UNKNOWN` where nothing of the pod is bound to zones.

    Args:
        spans: the zones that its kubelet may give the pod's containers, as masks (`kaicore.rules.numa.own_policy`).
        reconstruct: see `ZoneColumns.free`.
        most_zones: of any node; 0 to look at all nodes.
    """
    if not spans:
        return UNKNOWN
    zones = int(columns.zone_count[row])
    if scoring.strategy is ScoringStrategy.LEAST_NUMA_NODES:
        most = max(most_zones or int(columns.zone_count.max()), _USUAL_MAX_ZONES)
        return span_score(columns.distances(row), spans, zones=zones, most=most)
    inside = list(zones_of(reduce(or_, spans)))
    free = columns.free(row, zones=zones, reconstruct=reconstruct)
    shares: list[tuple[int, int]] = []
    for resource, need in request.on(columns.kubelet_of(row)).pod:
        weight, column = scoring.weights.get(resource, 1), columns.resources.get(resource)
        if column is None or not (need and weight and columns.binds(row, (resource,))):
            continue
        total = int(columns.allocatable[row, inside, column].sum())
        held = total - int(free[inside, column].sum())
        shares.append((min(max((held + need) * 100 // max(total, 1), 0), 100), weight))
    return _by_use(shares, scoring.strategy) if shares else UNKNOWN


@lru_cache(maxsize=4096)
def span_score(distances: tuple[tuple[int, ...], ...], spans: tuple[int, ...], *, zones: int, most: int) -> int:
    """Score the zones of a pod: each zone costs `100 // most`; half of that is given back if none are closer.

    Of that half a third is for all zones together, and the rest for the containers, each by its own zones: the two
    zones of a container are to be near each other, and the containers' zones too.
    Closeness is the sum of distances over all ordered pairs, each zone with itself included. On nodes of more than 8
    zones only sets of one, two and all zones are compared.

    Args:
        distances: between the node's zones, empty where they are not known.
    """
    whole, step = reduce(or_, spans), 100 // most
    near = sum(_is_closest(distances, span, zones) for span in spans)
    together = _is_closest(distances, whole, zones)
    back = step // 2 * (2 * near + together * len(spans)) // (3 * len(spans))
    return max(100 - whole.bit_count() * step + back, 0)


def _is_closest(distances: tuple[tuple[int, ...], ...], span: int, zones: int) -> bool:
    """Tell whether no set of as many zones is closer."""
    table = mask_table(zones)
    rivals = table.masks[table.slices[span.bit_count()]]
    if not rivals or not distances:
        return bool(rivals)
    return spread(distances, zones_of(span)) <= min(spread(distances, zones_of(rival)) for rival in rivals)


def _by_use(shares: list[tuple[int, int]], strategy: ScoringStrategy) -> int:
    """Score by how much of the pod's zones is in use afterwards: per cent of what is allocatable, and weights."""
    if strategy is ScoringStrategy.BALANCED_ALLOCATION:
        # 100 less the sample variance of the shares, as per cent; one resource is balanced by itself.
        count, total = len(shares), sum(use for use, _ in shares)
        squares = sum(use * use for use, _ in shares)
        return max(100 - (count * squares - total * total) // max(count * (count - 1) * 100, 1), 0)
    most = strategy is ScoringStrategy.MOST_ALLOCATED
    weighed = sum((use if most else 100 - use) * weight for use, weight in shares)
    return weighed // sum(weight for _, weight in shares)
