"""The arrays behind the columns of zones: they grow as rows, zones and resources appear, and are copied for a cycle.

Rows are nodes, the second axis zones (in order of NUMA id), the third resources. A cell that a node does not have is 0.
"""

import math
from collections.abc import Iterable
from copy import copy
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from kaicore.rules.model.quantity import is_memory
from kaicore.rules.numa.kubelet_settings import KubeletSettings
from kaicore.rules.numa.row_memory import RowMemory

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_Scalar = TypeVar("_Scalar", bound=np.generic)

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
        new_rows = _grown(old_rows, rows)
        new_zones = max(old_zones, zones)
        new_resources = max(old_resources, len(self.resources))
        if (new_rows, new_zones, new_resources) == (old_rows, old_zones, old_resources):
            return
        # A row's figures are laid out otherwise from now on, and a copy's not.
        self._met, self.remembered = {}, RowMemory()
        shape = (new_rows, new_zones, new_resources)
        for name in ("zone_count", "kubelet", "shape", "unknown", "unknown_since"):
            setattr(self, name, _resized(getattr(self, name), shape[:1]))
        for name in ("capacity", "allocatable"):
            setattr(self, name, _resized(getattr(self, name), shape))
        self.reported = _resized(self.reported, (new_rows, new_resources))
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


def _grown(old: int, needed: int) -> int:
    return old if needed <= old else max(needed, old * 2, 16)


def _resized(array: npt.NDArray[_Scalar], shape: tuple[int, ...]) -> npt.NDArray[_Scalar]:
    bigger: npt.NDArray[_Scalar] = np.zeros(shape, array.dtype)
    bigger[tuple(slice(0, size) for size in array.shape)] = array
    return bigger
