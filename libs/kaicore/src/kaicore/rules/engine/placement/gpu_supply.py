"""GPUs that are opened for sharing, and the parts of them that pods hold, as a cycle gives and takes them.

`NodeColumns` has the supply beside its devices. A GPU that is opened is one whole GPU of its node, held by its
reservation pod; what of it is free is a part. Counts are sums, so a cycle may take back in any order.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy

import msgspec
import numpy as np

from kaicore.rules.model.gpu_share import GPU, GPU_GROUP_LABEL, WHOLE
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Amounts, Container, Pod, QosClass
from kaicore.rules.numa.arrivals import Arrival
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.numa.kubelet.zones import ZoneCharge
from kaicore.rules.objects.wire import DEFAULT_SCHEDULER

#: Attributes of which each copy has its own.
_KEPT_APART = ("_rows", "_of_row", "_used", "_pods", "_leaving", "_opened", "_zones", "_kinds", "_kind", "_exposed")
#: Of so many kinds of rows, numbers begin anew.
_MOST_KINDS = 1 << 16
#: Begins the uid of a planned reservation pod.
PLANNED = "gpu-group/"
_ONE = {GPU: 1}


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """The holding of a GPU that is opened for sharing.

    Attributes:
        uid: of the entry that is charged for it.
        requests: what it takes of the node as a whole.
        charge: what it takes of the node's zones.
        arrival: see `PodCharge.arrival`.
        releasing: it goes with the pods that share the GPU, and all of them leave.
    """

    uid: str
    requests: Amounts
    charge: ZoneCharge
    arrival: Arrival | None = None
    releasing: bool = False


class GivenPart(msgspec.Struct, frozen=True, gc=False):
    """A part of a GPU that a pod gets or holds.

    Attributes:
        group: the GPU group.
        milli: thousandths of the GPU.
        mib: MiB as asked for; 0 for a fraction.
        opening: of a GPU that is opened for this pod, what its reservation pod is charged with; None otherwise.
        placement: the zones that this reservation pod is predicted to get.
    """

    group: str
    milli: int
    mib: int = 0
    opening: Reservation | None = None
    placement: Placement | None = None


class GpuSupply:
    """Opened GPUs by row, and what of each is used."""

    def __init__(self) -> None:
        #: Rows by the GPU groups that are open.
        self._rows: dict[str, int] = {}
        #: By row, the groups of which parts are to be had.
        self._of_row: dict[int, tuple[str, ...]] = {}
        #: Thousandths, and pods, of each group, also of those that are not open.
        self._used: dict[str, int] = {}
        self._pods: dict[str, int] = {}
        #: How many of these pods are on their way out.
        self._leaving: dict[str, int] = {}
        #: Reservations of the GPUs that this copy has opened.
        self._opened: dict[str, Reservation] = {}
        #: By row the number of what is free of its GPUs, 0 for nothing; twice, for a list is read one by one faster
        #: than an array.
        self._kinds: Ints = np.zeros(0, np.int64)
        self._kind: list[int] = []
        #: Zones of the open GPUs' devices as masks, by group.
        self._zones: dict[str, int] = {}
        #: What is free of each GPU of a row, the least first, and their zones, by number; and the numbers. All copies
        #: share them.
        self._parts: list[tuple[int, ...]] = [()]
        self._masks: list[tuple[int, ...]] = [()]
        self._numbers: dict[tuple[tuple[int, int], ...], int] = {(): 0}
        #: The number of a row after a change, by the one before, what the GPU had free, its zones, and the part that is
        #: taken; None for a GPU that is offered. All copies share them, too.
        self._changes: dict[tuple[int, int, int, int | None], int] = {}
        #: Rows by the GPU groups that pods share although nothing holds their GPUs.
        self._exposed: dict[str, int] = {}
        #: Returns what holds a group's GPU by facts and decisions; None where nothing does.
        self.reservation_of: Callable[[str], Reservation | None] = lambda _: None

    def copy(self) -> "GpuSupply":
        """Return a supply that a cycle can give out."""
        if len(self._parts) > _MOST_KINDS:
            self._parts, self._masks, self._numbers, self._changes = [()], [()], {(): 0}, {}
            for row in self._of_row:
                self._look_at(row)
        # Reservation pods may have been observed since, and nodes may have got other zones.
        for group, row in self._rows.items():
            zones = self._zones_held(group)
            if zones != self._zones[group]:
                self._zones[group] = zones
                self._look_at(row)
        other = copy(self)
        for name in _KEPT_APART:
            setattr(other, name, getattr(self, name).copy())
        return other

    # As facts and decisions have it, and in a cycle.

    def open(self, group: str, row: int, reservation: Reservation | None = None, *, offered: bool = True) -> None:
        """A GPU is held for sharing.

        Args:
            group: the GPU group; harmless where it is open already.
            reservation: what holds it, where a cycle opens it.
            offered: whether others may have parts of it now.
        """
        if reservation is not None:
            self._opened[group] = reservation
        if group in self._rows:
            return
        self._rows[group] = row
        self._zones[group] = self._zones_held(group)
        if offered:
            self.offer(group)

    def offer(self, group: str) -> None:
        """Parts of an open GPU are to be had; harmless where they are already, or the GPU is not open."""
        row = self._rows.get(group)
        if row is not None and not self.is_offered(group):
            self._of_row[row] = (*self._of_row.get(row, ()), group)
            self._change(row, group, WHOLE - self._used.get(group, 0), None)

    def withhold(self, group: str) -> None:
        """Parts of an open GPU are to be had no more; harmless where they are not."""
        row = self._rows.get(group)
        if row is None or not self.is_offered(group):
            return
        left = tuple(one for one in self._of_row[row] if one != group)
        if left:
            self._of_row[row] = left
        else:
            del self._of_row[row]
        self._look_at(row)

    def close(self, group: str) -> None:
        """A GPU is held for sharing no more; harmless where it is not."""
        self._opened.pop(group, None)
        self.withhold(group)
        self._rows.pop(group, None)
        self._zones.pop(group, None)

    def expose(self, group: str, row: int) -> None:
        """Pods share a GPU that nothing holds: its kubelet may give it to others, so no GPU of the row is to be had."""
        self._exposed[group] = row

    def cover(self, group: str) -> None:
        """A GPU is held again, or shared no more; harmless where it was never exposed."""
        self._exposed.pop(group, None)

    def exposed_on(self, row: int) -> list[str]:
        """Return the groups of a row that pods share although nothing holds their GPUs, in order."""
        return sorted(group for group, where in self._exposed.items() if where == row)

    def exposed(self, rows: int) -> Flags:
        """Tell by row whether a GPU is shared there that nothing holds.

        Args: rows: how many rows there are.
        """
        mask = np.zeros(rows, np.bool_)
        mask[list(self._exposed.values())] = True
        return mask

    def hold(self, group: str, milli: int, *, sign: int = 1) -> None:
        """A pod holds a part of a GPU, or holds it no more with `sign=-1`."""
        before = self._used.get(group, 0)
        used, pods = before + sign * milli, self._pods.get(group, 0) + sign
        if used or pods:
            self._used[group], self._pods[group] = used, pods
        else:
            self._used.pop(group, None)
            self._pods.pop(group, None)
            self._leaving.pop(group, None)
        row = self._rows.get(group)
        if row is not None and group in self._of_row.get(row, ()):
            self._change(row, group, WHOLE - before, sign * milli)

    def leave(self, group: str, *, sign: int = 1) -> None:
        """A pod that holds a part of a GPU is on its way out, or is it no more with `sign=-1`."""
        leaving = self._leaving.get(group, 0) + sign
        if leaving > 0:
            self._leaving[group] = leaving
        else:
            self._leaving.pop(group, None)

    def is_ending(self, group: str) -> bool:
        """Tell whether pods share a GPU, and all of them are on their way out: then so is its reservation."""
        return 0 < self.pods(group) <= self._leaving.get(group, 0)

    def is_open(self, group: str) -> bool:
        """Tell whether a GPU is held for sharing."""
        return group in self._rows

    def reservation(self, group: str) -> Reservation | None:
        """Return what holds an open GPU now; None where the group is not open."""
        if group not in self._rows:
            return None
        return self._opened.get(group) or self.reservation_of(group)

    def is_reservation(self, pod: Pod) -> bool:
        """Tell whether a pod holds a GPU that is opened for sharing: it goes with the last pod that shares it."""
        held = self.reservation_of(pod.labels.get(GPU_GROUP_LABEL, "")) if pod.gpu_share is None else None
        return held is not None and held.uid == pod.uid

    def is_offered(self, group: str) -> bool:
        """Tell whether parts of a GPU are to be had."""
        return group in self._of_row.get(self._rows.get(group, -1), ())

    def pods(self, group: str) -> int:
        """Return how many pods hold a part of a GPU."""
        return self._pods.get(group, 0)

    def used(self, group: str) -> int:
        """Return how much of a GPU is used, in thousandths."""
        return self._used.get(group, 0)

    def free(self, row: int) -> list[tuple[int, str]]:
        """Return what is free of each GPU of a row with parts to be had, in thousandths, and its group: least first."""
        return sorted([(WHOLE - self._used.get(group, 0), group) for group in self._of_row.get(row, ())])

    def groups(self, row: int) -> list[str]:
        """Return the groups of a row in the order of `parts`; of GPUs that are alike, by name."""
        used, zones, groups = self._used, self._zones, self._of_row.get(row, ())
        if len(groups) < 2:
            return [*groups]
        return sorted(groups, key=lambda group: (WHOLE - used.get(group, 0), zones[group], group))

    @property
    def rows(self) -> Iterable[int]:
        """Rows with parts to be had."""
        return self._of_row

    def has(self, row: int) -> bool:
        """Tell whether a row has GPUs with parts to be had."""
        return row in self._of_row

    def unused(self) -> list[str]:
        """Return the open GPUs of which no pod holds a part, in order."""
        return sorted(group for group in self._rows if not self._pods.get(group))

    def row(self, group: str) -> int:
        """Return the row of an open GPU."""
        return self._rows[group]

    def largest(self, rows: int) -> Ints:
        """Return the largest free part by row, in thousandths; 0 on rows without any.

        Args: rows: how many rows there are.
        """
        found: Ints = np.array([max(parts, default=0) for parts in self._parts], np.int64)[self.kinds(rows)]
        return found

    def kinds(self, rows: int) -> Ints:
        """Return by row a number of what is free of each of its GPUs and of their zones; equal for rows alike in this.

        Args: rows: how many rows there are.
        """
        self._reserve(rows)
        return self._kinds[:rows]

    def kind(self, row: int) -> int:
        """Return the number of one row."""
        return self._kind[row] if row < len(self._kind) else 0

    def parts(self, kind: int) -> tuple[int, ...]:
        """Return what is free of each GPU of a kind of rows, in thousandths, the least first."""
        return self._parts[kind]

    def masks(self, kind: int) -> tuple[int, ...]:
        """Return the zones of each GPU of a kind of rows as `charged_gpus` does, in the order of `parts`."""
        return self._masks[kind]

    def zones(self, group: str) -> int:
        """Return the zones of an open GPU as `charged_gpus` does."""
        return self._zones[group]

    def free_parts(self, rows: Ints) -> Ints:
        """Return what is free of each open GPU of rows, in thousandths; shape (rows, GPUs), 0 where a row has fewer."""
        if not self._of_row:
            return np.zeros((len(rows), 0), np.int64)
        kinds, which = np.unique(self.kinds(int(rows.max(initial=0)) + 1)[rows], return_inverse=True)
        free: Ints = padded([self._parts[kind] for kind in kinds.tolist()])[which]
        return free

    def _change(self, row: int, group: str, free: int, milli: int | None) -> None:
        """Note that what is free of one GPU of a row has changed."""
        change = self.kind(row), free, self._zones[group], milli
        kind = self._changes.get(change)
        if kind is None or row >= len(self._kind):
            self._look_at(row)
            self._changes[change] = self._kind[row]
        else:
            self._kind[row] = self._kinds[row] = kind

    def _look_at(self, row: int) -> None:
        self._reserve(row + 1)
        used, zones = self._used, self._zones
        gpus = tuple(sorted([(WHOLE - used.get(group, 0), zones[group]) for group in self._of_row.get(row, ())]))
        kind = self._numbers.setdefault(gpus, len(self._parts))
        if kind == len(self._parts):
            self._parts.append(tuple([free for free, _ in gpus]))
            self._masks.append(tuple([mask for _, mask in gpus]))
        self._kind[row] = self._kinds[row] = kind

    def _zones_held(self, group: str) -> int:
        reservation = self.reservation(group)
        return 0 if reservation is None else charged_gpus(reservation.charge)

    def _reserve(self, rows: int) -> None:
        if rows > len(self._kind):
            more = max(rows - len(self._kind), len(self._kind))
            self._kind += [0] * more
            self._kinds = np.concatenate([self._kinds, np.zeros(more, np.int64)])


def planned_uid(group: str) -> str:
    """Return the uid by which the planned reservation pod of a GPU group is known."""
    return f"{PLANNED}{group}"


def planned_pod(namespace: str, name: str, group: str) -> Pod:
    """Return the reservation pod of a GPU group as it will be made."""
    return Pod(
        uid=planned_uid(group),
        namespace=namespace,
        name=name,
        resource_version="",
        created_at=0,
        scheduler_name=DEFAULT_SCHEDULER,
        qos=QosClass.BEST_EFFORT,
        containers=(Container("resource-reservation", requests=_ONE, limits=_ONE),),
        labels={GPU_GROUP_LABEL: group},
    )


def charged_gpus(charge: ZoneCharge) -> int:
    """Return the zones of the GPUs of a charge, as a mask; 0 where they are not known, or the kubelet may choose."""
    if GPU in charge.uncertain:
        return 0
    mask = 0
    for zone, resource, amount in charge.amounts:
        mask |= 1 << zone if resource == GPU and amount else 0
    return mask


def padded(parts: Sequence[Sequence[int]]) -> Ints:
    """Return what is free of the GPUs of each of some rows as a matrix, 0 where a row has fewer GPUs."""
    matrix = np.zeros((len(parts), max(map(len, parts), default=0)), np.int64)
    for place, free in enumerate(parts):
        matrix[place, : len(free)] = free
    return np.maximum(matrix, 0)
