"""All nodes as columns, updated in place as events are folded. A cycle works on its own copy.

A row belongs to a name for good. Free is allocatable - used. `releasing` is the part of `used` that terminating pods
still hold, because such a pod holds its amounts until it is gone. Devices of claims are counted beside the amounts:
those that draw on one counter set are parts of one card, and count as one device. It is free while none of them is
held. Devices that are offered as an extended resource count there and not here.
"""

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kaicore.rules.devices.pools import DeviceId, PoolId
from kaicore.rules.engine.constraints.claims.supplies import DeviceSupply, VolumeSupply
from kaicore.rules.engine.constraints.pod_marks import PodMarks
from kaicore.rules.engine.placement.gpu_supply import GpuSupply
from kaicore.rules.model.gpu_share import NOT_SHARED, gpu_memory, has_mig_devices
from kaicore.rules.model.node import Node, NodeTopology, Taint
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import is_native
from kaicore.rules.numa.columns import Flags, Ints, RowMark, ZoneColumns, resized
from kaicore.rules.numa.kubelet.settings import KubeletSettings, infer_settings
from kaicore.rules.numa.kubelet.zones import NodeDevices, NodeZones

_Scalar = TypeVar("_Scalar", bound=np.generic)
#: More than any GPU has, in MiB.
_MOST_MEMORY = 1 << 60
#: Amounts that are kept as vectors; then it begins anew.
_MOST_VECTORS = 4096


@dataclass(frozen=True, slots=True)
class NodeMark:
    """One node's used amounts at one moment, for `NodeColumns.restore`."""

    used: Ints
    releasing: Ints
    zones: RowMark


