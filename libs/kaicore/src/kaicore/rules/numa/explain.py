"""Explanation of a kubelet's refusal: the resource, the zone, and the missing amount.

The maximum that a pod can hold of zones. A placement record that exceeds it is rejected, wherever it comes from.

A kubelet never gives a container more of a resource than its spec asks for (CPU manager, `policy_static.go`; memory
manager; device manager, `devicesToAllocate`), and no zone gives more CPUs or memory than it has. The published number
of devices of a zone is not a maximum: publishers count healthy ones only, and a pod keeps one that has failed.

Source: Kubernetes v1.36, `pkg/kubelet/cm/cpumanager/policy_static.go`, `pkg/kubelet/cm/memorymanager/policy_static.go`,
`pkg/kubelet/cm/devicemanager/manager.go`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from kaicore.errors import InvalidObject
from kaicore.rules.events.reasons.base import plural
from kaicore.rules.events.reasons.numa import (
    NumaMemoryGroups,
    NumaNeverFits,
    NumaWholeCores,
    NumaWidthsDiffer,
    NumaZonesApart,
    NumaZoneShort,
)
from kaicore.rules.model.node import NodeTopology, TopologyPolicy
from kaicore.rules.model.placement import ContainerPlacement, Placement
from kaicore.rules.model.pod import Amounts, Pod
from kaicore.rules.model.quantity import CPU, MEMORY, add_amounts, format_amount, is_memory
from kaicore.rules.numa.kubelet.verdict import POD_LEVEL_RESOURCES, SMT_ALIGNMENT, Rejected

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
            add_amounts(in_zones.setdefault(zone.zone, {}), zone.amount, 1)
    for zone_name, held in sorted(in_zones.items()):
        for resource, limit in sorted(zones.get(zone_name, {}).items()):
            if held.get(resource, 0) > limit:
                problem = f"the zone has {format_amount(resource, limit)}"
                value = format_amount(resource, held[resource])
                return InvalidObject(subject, f"{zone_name}.{resource}", value, problem)
    return None


def _summed(limits: Iterable[Mapping[str, int]]) -> Amounts:
    total: Amounts = {}
    for amounts in limits:
        add_amounts(total, amounts, 1)
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


AlignmentReason: TypeAlias = (
    NumaNeverFits | NumaWidthsDiffer | NumaZoneShort | NumaZonesApart | NumaMemoryGroups | NumaWholeCores
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One node's refusal.

    Attributes:
        resource: what is short, or what the explanation speaks of first.
        zone: index of the zone that comes closest, -1 where no single zone is meant.
        requested: how much the container requests of the resource.
        available: how much of it is free there; for `NumaNeverFits`, how much is installed.
        rejection: the reason that the kubelet would give.
    """

    kind: type[AlignmentReason]
    resource: str
    zone: int
    requested: int
    available: int
    rejection: str
    explanation: str = ""

    def on_empty_node(self) -> "Refusal":
        """Return it as the refusal of a node that has no pods: it lasts."""
        return self if self.kind is NumaWidthsDiffer else replace(self, kind=NumaNeverFits)

    def reason(self, *, nodes: int, example: str, zone_names: Sequence[str], gap: str = "") -> AlignmentReason:
        """Return it as the reason of nodes.

        Args:
            nodes: how many nodes refuse for it.
            gap: what is not known of that node; empty if nothing.
        """
        explanation = ", ".join(part for part in (self.explanation, gap) if part)
        zone = zone_names[self.zone] if self.zone >= 0 else ""
        fields: dict[str, Any] = {
            "nodes": nodes,
            "example": example,
            "resource": self.resource,
            "requested": self.requested,
            "rejection": self.rejection,
        }
        kind = self.kind
        if kind is NumaWidthsDiffer:
            return NumaWidthsDiffer(**fields, widths=explanation)
        if kind is NumaWholeCores:
            return NumaWholeCores(**fields, message=explanation)
        if kind is NumaNeverFits:
            return NumaNeverFits(**fields, zone=zone, installed=self.available, explanation=explanation)
        fields |= {"zone": zone, "free": self.available, "explanation": explanation}
        return kind(**fields)


def explain(refused: Rejected) -> Refusal:
    """Explain a refusal in terms of what is free."""
    return _Explanation(refused).refusal()


