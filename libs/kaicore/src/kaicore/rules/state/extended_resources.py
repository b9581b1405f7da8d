"""Extended resources that device classes stand for, and the amount that each node offers of them.

A node with a kubelet that has no such resource offers the devices of the class that it can use, as if they were so much
of the resource. So queues, scores and totals count them; the devices of a pod are decided beside that. A node with a
kubelet that has the resource, by a device plugin, offers that alone.

Source: kube-scheduler 1.37, plugin DynamicResources; `extendedresourcecache` of `k8s.io/dynamic-resource-allocation`.
"""

from collections import Counter
from collections.abc import Iterable

from kaicore.rules.devices.allocation import MOST_DEVICES
from kaicore.rules.devices.capacity import consumed_capacity
from kaicore.rules.devices.extended_requests import IMPLICIT_PREFIX, ExtendedRequests, extended_requests
from kaicore.rules.devices.pools import PooledDevice
from kaicore.rules.devices.selectors import SelectorFailed
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.model.device import DeviceClass, ResourceSlice, untolerated
from kaicore.rules.model.node import Node
from kaicore.rules.model.pod import Amounts, Pod

_NOTHING: Amounts = {}


class ExtendedResources:
    """Device classes by the extended resources that they stand for."""

    def __init__(self, columns: NodeColumns) -> None:
        """Args: columns: have offered what nodes offer."""
        self._columns = columns
        #: All device classes, by name; a change of them is told by `classes_changed`.
        self.classes: dict[str, DeviceClass] = {}
        #: How many classes of pods ask for each resource that no class names.
        self._asked: Counter[str] = Counter()
        self._served: dict[str, DeviceClass] = {}
        columns.offer_of = self.offer

    def requests(self, pod: Pod) -> ExtendedRequests:
        """Return the requests for devices that stand for what a pod asks for."""
        if not self._served:
            return ExtendedRequests()
        asked = {name for container in pod.containers for name in container.requests}
        return extended_requests(pod, {name: self._served[name].name for name in asked & self._served.keys()})

    def serves(self, asked: Iterable[str]) -> bool:
        """Tell whether device classes stand for any of some resources."""
        return bool(self._served) and not self._served.keys().isdisjoint(asked)

    # Changes.

    def asked_for(self, resources: Iterable[str], *, sign: int) -> None:
        """A class of pods is new that asks for some resources, or is no more (`sign=-1`)."""
        implicit = [name for name in resources if name.startswith(IMPLICIT_PREFIX)]
        if implicit:
            self._asked.update(dict.fromkeys(implicit, sign))
            self.classes_changed()

    def classes_changed(self) -> None:
        """Device classes are others, or have changed."""
        served: dict[str, DeviceClass] = {}
        # Of two classes for one resource the newer one, as while moving from one to the other; by name among those.
        for one in sorted(self.classes.values(), key=lambda one: (-one.created_at, one.name)):
            if one.extended_resource:
                served.setdefault(one.extended_resource, one)
            if self._asked[f"{IMPLICIT_PREFIX}{one.name}"] > 0:
                served.setdefault(f"{IMPLICIT_PREFIX}{one.name}", one)
        if served != self._served:
            self._served = served
            self._offer_anew(self._columns.rows.values())

    def slice_changed(self, of: ResourceSlice) -> None:
        """A slice is new, gone or other than before."""
        if not self._served:
            return
        rows = self._columns.rows
        if of.nodes is not None and of.nodes.node:
            self._offer_anew([rows[of.nodes.node]] if of.nodes.node in rows else ())
        else:
            self._offer_anew(rows.values())

    def _offer_anew(self, rows: Iterable[int]) -> None:
        for row in rows:
            node = self._columns.facts[row]
            if node is not None and self.offer(node) != self._columns.offers.get(row, _NOTHING):
                self._columns.set_node(node, row)

    # What a node offers.

    def offer(self, node: Node) -> Amounts:
        """Return how much of each resource a node offers by its devices."""
        if not self._served:
            return _NOTHING
        offers: Amounts = {}
        devices = [
            device
            for pool in self._columns.devices.pools(node)
            if not pool.problem
            for device in pool.devices
            if untolerated(device.device.taints, ()) is None
        ]
        for resource, device_class in self._served.items():
            if node.allocatable.get(resource):
                continue
            count = sum(_shares(device) for device in devices if _is_of(device, device_class))
            if count:
                offers[resource] = count
        return offers


def _is_of(device: PooledDevice, device_class: DeviceClass) -> bool:
    try:
        return device.meets(device_class.selectors)
    except SelectorFailed:
        return False


def _shares(device: PooledDevice) -> int:
    """Return to how many requests a device can be given at a time."""
    one = device.device
    consumed = consumed_capacity(one, {})
    if consumed is None:
        return 0
    if not one.shared:
        return 1
    shares = (one.capacity[name].value // amount for name, amount in consumed.items() if amount)
    return min(shares, default=MOST_DEVICES)