class NodeColumns:
    """Nodes by row: whole-node amounts, what filters look at, and the zones."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.names: list[str] = []
        self.facts: list[Node | None] = []
        self.topologies: list[NodeTopology | None] = []
        self.resources: dict[str, int] = {}
        self.present: Flags = np.zeros(0, np.bool_)
        self.ready: Flags = np.zeros(0, np.bool_)
        self.unschedulable: Flags = np.zeros(0, np.bool_)
        #: Memory of each GPU, in MiB; 0 where that is not known, `NOT_SHARED` where no pod may have a part of one.
        self.gpu_memory: Ints = np.zeros(0, np.int64)
        self.allocatable: Ints = np.zeros((0, 0), np.int64)
        self.used: Ints = np.zeros((0, 0), np.int64)
        self.releasing: Ints = np.zeros((0, 0), np.int64)
        self.taint_set: Ints = np.zeros(0, np.int64)
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self.zones = ZoneColumns()
        #: What pods leave for the rules of others.
        self.marks = PodMarks()
        #: Volumes made beforehand that no claim has.
        self.volumes = VolumeSupply()
        #: Devices of dynamic resource allocation, and which claims have them.
        self.devices = DeviceSupply()
        #: GPUs that are opened for sharing.
        self.gpus = GpuSupply()
        #: Returns how much of extended resources a node offers by devices, beside what its kubelet has.
        self.offer_of: Callable[[Node], Amounts] = lambda _: {}
        #: That by row, where it is anything; it is in `allocatable`.
        self.offers: dict[int, Amounts] = {}
        #: Amounts as vectors, by the identity of those that are kept with them.
        self._vectors: dict[int, tuple[Amounts, Ints]] = {}
        self._taint_ids: dict[tuple[Taint, ...], int] = {(): 0}
        self._label_values: dict[str, tuple[Ints, list[str]]] = {}
        self._label_texts: dict[str, npt.NDArray[np.str_]] = {}
        self._order: Ints | None = None
        self._all_names: tuple[str, ...] = ()
        #: Per row with zones, the device resources with zones that do not add up to the node's total, once looked at.
        self._shared_devices: dict[int, tuple[str, ...]] = {}

    def row(self, name: str) -> int:
        """Return the row of a name, making one if it has none."""
        row = self.rows.get(name)
        if row is None:
            row = self.rows[name] = len(self.names)
            self.names.append(name)
            self.facts.append(None)
            self.topologies.append(None)
            self._reserve(row + 1)
            self.zones.reserve(rows=row + 1)
            self._order = None
        return row

    def set_node(self, node: Node | None, row: int) -> None:
        """Take over a node's facts, or forget them with None; what its pods hold stays charged."""
        before = self.facts[row]
        if before is None or node is None or before.labels != node.labels:
            self._label_values.clear()
            self._label_texts.clear()
        self.facts[row] = node
        self._shared_devices.pop(row, None)
        topology = self.topologies[row]
        if topology is not None:
            self.zones.set_kubelet(row, infer_settings(topology, node))
        self.present[row] = node is not None
        self.allocatable[row] = 0
        self.gpu_memory[row] = 0 if node is None else _gpu_memory(node)
        self.offers.pop(row, None)
        if node is None:
            return
        offer = self.offer_of(node)
        if offer:
            self.offers[row] = offer
        for amounts in (node.allocatable, offer):
            self._know(amounts)
            for resource, amount in amounts.items():
                self.allocatable[row, self.resources[resource]] = amount
        self.ready[row] = node.ready
        self.unschedulable[row] = node.unschedulable
        self.taint_set[row] = self._taint_id(node.taints)

    def set_topology(self, topology: NodeTopology | None, row: int) -> None:
        """Take over a node's zones, or forget them with None; what its pods hold there must be charged again."""
        self.topologies[row] = topology
        self._shared_devices.pop(row, None)
        settings = KubeletSettings() if topology is None else infer_settings(topology, self.facts[row])
        self.zones.set_topology(row, topology, settings)

    def node_zones(self, row: int, *, reconstruct: bool = True, empty: bool = False, cores: bool = True) -> NodeZones:
        """Return a row's zones as plain numbers (see `ZoneColumns.node`), devices that are not of one zone included."""
        devices = {}
        for name in self.shared_devices(row):
            column = self.resources[name]
            total = int(self.allocatable[row, column])
            devices[name] = NodeDevices(total, total if empty else total - int(self.used[row, column]))
        return self.zones.node(row, reconstruct=reconstruct, empty=empty, devices=devices, cores=cores)

    def shared_devices(self, row: int) -> tuple[str, ...]:
        """Return the device resources with figures per zone that do not add up to the node's.

        More in the zones: some devices are of several zones. Fewer: some are of none.
        """
        shared = self._shared_devices.get(row)
        if shared is None:
            zones = self.zones
            shared = self._shared_devices[row] = tuple(
                name
                for name, column in sorted(zones.resources.items())
                if not is_native(name)
                and zones.reported[row, column]
                and name in self.resources
                and self.allocatable[row, self.resources[name]] != zones.allocatable[row, :, column].sum()
            )
        return shared

    def likeness(self, row: int, *, published: bool = False) -> object:
        """Return a key that is equal for two rows, or two moments, exactly when any pod fares the same on the zones.

        Args: see `ZoneColumns.likeness`.
        """
        shared = self.shared_devices(row)
        if not shared:
            return self.zones.likeness(row, published=published)
        columns = [self.resources[name] for name in shared]
        figures = [(int(self.allocatable[row, column]), int(self.used[row, column])) for column in columns]
        return self.zones.likeness(row, published=published), tuple(zip(shared, figures, strict=True))

    def charge(self, row: int, amounts: Amounts, *, sign: int = 1, releasing: bool = False) -> None:
        """Add a pod's amounts to a row, or take them off again with `sign=-1`; the amounts are never changed."""
        vector = self._vectors.get(id(amounts))
        if vector is None or vector[0] is not amounts or len(vector[1]) != self.used.shape[1]:
            if len(self._vectors) >= _MOST_VECTORS:
                self._vectors.clear()
            vector = self._vectors[id(amounts)] = amounts, self.vector(amounts)
        count = np.add if sign > 0 else np.subtract
        for row_figures in (self.used[row], self.releasing[row]) if releasing else (self.used[row],):
            count(row_figures, vector[1], row_figures)

    def mark(self, row: int) -> NodeMark:
        """Return what is used of a row now."""
        return NodeMark(self.used[row].copy(), self.releasing[row].copy(), self.zones.mark(row))

    def restore(self, row: int, mark: NodeMark) -> None:
        """Put a row back to where it was; of resources that were unknown then nothing was used."""
        for array, figures in ((self.used, mark.used), (self.releasing, mark.releasing)):
            if len(figures) == array.shape[1]:
                array[row] = figures
            else:
                array[row, : len(figures)] = figures
                array[row, len(figures) :] = 0
        self.zones.restore(row, mark.zones)

    def fits(self, row: int, amounts: Amounts) -> bool:
        """Tell whether a row as a whole has some amounts free."""
        self._know(amounts)
        columns = [(self.resources[name], amount) for name, amount in amounts.items()]
        return all(self.allocatable[row, column] - self.used[row, column] >= amount for column, amount in columns)

    def lasts(self, row: int) -> bool:
        """Tell whether a row has what is charged to it as soon as all that is being released is gone."""
        lasting = self.used[row] - self.releasing[row]
        return bool((lasting <= self.allocatable[row]).all()) and self.zones.lasts(row)

    def vector(self, amounts: Amounts) -> Ints:
        """Return amounts as a vector over the resources; unknown resources are made known."""
        self._know(amounts)
        vector = np.zeros(self.used.shape[1], np.int64)
        for resource, amount in amounts.items():
            vector[self.resources[resource]] = amount
        return vector

    def label_values(self, key: str) -> tuple[Ints, list[str]]:
        """Return each row's value of a label as an index into the list of values; -1 without the label."""
        cached = self._label_values.get(key)
        if cached is None or len(cached[0]) != len(self.present):
            values: dict[str, int] = {}
            codes = np.full(len(self.present), -1, np.int64)
            for row, node in enumerate(self.facts):
                value = None if node is None else node.labels.get(key)
                if value is not None:
                    codes[row] = values.setdefault(value, len(values))
            cached = self._label_values[key] = (codes, list(values))
        return cached

    def label_texts(self, key: str) -> npt.NDArray[np.str_]:
        """Return each named row's value of a label, empty without the label, in memory that cannot be written to."""
        cached = self._label_texts.get(key)
        if cached is None or len(cached) != len(self.names):
            codes, values = self.label_values(key)
            texts = np.array([*values, ""], np.str_)[codes[: len(self.names)]]
            cached = self._label_texts[key] = np.frombuffer(texts.tobytes(), texts.dtype)
        return cached

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names of all named rows, made once: no row ever loses its name."""
        if len(self._all_names) != len(self.names):
            self._all_names = tuple(self.names)
        return self._all_names

    @property
    def least_gpu_memory(self) -> int:
        """The memory of the smallest GPU that pods may share, in MiB; 0 where no node tells it."""
        return int(self.gpu_memory[self.gpu_memory > 0].min(initial=_MOST_MEMORY)) % _MOST_MEMORY

    def name_order(self) -> Ints:
        """Return each row's place among all names, ascending."""
        if self._order is None:
            order = np.zeros(len(self.present), np.int64)
            for place, row in enumerate(sorted(range(len(self.names)), key=self.names.__getitem__)):
                order[row] = place
            self._order = order
        return self._order

    def device_columns(self) -> list[int]:
        """Return the columns of extended resources, in order of name."""
        return [self.resources[name] for name in sorted(self.resources) if not is_native(name)]

    def taints_where(self, tolerated: Callable[[Taint], bool]) -> tuple[Flags, list[Taint | None]]:
        """Return per row whether every taint is tolerated, and per taint set the first that is not."""
        offending = [next((taint for taint in taints if not tolerated(taint)), None) for taints in self.taint_sets]
        if all(taint is None for taint in offending):
            return np.ones(len(self.taint_set), np.bool_), offending
        fine = np.array([taint is None for taint in offending], np.bool_)
        return fine[self.taint_set], offending

    def copy(self) -> "NodeColumns":
        """Return columns that a cycle can charge; what no cycle changes is shared."""
        self.name_order()  # Once for all copies.
        other = copy(self)
        other.used = self.used.copy()
        other.releasing = self.releasing.copy()
        other.resources = dict(self.resources)
        # In another order, once either knows more.
        other._vectors = {}  # noqa: SLF001
        other.zones = self.zones.copy()
        other.marks = self.marks.copy()
        other.volumes = self.volumes.copy()
        other.devices = self.devices.copy()
        other.gpus = self.gpus.copy()
        return other

    def _taint_id(self, taints: tuple[Taint, ...]) -> int:
        key = tuple(sorted(taints, key=lambda taint: (taint.key, taint.effect, taint.value)))
        if key not in self._taint_ids:
            self._taint_ids[key] = len(self.taint_sets)
            self.taint_sets.append(key)
        return self._taint_ids[key]

    def _know(self, resources: Iterable[str]) -> None:
        before = len(self.resources)
        for resource in resources:
            self.resources.setdefault(resource, len(self.resources))
        if len(self.resources) > before:
            self._reserve(len(self.names))

    def _reserve(self, rows: int) -> None:
        old_rows, old_columns = self.used.shape
        new_rows = old_rows if rows <= old_rows else max(rows, 2 * old_rows, 16)
        new_columns = max(old_columns, len(self.resources))
        if (new_rows, new_columns) == (old_rows, old_columns):
            return
        for name in ("present", "ready", "unschedulable", "gpu_memory", "taint_set"):
            setattr(self, name, resized(getattr(self, name), (new_rows,)))
        for name in ("allocatable", "used", "releasing"):
            setattr(self, name, resized(getattr(self, name), (new_rows, new_columns)))
        self._order = None


