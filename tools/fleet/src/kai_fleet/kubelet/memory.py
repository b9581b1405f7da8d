"""The memory manager: memory and hugepages of Guaranteed pods, in groups of zones (`memorymanager/policy_static.go`).

A zone that serves a single-zone allocation cannot be part of a wider one, and a zone in a group serves that group
alone; groups end when the last assignment on a zone ends. A wide block is drawn from its zones in ascending order. It
is given back in ascending order to the reservations there, not to the zones that it came from. So the state depends on
the order of everything that happened.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kai_fleet.kubelet.hints import Affinity, Hints, narrow
from kai_fleet.kubelet.machine import KubeletConfig, Machine, is_memory_type, members, nonempty_subsets
from kai_fleet.kubelet.pod import Container, Pod, allocation_failed


@dataclass(slots=True)
class Block:
    """A piece of one memory type that a container holds in a set of zones, in bytes."""

    type: str
    zones: int
    size: int


@dataclass(slots=True)
class ZoneMemory:
    """The manager's record of one zone."""

    #: Type → bytes for pods.
    allocatable: dict[str, int]
    #: Type → bytes not promised to a container.
    free: dict[str, int]
    #: How many blocks include this zone.
    assignments: int
    #: The group of zones it serves now; just itself when it is in none.
    cells: int


def allocatable_of_zone(machine: Machine, config: KubeletConfig, zone: int) -> dict[str, int]:
    """Bytes by type that pods can have of a zone: what is there less reserved; `memory` less hugepages too."""
    total = dict(machine.zone_memory[zone])
    if "memory" in total:
        total["memory"] -= sum(size for kind, size in total.items() if kind != "memory")
    reserved = config.reserved_memory[zone] if zone < len(config.reserved_memory) else {}
    return {kind: max(0, size - reserved.get(kind, 0)) for kind, size in total.items()}


