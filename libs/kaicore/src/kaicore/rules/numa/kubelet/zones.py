"""One node's zones as plain numbers, which an admission walks over and changes, and the amounts of one pod on them."""

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from kaicore.rules.model.quantity import is_memory
from kaicore.rules.numa.kubelet.masks import MaskTable, mask_table
from kaicore.rules.numa.kubelet.memory_manager import MemoryBlock, MemoryZones
from kaicore.rules.numa.kubelet.settings import KubeletSettings

#: Zone index, resource and amount, in canonical units.
ZoneAmounts = tuple[tuple[int, str, int], ...]


def drawn(blocks: Iterable[MemoryBlock]) -> Iterator[tuple[int, str, int]]:
    """Yield what blocks took of each zone."""
    for block in blocks:
        for zone, amount in block.drawn:
            yield zone, block.resource, amount


def summed(amounts: Iterable[tuple[int, str, int]]) -> ZoneAmounts:
    """Sum amounts up by zone and resource."""
    total: dict[tuple[int, str], int] = {}
    for zone, resource, amount in amounts:
        total[zone, resource] = total.get((zone, resource), 0) + amount
    return tuple((zone, resource, amount) for (zone, resource), amount in sorted(total.items()))


class ZoneCharge(msgspec.Struct, frozen=True, gc=False):
    """One pod's charge on one node's zones.

    Attributes:
        amounts: of CPUs and devices.
        blocks: its memory, in the order of its containers.
        uncertain: resources of which only the sum is certain: the zones are predicted where the kubelet may choose.
        repeated: of the amounts, what may be held of the zone and may not: of another one, or of none.
    """

    amounts: ZoneAmounts = ()
    blocks: tuple[MemoryBlock, ...] = ()
    uncertain: tuple[str, ...] = ()
    repeated: ZoneAmounts = ()

    @property
    def beside_memory(self) -> tuple[object, ...]:
        """All of it but the blocks."""
        return self.amounts, self.uncertain, self.repeated

    @property
    def split(self) -> ZoneAmounts:
        """All amounts by zone and resource, memory as it was drawn on admission."""
        return tuple(item for item in summed((*self.amounts, *drawn(self.blocks))) if item[2])

    @property
    def certain(self) -> set[tuple[int, str]]:
        """The zones and resources of which some is held whatever else may be held instead."""
        repeated = {(zone, resource): amount for zone, resource, amount in self.repeated}
        return {(zone, resource) for zone, resource, amount in self.split if amount > repeated.get((zone, resource), 0)}


def _alike(one: MemoryBlock, other: MemoryBlock) -> bool:
    return (one.mask, one.size, one.resource, one.init) == (other.mask, other.size, other.resource, other.init)


def shared_blocks(
    blocks: tuple[MemoryBlock, ...], wanted: tuple[MemoryBlock, ...]
) -> tuple[tuple[MemoryBlock, ...], tuple[MemoryBlock, ...]]:
    """Part blocks into those that are among the wanted ones, wherever they were drawn from, and the others."""
    if len(blocks) == len(wanted) and all(map(_alike, blocks, wanted)):
        return blocks, ()
    left = Counter((block.resource, block.mask, block.size, block.init) for block in wanted)
    kept: list[MemoryBlock] = []
    others: list[MemoryBlock] = []
    for block in blocks:
        key = (block.resource, block.mask, block.size, block.init)
        (kept if left[key] else others).append(block)
        left[key] -= left[key] > 0
    return tuple(kept), tuple(others)


class NodeDevices(msgspec.Struct, frozen=True, gc=False):
    """Devices of one resource where the zones' figures do not add up to the node's: some are of several zones,
    some of none.

    Attributes:
        total: healthy devices of the node.
        free: of them, those that no pod has.
    """

    total: int
    free: int


class NodeZones(msgspec.Struct, gc=False):
    """The zones of one node.

    Attributes:
        settings: of the node's kubelet.
        capacity: hardware by resource and zone: CPUs with the reserved ones, devices; millicores and counts.
        free: what no pod holds of it, by resource and zone; only resources that zones report.
        memory: the memory manager's view of it.
        devices: totals of the resources with zones that do not add up.
        uncertain: resources of which it is not certain from which zones some pod took them.
        broken: by zone, of how many cores at most one CPU is taken and the other free; empty where it does not matter.
        repeated: by resource and zone, what is missing in `free` and may be free nevertheless.
        distances: from zone to zone, empty where unknown.
        perhaps_held: by resource and zone, what is in `free` and may be held nevertheless.
    """

    zones: int
    settings: KubeletSettings
    capacity: dict[str, list[int]]
    free: dict[str, list[int]]
    memory: MemoryZones
    broken: list[int]
    devices: dict[str, NodeDevices] = msgspec.field(default_factory=dict)
    uncertain: frozenset[str] = frozenset()
    repeated: dict[str, list[int]] = msgspec.field(default_factory=dict)
    distances: tuple[tuple[int, ...], ...] = ()
    perhaps_held: dict[str, list[int]] = msgspec.field(default_factory=dict)

    @property
    def table(self) -> MaskTable:
        """The masks over these zones."""
        return mask_table(self.zones)

    def whole(self, resource: str) -> int:
        """Return what is free of a resource on all zones together."""
        return sum(self.free[resource]) + sum(self.repeated.get(resource, ()))

    def likeliest(self) -> "NodeZones":
        """Return the zones as they most likely are: without what may be held and may not; this one is used up."""
        for resource, amounts in self.repeated.items():
            if is_memory(resource):
                self.memory.give_back_repeated(resource, amounts)
                continue
            self.free[resource] = [free + more for free, more in zip(self.free[resource], amounts, strict=True)]
        return msgspec.structs.replace(self, repeated={}, perhaps_held=self.repeated)
