"""Ranking of rows by the devices that a class's claims would get there, and exclusion of rows with unsuitable devices.

Two facts are known of each row: the devices that a pod would get there, and the NUMA zones on which the kubelet is
expected to put the rest of the pod. Rows are compared by their alternative of `firstAvailable`, by the closeness of the
devices to the pod's CPUs, and by whether they break up a whole. A pod with a NUMA policy of its own that excludes nodes
gets devices that are close, or none.

Source of the first: kube-scheduler 1.37, `plugins/dynamicresources`, `computeScore`. The others are ours.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from kaicore.rules.devices.pools import Pool
from kaicore.rules.engine.constraints.claims.device_rule import zones_of_cpus
from kaicore.rules.engine.constraints.claims.supplies import GivenClaim
from kaicore.rules.engine.constraints.constraint_evaluator import ConstraintEvaluator
from kaicore.rules.engine.constraints.node_filter import node_reason
from kaicore.rules.engine.constraints.zones.numa_verdicts import NumaVerdicts
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.events.reasons.base import NodeReason
from kaicore.rules.events.reasons.numa import NumaPolicyNotKept
from kaicore.rules.model.device import AllocatedDevice
from kaicore.rules.numa.columns import Flags, Ints

#: `near` of a row where it is not known.
UNKNOWN = -1
#: A request has at most so many alternatives (`FirstAvailableDeviceRequestMaxSize`).
_MOST_ALTERNATIVES = 8


class DeviceScore(NamedTuple):
    """The score of a row's devices for a pod; the more the better.

    Attributes:
        choices: over requests with alternatives, 8 less the place of the alternative that is served, from 0.
        near: per cent, over devices, of the zones of the pod's CPUs that the device is close to; -1 where no zones are
            predicted, or no driver says where its devices are.
        whole: per cent of the devices that break up nothing: no card of partitions, and no device to share, of which
            nothing is in use.
    """

    choices: int = 0
    near: int = UNKNOWN
    whole: int = 100


class DeviceCloseness:
    """The devices that a pod of a class would get, row by row, as the rows are now."""

    def __init__(
        self, pod_class: PodClass, columns: NodeColumns, numa: NumaVerdicts | None, constraints: ConstraintEvaluator
    ) -> None:
        """Args:
        numa: what kubelets make of the class; None where zones are not looked at.
        constraints: of the class, its claims among them.
        """
        self._wanted = pod_class.devices.wanted
        self._columns, self._numa, self._constraints = columns, numa, constraints
        own = pod_class.numa_policy
        #: The pod's own policy where it is about claims: it names no resources, and is more than a wish.
        self._policy = own if own is not None and own.binding and not own.resources else None
        self._scores: dict[int, tuple[tuple[GivenClaim, ...], DeviceScore]] = {}

    @property
    def compares(self) -> bool:
        """True if rows differ by the devices that a pod would get."""
        return bool(self._wanted)

    @property
    def required(self) -> bool:
        """True if a row is useless when devices are not close."""
        return bool(self._wanted) and self._policy is not None and self._numa is not None

    def given(self, row: int) -> tuple[GivenClaim, ...] | None:
        """Return what a pod's claims get on a row, close to the zones that it is predicted to get; None if too far."""
        if not self._wanted:
            return ()
        return self._constraints.devices(row, self._zones(row), only_close=self.required)

    def given_anyway(self, row: int) -> tuple[GivenClaim, ...]:
        """Return the same, and where that is too far off what it would get if closeness did not matter."""
        return self.given(row) or self._constraints.devices(row, frozenset(), only_close=False) or ()

    def takes(self, row: int) -> bool:
        """Tell whether a row that has devices has some that are as close as the class requires."""
        return not self.required or self.given(row) is not None

    def score(self, row: int) -> DeviceScore:
        """Score a row."""
        given = self.given(row)
        if not given:
            return DeviceScore()
        kept = self._scores.get(row)
        if kept is None or kept[0] is not given:
            kept = self._scores[row] = given, self._score(row, given)
        return kept[1]

    def failing(self, rows: Ints) -> Flags:
        """Tell which rows have devices that are not close enough (`NodeFilter`)."""
        failing: Flags = np.array([not self.takes(row) for row in rows.tolist()], np.bool_)
        return failing

    def reasons(self, rows: Ints) -> Iterator[NodeReason]:
        """Yield the reason of rows that fail (`NodeFilter`)."""
        detail = {
            "policy": f"{self._policy}: devices that its resource claims could have are not all close to its CPUs"
        }
        yield node_reason(self._columns, NumaPolicyNotKept, rows, detail)

    def _zones(self, row: int) -> frozenset[int]:
        predicted = None if self._numa is None else self._numa.predict(row)
        return zones_of_cpus(None if predicted is None else predicted.placement, self._columns.topologies[row])

    def _score(self, row: int, given: Iterable[GivenClaim]) -> DeviceScore:
        devices = [device for claim in given for device in claim.allocation.devices if not device.admin]
        if not devices:
            return DeviceScore()
        return DeviceScore(self._choices(given), _near(devices, self._zones(row)), self._whole(row, devices))

    def _choices(self, given: Iterable[GivenClaim]) -> int:
        total = 0
        for want, claim in zip(self._wanted, given, strict=True):
            served = {device.request for device in claim.allocation.devices}
            for request in want.requests:
                names = [f"{request.name}/{one.name}" for one in request.alternatives]
                total += sum(_MOST_ALTERNATIVES - place for place, name in enumerate(names) if name in served)
        return total

    def _whole(self, row: int, devices: list[AllocatedDevice]) -> int:
        node = self._columns.facts[row]
        assert node is not None, row
        supply = self._columns.devices
        pools = {pool.id: pool for pool in supply.pools(node)}
        broken = 0
        for one in devices:
            pool = pools.get(one.id[:2])
            if pool is not None:
                broken += not supply.held.has(one.id) if one.consumed is not None else self._breaks(pool, one)
        return 100 - broken * 100 // len(devices)

    def _breaks(self, pool: Pool, one: AllocatedDevice) -> bool:
        taking = {use.counter_set for each in pool.devices if each.id == one.id for use in each.device.consumes}
        has = self._columns.devices.held.has
        return bool(taking) and not any(
            use.counter_set in taking
            for other in (*pool.devices, *pool.others)
            if other.device.consumes and has(other.id)
            for use in other.device.consumes
        )


def _near(devices: list[AllocatedDevice], zones: frozenset[int]) -> int:
    if not zones or not any(device.numa for device in devices):
        return UNKNOWN
    return sum(len(zones.intersection(device.numa)) for device in devices) * 100 // (len(devices) * len(zones))
