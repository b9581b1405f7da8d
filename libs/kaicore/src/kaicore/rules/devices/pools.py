"""Pools of devices as one node sees them: the newest generation of each, if all its slices are there.

Source: `k8s.io/dynamic-resource-allocation/structured` 0.37, `GatherPools`.

Holdings: the devices that claims have, and the used amounts of devices that several claims may share.

A request consumes an amount of a device's capacity, if it has that much left.

Source: `k8s.io/dynamic-resource-allocation/structured` 0.37, `consumable_capacity.go`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from kaicore.rules.devices.selectors import device_data, matches
from kaicore.rules.model import device as models
from kaicore.rules.model.quantity import add_amounts
from kaicore.rules.model.selector import Requirement, compares, meets

#: Driver and name.
PoolId = tuple[str, str]
#: Driver, pool and name.
DeviceId = tuple[str, str, str]

#: A device remembers the answers to so many expressions.
_REMEMBERED = 512


class PooledDevice:
    """A device of a pool, and which expressions it meets; the same one in all cycles that its slice is there."""

    __slots__ = ("_answers", "_data", "device", "id", "slice")

    def __init__(self, device: models.Device, of_slice: models.ResourceSlice) -> None:
        self.device = device
        self.slice = of_slice
        self.id: DeviceId = of_slice.driver, of_slice.pool, device.name
        self._data: dict[str, Any] | None = None
        self._answers: dict[str, bool] = {}

    def meets(self, expressions: Iterable[str]) -> bool:
        """Tell whether it meets all CEL expressions; the first that it does not meet is the last that is looked at.

        Raises SelectorFailed: one of them cannot be decided.
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

    slice: models.ResourceSlice
    devices: tuple[PooledDevice, ...]


def pool_slice(of: models.ResourceSlice) -> PoolSlice:
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
    counters: Mapping[str, models.Thousandths] = field(default_factory=dict)
    late: bool = False


def usable_from(selection: models.NodeSelection, node: str, labels: Mapping[str, str]) -> bool:
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


def _is_for(one: models.ResourceSlice, node: str, labels: Mapping[str, str]) -> bool:
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
    counters: dict[str, models.Thousandths] = {}
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
    if requirement.operator in ("Gt", "Lt"):
        return compares(labels.get(requirement.key, ""), requirement)
    return meets(labels, (requirement,))


def consumed_capacity(device: models.Device, asked: Mapping[str, int]) -> models.Thousandths | None:
    """Return what a request takes of each capacity of a device; None where it cannot have what it asks for.

    Args:
        asked: for each capacity that the request names, how much.
    """
    if not asked.keys() <= device.capacity.keys():
        return None
    consumed: models.Thousandths = {}
    for name, capacity in device.capacity.items():
        amount = _granted(capacity, asked.get(name))
        if amount > capacity.value or not _permitted(capacity.policy, amount):
            return None
        consumed[name] = amount
    return consumed


def has_left(device: models.Device, consumed: Mapping[str, int], *held: Mapping[str, int]) -> bool:
    """Tell whether a device has as much left as a request takes (`consumed`: by the request, of each capacity)."""
    return all(
        amount + sum(each.get(name, 0) for each in held) <= device.capacity[name].value
        for name, amount in consumed.items()
    )


def _granted(capacity: models.DeviceCapacity, asked: int | None) -> int:
    policy = capacity.policy
    if asked is None:
        return capacity.value if policy is None or policy.default is None else policy.default
    if policy is None:
        return asked
    if policy.least is not None:
        if asked <= policy.least:
            return policy.least
        if not policy.step:
            return asked
        return policy.least + -(-(asked - policy.least) // policy.step) * policy.step
    return next((value for value in policy.values if value >= asked), asked)


def _permitted(policy: models.CapacityPolicy | None, amount: int) -> bool:
    if policy is None or amount == policy.default:
        return True
    if policy.most is not None and amount > policy.most:
        return False
    if policy.least is not None:
        return not policy.step or (amount - policy.least) % policy.step == 0
    return policy.most is not None or not policy.values or amount in policy.values


class Holdings:
    """The devices of claims; laid over other holdings, which are only read here."""

    def __init__(self, base: "Holdings | None" = None) -> None:
        """Args: base: not changed, and not to change as long as this is used; None for nothing."""
        self._base = base
        #: How many claims more than in the base have a device for themselves; fewer are negative.
        self._taken: dict[DeviceId, int] = {}
        self._shares: dict[DeviceId, int] = {}
        self._consumed: dict[DeviceId, dict[str, int]] = {}

    def change(self, devices: Iterable[models.AllocatedDevice], *, sign: int = 1) -> None:
        """A claim has devices, or has them no more (`sign=-1`). Access for administrators takes nothing."""
        for device in devices:
            if device.admin:
                continue
            if device.consumed is None:
                _tally(self._taken, device.id, sign)
                continue
            _tally(self._shares, device.id, sign)
            amounts = self._consumed.setdefault(device.id, {})
            add_amounts(amounts, device.consumed, sign)
            if not amounts:
                del self._consumed[device.id]

    def is_taken(self, device: DeviceId) -> bool:
        """Tell whether a claim has a device for itself."""
        return self._count(device, shares=False) > 0

    def consumed(self, device: DeviceId) -> Mapping[str, int] | None:
        """Return how much of each capacity of a device the claims hold that share it; None if none does."""
        if self._count(device, shares=True) <= 0:
            return None
        base = None if self._base is None else self._base.consumed(device)
        amounts = dict(base or {})
        for name, amount in self._consumed.get(device, {}).items():
            amounts[name] = amounts.get(name, 0) + amount
        return amounts

    def has(self, device: DeviceId) -> bool:
        """Tell whether any claim has a device."""
        return self.is_taken(device) or self._count(device, shares=True) > 0

    def _count(self, device: DeviceId, *, shares: bool) -> int:
        own = (self._shares if shares else self._taken).get(device, 0)
        return own if self._base is None else own + self._base._count(device, shares=shares)  # noqa: SLF001 - same class


def _tally(counts: dict[DeviceId, int], device: DeviceId, sign: int) -> None:
    counts[device] = counts.get(device, 0) + sign
    if not counts[device]:
        del counts[device]
