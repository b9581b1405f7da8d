"""Pools of devices as one node sees them: the newest generation of each, if all its slices are there.

Source: `k8s.io/dynamic-resource-allocation/structured` 0.37, `GatherPools`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from kaicore.rules.devices.selectors import device_data, matches
from kaicore.rules.model.device import Device, NodeSelection, ResourceSlice, Thousandths
from kaicore.rules.model.selector import Requirement, meets

#: Driver and name.
PoolId = tuple[str, str]
#: Driver, pool and name.
DeviceId = tuple[str, str, str]

#: A device remembers the answers to so many expressions.
_REMEMBERED = 512


class PooledDevice:
    """A device of a pool, and which expressions it meets; the same one in all cycles that its slice is there."""

    __slots__ = ("_answers", "_data", "device", "id", "slice")

    def __init__(self, device: Device, of_slice: ResourceSlice) -> None:
        self.device = device
        self.slice = of_slice
        self.id: DeviceId = of_slice.driver, of_slice.pool, device.name
        self._data: dict[str, Any] | None = None
        self._answers: dict[str, bool] = {}

    def meets(self, expressions: Iterable[str]) -> bool:
        """Tell whether it meets all CEL expressions; the first that it does not meet is the last that is looked at.

        Raises:
            SelectorFailed: one of them cannot be decided.
        """
        return all(map(self._meets, expressions))

    def _meets(self, expression: str) -> bool:
        answer = self._answers.get(expression)
        if answer is None:
            if self._data is None:
                self._data = device_data(self.slice.driver, self.device)
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            answer = self._answers[expression] = matches(expression, self._data)
        return answer


@dataclass(frozen=True, slots=True)
class PoolSlice:
    """A slice with its devices."""

    slice: ResourceSlice
    devices: tuple[PooledDevice, ...]


def pool_slice(of: ResourceSlice) -> PoolSlice:
    """Return a slice with its devices as they are looked at."""
    return PoolSlice(of, tuple(PooledDevice(device, of) for device in of.devices))


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool, as a node sees it.

    Attributes:
        problem: why nothing is allocated from it now; empty for nothing.
        devices: those that can be used from the node, in the order in which they are tried.
        others: those that cannot; they take of the same counters.
        counters: amounts by counter, by counter set.
        late: it is tried after the others, for it has devices that have to be got ready, usable from the node or not.
    """

    id: PoolId
    problem: str = ""
    devices: tuple[PooledDevice, ...] = ()
    others: tuple[PooledDevice, ...] = ()
    counters: Mapping[str, Thousandths] = field(default_factory=dict)
    late: bool = False


def usable_from(selection: NodeSelection, node: str, labels: Mapping[str, str]) -> bool:
    """Tell whether a selection of nodes has a node."""
    if selection.node:
        return selection.node == node
    return selection.everywhere or any(_meets_term(term, node, labels) for term in selection.terms or ())


def pools_of_node(
    node: str,
    labels: Mapping[str, str],
    slices: Iterable[PoolSlice],
    all_of_pool: Callable[[PoolId], Sequence[PoolSlice]],
) -> tuple[Pool, ...]:
    """Return the pools with devices that can be used from a node, in the order in which they are tried.

    Args:
        labels: the node's.
        slices: all that may be for the node.
        all_of_pool: returns every slice of a pool, those for other nodes too.
    """
    by_pool: dict[PoolId, list[PoolSlice]] = {}
    for one in slices:
        if _is_for(one.slice, node, labels):
            by_pool.setdefault((one.slice.driver, one.slice.pool), []).append(one)
    pools: list[Pool] = []
    for pool_id, relevant in sorted(by_pool.items()):
        newest = max(one.slice.generation for one in relevant)
        whole = mine = [one for one in relevant if one.slice.generation == newest]
        if len(mine) != mine[0].slice.slices:
            whole = [one for one in all_of_pool(pool_id) if one.slice.generation >= newest]
            if any(one.slice.generation > newest for one in whole):
                # Its driver is replacing it, and what is new has nothing for this node.
                continue
        pools.append(_pool(pool_id, mine, whole, node, labels))
    return tuple(sorted(pools, key=attrgetter("late")))


def _is_for(one: ResourceSlice, node: str, labels: Mapping[str, str]) -> bool:
    if one.nodes is not None:
        return usable_from(one.nodes, node, labels)
    return any(device.nodes is not None and usable_from(device.nodes, node, labels) for device in one.devices)


def _pool(pool_id: PoolId, mine: list[PoolSlice], whole: list[PoolSlice], node: str, labels: Mapping[str, str]) -> Pool:
    name = "/".join(pool_id)
    expected = mine[0].slice.slices
    if len(whole) != expected:
        return Pool(pool_id, f"pool {name} has {len(whole)} of {expected} slices")
    if any(one.slice.partial for one in mine):
        return Pool(pool_id, f"pool {name} has devices that this version cannot read")
    mine = sorted(mine, key=lambda one: one.slice.name)
    counters: dict[str, Thousandths] = {}
    for one in whole:
        for counter_set, amounts in one.slice.counters.items():
            if counter_set in counters:
                return Pool(pool_id, f"pool {name} has counter set {counter_set} twice")
            counters[counter_set] = amounts
    devices = [device for one in mine if not one.slice.counters for device in one.devices]
    if len({device.device.name for device in devices}) < len(devices):
        return Pool(pool_id, f"pool {name} has two devices of one name")
    names = {one.slice.name for one in mine}
    others = [
        device for one in whole if one.slice.name not in names and not one.slice.counters for device in one.devices
    ]
    for device in (*devices, *others):
        for use in device.device.consumes:
            if not use.counters.keys() <= counters.get(use.counter_set, {}).keys():
                return Pool(pool_id, f"pool {name} lacks counters of {use.counter_set} that {device.device.name} takes")
    here = [
        device for device in devices if device.device.nodes is None or usable_from(device.device.nodes, node, labels)
    ]
    chosen = set(map(id, here))
    others += [device for device in devices if id(device) not in chosen]
    late = any(device.device.binding_conditions for device in devices)
    return Pool(pool_id, "", tuple(here), tuple(others), counters, late)


def _meets_term(term: tuple[Requirement, ...], node: str, labels: Mapping[str, str]) -> bool:
    return bool(term) and all(_meets(requirement, node, labels) for requirement in term)


def _meets(requirement: Requirement, node: str, labels: Mapping[str, str]) -> bool:
    if requirement.field:
        return (node in requirement.values) == (requirement.operator == "In")
    if requirement.operator not in ("Gt", "Lt"):
        return meets(labels, (requirement,))
    try:
        have, bound = int(labels[requirement.key]), int(requirement.values[0])
    except (KeyError, ValueError):
        return False
    return have > bound if requirement.operator == "Gt" else have < bound