@dataclass(slots=True)
class MemoryManager:
    """The static policy's state; with policy None it has no opinion and allocates nothing."""

    machine: Machine
    config: KubeletConfig
    zones: list[ZoneMemory] = field(default_factory=list)
    #: uid → container → blocks.
    assigned: dict[str, dict[str, list[Block]]] = field(default_factory=dict)
    #: (zones, type) → bytes that the init containers of one pod lend.
    _reusable: dict[tuple[int, str], int] = field(default_factory=dict)
    _reusable_uid: str = ""

    def __post_init__(self) -> None:
        for zone in range(self.machine.zones):
            allocatable = allocatable_of_zone(self.machine, self.config, zone)
            self.zones.append(ZoneMemory(allocatable, dict(allocatable), assignments=0, cells=1 << zone))

    def _handles(self, pod: Pod) -> bool:
        return self.config.static_memory and pod.qos == "Guaranteed" and not pod.has_pod_level_resources

    def container_hints(self, pod: Pod, container: Container) -> Hints | None:
        """Hints for all memory types of one container together; None also when *no* set of zones would do.

        That is not a veto (facts row 5): the topology manager takes an empty answer for indifference, and Allocate
        fails.
        """
        return self._hints(pod, _requests(container)) if self._handles(pod) else None

    def pod_hints(self, pod: Pod) -> Hints | None:
        """The same for the pod as a whole."""
        return self._hints(pod, pod.total(_requests)) if self._handles(pod) else None

    def _hints(self, pod: Pod, requested: Mapping[str, int]) -> Hints | None:
        hints = self._candidates(pod, requested)
        return hints if hints.masks else None

    def _candidates(self, pod: Pod, requested: Mapping[str, int]) -> Hints:
        """Every set of zones that can serve the request: by groups, then by free amounts of all types jointly."""
        reusable = self._reusable if self._reusable_uid == pod.uid else {}
        width = len(self.zones)
        masks: list[int] = []
        for mask in nonempty_subsets(self.machine.all_zones):
            zones = [self.zones[zone] for zone in members(mask)]
            if any(sum(z.allocatable.get(t, 0) for z in zones) < size for t, size in requested.items()):
                continue
            width = min(width, mask.bit_count())
            if mask & (mask - 1) == 0:
                if zones[0].cells != mask:
                    continue
            elif _breaks_groups(zones, mask):
                continue
            if all(
                sum(z.free.get(t, 0) for z in zones) + reusable.get((mask, t), 0) >= size
                for t, size in requested.items()
            ):
                masks.append(mask)
        return Hints(tuple(masks), tuple(mask for mask in masks if mask.bit_count() == width))

    def allocate(self, pod: Pod, container: Container, affinity: Affinity) -> None:
        """Give the container its memory in the zones of the affinity, widened when they have too little.

        Raises AdmissionError: no zones will do, or not as preferred as the topology manager was promised.
        """
        if not self._handles(pod):
            return
        requested = _requests(container)
        mask = self._zones_for(pod, requested, affinity)
        if mask & (mask - 1) and _breaks_groups([self.zones[zone] for zone in members(mask)], mask):
            raise allocation_failed("[memorymanager] preferred hint violates NUMA node allocation")
        if self._reusable_uid != pod.uid:
            self._reusable, self._reusable_uid = {}, pod.uid
        blocks = [Block(kind, mask, size) for kind, size in sorted(requested.items())]
        for block in blocks:
            lent = self._reusable.get((mask, block.type), 0)
            self._draw(mask, block.type, max(0, block.size - lent))
            if container.kind == "init":
                self._reusable[mask, block.type] = max(lent, block.size)
            else:
                self._reusable[mask, block.type] = max(0, lent - block.size)
        held = self.assigned.setdefault(pod.uid, {})
        held[container.name] = blocks
        for block in blocks:
            self._take_over(pod, container, held, block)

    def _zones_for(self, pod: Pod, requested: Mapping[str, int], affinity: Affinity) -> int:
        mask, preferred = affinity.mask, affinity.preferred
        if mask is None:
            hints = self._candidates(pod, requested)
            if not hints.masks:
                raise allocation_failed(
                    "[memorymanager] failed to get the default NUMA affinity, "
                    "no NUMA nodes with enough memory is available"
                )
            mask = min(hints.preferred or hints.masks, key=narrow)
            if affinity.preferred and not hints.preferred:
                raise allocation_failed("[memorymanager] failed to find the default preferred hint")
            preferred = bool(hints.preferred)
        zones = [self.zones[zone] for zone in members(mask)]
        if all(sum(z.free.get(kind, 0) for z in zones) >= size for kind, size in requested.items()):
            return mask
        hints = self._candidates(pod, requested)
        wider = [other for other in hints.masks if other & mask == mask]
        if not wider:
            raise allocation_failed("[memorymanager] failed to find NUMA nodes to extend the current topology hint")
        best = [other for other in wider if other in hints.preferred]
        if preferred and not best:
            raise allocation_failed("[memorymanager] failed to find the extended preferred hint")
        return min(best or wider, key=narrow)

    def _draw(self, mask: int, kind: str, size: int) -> None:
        for number in members(mask):
            zone = self.zones[number]
            zone.assignments += 1
            zone.cells = mask
            taken = min(size, zone.free.get(kind, 0))
            if taken:
                zone.free[kind] -= taken
                size -= taken

    @staticmethod
    def _take_over(pod: Pod, container: Container, held: dict[str, list[Block]], block: Block) -> None:
        """Shrink blocks of earlier init containers by what `block` re-uses of them."""
        size = block.size
        for earlier in pod.containers:
            if earlier.name == container.name or not size:
                return
            if earlier.kind != "init":
                continue
            for lent in held.get(earlier.name, ()):
                if lent.type == block.type and lent.zones == block.zones:
                    reused = min(lent.size, size)
                    lent.size -= reused
                    size -= reused

    def release_container(self, uid: str, container: str) -> None:
        """Give back what one container holds."""
        held = self.assigned.get(uid)
        if held is None or container not in held:
            return
        for block in held.pop(container):
            self._give_back(block)
        if not held:
            del self.assigned[uid]

    def release(self, uid: str) -> None:
        """Give back what a pod holds."""
        for blocks in self.assigned.pop(uid, {}).values():
            for block in blocks:
                self._give_back(block)

    def _give_back(self, block: Block) -> None:
        size = block.size
        for number in members(block.zones):
            zone = self.zones[number]
            zone.assignments -= 1
            if not zone.assignments:
                zone.cells = 1 << number
            returned = min(size, zone.allocatable.get(block.type, 0) - zone.free.get(block.type, 0))
            if returned:
                zone.free[block.type] += returned
                size -= returned


def _requests(container: Container) -> dict[str, int]:
    return {resource: amount for resource, amount in container.requests.items() if is_memory_type(resource)}


def _breaks_groups(zones: list[ZoneMemory], mask: int) -> bool:
    """True if a zone of a wide mask is in use in another way: alone, or in another group."""
    return any(zone.assignments and zone.cells != mask for zone in zones)
