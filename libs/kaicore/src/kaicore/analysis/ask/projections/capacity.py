"""The GPUs of nodes in thousandths, and the state of each: held, releasing, free, stranded, out of service.

A free GPU is *stranded* where too little CPU or memory is left beside it. "Beside it" is its zone, or its node where no
zones are published. "Too little" is less than the median that GPU pods now use for each of their GPUs. Where no pod
holds a GPU, it is less than one CPU or 1 GiB. Waiting pods, queues and topologies do not matter: such pods as run here
cannot use the GPU. On a node that is not ready or cordoned a GPU is out of service, and not stranded. The dashboard,
the read models and what-if over history count by this one rule (decision 0480).

Of a GPU that is opened for sharing pods hold their parts, and the rest is free. A GPU that is not opened is stranded as
a whole. The rest of an opened GPU is stranded in so far as there is less beside it than its part of that median.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import CPU, MEMORY
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.queues.tree import gpus_of, gpus_per_unit
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.shared_gpus import GpuGroup
from kaicore.rules.state.views import FleetView

#: What a pod is supposed to use for a GPU where none runs: one CPU, 1 GiB.
_LEAST: Amounts = {CPU: 1000, MEMORY: 1 << 30}
#: More is not looked for beside a GPU; a thousand times as much is still a number of 64 bits.
_MOST_NEED = 1 << 52


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs of one or several nodes, in thousandths; all but `total` add up to it.

    Attributes:
        held: by pods that stay; the parts of GPUs that are shared.
        releasing: by pods on their way out.
        free: for pods such as run here.
        stranded: free, but without enough CPU or memory beside them.
        out: free, but not given out: on nodes that are not ready or cordoned, or beside a shared GPU that nothing
            holds, or parts of a GPU that gives no more parts.
    """

    total: int = 0
    held: int = 0
    releasing: int = 0
    free: int = 0
    stranded: int = 0
    out: int = 0

    @property
    def used(self) -> int:
        """The amounts that pods hold, terminating pods included; for pages."""
        return self.held + self.releasing


@dataclass(frozen=True, slots=True)
class GpuColumns:
    """The same by row of the state's columns; rows without a node have none.

    Attributes:
        per_gpu: what pods use for each GPU, of CPU and memory.
        available: rows of nodes that are ready and not cordoned.
    """

    total: Ints
    held: Ints
    releasing: Ints
    free: Ints
    stranded: Ints
    out: Ints
    per_gpu: Amounts
    present: Flags
    available: Flags

    def sum(self, rows: Ints | Flags | slice = slice(None)) -> Gpus:
        """Return the GPUs of some rows, by default of all."""
        return Gpus(*(int(getattr(self, name)[rows].sum()) for name in Gpus.__slots__))

    def by_domain(self, of_rows: Ints, count: int) -> list[Gpus]:
        """Return the GPUs of domains; `of_rows` is each row's domain, -1 for none."""
        inside = (of_rows >= 0) & self.present
        sums = [np.bincount(of_rows[inside], getattr(self, name)[inside], count) for name in Gpus.__slots__]
        return [Gpus(*map(int, figures)) for figures in zip(*sums, strict=True)]


def gpu_columns(state: FleetView) -> GpuColumns:
    """Return the GPUs of a cluster by node."""
    columns = state.columns
    rows = len(columns.names)
    present = columns.present[:rows]
    available = present & columns.ready[:rows] & ~columns.unschedulable[:rows]
    total = np.where(present, _gpus(columns.allocatable[:rows], columns.resources), 0)
    used = np.clip(_gpus(columns.used[:rows], columns.resources), 0, total)
    releasing = np.clip(_gpus(columns.releasing[:rows], columns.resources), 0, used)
    whole = (total - used) * WHOLE
    shared = _shared(state)
    # What reservation pods hold is what their pods hold, what these give back, and what is left.
    held = (used - releasing) * WHOLE
    rest, leaving, shut = _portions(held, shared.free.sum(axis=1), shared.leaving, shared.shut)
    unheld = np.minimum(shared.unheld, whole)
    open_ = whole - unheld + rest
    per_gpu = use_per_gpu(state)
    usable = np.minimum(open_, _usable(columns, per_gpu, whole, shared.free))
    gives = available & ~columns.gpus.exposed(rows)
    return GpuColumns(
        total=total * WHOLE,
        held=held - rest - leaving - shut + unheld,
        releasing=releasing * WHOLE + leaving,
        free=np.where(gives, usable, 0),
        stranded=np.where(gives, open_ - usable, 0),
        out=np.where(gives, 0, open_) + shut,
        per_gpu=per_gpu,
        present=present,
        available=available,
    )


