"""Shares of a GPU on the nodes of a cycle: which nodes take one, what it costs there, and which GPUs it gets.

A pod takes parts of GPUs that are open before others are opened: of the open ones those in the zones that its CPUs and
memory come from, then those with the least free, or with the most where pods are spread. A GPU is opened where the
kubelet would give its reservation pod one. The zones of its GPUs count in a row's score, and for the pod's own policy,
as if the kubelet gave them to the pod itself.
"""

from collections.abc import Callable
from functools import cache, cached_property, reduce
from operator import or_
from typing import TypeVar

import numpy as np

from kaicore.policy import NodeFinding
from kaicore.rules.engine.config import EngineConfig, PlacementStrategy
from kaicore.rules.engine.constraints.zones.numa_verdicts import NumaVerdicts
from kaicore.rules.engine.placement.gpu_supply import (
    GivenPart,
    Reservation,
    charged_gpus,
    padded,
    planned_pod,
    planned_uid,
)
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass, class_identity, pod_class
from kaicore.rules.engine.placement.row_states import RowStates
from kaicore.rules.engine.placement.statement import Statement
from kaicore.rules.events.payloads import GpuOpened
from kaicore.rules.model.gpu_share import GPU, WHOLE, GpuShare, reservation_name
from kaicore.rules.model.node import TopologyPolicy
from kaicore.rules.model.quantity import PODS
from kaicore.rules.numa.arrivals import Arrival
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.numa.kubelet.masks import zones_of
from kaicore.rules.numa.kubelet.zones import ZoneCharge
from kaicore.rules.numa.own_policy import PodNumaPolicy, Stray

#: The cost of a node that cannot take the pod.
NONE = -1
#: The cost of a GPU that has to be opened: more than any waste of open ones. More than so many count as these.
_OPENING, _MOST_OPENINGS = WHOLE, 3
_NOTHING = ZoneCharge()
#: A cost, or several.
Numbers = TypeVar("Numbers", int, Ints)


@cache
def reservation_class() -> PodClass:
    """Return the class of reservation pods."""
    pod = planned_pod("", "", "")
    return pod_class(pod, class_identity(pod))


