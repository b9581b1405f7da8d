"""The NUMA zones of all nodes as columns, updated in place.

Rows are nodes, the second axis zones (in order of NUMA id), the third resources. A cell that a node does not have is 0.
The arrays grow as rows, zones and resources appear, and are copied for a cycle. Free capacity is reconstructed
(KAI-Scheduler v0.17, `docs/developer/designs/numa-topology/README.md`, Appendix A): allocatable - used, where `used` is
the sum of the known placements, for memory as the memory manager counts it. `releasing` is the part that terminating
pods hold.
"""

import math
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from operator import sub
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from kaicore.rules.model.node import NodeTopology
from kaicore.rules.model.quantity import CPU, is_memory
from kaicore.rules.numa.kubelet.masks import zones_of
from kaicore.rules.numa.kubelet.memory_manager import MemoryBlock, MemoryZones
from kaicore.rules.numa.kubelet.settings import KubeletSettings
from kaicore.rules.numa.kubelet.zones import NodeDevices, NodeZones, ZoneCharge, drawn, shared_blocks

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_Scalar = TypeVar("_Scalar", bound=np.generic)


class StateNumbers:
    """Numbers for what rows are like (`kaicore.rules.engine.placement.row_states`), and what follows from them.

    Attributes:
        resources: the columns' resources; the numbers hold for these, in this order.
        kinds, states: numbers by what a row is like.
        befores: how a row of each state is, to restore it; None where nobody asked yet.
        scores: scores of states, by what was asked for.
        following: what comes of a pod on a row, by what was asked for, then by the row's state.
        figures: all rows' figures as the last cycle found them, in parts; empty before the first cycle.
        of_rows: their states then, -1 where they were not looked at.
    """

    def __init__(self, resources: tuple[str, ...]) -> None:
        self.resources = resources
        self.kinds: dict[object, int] = {}
        self.states: dict[object, int] = {}
        self.kinds_of_states: list[int] = []
        self.befores: list[Any] = []
        self.scores: dict[object, Ints] = {}
        self.following: dict[object, dict[int, Any]] = {}
        self.figures: tuple[Ints, ...] = ()
        self.of_rows: Ints = np.zeros(0, np.int64)


class HeldOfRow(NamedTuple):
    """A pod's holdings on its node.

    Attributes:
        charge: of zones; this very object.
        releasing: whether it counts as being released.
        number: equal for pods that hold the same.
    """

    charge: ZoneCharge
    releasing: bool
    number: int
    zones: frozenset[int]


class RelievedAnswers:
    """Answers of searches for victims (`kaicore.rules.engine.victims.node_victims`).

    Attributes:
        by_asking: answers by what was asked for, then by what a row is like.
        numbers: of what pods hold.
        by_uid: what pods held when they were last looked at, by uid.
        issued: how many numbers there have been; none is given again.
    """

    def __init__(self) -> None:
        self.by_asking: dict[object, dict[object, dict[tuple[int, ...], bool]]] = {}
        self.numbers: dict[object, int] = {}
        self.by_uid: dict[str, HeldOfRow] = {}
        self.issued = self.count = 0

    def number(self, holding: object) -> int:
        """Return the number of what a pod holds."""
        number = self.numbers.get(holding)
        if number is None:
            number = self.numbers[holding] = self.issued = self.issued + 1
        return number

    def clear(self) -> None:
        """Forget all of it."""
        self.by_asking, self.numbers, self.by_uid, self.count = {}, {}, {}, 0


class RowMemory:
    """All that is remembered.

    Attributes:
        relieved: see `RelievedAnswers`.
        states: see `StateNumbers`; None before the first cycle.
        settled: see `kaicore.rules.engine.placement.lasting_reasons`; likewise.
    """

    def __init__(self) -> None:
        self.relieved = RelievedAnswers()
        self.states: StateNumbers | None = None
        self.settled: Any = None


#: What pods and exporters change of a row, in the order in which it lies side by side; what pods hold comes first.
_PER_ZONE = ("assignments", "cells")
_PER_RESOURCE = ("uncertain",)
_HELD = ("used", *_PER_ZONE, *_PER_RESOURCE, "repeated")
_CHARGED = (*_HELD, "published", "releasing")

#: Of so many verdicts and more none is kept for later cycles: one takes about a kilobyte.
_MOST_MET = 50_000


