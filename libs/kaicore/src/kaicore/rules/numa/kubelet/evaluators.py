"""The Topology Manager's merging of its providers' hints: one evaluator per policy, behind one interface.

An evaluator merges the hints for one container (or pod) into one mask. The walk over the containers, each allocated
before the next is looked at, is the same for all policies (`kaicore.rules.numa.kubelet.admission`).

Source: Kubernetes v1.36, `pkg/kubelet/cm/topologymanager/`, the file of each policy.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from kaicore.rules.model.node import TopologyPolicy
from kaicore.rules.numa.kubelet.masks import lowest_place
from kaicore.rules.numa.kubelet.zones import NodeZones


class Hints(msgspec.Struct, frozen=True, gc=False):
    """One provider's answer, as sets of masks; a provider without an opinion gives none.

    Attributes:
        resource: what it is about; the memory manager's carries the first of its resources.
        feasible: masks of zones with enough free.
        preferred: those of them with `width` zones.
        width: the fewest zones that could ever serve the request.
    """

    resource: str
    feasible: int
    preferred: int
    width: int


class Merged(msgspec.Struct, frozen=True, gc=False):
    """The merged hint.

    Attributes:
        mask: zones to allocate from, 0 for any.
        preferred: whether every provider prefers it.
    """

    mask: int
    preferred: bool


class NumaEvaluator(Protocol):
    """A Topology Manager policy."""

    def merge(self, node: NodeZones, hints: Sequence[Hints]) -> Merged | None:
        """Merge the providers' hints; None when the policy refuses (`TopologyAffinityError`)."""


class SingleNumaNodeEvaluator:
    """`single-numa-node`: the lowest zone that every provider prefers alone (`policy_single_numa_node.go`).

    The mask of all zones says nothing: so it is on a node of one zone, or where no provider has an opinion.
    """

    def merge(self, node: NodeZones, hints: Sequence[Hints]) -> Merged | None:
        """See `NumaEvaluator`."""
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


class RestrictedEvaluator:
    """`restricted`: one mask must be preferred by every provider.

    Source: Kubernetes v1.36, `pkg/kubelet/cm/topologymanager/policy_restricted.go`.
    """

    def merge(self, node: NodeZones, hints: Sequence[Hints]) -> Merged | None:
        """See `NumaEvaluator`."""
        table = node.table
        if not hints:
            return Merged(table.full, preferred=True)
        common = hints[0].preferred
        for hint in hints[1:]:
            common &= hint.preferred
        return Merged(best_mask(node, common), preferred=True) if common else None


class BestEffortEvaluator:
    """`best-effort`: like restricted where that admits, otherwise the mask that comes nearest (`policy.go`).

    Nearest is measured by BestNonPreferredAffinityCount: as many zones as the neediest provider's narrowest hint; if
    none of the merged masks has so many, the next smaller number, or else the smallest.
    """

    def merge(self, node: NodeZones, hints: Sequence[Hints]) -> Merged | None:
        """See `NumaEvaluator`."""
        aligned = _RESTRICTED.merge(node, hints)
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


class NonePolicyEvaluator:
    """`none`: nothing is merged, the managers allocate where they like; they can still refuse."""

    def merge(self, node: NodeZones, hints: Sequence[Hints]) -> Merged | None:
        """See `NumaEvaluator`."""
        return Merged(0, preferred=False)


def best_mask(node: NodeZones, masks: int) -> int:
    """Return a set's best mask: fewest zones, then (prefer-closest-numa-nodes) the closest, then the lowest value."""
    table = node.table
    place = lowest_place(masks)
    if node.settings.prefers_closest and node.distances:
        width = table.masks[place].bit_count()
        among = masks & table.of_width[width]
        places = [index for index in range(len(table)) if among >> index & 1]
        place = min(places, key=lambda index: (node.distance(table.zones_of[index]), index))
    return table.masks[place]


_RESTRICTED = RestrictedEvaluator()

EVALUATORS: dict[TopologyPolicy, NumaEvaluator] = {
    TopologyPolicy.SINGLE_NUMA_NODE: SingleNumaNodeEvaluator(),
    TopologyPolicy.RESTRICTED: _RESTRICTED,
    TopologyPolicy.BEST_EFFORT: BestEffortEvaluator(),
    TopologyPolicy.NONE: NonePolicyEvaluator(),
}
