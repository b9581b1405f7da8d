"""Devices for claims that are not allocated yet: the rows that have them free, and the devices that a pod gets there.

A row is evaluated once, and again after devices of its pools were given or taken back. Rows with equal pools are not
merged: each is searched by itself, because devices differ in attributes that expressions may read.
"""

from collections.abc import Sequence

import numpy as np

from kaicore.rules.devices.allocation import ClaimToServe, allocate
from kaicore.rules.devices.pools import Holdings, Pool, PoolId, usable_from
from kaicore.rules.engine.constraints.claims.demands import WantedClaim
from kaicore.rules.engine.constraints.claims.supplies import GivenClaim
from kaicore.rules.engine.constraints.node_filter import MaskFilter
from kaicore.rules.engine.constraints.pod_rules import NO_LIMIT
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.events.reasons.node import DevicesTaken, NoMatchingDevices
from kaicore.rules.model.device import Allocation, DeviceRequest, NodeSelection
from kaicore.rules.model.node import Node, NodeTopology
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.quantity import CPU
from kaicore.rules.numa.columns import Flags, Ints

#: More pods of a class than this are not counted on one row.
_MOST_COUNTED = 64
_NOTHING = Holdings()


class DeviceRule:
    """The wishes of a class for devices, on the rows as they are now."""

    def __init__(self, wanted: Sequence[WantedClaim], columns: NodeColumns, *, among: Flags) -> None:
        """Args:
        wanted: at least one claim.
        among: rows that are asked; the others are not for the class anyway.
        """
        self._wanted = tuple(wanted)
        self._columns = columns
        self._rows = np.flatnonzero(among & columns.present).tolist()
        self._what = ", ".join(_request_text(request) for want in wanted for request in want.requests)
        size = len(columns.present)
        self._taken: Flags = np.zeros(size, np.bool_)
        self._never: Flags = np.zeros(size, np.bool_)
        self._problems: dict[int, str] = {}
        #: Rows by the pools that they see.
        self._of_pool: dict[PoolId, dict[int, None]] = {}
        #: What a pod gets, by row, with the zones to which that is close.
        self._chosen: dict[int, tuple[frozenset[int], tuple[GivenClaim, ...] | None]] = {}
        self._seen = 0
        self._open: tuple[WantedClaim, ...] | None = None

    def filters(self) -> list[MaskFilter]:
        """See `PodRule.filters`."""
        self._catch_up()
        return [
            MaskFilter(self._columns, NoMatchingDevices, self._never.copy(), self._detail),
            MaskFilter(self._columns, DevicesTaken, self._taken.copy(), self._detail),
        ]

    def limits(self) -> Ints:
        """See `PodRule.limits`."""
        self._catch_up()
        limits = np.where(self._taken | self._never, 0, NO_LIMIT)
        if all(want.claim for want in self._wanted):
            return limits
        for row in self._rows:
            if limits[row]:
                limits[row] = self._count(row)
        return limits

    def choose(self, row: int, zones: frozenset[int], *, only_close: bool) -> tuple[GivenClaim, ...] | None:
        """Return what a pod gets on a row; the same object as long as nothing of the row's pools changes.

        Args:
            row: a row of those that are asked.
            zones: NUMA zones to which devices had better be close; none for no preference.
            only_close: they have to be, where there are such zones; None is returned where none are.
        """
        self._catch_up()
        kept = self._chosen.get(row)
        if kept is None or kept[0] != zones:
            kept = self._chosen[row] = zones, self._choice(row, zones, only_close=only_close)
        return kept[1]

    def _choice(self, row: int, zones: frozenset[int], *, only_close: bool) -> tuple[GivenClaim, ...] | None:
        supply, open_ = self._columns.devices, self._now_wanted()
        node = self._node(row)
        specs, pools = _specs(open_, node), supply.pools(node)
        got = allocate(specs, pools, supply.held, node=node.name, zones=zones, only_close=only_close and bool(zones))
        if only_close and isinstance(got, str):
            return None
        allocations = iter(got if isinstance(got, tuple) else [Allocation()] * len(open_))
        return tuple(
            GivenClaim(next(allocations) if want in open_ else supply.given_to(want.claim) or Allocation(), want.claim)
            for want in self._wanted
        )

    def _catch_up(self) -> None:
        supply, open_ = self._columns.devices, self._now_wanted()
        if open_ != self._open:
            self._open, rows = open_, self._rows
        else:
            pools = dict.fromkeys(supply.changes[self._seen :])
            rows = list(dict.fromkeys(row for pool in pools for row in self._of_pool.get(pool, ())))
        self._seen = len(supply.changes)
        for row in rows:
            self._ask(row, open_)

    def _ask(self, row: int, open_: tuple[WantedClaim, ...]) -> None:
        supply, node = self._columns.devices, self._node(row)
        pools = supply.pools(node)
        for pool in pools:
            self._of_pool.setdefault(pool.id, {})[row] = None
        self._taken[row] = self._never[row] = False
        self._problems.pop(row, None)
        self._chosen.pop(row, None)
        if not self._reaches(node):
            self._never[row] = True
            self._problems[row] = "a claim that others use already has devices that cannot be used from there"
            return
        got = allocate(_specs(open_, node), pools, supply.held, node=node.name)
        if isinstance(got, tuple):
            return
        ever = allocate(_specs(open_, node), pools, _NOTHING, node=node.name)
        self._taken[row] = isinstance(ever, tuple)
        self._never[row] = not self._taken[row]
        self._problems[row] = got if isinstance(ever, tuple) else ever

    def _reaches(self, node: Node) -> bool:
        """Tell whether what this cycle gave to claims that several pods use can be used from a node."""
        given = (self._columns.devices.given_to(want.claim) for want in self._wanted if want.claim)
        return all(
            one is None or one.terms is None or usable_from(NodeSelection(terms=one.terms), node.name, node.labels)
            for one in given
        )

    def _count(self, row: int) -> int:
        supply, node = self._columns.devices, self._node(row)
        held = Holdings(supply.held)
        pools: tuple[Pool, ...] = supply.pools(node)
        for count in range(_MOST_COUNTED):
            # The first pod settles what several use; the others want only their own.
            wanted = [want for want in self._now_wanted() if not (count and want.claim)]
            specs = _specs(wanted, node)
            if not any(spec.requests for spec in specs):
                return int(NO_LIMIT)
            got = allocate(specs, pools, held, node=node.name)
            if isinstance(got, str):
                return count
            for allocation in got:
                held.change(allocation.devices)
        return _MOST_COUNTED

    def _now_wanted(self) -> tuple[WantedClaim, ...]:
        given_to = self._columns.devices.given_to
        return tuple(want for want in self._wanted if not want.claim or given_to(want.claim) is None)

    def _node(self, row: int) -> Node:
        node = self._columns.facts[row]
        assert node is not None, row
        return node

    def _detail(self, row: int) -> dict[str, object]:
        problem = self._problems.get(row, "")
        return {"wanted": f"{self._what}: {problem}" if problem else self._what}


def zones_of_cpus(placement: Placement | None, topology: NodeTopology | None) -> frozenset[int]:
    """Return the NUMA zones of the CPUs that a pod is predicted to get on a node; without CPUs, of all else."""
    if placement is None or topology is None:
        return frozenset()
    held = [zone for container in placement.containers for zone in container.zones]
    names = {zone.zone for zone in held if CPU in zone.amount} or {zone.zone for zone in held}
    return frozenset(zone.numa_id for zone in topology.zones if zone.name in names)


def _specs(wanted: Sequence[WantedClaim], node: Node) -> list[ClaimToServe]:
    return [ClaimToServe(_requests(want, node), want.constraints) for want in wanted]


def _requests(want: WantedClaim, node: Node) -> tuple[DeviceRequest, ...]:
    """Return what a claim asks of a node's devices: of extended resources those that its kubelet does not have."""
    if not want.extended:
        return want.requests
    by_resource = zip(want.requests, want.extended, strict=True)
    return tuple(request for request, resource in by_resource if not node.allocatable.get(resource))


def _request_text(request: DeviceRequest) -> str:
    if request.alternatives:
        return " or ".join(map(_request_text, request.alternatives))
    return f"{'all' if request.mode == 'All' else request.count} {request.device_class}"
