"""The accounts of the memory manager's Static policy per zone, and the masks that it finds for a request.

The rule of memory groups: memory that is taken from several zones ties these zones into one group. While any of it is
held, each zone of the group serves requests for exactly that group only. A zone that holds memory of its own joins no
group until that memory is free.

Accounts may hold combinations that no kubelet holds. Memory of several zones is reserved over pods that leave, and a
pod on several zones is observed before the end of the pod that had its memory. A zone that is held in two such ways
serves no request until the first ones are gone.

A block of several zones is drawn from them in ascending order. It is given back in ascending order too, to any
reservation there. So the state depends on the order of all events, and is folded block by block.

Source: Kubernetes v1.36, `pkg/kubelet/cm/memorymanager/policy_static.go`.
"""

from collections.abc import Iterable, Mapping
from itertools import combinations

import msgspec

from kaicore.rules.numa.kubelet.masks import Hints, MaskTable, zones_of


class MemoryBlock(msgspec.Struct, frozen=True, gc=False):
    """A piece of memory, or of hugepages of one size, that a container holds.

    Attributes:
        mask: the zones it belongs to, all of which it groups.
        size: bytes.
        init: whether an ordinary init container holds it: it is freed when the containers after it start.
        drawn: zone and bytes, as they were taken on admission.
    """

    resource: str
    mask: int
    size: int
    init: bool = False
    drawn: tuple[tuple[int, int], ...] = ()


#: One block of others, in a cell (`MemoryZones.cells`). Masks are below it.
_OTHER = 1 << 32


class MemoryZones(msgspec.Struct, gc=False):
    """The zones of one node as its memory manager counts them.

    Attributes:
        allocatable: bytes for pods by type and zone.
        free: bytes not promised to a container by type and zone.
        assignments: number of blocks on each zone.
        cells: the mask that each zone serves; 0 when it is in no use. One below 0 serves none: by
            `-(others * 2**32 + mask)` it says how many blocks that were there first must go until it serves that mask.
        regroups: whether a block of several zones makes them a group whatever they serve, as kubelets before 1.32 do.
    """

    allocatable: dict[str, list[int]]
    free: dict[str, list[int]]
    assignments: list[int]
    cells: list[int]
    regroups: bool = False

    def hints(self, table: MaskTable, needs: Mapping[str, int], lent: Mapping[tuple[int, str], int]) -> Hints:
        """Return the masks for a request of all memory types together.

        Args:
            needs: bytes by type; a type that the node has not counts as 0 everywhere.
            lent: by mask and type, what init containers of the pod lend under exactly that mask.
        """
        first, able = next(iter(needs)), (1 << len(table)) - 1
        feasible = able
        for resource, need in needs.items():
            if not need:
                continue
            if resource not in self.free:
                return Hints(first, 0, 0, table.zones)
            able &= table.reaching(self.allocatable[resource], need)
            enough = table.reaching(self.free[resource], need)
            for (mask, kind), amount in lent.items():
                if kind == resource and amount:
                    place = table.places[mask]
                    if sum(self.free[resource][zone] for zone in zones_of(mask)) + amount >= need:
                        enough |= 1 << place
            feasible &= enough
        width = table.first_width(able)
        feasible &= able & open_masks(self.cells, table)
        return Hints(first, feasible, feasible & table.of_width[width], width)

    def conflicts(self, mask: int) -> bool:
        """Tell whether a zone of a mask of several is in use in another way: alone, or in another group."""
        return bool(mask & (mask - 1)) and any(self.cells[zone] not in (0, mask) for zone in zones_of(mask))

    def suffices(self, mask: int, needs: Mapping[str, int]) -> bool:
        """Tell whether what is free on a mask's zones covers a request."""
        zones = zones_of(mask)
        return all(
            not need or (resource in self.free and sum(self.free[resource][zone] for zone in zones) >= need)
            for resource, need in needs.items()
        )

    def draw(self, resource: str, mask: int, size: int) -> tuple[tuple[int, int], ...]:
        """Take a block from its zones in ascending order; returns what came from which zone.

        What the zones have not is taken from the first all the same: it was observed there.
        """
        zones = zones_of(mask)
        free = self.free.setdefault(resource, [0] * len(self.cells))
        taken: dict[int, int] = {}
        for zone in zones:
            self.cells[zone] = self._cell_after(zone, mask)
            self.assignments[zone] += 1
            part = max(min(size, free[zone]), 0)
            if part:
                taken[zone] = part
                free[zone] -= part
                size -= part
        if size:
            taken[zones[0]] = taken.get(zones[0], 0) + size
            free[zones[0]] -= size
        return tuple(sorted(taken.items()))

    def _cell_after(self, zone: int, mask: int) -> int:
        """Return what a zone serves once a block for a mask is drawn from it, too."""
        cell = self.cells[zone]
        if self.regroups:
            return mask
        if cell < 0:
            return cell if -cell % _OTHER == mask else cell - _OTHER
        if cell in (0, mask) or not mask & (mask - 1):
            # As the kubelet: what wants one zone only may get one of a group, which it then serves alone.
            return mask
        return -(self.assignments[zone] * _OTHER + mask)

    def give_back(self, resource: str, mask: int, size: int) -> None:
        """Return a block to its zones in ascending order, as far as something is reserved there; the rest is lost."""
        zones = zones_of(mask)
        for zone in zones:
            self.assignments[zone] -= 1
            cell = self.cells[zone]
            if not self.assignments[zone]:
                self.cells[zone] = 0
            elif cell < 0 and -cell % _OTHER != mask:
                self.cells[zone] = cell + _OTHER if cell + _OTHER <= -_OTHER else -cell % _OTHER
            part = max(min(size, self.allocatable[resource][zone] - self.free[resource][zone]), 0)
            self.free[resource][zone] += part
            size -= part

    def give_back_repeated(self, resource: str, amounts: Iterable[int]) -> None:
        """Return by zone what may be held of it and may not; a zone of which nothing else is held is in no use."""
        for zone, amount in enumerate(amounts):
            if not amount or resource not in self.free:
                continue
            self.free[resource][zone] += amount
            if all(self.free[name][zone] >= self.allocatable[name][zone] for name in self.free):
                self.assignments[zone] = self.cells[zone] = 0


