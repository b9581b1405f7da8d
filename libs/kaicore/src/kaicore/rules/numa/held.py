"""The maximum that a pod can hold of zones. A placement record that exceeds it is rejected, wherever it comes from.

A kubelet never gives a container more of a resource than its spec asks for (CPU manager, `policy_static.go`; memory
manager; device manager, `devicesToAllocate`), and no zone gives more CPUs or memory than it has. The published number
of devices of a zone is not a maximum: publishers count healthy ones only, and a pod keeps one that has failed.

Source: Kubernetes v1.36, `pkg/kubelet/cm/cpumanager/policy_static.go`, `pkg/kubelet/cm/memorymanager/policy_static.go`,
`pkg/kubelet/cm/devicemanager/manager.go`.
"""

from collections.abc import Iterable, Mapping

from kaicore.errors import InvalidObject
from kaicore.rules.model.node import NodeTopology
from kaicore.rules.model.placement import ContainerPlacement, Placement
from kaicore.rules.model.pod import Amounts, Pod
from kaicore.rules.model.quantity import CPU, MEMORY, format_amount

#: Amounts by container, or by zone.
Limits = dict[str, Amounts]


def most_held(pod: Pod) -> Limits:
    """Return how much each container of a pod can hold; where the pod has resources of its own, any may have them."""
    shared = pod.pod_resources or {}
    return {
        container.name: {
            name: max(container.requests.get(name, 0), shared.get(name, 0))
            for name in sorted({*container.requests, *shared})
        }
        for container in pod.containers
    }


def zone_limits(topology: NodeTopology) -> Limits:
    """Return what each zone has of CPUs and memory, as far as its node publishes it."""
    return {
        zone.name: {name: zone.resources[name].capacity for name in (CPU, MEMORY) if name in zone.resources}
        for zone in topology.zones
    }


def impossible_holding(placement: Placement, *, subject: str, most: Limits, zones: Limits) -> InvalidObject | None:
    """Return what a record says that the pod cannot hold, naming pod, container or zone, and resource; None if nothing.

    Args:
        placement: the record. One that does not tell containers apart may count a device of several zones on each of
            them, so there only CPUs are summed over zones.
        subject: the pod, for the error.
        most: of its containers (`most_held`).
        zones: of its node (`zone_limits`); zones and resources that are not in it are not looked at.
    """
    in_zones: Limits = {}
    for container in placement.containers:
        name = container.container
        if name and name not in most:
            return InvalidObject(
                subject, f"containers[{name}]", name, f"is none of the pod's containers ({', '.join(most)})"
            )
        asked = most[name] if name else _summed(most.values())
        for resource, amount in sorted(_amounts(container).items()):
            limit = asked.get(resource, 0)
            if amount > limit:
                field = f"containers[{name}].{resource}" if name else f"placement.{resource}"
                who = "the container asks" if name else "the pod's containers ask"
                problem = f"{who} for {format_amount(resource, limit)} at most"
                return InvalidObject(subject, field, format_amount(resource, amount), problem)
        for zone in container.zones:
            into = in_zones.setdefault(zone.zone, {})
            for resource, amount in zone.amount.items():
                into[resource] = into.get(resource, 0) + amount
    for zone_name, held in sorted(in_zones.items()):
        for resource, limit in sorted(zones.get(zone_name, {}).items()):
            if held.get(resource, 0) > limit:
                value, problem = (
                    format_amount(resource, held[resource]),
                    f"the zone has {format_amount(resource, limit)}",
                )
                return InvalidObject(subject, f"{zone_name}.{resource}", value, problem)
    return None


def _summed(limits: Iterable[Mapping[str, int]]) -> Amounts:
    total: Amounts = {}
    for amounts in limits:
        for resource, amount in amounts.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def _amounts(container: ContainerPlacement) -> Amounts:
    """A container's holdings of each resource, every device and byte once as far as the record says."""
    total = _summed([*(zone.amount for zone in container.zones), *(span.amount for span in container.spans)])
    if container.container:
        return total
    spread = _summed(span.amount for span in container.spans)
    once = {
        resource: amount
        if resource == CPU
        else max((zone.amount.get(resource, 0) for zone in container.zones), default=0) + spread.get(resource, 0)
        for resource, amount in total.items()
    }
    return once | _summed(block.amount for block in container.blocks)