def _gpu_memory(node: Node) -> int:
    return NOT_SHARED if node.gpus_repeated or has_mig_devices(node.labels) else gpu_memory(node.labels)


class DeviceCounts:
    """The counts, as the columns are now; `catch_up` first after anything was given or taken back.

    Attributes:
        total: by row.
        free: by row.
    """

    def __init__(self, columns: NodeColumns) -> None:
        """Args: columns: the cycle's own copy."""
        self._supply = columns.devices
        self.total: Ints = np.zeros(len(columns.present), np.int64)
        self.free: Ints = np.zeros(len(columns.present), np.int64)
        self._cards: dict[int, list[list[DeviceId]]] = {}
        self._of_pool: dict[PoolId, list[int]] = {}
        self._seen = len(self._supply.changes)
        for name in self._supply.nodes_with_devices:
            row = columns.rows.get(name)
            node = None if row is None else columns.facts[row]
            if row is None or node is None or row in columns.offers:
                continue
            cards: dict[object, list[DeviceId]] = {}
            for pool in self._supply.pools(node):
                if not self._supply.is_of_one_node(pool.id):
                    continue
                self._of_pool.setdefault(pool.id, []).append(row)
                for one in pool.devices:
                    sets = [use.counter_set for use in one.device.consumes]
                    cards.setdefault((pool.id, sets[0]) if sets else one.id, []).append(one.id)
            self._cards[row] = list(cards.values())
            self.total[row] = len(cards)
            self._count(row)

    def __bool__(self) -> bool:
        """True if any node has devices of claims."""
        return bool(self._cards)

    def catch_up(self) -> None:
        """Count again where devices were given or taken back."""
        changes = self._supply.changes
        if self._seen < len(changes):
            for pool in dict.fromkeys(changes[self._seen :]):
                for row in self._of_pool.get(pool, ()):
                    self._count(row)
            self._seen = len(changes)

    def _count(self, row: int) -> None:
        held = self._supply.held
        self.free[row] = sum(not any(map(held.has, card)) for card in self._cards[row])
