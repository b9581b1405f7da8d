"""The zones that a pod's resources may come from: more than the prediction names where the kubelet has a choice.

- Memory is bound to all zones of its blocks' masks.
- CPUs and devices with a certain prediction come from the zones that it names.
- Otherwise they come from the zones of the merged hint, if it has enough of them, and else from any zone: the device
  manager draws from an unordered set.
- The packing of the static CPU manager is relied on only under policy `none`, where no other information exists.
"""

from functools import reduce
from operator import or_

from kaicore.rules.model.node import TopologyPolicy, TopologyScope
from kaicore.rules.model.pod import ContainerKind
from kaicore.rules.model.quantity import CPU, is_memory
from kaicore.rules.numa.columns import ZoneColumns
from kaicore.rules.numa.kubelet.verdict import Admitted, Holding


def sources(columns: ZoneColumns, row: int, holding: Holding, resource: str) -> int:
    """Return the zones that a container's share of a resource may come from, as a mask."""
    if is_memory(resource):
        mask = 0
        for block in holding.blocks:
            mask |= block.mask if block.resource == resource else 0
        return mask
    named = sum(1 << zone for zone, amount in enumerate(holding.amounts.get(resource, ())) if amount)
    none = columns.kubelet_of(row).policy is TopologyPolicy.NONE
    if resource not in holding.uncertain or (resource == CPU and none):
        return named
    amounts = columns.capacity[row, : int(columns.zone_count[row]), columns.resources[resource]].tolist()
    hosting = sum(1 << zone for zone, amount in enumerate(amounts) if amount)
    return hosting & holding.mask if holding.mask and not named & ~holding.mask else hosting


def spans(columns: ZoneColumns, row: int, admitted: Admitted) -> tuple[int, ...]:
    """Return the zones that anything of a pod's long-running containers may come from, as masks.

    One of each container that has any; one of the whole pod where the kubelet aligns pods (scope `pod`).
    """
    masks = []
    for holding in admitted.holdings:
        if holding.container.kind is not ContainerKind.INIT:
            mask = 0
            for resource, _ in holding.container.amounts:
                mask |= sources(columns, row, holding, resource)
            masks += [mask] if mask else []
    if len(masks) > 1 and columns.kubelet_of(row).scope is TopologyScope.POD:
        return (reduce(or_, masks),)
    return tuple(masks)