class ShareFit:
    """One class with a share on the rows of a statement; charges are seen as they happen."""

    def __init__(
        self,
        share: GpuShare,
        columns: NodeColumns,
        config: EngineConfig,
        states: RowStates,
        *,
        pods: NumaVerdicts,
        own: PodNumaPolicy | None,
    ) -> None:
        """Args:
        share: what each pod of the class gets.
        columns: the cycle's own copy.
        config: the shard's settings.
        states: of the rows.
        pods: what kubelets make of the class itself.
        own: the class's own policy.
        """
        self.share = share
        self._spread = config.strategy(devices=True) is PlacementStrategy.SPREAD
        self._columns = columns
        self._reservation = reservation_class()
        columns.vector(self._reservation.requests)
        #: Costs by part, kind of row (`GpuSupply.kinds`), GPUs that can be opened, and zones of the pod.
        self._costs: dict[tuple[int, int, int, int], int] = {}
        #: The same, what zones add to findings, strays, and the GPUs taken, by `likeness`.
        self._of_states: dict[tuple[int, int, int], int] = {}
        self._by_zones: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._strays: dict[tuple[int, int, int], Stray | None] = {}
        self._taken_of: dict[tuple[int, int, int], list[int]] = {}
        self._states = states
        #: What `likeness` looks up.
        self._state, self._kind = states.state, columns.gpus.kind
        self._gpus, self._pods = columns.resources[GPU], columns.resources[PODS]
        self._numa = NumaVerdicts(columns, self._reservation, config, states) if config.numa else None
        #: None where nothing of the class is ever bound to zones.
        self._pods_numa = pods if config.numa and not pods.asks_nothing else None
        #: None where no policy of the class is about the GPUs that it shares.
        self._policy_numa = pods if config.numa and pods.concerns_shared else None
        self._binding = self._policy_numa is not None and own is not None and own.binding
        #: Whether open GPUs of other zones than the pod's are of no use.
        one_zone = own is not None and own.policy is TopologyPolicy.SINGLE_NUMA_NODE and own.resources != (GPU,)
        self._inside = self._binding and one_zone

    @cached_property
    def parts(self) -> Ints:
        """The part of each GPU that a pod takes, by row, in thousandths; more than `WHOLE` where a GPU is too small."""
        memories, which = np.unique(self._columns.gpu_memory, return_inverse=True)
        parts: Ints = np.array([min(self.share.part_of(memory), WHOLE + 1) for memory in memories.tolist()], np.int64)
        return parts[which]

    @cached_property
    def _exposed(self) -> Flags:
        """Rows of which no whole GPU is to be had (`GpuSupply.expose`), which no cycle changes; shape (rows,)."""
        return self._columns.gpus.exposed(len(self._columns.present))

    @cached_property
    def fixed(self) -> Ints:
        """By row, its part, and whether none of its whole GPUs is to be had, as one number; shape (rows,)."""
        fixed: Ints = self.parts * 2 + self._exposed
        return fixed

    @cached_property
    def _fixed(self) -> list[int]:
        fixed: list[int] = self.fixed.tolist()
        return fixed

    def cost(self, row: int) -> int:
        """Return the cost of a row: the less, the better; `NONE` for one that cannot take a pod."""
        cost = self._cost_of_parts(row)
        return cost if cost == NONE or self.keeps(row) else NONE

    def _cost_of_parts(self, row: int) -> int:
        key = self.likeness(row)
        cost = self._of_states.get(key)
        if cost is None:
            cost = self._of_states[key] = self._cost(self._part(row), key[1], self._openable(row), self._zones(row))
        return cost

    def likeness(self, row: int) -> tuple[int, int, int]:
        """Return what all depends on that a pod gets on a row, and costs there: its state, its kind, and `fixed`."""
        return self._state(row), self._kind(row), self._fixed[row]

    def costs(self, rows: Ints) -> Ints:
        """Return the costs of rows as `cost` does; shape (rows,)."""
        costs = self.costs_of_parts(rows)
        if self._binding:
            there = np.flatnonzero(costs != NONE)
            first, which = self.alike(rows[there])
            strays = [not self.keeps(row) for row in rows[there][first].tolist()]
            costs[there[np.array(strays, np.bool_)[which]]] = NONE
        return costs

    def costs_of_parts(self, rows: Ints) -> Ints:
        """Return the costs of rows, whatever the pod's own policy asks; shape (rows,)."""
        columns, most = self._columns, self.share.devices
        closed = columns.allocatable[rows, self._gpus] - columns.used[rows, self._gpus]
        slots = columns.allocatable[rows, self._pods] - columns.used[rows, self._pods]
        openable = np.where(self._exposed[rows], 0, np.clip(np.minimum(closed, slots - 1), 0, most))
        kinds, parts = columns.gpus.kinds(len(columns.present))[rows], self.parts[rows]
        figures = (kinds * (most + 1) + openable) * (WHOLE + 2) + parts
        zones = np.zeros(1, np.int64)
        if self._pods_numa is not None:
            zones, numbers = np.unique(self._zones_of(rows), return_inverse=True)
            figures = figures * len(zones) + numbers
        _, first, which = np.unique(figures, return_index=True, return_inverse=True)
        pods_zones = zones[figures[first] % len(zones)]
        alike = zip(*(one.tolist() for one in (parts[first], kinds[first], openable[first], pods_zones)), strict=True)
        costs: Ints = np.array([self._cost(*one) for one in alike], np.int64)[which]
        return costs

    @property
    def zoned(self) -> bool:
        """True if zones of the GPUs that a pod gets may change what is found about zones."""
        return self._pods_numa is not None or self._policy_numa is not None

    def _by_zones_on(self, row: int) -> tuple[int, int]:
        key = self.likeness(row)
        added = self._by_zones.get(key)
        if added is None:
            numa, own = self._pods_numa, self._policy_numa
            gain = 0 if numa is None else numa.gain_with(row, self._gpus_zones(row))
            strays = own is not None and self.stray(row) is not None and own.stray(row) is None
            added = self._by_zones[key] = gain, -int(strays)
        return added

    def by_zones_of(self, rows: Ints) -> dict[str, Ints]:
        """Return what the zones of the GPUs that a pod gets on rows add to each finding about zones, or take off."""
        first, which = self.alike(rows)
        added = np.array([self._by_zones_on(row) for row in rows[first].tolist()], np.int64)[which]
        return {NodeFinding.ZONES: added[:, 0], NodeFinding.KEEPS_POLICY: added[:, 1]}

    def alike(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return one place of each kind of rows that zones and free parts make, and for each row its kind's number."""
        kinds, states = self._columns.gpus.kinds(len(self._columns.present))[rows], self._states.states(rows)
        figures = (states * (kinds.max(initial=0) + 1) + kinds) * 2 * (WHOLE + 2) + self.fixed[rows]
        _, first, which = np.unique(figures, return_index=True, return_inverse=True)
        return first, which

    def stray(self, row: int) -> Stray | None:
        """Say what of a pod would be otherwise on a row with the parts than its own policy asks."""
        if self._policy_numa is None:
            return None
        key = self.likeness(row)
        if key not in self._strays:
            mask = reduce(or_, self._gpus_zones(row), 0)
            self._strays[key] = self._policy_numa.stray(row, shared_on=mask)
        return self._strays[key]

    def keeps(self, row: int) -> bool:
        """Tell whether no binding policy of the class is against the GPUs that a pod gets on a row with the parts."""
        return not self._binding or self.stray(row) is None

    @staticmethod
    def openings(costs: Numbers) -> Numbers:
        """Return how many GPUs are opened where that is the cost; more than three count as three."""
        return costs // _OPENING

    def after(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return how many GPUs rows that can take a pod open for it, and what is free of all open ones then.

        Returns:
            shape (rows,), and (rows, GPUs) in thousandths; 0 where a row has fewer.
        """
        gpus, devices = self._columns.gpus, self.share.devices
        opened: list[int] = []
        left: list[list[int]] = []
        for row in rows.tolist():
            part, kind = self._part(row), gpus.kind(row)
            parts, taken = list(gpus.parts(kind)), self._taken_on(row)
            for number in taken:
                parts[number] -= part
            opened.append(devices - len(taken))
            left.append(parts + [WHOLE - part] * opened[-1])
        return np.array(opened, np.int64), padded(left)

    def admits(self, row: int) -> bool:
        """Tell whether a row that has the parts can open what it has to: whether its kubelet gives a GPU for it."""
        return self._numa is None or self._cost_of_parts(row) < _OPENING or self._numa.admits(row)

    def counts(self, rows: Ints) -> Ints:
        """Return how many pods of the class rows take at most, by their GPUs alone; shape (rows,)."""
        return np.array([self._count(row) for row in rows.tolist()], np.int64)

    def largest(self, row: int) -> int:
        """Return the largest part that a pod could get on a row now, in thousandths."""
        return WHOLE if self._closed(row) > 0 else self.largest_open(row)

    def largest_open(self, row: int) -> int:
        """Return the largest free part of the open GPUs of a row, in thousandths."""
        parts = self._columns.gpus.parts(self._columns.gpus.kind(row))
        return parts[-1] if parts else 0

    def give(
        self, row: int, statement: Statement, name: Callable[[int], str], *, created_at: int | None
    ) -> tuple[GivenPart, ...]:
        """Open what has to be opened on a row that takes a pod, and return the pod's parts.

        Args:
            statement: on the nodes; the reservation pods are placed on it.
            name: returns the group of the first, second, … GPU that is opened.
            created_at: when the pod was created, seconds since the epoch; None where nothing is in doubt.
        """
        part, share, gpus = self._part(row), self.share, self._columns.gpus
        given: list[GivenPart] = []
        taken = self._taken_on(row)
        if taken:
            groups = gpus.groups(row)
            given = [GivenPart(groups[place], part, share.mib) for place in taken]
        for number in range(share.devices - len(given)):
            group = name(number)
            predicted = self._numa.predict(row) if self._numa is not None else None
            charge = _NOTHING if predicted is None else predicted.charge
            arrival = None
            if created_at is not None and predicted is not None:
                arrival = Arrival(self._reservation.aligned, charge, created_at)
            opening = Reservation(planned_uid(group), self._reservation.requests, charge, arrival)
            placement = None if predicted is None else predicted.placement
            given.append(GivenPart(group, part, share.mib, opening, placement))
            statement.open(row, group, opening)
        return tuple(given)

    def _cost(self, part: int, kind: int, openable: int, zones: int) -> int:
        key = part, kind, openable, zones
        cost = self._costs.get(key)
        if cost is None:
            cost = self._costs[key] = self._work_out(*key)
        return cost

    def _work_out(self, part: int, kind: int, openable: int, zones: int) -> int:
        if part > WHOLE:
            return NONE
        parts = self._columns.gpus.parts(kind)
        taken = [parts[number] for number in self._taken(part, kind, openable, zones)]
        wanted, waste = self.share.devices - len(taken), min(sum(taken) - part * len(taken), _OPENING - 1)
        if wanted > openable:
            return NONE
        return min(wanted, _MOST_OPENINGS) * _OPENING + (_OPENING - 1 - waste if self._spread else waste)

    def _taken_on(self, row: int) -> list[int]:
        key = self.likeness(row)
        taken = self._taken_of.get(key)
        if taken is None:
            taken = self._taken(self._part(row), key[1], self._openable(row), self._zones(row))
            self._taken_of[key] = taken
        return taken

    def _taken(self, part: int, kind: int, openable: int, zones: int) -> list[int]:
        """Return the places of the open GPUs that a pod takes a part of, in order.

        Args:
            part: of each, in thousandths.
            kind: of the row (`GpuSupply.kinds`).
            openable: how many GPUs can be opened, as far as it matters.
            zones: of the pod, as a mask.
        """
        parts, masks = self._columns.gpus.parts(kind), self._columns.gpus.masks(kind)
        places = [place for place, free in enumerate(parts) if free >= part]
        if self._inside and zones:
            inside = [place for place in places if _is_inside(masks[place], zones)]
            places = inside if len(inside) + openable >= self.share.devices else places
        if self._spread:
            places.reverse()
        return sorted(places, key=lambda place: not _is_inside(masks[place], zones))[: self.share.devices]

    def _zones(self, row: int) -> int:
        return 0 if self._pods_numa is None else self._pods_numa.zones(row)

    def _zones_of(self, rows: Ints) -> Ints:
        first, which = self._states.alike(rows)
        zones: Ints = np.array([self._zones(row) for row in rows[first].tolist()], np.int64)[which]
        return zones

    def _gpus_zones(self, row: int) -> tuple[int, ...]:
        """Return the zones of the GPUs that a pod gets on a row, as masks, each once; none where no zone has GPUs."""
        gpus, zones = self._columns.gpus, self._columns.zones
        kind = gpus.kind(row)
        taken = self._taken_on(row)
        masks = {gpus.masks(kind)[place] for place in taken}
        opened = self.share.devices - len(taken)
        if opened:
            predicted = self._numa.predict(row) if self._numa is not None else None
            mask = 0 if predicted is None else charged_gpus(predicted.charge)
            masks.add(mask if mask and self._has_free(row, mask, opened) else 0)
        if 0 in masks and GPU in zones.resources:
            # It may be any of them.
            hosting = zones.capacity[row, : int(zones.zone_count[row]), zones.resources[GPU]].tolist()
            masks.add(sum(1 << zone for zone, amount in enumerate(hosting) if amount))
        return tuple(sorted(masks - {0}))

    def _has_free(self, row: int, mask: int, gpus: int) -> bool:
        """Tell whether zones of a row have so many GPUs that are not held."""
        if gpus == 1:
            return True
        zones, column = self._columns.zones, self._columns.zones.resources[GPU]
        there = zones_of(mask)
        return int((zones.capacity[row, there, column] - zones.used[row, there, column]).sum()) >= gpus

    def _part(self, row: int) -> int:
        return self._fixed[row] // 2

    def _openable(self, row: int) -> int:
        """Return how many GPUs of a row can be opened; more than a pod asks for are not counted."""
        return min(max(min(self._closed(row), self._slots(row) - 1), 0), self.share.devices)

    def _closed(self, row: int) -> int:
        """Return how many whole GPUs of a row are to be had."""
        if self._exposed[row]:
            return 0
        return int(self._columns.allocatable[row, self._gpus] - self._columns.used[row, self._gpus])

    def _slots(self, row: int) -> int:
        return int(self._columns.allocatable[row, self._pods] - self._columns.used[row, self._pods])

    def _count(self, row: int) -> int:
        part, devices = self._part(row), self.share.devices
        if part > WHOLE:
            return 0
        opened = [free // part for free, _ in self._columns.gpus.free(row)]
        slots = self._slots(row)
        closed = max(min(self._closed(row), slots - 1), 0)
        takes = [*opened, *[WHOLE // part] * closed]
        most = sum(takes) // devices
        # Each pod has its parts on different GPUs: no GPU counts for more than once a pod.
        while most and sum(min(one, most) for one in takes) < most * devices:
            most -= 1
        return max(min(most, slots - closed), 1 if most and slots > 1 else 0)


def _is_inside(mask: int, zones: int) -> bool:
    return bool(mask) and not mask & ~zones


def opened_gpus(parts: tuple[GivenPart, ...], *, node: str, cycle: str, namespace: str) -> list[GpuOpened]:
    """Return the decisions that open the GPUs of a pod."""
    return [
        GpuOpened(node, part.group, namespace, reservation_name(node, part.group), cycle, part.placement)
        for part in parts
        if part.opening is not None
    ]
