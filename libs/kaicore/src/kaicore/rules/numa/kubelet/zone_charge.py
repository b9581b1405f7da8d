"""The amounts that one pod holds of one node's zones, by zone index."""

from collections import Counter

import msgspec

from kaicore.rules.numa.kubelet.memory_manager import MemoryBlock


class ZoneCharge(msgspec.Struct, frozen=True, gc=False):
    """One pod's charge on one node's zones.

    Attributes:
        amounts: zone index, resource and amount of CPUs and devices, in canonical units.
        blocks: its memory, in the order of its containers.
        uncertain: resources of which only the sum is certain: the zones are predicted where the kubelet may choose.
        repeated: of the amounts, what may be held of the zone and may not: of another one, or of none.
    """

    amounts: tuple[tuple[int, str, int], ...] = ()
    blocks: tuple[MemoryBlock, ...] = ()
    uncertain: tuple[str, ...] = ()
    repeated: tuple[tuple[int, str, int], ...] = ()

    @property
    def beside_memory(self) -> tuple[object, ...]:
        """All of it but the blocks."""
        return self.amounts, self.uncertain, self.repeated

    @property
    def split(self) -> tuple[tuple[int, str, int], ...]:
        """All amounts by zone and resource, memory as it was drawn on admission."""
        total: dict[tuple[int, str], int] = {}
        drawn = [(zone, block.resource, amount) for block in self.blocks for zone, amount in block.drawn]
        for zone, resource, amount in (*self.amounts, *drawn):
            total[zone, resource] = total.get((zone, resource), 0) + amount
        return tuple((zone, resource, amount) for (zone, resource), amount in sorted(total.items()) if amount)

    @property
    def certain(self) -> set[tuple[int, str]]:
        """The zones and resources of which some is held whatever else may be held instead."""
        repeated = {(zone, resource): amount for zone, resource, amount in self.repeated}
        return {(zone, resource) for zone, resource, amount in self.split if amount > repeated.get((zone, resource), 0)}


def shared_blocks(
    blocks: tuple[MemoryBlock, ...], wanted: tuple[MemoryBlock, ...]
) -> tuple[tuple[MemoryBlock, ...], tuple[MemoryBlock, ...]]:
    """Part blocks into those that are among the wanted ones, wherever they were drawn from, and the others."""
    left = Counter((block.resource, block.mask, block.size, block.init) for block in wanted)
    kept: list[MemoryBlock] = []
    others: list[MemoryBlock] = []
    for block in blocks:
        key = (block.resource, block.mask, block.size, block.init)
        (kept if left[key] else others).append(block)
        left[key] -= left[key] > 0
    return tuple(kept), tuple(others)