class ZoneArrays:
    """Amounts of zones by row, without what they mean."""

    def __init__(self) -> None:
        self.resources: dict[str, int] = {}
        #: Of them, those that the memory manager accounts for.
        self._memory: dict[str, int] = {}
        self.zone_count: Ints = np.zeros(0, np.int64)
        #: Each row's kubelet, as an index into `kubelets`.
        self.kubelet: Ints = np.zeros(0, np.int64)
        self.kubelets: list[KubeletSettings] = [KubeletSettings()]
        #: Equal for rows that are alike in all but what is used; 0 without zones.
        self.shape: Ints = np.zeros(0, np.int64)
        #: Pods on the node that have, or may have, something bound to zones that no record tells.
        self.unknown: Ints = np.zeros(0, np.int64)
        #: Position of the event that brought the first of them.
        self.unknown_since: Ints = np.zeros(0, np.int64)
        self.reported: Flags = np.zeros((0, 0), np.bool_)
        self.capacity: Ints = np.zeros((0, 0, 0), np.int64)
        self.allocatable: Ints = np.zeros((0, 0, 0), np.int64)
        #: All that follows side by side, a row for each node: the others are views of it. So a row is copied, put back
        #: or compared as one.
        self.charged: Ints = np.zeros((0, 0), np.int64)
        #: How many figures of a row say what pods hold.
        self._held = 0
        self.published: Ints = np.zeros((0, 0, 0), np.int64)
        self.used: Ints = np.zeros((0, 0, 0), np.int64)
        self.releasing: Ints = np.zeros((0, 0, 0), np.int64)
        #: How many memory blocks are on each zone, and the mask that it serves for them.
        self.assignments: Ints = np.zeros((0, 0), np.int64)
        self.cells: Ints = np.zeros((0, 0), np.int64)
        #: How many pods' amounts of each resource are certain in sum only; shape (rows, resources).
        self.uncertain: Ints = np.zeros((0, 0), np.int64)
        #: Of `used`, what may be held of the zone and may not.
        self.repeated: Ints = np.zeros((0, 0, 0), np.int64)
        self._distances: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._kubelet_ids: dict[KubeletSettings, int] = {KubeletSettings(): 0}
        self._shapes: dict[bytes, int] = {}
        self._met: dict[object, dict[object, Any]] = {}
        #: It holds for copies, too, and for later moments, as what is met does.
        self.remembered = RowMemory()

    def met(self, asking: object) -> dict[object, Any]:
        """Return what someone has met on rows, by `ZoneColumns.likeness`: to be looked up, and added to.

        It holds for copies, too, and for later moments: what a row is like settles it. So a cycle need not work out
        again what an earlier one did.

        Args: asking: all else that it depends on.
        """
        met = self._met.get(asking)
        if met is None:
            if sum(map(len, self._met.values())) > _MOST_MET:
                self._met.clear()
            met = self._met[asking] = {}
        return met

    def reserve(self, *, rows: int, zones: int = 0, resources: Iterable[str] = ()) -> None:
        """Make room for rows, zones and resources."""
        for resource in resources:
            if resource not in self.resources:
                self.resources[resource] = len(self.resources)
                if is_memory(resource):
                    self._memory[resource] = self.resources[resource]
        old_rows, old_zones, old_resources = self.capacity.shape
        new_rows = old_rows if rows <= old_rows else max(rows, old_rows * 2, 16)
        new_zones = max(old_zones, zones)
        new_resources = max(old_resources, len(self.resources))
        if (new_rows, new_zones, new_resources) == (old_rows, old_zones, old_resources):
            return
        # A row's figures are laid out otherwise from now on, and a copy's not.
        self._met, self.remembered = {}, RowMemory()
        shape = (new_rows, new_zones, new_resources)
        for name in ("zone_count", "kubelet", "shape", "unknown", "unknown_since"):
            setattr(self, name, resized(getattr(self, name), shape[:1]))
        for name in ("capacity", "allocatable"):
            setattr(self, name, resized(getattr(self, name), shape))
        self.reported = resized(self.reported, (new_rows, new_resources))
        before = [getattr(self, name) for name in _CHARGED]
        self._lay_out(shape)
        for name, figures in zip(_CHARGED, before, strict=True):
            getattr(self, name)[tuple(slice(0, size) for size in figures.shape)] = figures

    def copy(self) -> Self:
        """Return columns that can be charged without touching these."""
        other = copy(self)
        other._lay_out(self.capacity.shape, self.charged.copy())  # noqa: SLF001
        return other

    def _lay_out(self, shape: tuple[int, int, int], charged: Ints | None = None) -> None:
        """Have all that is charged side by side in one array; nothing is charged if none is given."""
        rows, zones, resources = shape
        dims: dict[str, tuple[int, ...]] = dict.fromkeys(_CHARGED, (zones, resources))
        dims |= dict.fromkeys(_PER_ZONE, (zones,)) | dict.fromkeys(_PER_RESOURCE, (resources,))
        widths = {name: math.prod(size) for name, size in dims.items()}
        self.charged = np.zeros((rows, sum(widths.values())), np.int64) if charged is None else charged
        self._held = sum(widths[name] for name in _HELD)
        begin = 0
        for name in _CHARGED:
            end = begin + widths[name]
            setattr(self, name, self.charged[:, begin:end].reshape(rows, *dims[name]))
            begin = end

    def own_settings(self) -> None:
        """Have kubelets' settings and what zones report of one's own, to set them otherwise than a copied state has."""
        self.kubelet, self.reported = self.kubelet.copy(), self.reported.copy()
        self.kubelets, self._kubelet_ids = list(self.kubelets), dict(self._kubelet_ids)
        self._met, self.remembered = {}, RowMemory()


