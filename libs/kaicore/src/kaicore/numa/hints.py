"""Hints: which masks could serve a request, and which of them are preferred, for many nodes at once.

One provider per device resource, one for CPUs, one for memory and all hugepage sizes together. A mask is *feasible*
when what is free on its zones suffices, and *preferred* when it is feasible and has as few zones as the request could
ever do with: counted over all CPUs of a zone, reserved ones included; over all devices; over allocatable memory.
"""

from dataclasses import dataclass

import numpy as np

from kaicore.model.quantity import CPU
from kaicore.numa.columns import Flags, Ints, ZoneColumns
from kaicore.numa.masks import MaskTable, mask_table
from kaicore.numa.requests import is_memory

#: A width that no mask has.
_NO_WIDTH = 1 << 30


@dataclass(slots=True)
class Headroom:
    """What is free on the zones of some nodes while a pod's containers are admitted one after another.

    Attributes:
        rows: the nodes' rows; all have the same number of zones.
        free: shape (rows, zones, resources).
        reusable: what ordinary init containers hold and lend to the containers after them.
        memory_lent_mask: the mask under which memory is lent, and only under which it can be taken.
    """

    columns: ZoneColumns
    rows: Ints
    table: MaskTable
    free: Ints
    reusable: Ints
    memory_single: Ints
    memory_group: Ints
    memory_lent_mask: Ints

    @classmethod
    def of(cls, columns: ZoneColumns, rows: Ints, *, zones: int, reconstruct: bool, empty: bool = False) -> "Headroom":
        """Take what is free now on rows that have `zones` zones each.

        Args:
            columns: zones of all nodes.
            rows: which of them.
            zones: how many zones each has.
            reconstruct: free is allocatable - known placements; otherwise what the exporter published, less what was
                decided since.
            empty: take what would be free if the nodes had no pods.
        """
        window = (rows, slice(0, zones))
        if empty:
            free = columns.allocatable[window]
        elif reconstruct:
            free = columns.allocatable[window] - columns.used[window]
        else:
            free = columns.published[window]
        return cls(
            columns=columns,
            rows=rows,
            table=mask_table(zones),
            free=free,
            reusable=np.zeros_like(free),
            memory_single=columns.memory_single[window] * (not empty),
            memory_group=columns.memory_group[window] * (not empty),
            memory_lent_mask=np.zeros(len(rows), np.int64),
        )

    def take(self, which: Ints) -> "Headroom":
        """Return the same for a selection of the rows, as a copy."""
        return Headroom(
            columns=self.columns,
            rows=self.rows[which],
            table=self.table,
            free=self.free[which],
            reusable=self.reusable[which],
            memory_single=self.memory_single[which],
            memory_group=self.memory_group[which],
            memory_lent_mask=self.memory_lent_mask[which],
        )

    def capacity_of(self, column: int, *, hardware: bool) -> Ints:
        """Return each zone's total of a resource: all of the hardware, or what is allocatable."""
        source = self.columns.capacity if hardware else self.columns.allocatable
        return source[self.rows, : self.table.zones, column]


@dataclass(frozen=True, slots=True)
class Hints:
    """One provider's answer: shapes (rows, masks), and the rows where it has no opinion.

    Attributes:
        resource: for people; the memory provider carries the name of the first of its resources.
        silent: rows on which the resource is not reported per zone, so that nothing is aligned.
        width: the preferred width, `1 << 30` where no mask ever suffices; shape (rows,).
    """

    resource: str
    feasible: Flags
    preferred: Flags
    silent: Flags
    width: Ints


def provider_hints(headroom: Headroom, amounts: tuple[tuple[str, int], ...]) -> list[Hints]:
    """Return each provider's hints for one container, or for a pod under pod scope."""
    known = [(name, amount) for name, amount in amounts if name in headroom.columns.resources]
    hints = [_single_resource_hints(headroom, name, need) for name, need in known if not is_memory(name)]
    memory = [(name, need) for name, need in known if is_memory(name)]
    if memory:
        hints.append(_memory_hints(headroom, memory))
    return hints


def _single_resource_hints(headroom: Headroom, resource: str, need: int) -> Hints:
    """CPUs (`generateCPUTopologyHints`) or one device resource (`generateDeviceTopologyHints`)."""
    column = headroom.columns.resources[resource]
    members, widths = headroom.table.members, headroom.table.widths
    total = headroom.capacity_of(column, hardware=resource == CPU) @ members.T
    width = np.where(total >= need, widths, _NO_WIDTH).min(axis=1)
    lent = headroom.reusable[:, :, column]
    feasible = (headroom.free[:, :, column] + lent) @ members.T >= need
    if lent.any():
        # What init containers lend must be used: a mask that leaves a lending zone out is no hint.
        feasible &= (lent > 0) @ (1 - members.T) == 0
    preferred = feasible & (widths == width[:, None])
    silent = ~headroom.columns.reported[headroom.rows, column]
    return Hints(resource, feasible, preferred, silent, width)


def _memory_hints(headroom: Headroom, needs: list[tuple[str, int]]) -> Hints:
    """Memory and hugepages are one decision (`calculateHints`): one width; a mask serves all types or is no hint."""
    members, widths, bits = headroom.table.members, headroom.table.widths, headroom.table.bits
    shape = (len(headroom.rows), len(bits))
    enough = np.ones(shape, np.bool_)
    feasible = np.ones(shape, np.bool_)
    silent = np.ones(len(headroom.rows), np.bool_)
    same_mask = bits[None, :] == headroom.memory_lent_mask[:, None]
    for resource, need in needs:
        column = headroom.columns.resources[resource]
        reported = headroom.columns.reported[headroom.rows, column]
        silent &= ~reported
        total = headroom.capacity_of(column, hardware=False) @ members.T
        enough &= (total >= need) | ~reported[:, None]
        lent = same_mask * headroom.reusable[:, :, column].sum(axis=1)[:, None]
        free = headroom.free[:, :, column] @ members.T + lent
        feasible &= (free >= need) | ~reported[:, None]
    feasible &= ~_group_conflicts(headroom)
    width = np.where(enough, widths, _NO_WIDTH).min(axis=1)
    return Hints(needs[0][0], feasible, feasible & (widths == width[:, None]), silent, width)


def _group_conflicts(headroom: Headroom) -> Flags:
    """Masks that the memory manager's groups forbid, whatever is free; shape (rows, masks)."""
    members, widths, bits = headroom.table.members, headroom.table.widths, headroom.table.bits
    single = (headroom.memory_single > 0).astype(np.int64) @ members.T > 0
    group = headroom.memory_group
    other_group = (group[:, None, :] != 0) & (group[:, None, :] != bits[None, :, None]) & (members[None] == 1)
    conflicts: Flags = (single & (widths > 1)) | other_group.any(axis=2)
    return conflicts
