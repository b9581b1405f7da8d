"""Slices of devices, and the taints that rules give their devices."""

from collections.abc import Callable, Iterator

import msgspec

from kaicore.rules.engine.constraints.device_supply import DeviceSupply
from kaicore.rules.model.device import Device, DeviceTaint, DeviceTaintRule, ResourceSlice


class DeviceSlices:
    """Slices and taint rules at one position of a cluster's log; the supply has each slice with all its taints.

    Source: `k8s.io/dynamic-resource-allocation/resourceslice/tracker` 0.37.
    """

    def __init__(self, supply: DeviceSupply, *, changed: Callable[[ResourceSlice], None]) -> None:
        """Args:
        supply: told of every slice.
        changed: told of slices once the supply has them as they are.
        """
        #: By name.
        self.slices: dict[str, ResourceSlice] = {}
        self.rules: dict[str, DeviceTaintRule] = {}
        self._supply = supply
        self._changed = changed

    def set_slice(self, seen: ResourceSlice) -> None:
        """A slice is new, or has changed."""
        self.forget_slice(seen.name)
        self.slices[seen.name] = seen
        self._supply.set_slice(self._tainted(seen))
        self._changed(seen)

    def forget_slice(self, name: str) -> None:
        """A slice is gone; harmless where it is not known."""
        before = self.slices.pop(name, None)
        if before is not None:
            self._supply.forget_slice(before)
            self._changed(before)

    def set_rule(self, rule: DeviceTaintRule) -> None:
        """A taint rule is new, or has changed."""
        before = self.rules.get(rule.name)
        self.rules[rule.name] = rule
        self._taint_anew(*filter(None, (before, rule)))

    def forget_rule(self, name: str) -> None:
        """A taint rule is gone; harmless where it is not known."""
        before = self.rules.pop(name, None)
        if before is not None:
            self._taint_anew(before)

    def taints(self, driver: str, pool: str, device: str) -> Iterator[DeviceTaint]:
        """Yield the taints of a device, whether a slice still has it or not."""
        for one in self._supply.slices_of_pool((driver, pool)):
            for each in one.slice.devices:
                if each.name == device:
                    yield from each.taints
                    return
        yield from self._taints_by_rules(driver, pool, device)

    def _taint_anew(self, *rules: DeviceTaintRule) -> None:
        for one in self.slices.values():
            if any(rule.is_for(one.driver, one.pool, device.name) for rule in rules for device in one.devices):
                self._supply.set_slice(self._tainted(one))
                self._changed(one)

    def _tainted(self, one: ResourceSlice) -> ResourceSlice:
        if not self.rules:
            return one
        return msgspec.structs.replace(one, devices=tuple(self._tainted_device(one, each) for each in one.devices))

    def _tainted_device(self, of: ResourceSlice, device: Device) -> Device:
        more = tuple(self._taints_by_rules(of.driver, of.pool, device.name))
        return msgspec.structs.replace(device, taints=(*device.taints, *more)) if more else device

    def _taints_by_rules(self, driver: str, pool: str, device: str) -> Iterator[DeviceTaint]:
        for _, rule in sorted(self.rules.items()):
            if rule.is_for(driver, pool, device):
                yield rule.taint
