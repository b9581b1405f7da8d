"""The Topology Manager's merging of its providers' hints: one function per policy.

Each merges the hints for one container (or pod) into one mask. The walk over the containers, each allocated before the
next is looked at, is the same for all policies (`kaicore.rules.numa.kubelet.admission`).

Source: Kubernetes v1.36, `pkg/kubelet/cm/topologymanager/`, the file of each policy.
"""

from collections.abc import Callable, Sequence

import msgspec

from kaicore.rules.model.node import TopologyPolicy
from kaicore.rules.numa.kubelet.masks import Hints, lowest_place, spread
from kaicore.rules.numa.kubelet.zones import NodeZones


class Merged(msgspec.Struct, frozen=True, gc=False):
    """The merged hint.

    Attributes:
        mask: zones to allocate from, 0 for any.
        preferred: whether every provider prefers it.
    """

    mask: int
    preferred: bool


#: A policy merges the hints; None where it refuses (`TopologyAffinityError`).
Evaluator = Callable[[NodeZones, Sequence[Hints]], Merged | None]


def single_numa_node(node: NodeZones, hints: Sequence[Hints]) -> Merged | None:
    """Return the lowest zone that every provider prefers alone (`policy_single_numa_node.go`).

    The mask of all zones says nothing: so it is on a node of one zone, or where no provider has an opinion.
    """
    if not hints:
        return Merged(0, preferred=True)
    table = node.table
    common = table.of_width[1]
    for hint in hints:
        common &= hint.preferred
    if not common:
        return None
    mask = table.masks[lowest_place(common)]
    return Merged(0 if mask == table.full else mask, preferred=True)


def restricted(node: NodeZones, hints: Sequence[Hints]) -> Merged | None:
    """Return a mask that every provider prefers (`policy_restricted.go`)."""
    table = node.table
    if not hints:
        return Merged(table.full, preferred=True)
    common = hints[0].preferred
    for hint in hints[1:]:
        common &= hint.preferred
    return Merged(best_mask(node, common), preferred=True) if common else None


def best_effort(node: NodeZones, hints: Sequence[Hints]) -> Merged | None:
    """Return what `restricted` does where that admits, otherwise the mask that comes nearest (`policy.go`).

    Nearest is measured by BestNonPreferredAffinityCount: as many zones as the neediest provider's narrowest hint; if
    none of the merged masks has so many, the next smaller number, or else the smallest.
    """
    aligned = restricted(node, hints)
    if aligned is not None:
        return aligned
    table = node.table
    overlaps, target = {table.full}, 0
    for hint in hints:
        if hint.feasible:
            masks = [mask for place, mask in enumerate(table.masks) if hint.feasible >> place & 1]
            target = max(target, masks[0].bit_count())
            overlaps = {one & other for one in overlaps for other in masks} - {0}
    if not overlaps:
        return Merged(table.full, preferred=False)
    fitting = [mask.bit_count() for mask in overlaps if mask.bit_count() <= target]
    width = max(fitting) if fitting else min(mask.bit_count() for mask in overlaps)
    among = 0
    for mask in overlaps:
        if mask.bit_count() == width:
            among |= 1 << table.places[mask]
    return Merged(best_mask(node, among), preferred=False)


def none(_node: NodeZones, _hints: Sequence[Hints]) -> Merged:
    """Merge nothing: the managers allocate where they like; they can still refuse."""
    return Merged(0, preferred=False)


def best_mask(node: NodeZones, masks: int) -> int:
    """Return a set's best mask: fewest zones, then (prefer-closest-numa-nodes) the closest, then the lowest value."""
    table = node.table
    place = lowest_place(masks)
    if node.settings.prefers_closest and node.distances:
        width = table.masks[place].bit_count()
        among = masks & table.of_width[width]
        places = [index for index in range(len(table)) if among >> index & 1]
        place = min(places, key=lambda index: (spread(node.distances, table.zones_of[index]), index))
    return table.masks[place]


EVALUATORS: dict[TopologyPolicy, Evaluator] = {
    TopologyPolicy.SINGLE_NUMA_NODE: single_numa_node,
    TopologyPolicy.RESTRICTED: restricted,
    TopologyPolicy.BEST_EFFORT: best_effort,
    TopologyPolicy.NONE: none,
}
