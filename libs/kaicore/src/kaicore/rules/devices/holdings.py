"""Holdings: the devices that claims have, and the used amounts of devices that several claims may share.

A request consumes an amount of a device's capacity, if it has that much left.

Source: `k8s.io/dynamic-resource-allocation/structured` 0.37, `consumable_capacity.go`.
"""

from collections.abc import Iterable, Mapping

from kaicore.rules.devices.pools import DeviceId
from kaicore.rules.model.device import AllocatedDevice, CapacityPolicy, Device, DeviceCapacity, Thousandths


def consumed_capacity(device: Device, asked: Mapping[str, int]) -> Thousandths | None:
    """Return what a request takes of each capacity of a device; None where it cannot have what it asks for.

    Args:
        asked: for each capacity that the request names, how much.
    """
    if not asked.keys() <= device.capacity.keys():
        return None
    consumed: Thousandths = {}
    for name, capacity in device.capacity.items():
        amount = _granted(capacity, asked.get(name))
        if amount > capacity.value or not _permitted(capacity.policy, amount):
            return None
        consumed[name] = amount
    return consumed


def has_left(device: Device, consumed: Mapping[str, int], *held: Mapping[str, int]) -> bool:
    """Tell whether a device has as much left as a request takes.

    Args:
        consumed: by the request, of each capacity.
        held: by others.
    """
    return all(
        amount + sum(each.get(name, 0) for each in held) <= device.capacity[name].value
        for name, amount in consumed.items()
    )


def _granted(capacity: DeviceCapacity, asked: int | None) -> int:
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


def _permitted(policy: CapacityPolicy | None, amount: int) -> bool:
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

    def change(self, devices: Iterable[AllocatedDevice], *, sign: int = 1) -> None:
        """A claim has devices, or has them no more (`sign=-1`). Access for administrators takes nothing."""
        for device in devices:
            if device.admin:
                continue
            if device.consumed is None:
                _add(self._taken, device.id, sign)
                continue
            _add(self._shares, device.id, sign)
            amounts = self._consumed.setdefault(device.id, {})
            for name, amount in device.consumed.items():
                _add(amounts, name, sign * amount)
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


def _add(counts: dict[DeviceId, int] | dict[str, int], key: DeviceId | str, amount: int) -> None:
    count = counts.get(key, 0) + amount  # type: ignore[arg-type]
    if count:
        counts[key] = count  # type: ignore[index]
    else:
        counts.pop(key, None)  # type: ignore[arg-type]
