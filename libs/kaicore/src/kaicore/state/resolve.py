"""Placement records, which name zones, into charges on a node's columns.

An observation wins over a prediction. What podresources never shows, the CPUs and devices that ordinary init containers
leave with the pod, is taken from the prediction also then. A record that names a zone that the node does not have is of
no use as a whole, and the next best one is taken.
"""

from dataclasses import dataclass

from kaicore.model.node import NodeTopology
from kaicore.model.placement import ContainerPlacement, Placement
from kaicore.model.pod import ContainerKind, Pod
from kaicore.numa.columns import ZoneCharge, ZoneColumns
from kaicore.numa.requests import is_memory


@dataclass(slots=True)
class _Account:
    """Sums up one pod's charge."""

    columns: ZoneColumns
    row: int
    index: dict[str, int]
    amounts: dict[tuple[int, str], int]
    masks: list[int]

    def known(self, placement: Placement) -> bool:
        return all(
            zone in self.index and resource in self.columns.resources
            for container in placement.containers
            for zones, amounts in [((item.zone,), item.amount) for item in container.zones]
            + [(item.zones, item.amount) for item in container.spans]
            for zone in zones
            for resource in amounts
        )

    def add(self, container: ContainerPlacement, *, memory: bool = True) -> None:
        """Add a container's holdings; amounts of a span fill its zones in ascending order, as memory does."""
        memory_zones = 0
        for zone in container.zones:
            for resource, amount in zone.amount.items():
                if is_memory(resource):
                    if not memory:
                        continue
                    memory_zones |= 1 << self.index[zone.zone]
                self._put(self.index[zone.zone], resource, amount)
        for span in container.spans:
            zones = sorted(self.index[name] for name in span.zones)
            for resource, amount in span.amount.items():
                if is_memory(resource):
                    self.masks.append(sum(1 << zone for zone in zones))
                self._spread(zones, resource, amount)
        if memory_zones:
            mask = sum(1 << self.index[name] for name in container.mask)
            self.masks += [mask] if mask else [1 << zone for zone in range(64) if memory_zones >> zone & 1]

    def _spread(self, zones: list[int], resource: str, amount: int) -> None:
        column = self.columns.resources[resource]
        for zone in zones:
            free = int(self.columns.allocatable[self.row, zone, column] - self.columns.used[self.row, zone, column])
            part = max(min(amount, free - self.amounts.get((zone, resource), 0)), 0)
            self._put(zone, resource, part)
            amount -= part
        self._put(zones[-1], resource, amount)

    def _put(self, zone: int, resource: str, amount: int) -> None:
        if amount:
            self.amounts[zone, resource] = self.amounts.get((zone, resource), 0) + amount

    def charge(self) -> ZoneCharge:
        return ZoneCharge(
            tuple((zone, resource, amount) for (zone, resource), amount in sorted(self.amounts.items())),
            tuple(sorted(self.masks)),
        )


def zone_charge(
    columns: ZoneColumns,
    row: int,
    topology: NodeTopology | None,
    *,
    pod: Pod,
    predicted: Placement | None,
    observed: Placement | None,
) -> ZoneCharge:
    """Return what a pod's placement records charge to its node; nothing where there is no usable record."""
    if topology is None or (predicted is None and observed is None):
        return ZoneCharge()
    index = {zone.name: number for number, zone in enumerate(topology.zones)}
    account = _Account(columns, row, index, {}, [])
    init = {container.name for container in pod.containers if container.kind is ContainerKind.INIT}
    usable = predicted if predicted is not None and account.known(predicted) else None
    if observed is not None and account.known(observed):
        for container in observed.containers:
            account.add(container)
        for container in usable.containers if usable else ():
            if container.container in init:
                account.add(container, memory=False)
    elif usable is not None:
        for container in usable.containers:
            account.add(container)
    return account.charge()