def gpus_held(state: FleetView) -> tuple[Ints, Ints]:
    """Return the GPUs of each row's node, and what pods hold of them, in thousandths; 0 for a row without a node."""
    columns = state.columns
    rows = len(columns.names)
    total = np.where(columns.present[:rows], _gpus(columns.allocatable[:rows], columns.resources), 0) * WHOLE
    used = _gpus(columns.used[:rows], columns.resources) * WHOLE
    shared = _shared(state)
    return total, np.clip(used - shared.free.sum(axis=1) - shared.shut + shared.unheld, 0, total)


def gpus_of_node(columns: NodeColumns, row: int) -> int:
    """Return the GPUs that a node offers, in thousandths."""
    return int(_gpus(columns.allocatable[row], columns.resources)) * WHOLE


def gpus_of_pod(state: FleetView, entry: PodEntry) -> int:
    """Return what a pod holds of GPUs, in thousandths, with parts; reservation pods hold nothing themselves."""
    if not entry.charged or state.shared_gpus.is_reservation(entry.pod.uid):
        return 0
    return gpus_of(entry.requests) * WHOLE + sum(part.milli for part in entry.gpus)


def gpus_shut(state: FleetView, node: str) -> int:
    """Return what pods do not hold of a node's shared GPUs that give no more parts, in thousandths."""
    gpus, shut = state.columns.gpus, 0
    for name, group in state.shared_gpus.groups.items():
        holder = state.pods.get(group.uid)
        if group.opened.node == node and holder is not None and holder.charged and not gpus.is_offered(name):
            shut += max(0, WHOLE - gpus.used(name))
    return shut


@dataclass(frozen=True, slots=True)
class _SharedColumns:
    """GPUs that are opened for sharing by row, in thousandths.

    Attributes:
        free: parts to be had, by zone of their GPUs (shape: rows, zones); those of unknown zones in the last column.
        leaving: parts of pods on their way out, of GPUs that others share.
        shut: what nobody holds of GPUs that give no more parts.
        unheld: parts of GPUs that no reservation pod holds.
    """

    free: Ints
    leaving: Ints
    shut: Ints
    unheld: Ints


def _shared(state: FleetView) -> _SharedColumns:
    columns = state.columns
    rows, zones = len(columns.names), columns.zones.allocatable.shape[1]
    made = _SharedColumns(np.zeros((rows, zones + 1), np.int64), *(np.zeros(rows, np.int64) for _ in range(3)))
    for name, group in state.shared_gpus.groups.items():
        row = columns.rows.get(group.opened.node)
        holder = state.pods.get(group.uid)
        if row is None:
            continue
        used = columns.gpus.used(name)
        if holder is None or not holder.charged:
            made.unheld[row] += used
        elif columns.gpus.is_offered(name):
            made.free[row, _zone(columns.gpus.zones(name), zones)] += max(0, WHOLE - used)
            made.leaving[row] += _leaving(state, group)
        elif not holder.releasing:
            # A reservation pod on another GPU holds nothing that pods share: that is held by none.
            astray = bool(group.exposed)
            made.shut[row] += WHOLE if astray else max(0, WHOLE - used)
            made.unheld[row] += used if astray else 0
    return made


def _leaving(state: FleetView, group: GpuGroup) -> int:
    return sum(part.milli for uid, part in group.parts.items() if uid in state.pods and state.pods[uid].releasing)


def _zone(mask: int, otherwise: int) -> int:
    """Return the one zone of a mask; otherwise where it has none or several."""
    return mask.bit_length() - 1 if mask and mask & (mask - 1) == 0 else otherwise