def open_masks(cells: Iterable[int], table: MaskTable) -> int:
    """Return the set of the masks that the present groups allow (`MemoryZones.cells`)."""
    allowed = (1 << len(table)) - 1
    for zone, cell in enumerate(cells):
        if cell:
            allowed &= ~table.containing[zone] | 1 << table.places.get(cell, len(table))
    return allowed


def excluding(masks: Iterable[int]) -> bool:
    """Tell whether any two of some groups exclude each other: they have a zone in common and are not the same."""
    return any(one & other for one, other in combinations(set(masks), 2))


def shrink(blocks: list[MemoryBlock], by: MemoryBlock, most: int) -> tuple[tuple[int, int], ...]:
    """Take a part of a lending block away, from its zones in ascending order; returns what came from which zone."""
    for index, block in enumerate(blocks):
        if (block.resource, block.mask) == (by.resource, by.mask):
            moved = []
            for zone, amount in block.drawn:
                part = min(amount, most)
                moved.append((zone, part))
                most -= part
            size = block.size - sum(part for _, part in moved)
            blocks[index] = redrawn(block, size, tuple(moved), sign=-1)
            return tuple(moved)
    return ()


def redrawn(block: MemoryBlock, size: int, moved: tuple[tuple[int, int], ...], *, sign: int) -> MemoryBlock:
    """Return a block of another size, to which a part by zone is added, or from which it is taken (`sign=-1`)."""
    drawn = dict(block.drawn)
    for zone, part in moved:
        drawn[zone] = drawn.get(zone, 0) + sign * part
    held = tuple(sorted((zone, amount) for zone, amount in drawn.items() if amount))
    return MemoryBlock(block.resource, block.mask, size, block.init, held)
