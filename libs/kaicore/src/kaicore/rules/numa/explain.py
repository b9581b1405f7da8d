"""Why a kubelet would not admit a pod: which resource, on which zone, and how much is missing."""

from dataclasses import dataclass
from enum import StrEnum

from kaicore.rules.model.node import TopologyPolicy
from kaicore.rules.model.quantity import CPU, is_memory
from kaicore.rules.numa.verdict import SMT_ALIGNMENT, Refused


class NumaRefusal(StrEnum):
    """Why a pod cannot be aligned on a node.

    The first two no other pod's end will change: so it is even on an empty node.
    """

    NEVER_FITS = "NumaNeverFits"
    WIDTHS_DIFFER = "NumaWidthsDiffer"
    ZONE_SHORT = "NumaZoneShort"
    ZONES_APART = "NumaZonesApart"
    MEMORY_GROUPS = "NumaMemoryGroups"
    WHOLE_CORES = "NumaWholeCores"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One node's refusal.

    Attributes:
        resource: what is short, or what the detail speaks of first.
        zone: index of the zone that comes closest, -1 where no single zone is meant.
        need: how much the container needs of the resource.
        free: how much is free (for `NEVER_FITS`: installed) there.
        rejection: the reason that the kubelet would give.
        detail: for people.
    """

    code: NumaRefusal
    resource: str
    zone: int
    need: int
    free: int
    rejection: str
    detail: str = ""


def explain(refused: Refused) -> Refusal:
    """Explain a refusal in terms of what is free."""
    return _Explanation(refused).refusal()


class _Explanation:
    def __init__(self, refused: Refused) -> None:
        self._refused = refused
        self._node = refused.node
        self._needs = dict(refused.asking.amounts)
        self._single = refused.node.settings.policy is TopologyPolicy.SINGLE_NUMA_NODE

    def refusal(self) -> Refusal:
        hints, needs = self._refused.hints, self._needs
        if self._refused.reason == SMT_ALIGNMENT:
            return self._simple(NumaRefusal.WHOLE_CORES, CPU, self._refused.message)
        if not hints:
            return self._of_allocation()
        table = self._node.table
        allowed = table.of_width[1] if self._single else (1 << len(table)) - 1
        never = next((hint.resource for hint in hints if not self._could(hint.resource)), None)
        short = next((hint.resource for hint in hints if not hint.preferred & allowed), None)
        if never is not None:
            return self._at_zone(never, NumaRefusal.NEVER_FITS)
        if not self._single and len({hint.width for hint in hints}) > 1:
            widths = sorted({hint.width for hint in hints}, reverse=True)
            detail = " but ".join(
                f"{' and '.join(hint.resource for hint in hints if hint.width == width)} on {_zones(width)}"
                for width in widths
            )
            widest = max(hints, key=lambda hint: hint.width)
            return self._simple(NumaRefusal.WIDTHS_DIFFER, widest.resource, detail)
        if short is not None:
            return self._at_zone(short, NumaRefusal.ZONE_SHORT)
        detail = " and ".join(hint.resource for hint in hints)
        first = hints[0].resource if hints[0].resource in needs else next(iter(needs))
        return self._simple(NumaRefusal.ZONES_APART, first, f"{detail} are free, but not on the same zones")

    def _could(self, resource: str) -> bool:
        """Whether the zones, or for one zone the largest, have enough of a resource when no pod holds any."""
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
            return self._at_zone(memory, NumaRefusal.NEVER_FITS if never else NumaRefusal.ZONE_SHORT)
        resource = next((name for name in self._needs if name in self._refused.message), CPU)
        return self._at_zone(resource, NumaRefusal.ZONE_SHORT)

    def _simple(self, code: NumaRefusal, resource: str, detail: str) -> Refusal:
        return Refusal(code, resource, -1, self._needs.get(resource, 0), 0, self._refused.reason, detail)

    def _at_zone(self, resource: str, code: NumaRefusal) -> Refusal:
        """Name the resource of the provider that is really short, and the zone that has most of it."""
        joint = [name for name in self._needs if is_memory(name)] if is_memory(resource) else [resource]
        figures = []
        for name in joint:
            have = self._installed(name) if code is NumaRefusal.NEVER_FITS else self._free(name)
            zone = max(range(len(have)), key=lambda index: (have[index], -index))
            figures.append((have[zone] - self._needs.get(name, 0), name, zone, have[zone]))
        margin, resource, zone, free = min(figures)
        if margin >= 0 and code is NumaRefusal.ZONE_SHORT:
            code = NumaRefusal.MEMORY_GROUPS if is_memory(resource) else NumaRefusal.ZONES_APART
        need = self._needs.get(resource, 0)
        return Refusal(code, resource, zone, need, free, self._refused.reason, _DETAILS[code])


_DETAILS = {
    NumaRefusal.NEVER_FITS: "the largest zone is too small",
    NumaRefusal.ZONE_SHORT: "no zone has enough free",
    NumaRefusal.ZONES_APART: "free, but not on zones that may serve together",
    NumaRefusal.MEMORY_GROUPS: "enough is free, but the zones are grouped by other pods' memory",
}


def _zones(count: int) -> str:
    return f"{count} zone{'' if count == 1 else 's'}"