class _Explanation:
    def __init__(self, refused: Rejected) -> None:
        self._refused = refused
        self._node = refused.node
        self._needs = dict(refused.asking.amounts)
        self._single = refused.node.settings.policy is TopologyPolicy.SINGLE_NUMA_NODE

    def refusal(self) -> Refusal:
        hints, needs = self._refused.hints, self._needs
        if self._refused.reason == SMT_ALIGNMENT:
            return self._simple(NumaWholeCores, CPU, self._refused.message)
        if self._refused.reason == POD_LEVEL_RESOURCES:
            return self._simple(NumaNeverFits, next(iter(needs), CPU), _REFUSED)
        if self._refused.crowded and (not hints or any(hint.resource in self._refused.crowded for hint in hints)):
            resource = self._refused.crowded[0]
            asked = self._needs.get(resource, 0)
            return Refusal(NumaNeverFits, resource, -1, asked, asked, self._refused.reason, _CROWDED)
        if not hints:
            return self._of_allocation()
        table = self._node.table
        allowed = table.of_width[1] if self._single else (1 << len(table)) - 1
        never = next((hint.resource for hint in hints if not self._could(hint.resource)), None)
        short = next((hint.resource for hint in hints if not hint.preferred & allowed), None)
        if never is not None:
            return self._at_zone(never, NumaNeverFits)
        if not self._single and len({hint.width for hint in hints}) > 1:
            widths = sorted({hint.width for hint in hints}, reverse=True)
            detail = " but ".join(
                f"{' and '.join(hint.resource for hint in hints if hint.width == width)} on {plural(width, 'zone')}"
                for width in widths
            )
            widest = max(hints, key=lambda hint: hint.width)
            return self._simple(NumaWidthsDiffer, widest.resource, detail)
        if short is not None:
            return self._at_zone(short, NumaZoneShort)
        detail = " and ".join(hint.resource for hint in hints)
        first = hints[0].resource if hints[0].resource in needs else next(iter(needs))
        return self._simple(NumaZonesApart, first, f"{detail} are free, but not on the same zones")

    def _could(self, resource: str) -> bool:
        """True if the zones, or for one zone the largest, have enough of a resource when no pod holds any."""
        joint = [name for name in self._needs if is_memory(name)] if is_memory(resource) else [resource]
        for name in joint:
            have = self._installed(name)
            if (max(have) if self._single else sum(have)) < self._needs[name]:
                return False
        return True

    def _installed(self, resource: str) -> list[int]:
        if is_memory(resource):
            return self._node.memory.allocatable.get(resource, [0] * self._node.zones)
        return self._node.capacity[resource]

    def _free(self, resource: str) -> list[int]:
        if is_memory(resource):
            free = self._node.memory.free.get(resource, [0] * self._node.zones)
        else:
            free = self._node.free[resource]
        lent = self._refused.lent.get(resource) or [0] * self._node.zones
        return [max(amount + more, 0) for amount, more in zip(free, lent, strict=True)]

    def _of_allocation(self) -> Refusal:
        """The hints were merged, or there were none; a manager could not allocate what was asked."""
        memory = next((name for name in self._needs if is_memory(name)), None)
        if "[memorymanager]" in self._refused.message and memory is not None:
            never = not self._could(memory)
            return self._at_zone(memory, NumaNeverFits if never else NumaZoneShort)
        if "[memorymanager]" in self._refused.message:
            return self._simple(NumaZonesApart, MEMORY, _NO_MEMORY)
        resource = next((name for name in self._needs if name in self._refused.message), CPU)
        return self._at_zone(resource, NumaZoneShort)

    def _simple(self, kind: type[AlignmentReason], resource: str, detail: str) -> Refusal:
        return Refusal(kind, resource, -1, self._needs.get(resource, 0), 0, self._refused.reason, detail)

    def _at_zone(self, resource: str, kind: type[AlignmentReason]) -> Refusal:
        """Name the resource of the provider that is really short, and the zone that has most of it."""
        joint = [name for name in self._needs if is_memory(name)] if is_memory(resource) else [resource]
        figures = []
        for name in joint:
            have = self._installed(name) if kind is NumaNeverFits else self._free(name)
            zone = max(range(len(have)), key=lambda index: (have[index], -index))
            figures.append((have[zone] - self._needs.get(name, 0), name, zone, have[zone]))
        margin, resource, zone, free = min(figures)
        if margin >= 0 and kind is NumaZoneShort:
            kind = NumaMemoryGroups if is_memory(resource) else NumaZonesApart
        need = self._needs.get(resource, 0)
        return Refusal(kind, resource, zone, need, free, self._refused.reason, _EXPLANATIONS[kind])


_CROWDED = "its containers use up what the pod asks for as a whole, and leave nothing to those without a share"

_REFUSED = "its kubelet takes no pods with resources of their own (gate PodLevelResources)"

_NO_MEMORY = (
    "the pod has resources of its own, which its kubelet's memory manager does not know, or not well: the memory "
    "manager refuses a container that asks for none"
)

_EXPLANATIONS: dict[type[AlignmentReason], str] = {
    NumaNeverFits: "the largest zone is too small",
    NumaZoneShort: "no zone has enough free",
    NumaZonesApart: "free, but not on zones that may serve together",
    NumaMemoryGroups: "enough is free, but the zones are grouped by other pods' memory",
}
