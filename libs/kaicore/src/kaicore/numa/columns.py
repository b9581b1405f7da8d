"""The NUMA zones of all nodes as columns, updated in place.

Rows are nodes, the second axis zones (in order of NUMA id), the third resources. A cell that a node does not have is 0.
Free capacity is reconstructed (seed `numa-aware-scheduling`, Appendix A): allocatable - used, where `used` is what the
known placements hold. `releasing` is the part of `used` that terminating pods still hold.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from kaicore.model.node import NodeTopology, TopologyPolicy, TopologyScope

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_Scalar = TypeVar("_Scalar", bound=np.generic)

POLICIES = tuple(TopologyPolicy)
SCOPES = tuple(TopologyScope)


@dataclass(frozen=True, slots=True)
class ZoneCharge:
    """What one pod holds of one node's zones.

    Attributes:
        amounts: zone index, resource and amount, in canonical units.
        memory_masks: affinity masks of its memory blocks; a zone that backs a mask of one zone serves no mask of more,
            and a zone of a mask of several serves only that very mask, until all holders are gone (memory manager).
    """

    amounts: tuple[tuple[int, str, int], ...] = ()
    memory_masks: tuple[int, ...] = ()


class ZoneColumns:
    """Zones of nodes by row; grows as rows, zones and resources appear."""

    def __init__(self) -> None:
        self.resources: dict[str, int] = {}
        self.zone_count: Ints = np.zeros(0, np.int64)
        self.policy: Ints = np.zeros(0, np.int64)
        self.scope: Ints = np.zeros(0, np.int64)
        #: Equal for rows that are alike in all but what is used; 0 without zones.
        self.shape: Ints = np.zeros(0, np.int64)
        self.reported: Flags = np.zeros((0, 0), np.bool_)
        self.capacity: Ints = np.zeros((0, 0, 0), np.int64)
        self.allocatable: Ints = np.zeros((0, 0, 0), np.int64)
        self.published: Ints = np.zeros((0, 0, 0), np.int64)
        self.used: Ints = np.zeros((0, 0, 0), np.int64)
        self.releasing: Ints = np.zeros((0, 0, 0), np.int64)
        self.memory_single: Ints = np.zeros((0, 0), np.int64)
        self.memory_group: Ints = np.zeros((0, 0), np.int64)
        self._memory_masks: dict[int, Counter[int]] = {}
        self._shared_masks: dict[int, Counter[int]] = {}
        self._shapes: dict[bytes, int] = {}

    def reserve(self, *, rows: int, zones: int = 0, resources: Iterable[str] = ()) -> None:
        """Make room for rows, zones and resources."""
        for resource in resources:
            self.resources.setdefault(resource, len(self.resources))
        old_rows, old_zones, old_resources = self.capacity.shape
        new_rows = _grown(old_rows, rows)
        new_zones = max(old_zones, zones)
        new_resources = max(old_resources, len(self.resources))
        if (new_rows, new_zones, new_resources) == (old_rows, old_zones, old_resources):
            return
        shape = (new_rows, new_zones, new_resources)
        for name in ("zone_count", "policy", "scope", "shape"):
            setattr(self, name, _resized(getattr(self, name), shape[:1]))
        for name in ("memory_single", "memory_group"):
            setattr(self, name, _resized(getattr(self, name), shape[:2]))
        for name in ("capacity", "allocatable", "published", "used", "releasing"):
            setattr(self, name, _resized(getattr(self, name), shape))
        self.reported = _resized(self.reported, (new_rows, new_resources))

    def set_topology(self, row: int, topology: NodeTopology | None) -> None:
        """Set a row's zones; what its pods hold must be charged again afterwards."""
        self.clear(row)
        if topology is None:
            return
        resources = sorted({name for zone in topology.zones for name in zone.resources})
        self.reserve(rows=row + 1, zones=len(topology.zones), resources=resources)
        self.zone_count[row] = len(topology.zones)
        self.policy[row] = POLICIES.index(topology.policy)
        self.scope[row] = SCOPES.index(topology.scope)
        for index, zone in enumerate(topology.zones):
            for name, resource in zone.resources.items():
                column = self.resources[name]
                self.capacity[row, index, column] = resource.capacity
                self.allocatable[row, index, column] = resource.allocatable
                self.published[row, index, column] = resource.available
        # A zone with nothing allocatable is published as `cpu: allocatable 0` even without a static CPU manager.
        self.reported[row] = self.allocatable[row].any(axis=0)
        likeness = msgspec.json.encode(
            (
                topology.policy,
                topology.scope,
                topology.options,
                [
                    (zone.name, {name: (item.capacity, item.allocatable) for name, item in zone.resources.items()})
                    for zone in topology.zones
                ],
            ),
            order="deterministic",
        )
        self.shape[row] = self._shapes.setdefault(likeness, len(self._shapes) + 1)

    def likeness(self, row: int) -> tuple[int, bytes, bytes, bytes, bytes]:
        """Return a key that is equal for two rows, or two moments, exactly when any pod fares the same there."""
        return (
            int(self.shape[row]),
            self.used[row].tobytes(),
            self.published[row].tobytes(),
            self.memory_single[row].tobytes(),
            self.memory_group[row].tobytes(),
        )

    def set_published(self, row: int, topology: NodeTopology) -> None:
        """Take over what the exporter saw free, everything else being as it was."""
        for index, zone in enumerate(topology.zones):
            for name, resource in zone.resources.items():
                self.published[row, index, self.resources[name]] = resource.available

    def clear(self, row: int) -> None:
        """Forget a row's zones and all that is charged to them."""
        self.reserve(rows=row + 1)
        for array in (self.zone_count, self.policy, self.scope, self.shape):
            array[row] = 0
        for matrix in (self.reported, self.capacity, self.allocatable):
            matrix[row] = 0
        for array in (self.published, self.used, self.releasing, self.memory_single, self.memory_group):
            array[row] = 0
        self._memory_masks[row] = Counter()

    def charge(self, row: int, charge: ZoneCharge, *, sign: int = 1, releasing: bool = False) -> None:
        """Add a pod's holdings to a row, or take them off again with `sign=-1`."""
        for zone, resource, amount in charge.amounts:
            column = self.resources[resource]
            self.used[row, zone, column] += sign * amount
            if releasing:
                self.releasing[row, zone, column] += sign * amount
        if charge.memory_masks:
            masks = self._memory_masks.get(row)
            if masks is None:
                masks = self._memory_masks[row] = Counter(self._shared_masks.get(row, ()))
            for mask in charge.memory_masks:
                masks[mask] += sign
            self._set_memory_groups(row, masks)

    def _set_memory_groups(self, row: int, masks: Counter[int]) -> None:
        self.memory_single[row] = 0
        self.memory_group[row] = 0
        for mask, holders in masks.items():
            if holders <= 0:
                continue
            zones = [zone for zone in range(mask.bit_length()) if mask >> zone & 1]
            if len(zones) == 1:
                self.memory_single[row, zones[0]] += holders
            else:
                self.memory_group[row, zones] |= mask

    def assume(self, row: int, charge: ZoneCharge, *, sign: int = 1) -> None:
        """Take a decision off what the exporter saw free, until it publishes again."""
        for zone, resource, amount in charge.amounts:
            self.published[row, zone, self.resources[resource]] -= sign * amount

    def copy(self) -> "ZoneColumns":
        """Return columns that can be charged without touching these, as long as these are not charged meanwhile."""
        other = copy(self)
        for name in ("published", "used", "releasing", "memory_single", "memory_group"):
            setattr(other, name, getattr(self, name).copy())
        other._shared_masks = {**self._shared_masks, **self._memory_masks}  # noqa: SLF001
        other._memory_masks = {}  # noqa: SLF001
        return other

    def columns_of(self, resources: Sequence[str]) -> list[int]:
        """Return the columns of those of the resources that any node reports."""
        return [self.resources[name] for name in resources if name in self.resources]


def _grown(old: int, needed: int) -> int:
    return old if needed <= old else max(needed, old * 2, 16)


def _resized(array: npt.NDArray[_Scalar], shape: tuple[int, ...]) -> npt.NDArray[_Scalar]:
    bigger: npt.NDArray[_Scalar] = np.zeros(shape, array.dtype)
    bigger[tuple(slice(0, size) for size in array.shape)] = array
    return bigger