def resized(array: npt.NDArray[_Scalar], shape: tuple[int, ...]) -> npt.NDArray[_Scalar]:
    """Return an array with more room, which is zero; np.pad does the same, ten times as slowly."""
    bigger: npt.NDArray[_Scalar] = np.zeros(shape, array.dtype)
    bigger[tuple(slice(0, size) for size in array.shape)] = array
    return bigger


@lru_cache(maxsize=1 << 14)
def _redrawn(charge: ZoneCharge, *blockwise: tuple[tuple[int, int], ...]) -> ZoneCharge:
    """Return a charge with its memory drawn so, block by block; alike pods have one object in common."""
    blocks = zip(charge.blocks, blockwise, strict=True)
    return msgspec.structs.replace(
        charge, blocks=tuple(MemoryBlock(one.resource, one.mask, one.size, one.init, taken) for one, taken in blocks)
    )


@dataclass(frozen=True, slots=True)
class RowMark:
    """The charges of one row's zones at one moment, for `ZoneColumns.restore`.

    Attributes:
        figures: the row of `ZoneColumns.charged`.
        cells: of them, the mask that each zone serves.
    """

    figures: Ints
    cells: Ints


class ZoneColumns(ZoneArrays):
    """Zones of nodes by row: what they have, and what is charged to them."""

    def set_topology(self, row: int, topology: NodeTopology | None, settings: KubeletSettings) -> None:
        """Set a row's zones; what its pods hold must be charged again afterwards."""
        self.clear(row)
        if topology is None:
            return
        resources = sorted({name for zone in topology.zones for name in zone.resources})
        self.reserve(rows=row + 1, zones=len(topology.zones), resources=resources)
        self.zone_count[row] = len(topology.zones)
        for index, zone in enumerate(topology.zones):
            for name, resource in zone.resources.items():
                column = self.resources[name]
                self.capacity[row, index, column] = max(resource.capacity, resource.allocatable)
                self.allocatable[row, index, column] = resource.allocatable
                self.published[row, index, column] = resource.available
        # A zone with nothing allocatable is published as `cpu: allocatable 0` even without a static CPU manager.
        self.reported[row] = self.allocatable[row].any(axis=0)
        names = [zone.name for zone in topology.zones]
        distances = tuple(tuple(zone.costs.get(name, 0) for name in names) for zone in topology.zones)
        if all(all(zone_distances) for zone_distances in distances):
            self._distances[row] = distances
        likeness = msgspec.json.encode(
            [
                (
                    zone.name,
                    zone.costs,
                    {name: (item.capacity, item.allocatable) for name, item in zone.resources.items()},
                )
                for zone in topology.zones
            ],
            order="deterministic",
        )
        self.shape[row] = self._shapes.setdefault(likeness, len(self._shapes) + 1)
        self.set_kubelet(row, settings)

    def kubelet_of(self, row: int) -> KubeletSettings:
        """Return what a row's kubelet is set to."""
        return self.kubelets[int(self.kubelet[row])]

    def set_kubelet(self, row: int, settings: KubeletSettings) -> None:
        """Set what a row's kubelet is set to."""
        number = self._kubelet_ids.get(settings)
        if number is None:
            number = self._kubelet_ids[settings] = len(self.kubelets)
            self.kubelets.append(settings)
        self.kubelet[row] = number

    def likeness(self, row: int, *, published: bool = False) -> tuple[int | bytes, ...]:
        """Return a key that is equal for two rows, or two moments, exactly when any pod fares the same there.

        Args:
            published: whether it matters what the exporter sees free; on a node with unknown placements it always does.
        """
        unknown = bool(self.unknown[row])
        return (
            int(self.shape[row]),
            2 * int(self.kubelet[row]) + unknown,
            self.charged[row, : self._held].tobytes(),
            self.published[row].tobytes() if published or unknown else b"",
        )

    def likenesses(self, rows: Ints | slice) -> tuple[Ints, Ints]:
        """Return what `likeness` looks at, of many rows, in two parts; each of shape (rows, figures).

        Rows with equal figures are alike; what is published always counts here, and so does what is released.
        """
        numbers = (self.shape[rows], self.kubelet[rows], self.unknown[rows] > 0)
        return np.stack(numbers, axis=1), self.charged[rows]

    def set_published(self, row: int, topology: NodeTopology) -> None:
        """Take over what the exporter saw free, everything else being as it was."""
        for index, zone in enumerate(topology.zones):
            for name, resource in zone.resources.items():
                self.published[row, index, self.resources[name]] = resource.available

    def clear(self, row: int) -> None:
        """Forget a row's zones and all that is charged to them."""
        self.reserve(rows=row + 1)
        for array in (self.zone_count, self.kubelet, self.shape):
            array[row] = 0
        for matrix in (self.reported, self.capacity, self.allocatable, self.published):
            matrix[row] = 0
        self._distances.pop(row, None)
        self.clear_charges(row)

    def clear_charges(self, row: int) -> None:
        """Forget all that is charged to a row's zones."""
        self.charged[row, : self._held] = 0
        self.releasing[row] = 0

    def charge(self, row: int, charge: ZoneCharge, *, releasing: bool = False) -> ZoneCharge:
        """Add a pod's holdings to a row.

        Returns:
            the charge as it came about: memory blocks are drawn from what is free now.
        """
        self._add(row, charge, 1, releasing=releasing)
        if charge.blocks:
            memory = self.memory(row)
            blockwise = (memory.draw(block.resource, block.mask, block.size) for block in charge.blocks)
            charge = _redrawn(charge, *blockwise)
            self._set_memory(row, memory)
            if releasing:
                self._shift(self.releasing, row, drawn(charge.blocks), 1)
        return charge

    def release(self, row: int, charge: ZoneCharge, *, releasing: bool = False) -> None:
        """Take a pod's holdings off a row, as its kubelet gives them back."""
        self._add(row, charge, -1, releasing=releasing)
        if charge.blocks:
            memory = self.memory(row)
            for block in charge.blocks:
                memory.give_back(block.resource, block.mask, block.size)
            self._set_memory(row, memory)
            if releasing:
                self._shift(self.releasing, row, drawn(charge.blocks), -1)

    def exchange(
        self, row: int, before: ZoneCharge, after: ZoneCharge, *, releasing: bool = False
    ) -> ZoneCharge | None:
        """Charge a pod otherwise.

        Returns:
            the charge as it is then, `before` itself where nothing changes; None, and nothing is done, where its memory
            is another than was thought: all memory of the row must then be charged again in order.
        """
        kept, _ = shared_blocks(before.blocks, after.blocks)
        if len(kept) < len(after.blocks):
            return None
        if before.beside_memory == after.beside_memory and len(kept) == len(before.blocks):
            return before
        self.release(
            row, msgspec.structs.replace(before, blocks=shared_blocks(before.blocks, kept)[1]), releasing=releasing
        )
        self._add(row, after, 1, releasing=releasing)
        return msgspec.structs.replace(after, blocks=kept)

    def restore_charge(self, row: int, charge: ZoneCharge, *, releasing: bool) -> None:
        """Count a pod's holdings again on a row with its memory as it was saved."""
        self._add(row, charge, 1, releasing=releasing)
        if releasing:
            self._shift(self.releasing, row, drawn(charge.blocks), 1)

    def restore_memory(self, row: int, used: dict[str, list[int]], assignments: list[int], cells: list[int]) -> None:
        """Put back what the memory manager had counted on a row."""
        zones = len(cells)
        for resource, amounts in used.items():
            self.used[row, :zones, self.resources[resource]] = amounts
        self.assignments[row, :zones], self.cells[row, :zones] = assignments, cells

    def binds(self, row: int, resources: Iterable[str]) -> bool:
        """Tell whether the row's kubelet binds any of the resources to zones."""
        settings = self.kubelet_of(row)
        return any(
            settings.static_cpu
            if name == CPU
            else settings.static_memory
            if is_memory(name)
            else name in self.resources and bool(self.reported[row, self.resources[name]])
            for name in resources
        )

    def set_releasing(self, row: int, charge: ZoneCharge, *, releasing: bool) -> None:
        """Count a pod's holdings among those that terminating pods hold, or no more."""
        self._shift(self.releasing, row, (*charge.amounts, *drawn(charge.blocks)), 1 if releasing else -1)

    def assume(self, row: int, charge: ZoneCharge, *, sign: int = 1) -> None:
        """Take a decision off what the exporter saw free, until it publishes again; or add it with `sign=-1`."""
        self._shift(self.published, row, (*charge.amounts, *drawn(charge.blocks)), -sign)

    def holds(self, row: int, charge: ZoneCharge) -> bool:
        """Tell whether a row's zones have free what a charge takes, zone by zone, and no memory group forbids it."""
        free = self.allocatable[row] - self.used[row]
        if any(free[zone, self.resources[resource]] < amount for zone, resource, amount in charge.split):
            return False
        cells = self.cells[row]
        return all(cells[zone] in (0, block.mask) for block in charge.blocks for zone in zones_of(block.mask))

    def lasts(self, row: int) -> bool:
        """Tell whether a row's zones have what is charged to them as soon as all that is being released is gone."""
        return bool((self.used[row] - self.releasing[row] - self.repeated[row] <= self.allocatable[row]).all())

    def distances(self, row: int) -> tuple[tuple[int, ...], ...]:
        """Return the distances between a row's zones, zone by zone; empty where they are not all known."""
        return self._distances.get(row, ())

    def mark(self, row: int) -> RowMark:
        """Return what is charged to a row now."""
        return RowMark(self.charged[row].copy(), self.cells[row].copy())

    def restore(self, row: int, mark: RowMark) -> None:
        """Put a row back to where it was; rows, zones and resources must be the same."""
        self.charged[row] = mark.figures

    def memory(self, row: int) -> MemoryZones:
        """Return a row's zones as its memory manager counts them."""
        zones = int(self.zone_count[row])
        allocatable, free = {}, {}
        for name, column in self._memory.items():
            has = allocatable[name] = self.allocatable[row, :zones, column].tolist()
            free[name] = list(map(sub, has, self.used[row, :zones, column].tolist()))
        return self._memory_zones(row, allocatable, free, empty=False)

    def _memory_zones(
        self, row: int, allocatable: dict[str, list[int]], free: dict[str, list[int]], *, empty: bool
    ) -> MemoryZones:
        zones = int(self.zone_count[row])
        return MemoryZones(
            allocatable,
            free,
            [0] * zones if empty else self.assignments[row, :zones].tolist(),
            [0] * zones if empty else self.cells[row, :zones].tolist(),
            regroups=not self.kubelet_of(row).refuses_mixed_memory_groups,
        )

    def _suspect(self, row: int, cells: list[int]) -> None:
        """The memory that a pod holds beyond the records: the exporter sees less free, most likely in one zone."""
        columns = list(self._memory.values())
        for zone, cell in enumerate(cells):
            window = (row, zone, columns)
            if not cell and (self.published[window] < self.allocatable[window] - self.used[window]).any():
                cells[zone] = 1 << zone

    def node(
        self,
        row: int,
        *,
        reconstruct: bool = True,
        empty: bool = False,
        devices: dict[str, NodeDevices] | None = None,
        cores: bool = True,
    ) -> NodeZones:
        """Return a row's zones as plain numbers.

        Args:
            reconstruct: see `free`.
            empty: as if the node had no pods.
            devices: totals of the resources with zones that do not add up to the node's.
            cores: whether broken cores matter: they do to pods with init containers that lend CPUs.
        """
        zones = int(self.zone_count[row])
        settings = self.kubelet_of(row)
        # Lists of Python's numbers from here on: there are few, and each is looked at by itself.
        capacity, allocatable = _by_resource(self.capacity[row, :zones]), _by_resource(self.allocatable[row, :zones])
        free = allocatable if empty else _by_resource(self.free(row, zones=zones, reconstruct=reconstruct))
        reported = self.reported[row].tolist()
        counted = [
            (name, column)
            for name, column in self.resources.items()
            if reported[column] and name not in self._memory and (name != CPU or settings.static_cpu)
        ]
        memory = self._memory_zones(
            row,
            {name: allocatable[column] for name, column in self._memory.items()},
            {name: list(free[column]) for name, column in self._memory.items()},
            empty=empty,
        )
        if self.unknown[row] and not empty:
            self._suspect(row, memory.cells)
        doubtful = () if empty else self.uncertain[row].tolist()
        repeated: dict[str, list[int]] = {}
        if not empty and np.count_nonzero(self.repeated[row]):
            held = [*counted, *((name, self.resources[name]) for name in memory.free if settings.static_memory)]
            repeated = {name: self.repeated[row, :zones, column].tolist() for name, column in held}
        return NodeZones(
            zones,
            settings,
            {name: capacity[column] for name, column in counted},
            {name: list(free[column]) for name, column in counted},
            memory,
            self._perhaps_broken(row, capacity, allocatable, empty=empty) if cores else [],
            dict(devices or {}),
            frozenset([name for name, column in counted if doubtful[column]] if any(doubtful) else ()),
            {name: amounts for name, amounts in repeated.items() if any(amounts)},
            self._distances.get(row, ()),
        )

    def _perhaps_broken(
        self, row: int, capacity: list[list[int]], allocatable: list[list[int]], *, empty: bool
    ) -> list[int]:
        """Each CPU of a zone that a pod has, and one that is reserved without its sibling, may have broken a core."""
        column, zones = self.resources.get(CPU), int(self.zone_count[row])
        if column is None:
            return [0] * zones
        reserved = [(all_ - left) // 1000 % 2 for all_, left in zip(capacity[column], allocatable[column], strict=True)]
        if empty:
            return reserved
        used = self.used[row, :zones, column].tolist()
        if self.unknown[row]:
            # Where no record tells of some pods, the exporter does.
            seen = zip(allocatable[column], self.published[row, :zones, column].tolist(), strict=True)
            used = [max(held, left - free) for held, (left, free) in zip(used, seen, strict=True)]
        return [odd + held // 1000 for odd, held in zip(reserved, used, strict=True)]

    def free(self, row: int, *, zones: int, reconstruct: bool) -> Ints:
        """Return what is free on a row's zones; shape (zones, resources).

        Args:
            reconstruct: allocatable - known placements; what the exporter published, less what was decided since,
                otherwise. Where placements are unknown, whichever is less: the exporter sees pods that no record tells
                of, and the records are there before the exporter.
        """
        if not reconstruct:
            return self.published[row, :zones]
        free: Ints = self.allocatable[row, :zones] - self.used[row, :zones]
        return np.minimum(free, self.published[row, :zones]) if self.unknown[row] else free

    def _add(self, row: int, charge: ZoneCharge, sign: int, *, releasing: bool) -> None:
        for resource in charge.uncertain:
            self.uncertain[row, self.resources[resource]] += sign
        self._shift(self.repeated, row, charge.repeated, sign)
        self._shift(self.used, row, charge.amounts, sign)
        if releasing:
            self._shift(self.releasing, row, charge.amounts, sign)

    def _shift(self, figures: Ints, row: int, amounts: Iterable[tuple[int, str, int]], sign: int) -> None:
        """Add amounts of zones to figures of a row, or take them off (`sign=-1`)."""
        for zone, resource, amount in amounts:
            figures[row, zone, self.resources[resource]] += sign * amount

    def _set_memory(self, row: int, memory: MemoryZones) -> None:
        zones = len(memory.cells)
        for resource, free in memory.free.items():
            self.used[row, :zones, self.resources[resource]] = list(map(sub, memory.allocatable[resource], free))
        self.assignments[row, :zones] = memory.assignments
        self.cells[row, :zones] = memory.cells


def _by_resource(figures: Ints) -> list[list[int]]:
    """Return figures of shape (zones, resources) as one list for each resource."""
    by_resource: list[list[int]] = figures.T.tolist()
    return by_resource