def _portions(whole: Ints, *wanted: Ints) -> list[Ints]:
    """Return portions of `whole`, by row: each as wanted, as long as something is left."""
    portions, left = [], whole
    for amounts in wanted:
        portions.append(np.minimum(amounts, left))
        left = left - portions[-1]
    return portions


def use_per_gpu(state: FleetView) -> Amounts:
    """Return what pods that hold GPUs use of CPU and memory for each, their medians; at least one CPU and 1 GiB.

    Parts of GPUs count as what they are, and the reservation pods that hold shared ones as nothing.
    """
    weights: dict[tuple[int, int], int] = {}
    for entry in state.pods.values():
        if milli := gpus_of_pod(state, entry):
            each = (entry.requests.get(CPU, 0) * WHOLE // milli, entry.requests.get(MEMORY, 0) * WHOLE // milli)
            weights[each] = weights.get(each, 0) + milli
    if not weights:
        return dict(_LEAST)
    return {
        resource: max(least, _median((each[place], weight) for each, weight in weights.items()))
        for place, (resource, least) in enumerate(_LEAST.items())
    }


def _median(weighed: Iterable[tuple[int, int]]) -> int:
    ordered = sorted(weighed)
    half, passed = sum(weight for _, weight in ordered) / 2, 0
    for value, weight in ordered:
        passed += weight
        if passed >= half:
            return value
    return 0


def _gpus(amounts: Ints, resources: dict[str, int]) -> Ints:
    """Sum the kinds of GPUs up; `amounts` has resources on its last axis."""
    sums: Ints = np.zeros(amounts.shape[:-1], np.int64)
    for name, column in resources.items():
        if (weight := gpus_per_unit(name)) and column < amounts.shape[-1]:
            sums += weight * amounts[..., column]
    return sums


def _usable(columns: NodeColumns, per_gpu: Amounts, whole: Ints, rests: Ints) -> Ints:
    """Return how much of what is free each row has enough beside for, in thousandths: on its zones if it has any.

    Args:
        per_gpu: what pods use for each GPU.
        whole: what is free of GPUs that are not opened, by row, in thousandths.
        rests: `_SharedColumns.free`.
    """
    rows = len(columns.names)
    zones = columns.zones
    enough: Ints = np.full(rows, np.iinfo(np.int64).max)
    for resource, need in per_gpu.items():
        column = columns.resources.get(resource)
        if column is not None:
            left = np.maximum(columns.allocatable[:rows, column] - columns.used[:rows, column], 0)
            enough = np.minimum(enough, _times(left, need))
    usable = _usable_of(whole, rests.sum(axis=1), enough)
    gpus = [column for name, column in zones.resources.items() if gpus_per_unit(name)]
    with_zones = (zones.zone_count[:rows] > 0) & (zones.reported[:rows][:, gpus].any(axis=1) if gpus else False)
    if not with_zones.any():
        return usable
    left = np.maximum(zones.allocatable[:rows] - zones.used[:rows], 0)
    in_zones: Ints = np.full(left.shape[:2], np.iinfo(np.int64).max)
    for resource, need in per_gpu.items():
        column = zones.resources.get(resource)
        if column is not None:
            reported = zones.reported[:rows, column, None]
            in_zones = np.where(reported, np.minimum(in_zones, _times(left[:, :, column], need)), in_zones)
    within = _usable_of(_gpus(left, zones.resources) * WHOLE, rests[:, :-1], in_zones).sum(axis=1) + rests[:, -1]
    return np.where(with_zones, np.minimum(usable, within), usable)


def _usable_of(whole: Ints, rest: Ints, enough: Ints) -> Ints:
    """Return how much is usable where there is enough for so much: whole GPUs first, then parts."""
    of_whole: Ints = np.minimum(whole, enough - enough % WHOLE)
    usable: Ints = of_whole + np.minimum(rest, enough - of_whole)
    return usable


def _times(left: Ints, need: int) -> Ints:
    """Return how many times there is what a GPU needs, in thousandths."""
    need = min(need, _MOST_NEED)
    return left // need * WHOLE + left % need * WHOLE // need
