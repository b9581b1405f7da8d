"""Constraints of a claim on its devices: attributes in which all agree, or no two.

Source: `k8s.io/dynamic-resource-allocation/structured` 0.37; attributes that are lists count as sets (KEP-5491).
"""

from kaicore.rules.model.device import Device, DeviceAttribute, DeviceConstraint

#: The kind of an attribute and its values.
_Values = tuple[str, frozenset[int | bool | str]]


class ConstraintCheck:
    """One constraint of a claim, over the devices that the claim is given one by one."""

    def __init__(self, constraint: DeviceConstraint) -> None:
        self._requests = frozenset(constraint.requests)
        self._match = constraint.match
        self._distinct = constraint.distinct
        #: Of match, what all devices so far share; of distinct, what each has.
        self._taken: list[_Values] = []

    def concerns(self, request: str, parent: str) -> bool:
        """Tell whether it is about a request.

        Args:
            request: its name, `request/alternative` where it is one of several.
            parent: the name before the slash.
        """
        return not self._requests or request in self._requests or parent in self._requests

    def add(self, device: Device) -> bool:
        """Take in a device that it is about; return False, and take it not in, where the constraint is not met."""
        values = _values(device.attributes.get(self._match or self._distinct))
        if values is None:
            return False
        if self._distinct:
            if any(_common(values, other)[1] for other in self._taken):
                return False
        elif self._taken:
            values = _common(values, self._taken[-1])
            if not values[1]:
                return False
        self._taken.append(values)
        return True

    def remove(self) -> None:
        """Take the last device out again."""
        self._taken.pop()


def _values(attribute: DeviceAttribute | None) -> _Values | None:
    return None if attribute is None or not attribute.values else (attribute.kind, frozenset(attribute.values))


def _common(values: _Values, others: _Values) -> _Values:
    return values[0], values[1] & others[1] if values[0] == others[0] else frozenset()
