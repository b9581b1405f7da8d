"""The GPUs of nodes, and the state of each: held, releasing, free, stranded, out of service.

A free GPU is *stranded* where too little CPU or memory is left beside it. "Beside it" is its zone, or its node where no
zones are published. "Too little" is less than the median that GPU pods now use for each of their GPUs. Where no pod
holds a GPU, it is less than one CPU or 1 GiB. Waiting pods, queues and topologies do not matter: such pods as run here
cannot use the GPU. On a node that is not ready or cordoned a GPU is out of service, and not stranded. The dashboard,
the read models and what-if over history count by this one rule (decision 0480).
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
from kaicore.rules.state.views import FleetView

#: What a pod is supposed to use for a GPU where none runs: one CPU, 1 GiB.
_LEAST: Amounts = {CPU: 1000, MEMORY: 1 << 30}


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs of one or several nodes; all but `total` add up to it.

    Attributes:
        held: by pods that stay.
        releasing: by pods on their way out.
        free: for pods such as run here.
        stranded: free, but without enough CPU or memory beside them.
        out: free, on nodes that are not ready or cordoned.
    """

    total: int = 0
    held: int = 0
    releasing: int = 0
    free: int = 0
    stranded: int = 0
    out: int = 0

    @property
    def used(self) -> int:
        """The amounts that pods hold, terminating pods included."""
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
    open_ = total - used
    per_gpu = use_per_gpu(state)
    usable = np.minimum(open_, _usable(columns, per_gpu))
    return GpuColumns(
        total=total,
        held=used - releasing,
        releasing=releasing,
        free=np.where(available, usable, 0),
        stranded=np.where(available, open_ - usable, 0),
        out=np.where(available, 0, open_),
        per_gpu=per_gpu,
        present=present,
        available=available,
    )


def use_per_gpu(state: FleetView) -> Amounts:
    """Return what pods that hold GPUs use of CPU and memory for each, their medians; at least one CPU and 1 GiB.

    Parts of GPUs count as what they are, and the reservation pods that hold shared ones as nothing.
    """
    weights: dict[tuple[int, int], int] = {}
    for entry in state.pods.values():
        if not entry.charged or state.shared_gpus.is_reservation(entry.pod.uid):
            continue
        if milli := gpus_of(entry.requests) * WHOLE + sum(part.milli for part in entry.gpus):
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


def _usable(columns: NodeColumns, per_gpu: Amounts) -> Ints:
    """Return for how many GPUs each row has enough beside them: on its zones if it has any, and as a whole."""
    rows = len(columns.names)
    zones = columns.zones
    usable: Ints = np.full(rows, np.iinfo(np.int64).max)
    for resource, need in per_gpu.items():
        column = columns.resources.get(resource)
        if column is not None:
            left = columns.allocatable[:rows, column] - columns.used[:rows, column]
            usable = np.minimum(usable, np.maximum(left, 0) // need)
    gpus = [column for name, column in zones.resources.items() if gpus_per_unit(name)]
    with_zones = (zones.zone_count[:rows] > 0) & (zones.reported[:rows][:, gpus].any(axis=1) if gpus else False)
    if not with_zones.any():
        return usable
    left = np.maximum(zones.allocatable[:rows] - zones.used[:rows], 0)
    in_zones = _gpus(left, zones.resources)
    for resource, need in per_gpu.items():
        column = zones.resources.get(resource)
        if column is not None:
            enough = left[:, :, column] // need
            in_zones = np.where(zones.reported[:rows, column, None], np.minimum(in_zones, enough), in_zones)
    return np.where(with_zones, np.minimum(usable, in_zones.sum(axis=1)), usable)
