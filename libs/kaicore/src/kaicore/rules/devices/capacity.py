"""Capacities of devices: the amount that a request consumes, and whether a device has that much left.

Source: `k8s.io/dynamic-resource-allocation/structured` 0.37, `consumable_capacity.go`.
"""

from collections.abc import Mapping

from kaicore.rules.model.device import CapacityPolicy, Device, DeviceCapacity, Thousandths


def consumed_capacity(device: Device, asked: Mapping[str, int]) -> Thousandths | None:
    """Return what a request takes of each capacity of a device; None where it cannot have what it asks for.

    Args:
        device: the device.
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
        device: the device.
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
