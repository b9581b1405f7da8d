"""The kubelet's walk over a pod on one node: compute, admit and allocate one container after another.

Container scope looks at each container in order, init containers and sidecars first, and allocates it before the next.
Pod scope asks once, for the whole pod, and allocates its containers under that one mask. The Topology Manager merges
the hints of its providers for one container (or pod) into one mask, by one function per policy. Resources of an
ordinary init container are lent to the containers after it. CPUs and devices are counted, not identified (decision
0004). Where a manager refuses to allocate, the refusal has the kubelet's own case and message.

`admit` is exact for one node; `kaicore.rules.numa.screen` rules nodes out by the thousand.

Source: Kubernetes v1.36, `pkg/kubelet/cm/topologymanager/scope_container.go`, `scope_pod.go` and the file of each
policy, `pkg/kubelet/cm/devicemanager/manager.go`; v1.37, `pkg/kubelet/cm/cpumanager/policy_static.go`
(enforceSMTAlignment, validatePodScopeResources), `pkg/kubelet/cm/memorymanager/policy_static.go`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from kaicore.rules.model.node import TopologyPolicy
from kaicore.rules.model.pod import ContainerKind
from kaicore.rules.model.quantity import CPU, is_memory
from kaicore.rules.numa.kubelet import verdict
from kaicore.rules.numa.kubelet.cpu_packing import CoreCounts, distribute, pack
from kaicore.rules.numa.kubelet.masks import Hints, lowest_place, spread, zones_of
from kaicore.rules.numa.kubelet.memory_manager import MemoryBlock, redrawn, shrink
from kaicore.rules.numa.kubelet.requests import AlignedContainer, AlignedRequest
from kaicore.rules.numa.kubelet.zones import NodeDevices, NodeZones


class Merged(msgspec.Struct, frozen=True, gc=False):
    """The merged hint.

    Attributes:
        mask: zones to allocate from, 0 for any.
        preferred: whether every provider prefers it.
    """

    mask: int
    preferred: bool


#: A policy merges the hints; None where it refuses (`TopologyAffinityError`).
Evaluator = Callable[[NodeZones, Sequence[Hints]], Merged | None]


def single_numa_node(node: NodeZones, hints: Sequence[Hints]) -> Merged | None:
    """Return the lowest zone that every provider prefers alone (`policy_single_numa_node.go`).

    The mask of all zones says nothing: so it is on a node of one zone, or where no provider has an opinion.
    """
    if not hints:
        return Merged(0, preferred=True)
    table = node.table
    common = table.of_width[1]
    for hint in hints:
        common &= hint.preferred
    if not common:
        return None
    mask = table.masks[lowest_place(common)]
    return Merged(0 if mask == table.full else mask, preferred=True)


def restricted(node: NodeZones, hints: Sequence[Hints]) -> Merged | None:
    """Return a mask that every provider prefers (`policy_restricted.go`)."""
    table = node.table
    if not hints:
        return Merged(table.full, preferred=True)
    common = hints[0].preferred
    for hint in hints[1:]:
        common &= hint.preferred
    return Merged(best_mask(node, common), preferred=True) if common else None


def best_effort(node: NodeZones, hints: Sequence[Hints]) -> Merged | None:
    """Return what `restricted` does where that admits, otherwise the mask that comes nearest (`policy.go`).

    Nearest is measured by BestNonPreferredAffinityCount: as many zones as the neediest provider's narrowest hint; if
    none of the merged masks has so many, the next smaller number, or else the smallest.
    """
    aligned = restricted(node, hints)
    if aligned is not None:
        return aligned
    table = node.table
    overlaps, target = {table.full}, 0
    for hint in hints:
        if hint.feasible:
            masks = [mask for place, mask in enumerate(table.masks) if hint.feasible >> place & 1]
            target = max(target, masks[0].bit_count())
            overlaps = {one & other for one in overlaps for other in masks} - {0}
    if not overlaps:
        return Merged(table.full, preferred=False)
    fitting = [mask.bit_count() for mask in overlaps if mask.bit_count() <= target]
    width = max(fitting) if fitting else min(mask.bit_count() for mask in overlaps)
    among = 0
    for mask in overlaps:
        if mask.bit_count() == width:
            among |= 1 << table.places[mask]
    return Merged(best_mask(node, among), preferred=False)


def none(_node: NodeZones, _hints: Sequence[Hints]) -> Merged:
    """Merge nothing: the managers allocate where they like; they can still refuse."""
    return Merged(0, preferred=False)


def best_mask(node: NodeZones, masks: int) -> int:
    """Return a set's best mask: fewest zones, then (prefer-closest-numa-nodes) the closest, then the lowest value."""
    table = node.table
    place = lowest_place(masks)
    if node.settings.prefers_closest and node.distances:
        width = table.masks[place].bit_count()
        among = masks & table.of_width[width]
        places = [index for index in range(len(table)) if among >> index & 1]
        place = min(places, key=lambda index: (spread(node.distances, table.zones_of[index]), index))
    return table.masks[place]


EVALUATORS: dict[TopologyPolicy, Evaluator] = {
    TopologyPolicy.SINGLE_NUMA_NODE: single_numa_node,
    TopologyPolicy.RESTRICTED: restricted,
    TopologyPolicy.BEST_EFFORT: best_effort,
    TopologyPolicy.NONE: none,
}


#: What the memory manager says where no mask serves a container, or the container asks for no memory at all.
NO_MEMORY_HINT = (
    "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
)


class AllocationRefused(Exception):
    """A pod is refused, with a reason and message as in its status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


def unexpected(cause: str) -> AllocationRefused:
    """Return the refusal of a manager that cannot allocate."""
    return AllocationRefused(verdict.UNEXPECTED_ADMISSION, f"Allocate failed due to {cause}, which is unexpected")


def see_that_cores_are_whole(need: int, *, threads: int, whole: int) -> None:
    """See that CPUs can be given by whole cores (`full-pcpus-only`). Raises AllocationRefused: they cannot.

    Args:
        threads: CPUs per core.
        whole: CPUs that the node has free.
    """
    if need % threads:
        text = f"requested {need} cpus not multiple cpus per core = {threads}"
        raise AllocationRefused(verdict.SMT_ALIGNMENT, f"SMT Alignment Error: {text}")
    if need > whole:
        text = f"not enough free physical CPUs: available physical CPUs = {whole}"
        text += f", requested CPUs = {need}, CPUs per core = {threads}"
        raise AllocationRefused(verdict.SMT_ALIGNMENT, f"SMT Alignment Error: {text}")


def see_that_some_is_left(resources: Iterable[str], crowded: Collection[str]) -> None:
    """See that what the pod asks for as a whole leaves some to containers without a share.

    Raises AllocationRefused: of one of them nothing is left.

    Args:
        resources: that are allocated for the pod.
        crowded: of which containers with a share use up all.
    """
    for resource in resources:
        if resource in crowded:
            text = f"sum of exclusive container {resource} requests equals pod budget"
            raise AllocationRefused(
                verdict.EMPTY_POD_SHARED_POOL, f"pod rejected, {text}, leaving none for shared containers"
            )


_UNSEEN = verdict.Seen(-1)


def admit(
    node: NodeZones, request: AlignedRequest, *, seen: Mapping[str, verdict.Seen] | None = None
) -> verdict.Admitted | verdict.Rejected:
    """Tell what a node's kubelet makes of a pod.

    Args:
        node: its zones; used up.
        seen: by container, what the kubelet is known to have made of it.
    """
    return _Walk(node, request, seen or {}).run()


class _Walk:
    """One pod on one node."""

    def __init__(self, node: NodeZones, request: AlignedRequest, seen: Mapping[str, verdict.Seen]) -> None:
        self._node = node
        self._seen = seen
        self._table = node.table
        self._settings = node.settings
        self._merged_hints = EVALUATORS[node.settings.policy]
        self._request = request.on(node.settings)
        #: Under pod scope, what the pod's own resources leave nothing of to some of its containers.
        self._crowded = self._request.crowded if node.settings.pod_scope else frozenset()
        self._lent: dict[str, list[int]] = {}
        #: By mask and type, the bytes that init containers lend.
        self._lent_memory: dict[tuple[int, str], int] = {}
        #: By zone, what its CPUs can be, the likeliest first.
        self._cores: dict[int, list[CoreCounts]] = {}
        #: Resources of which it is open which zones gave them to earlier pods or containers.
        self._open: set[str] = set(node.uncertain)
        self._holdings: list[verdict.Holding] = []
        self._lends_cpus = self._request.lends_cpus

    def run(self) -> verdict.Admitted | verdict.Rejected:
        hints: list[Hints] = []
        asking = AlignedContainer("", ContainerKind.APP, self._request.pod)
        try:
            common = None
            if self._settings.pod_scope:
                hints = self._hints(asking.amounts)
                common = self._merge(hints, *self._seen.values())
            for container in self._request.allocated(pod_scope=self._settings.pod_scope):
                merged = common
                asking = container
                if merged is None:
                    hints = self._hints(container.amounts)
                    merged = self._merge(hints, self._seen.get(container.name, _UNSEEN))
                hints = []
                self._allocate(container, merged)
            if self._request.refused:
                raise AllocationRefused(verdict.POD_LEVEL_RESOURCES, "PodLevelResources feature gate is disabled")
        except AllocationRefused as error:
            lent = {resource: list(zones) for resource, zones in self._lent.items()}
            crowded = tuple(sorted(self._crowded))
            return verdict.Rejected(error.reason, error.message, asking, tuple(hints), self._node, lent, crowded)
        self._shrink_lenders()
        lent = {name: zones for name, zones in self._lent.items() if any(zones)}
        return verdict.Admitted(tuple(self._holdings), lent, self._perhaps())

    def _perhaps(self) -> dict[str, list[int]]:
        more = [0] * self._table.zones
        for zone, worlds in self._cores.items():
            more[zone] = 1000 * (max(world.lent for world in worlds) - worlds[0].lent)
        return {CPU: more} if any(more) else {}

    def _merge(self, hints: Sequence[Hints], *seen: verdict.Seen) -> Merged:
        masks = -1
        for earlier in seen:
            masks &= earlier.masks
        if masks != -1:
            hints = [Hints(one.resource, one.feasible & masks, one.preferred & masks, one.width) for one in hints]
        merged = self._merged_hints(self._node, hints)
        if merged is None:
            raise AllocationRefused(verdict.TOPOLOGY_AFFINITY, "Resources cannot be allocated with Topology locality")
        return merged

    # Hints.

    def _hints(self, amounts: tuple[tuple[str, int], ...]) -> list[Hints]:
        """One entry per provider that has an opinion."""
        hints = []
        memory: dict[str, int] = {}
        for resource, need in amounts:
            if is_memory(resource):
                memory[resource] = need
            elif resource == CPU:
                if self._settings.static_cpu:
                    hints.append(self._cpu_hints(need))
            elif resource in self._node.free:
                hints.append(self._device_hints(resource, need))
        if memory and self._settings.static_memory and self._crowded.intersection(memory):
            hints.append(Hints(next(iter(memory)), 0, 0, self._table.zones))
        elif memory and self._settings.static_memory:
            of_memory = self._node.memory.hints(self._table, memory, self._lent_memory)
            # No mask at all counts as no opinion; Allocate will fail.
            if of_memory.feasible:
                hints.append(of_memory)
        return hints

    def _cpu_hints(self, need: int) -> Hints:
        """`generateCPUTopologyHints`: the width counts all CPUs, reserved ones too; what is lent must be inside."""
        table = self._table
        if CPU in self._crowded:
            return Hints(CPU, 0, 0, table.zones)
        lent = self._lent.get(CPU) or [0] * table.zones
        width = table.first_width(table.reaching(self._node.capacity[CPU], need))
        available = [free + more for free, more in zip(self._node.free[CPU], lent, strict=True)]
        feasible = table.reaching(available, need) & table.with_all([zone for zone, more in enumerate(lent) if more])
        preferred = self._of_sockets(width) if self._settings.aligns_by_socket else table.of_width[width]
        return Hints(CPU, feasible, feasible & preferred, width)

    def _of_sockets(self, width: int) -> int:
        """The masks of `width` zones, and those on as few sockets as so many zones need."""
        per_socket, socket_masks = self._settings.zones_per_socket, self._table.of_width[width]
        for place, zones in enumerate(self._table.zones_of):
            if len({zone // per_socket for zone in zones}) == -(-width // per_socket):
                socket_masks |= 1 << place
        return socket_masks

    def _device_hints(self, resource: str, need: int) -> Hints:
        """`generateDeviceTopologyHints`: the width counts all devices; what is lent must be inside."""
        table, node = self._table, self._node
        lent = self._lent.get(resource) or [0] * table.zones
        capacity = node.capacity[resource]
        hosting = (1 << len(table)) - 1
        if self._settings.device_masks_are_of_hosting_zones:
            for zone, amount in enumerate(capacity):
                if not amount:
                    hosting &= ~table.containing[zone]
        shared = node.devices.get(resource)
        able, feasible = table.reaching(capacity, need), 0
        available = [free + more for free, more in zip(node.free[resource], lent, strict=True)]
        if shared is None or shared.total >= sum(capacity):
            feasible = table.reaching(available, need)
        else:
            # A device of several zones counts once for a mask, so a mask has at most what the node has.
            able = able if need <= shared.total else 0
            feasible = table.reaching(available, need) if need <= shared.free + sum(lent) else 0
        width = table.first_width(able & hosting) if able & hosting else sum(amount > 0 for amount in capacity)
        feasible &= hosting & table.with_all([zone for zone, more in enumerate(lent) if more])
        return Hints(resource, feasible, feasible & table.of_width[width], width)

    # Allocation, in the order of the providers: devices, CPUs, memory.

    def _allocate(self, container: AlignedContainer, merged: Merged) -> None:
        holding = verdict.Holding(container, merged.mask)
        self._holdings.append(holding)
        memory: dict[str, int] = {}
        cpus = 0
        for resource, need in container.amounts:
            if is_memory(resource):
                memory[resource] = need
            elif resource == CPU:
                cpus = need
            elif resource in self._node.free:
                self._take_devices(holding, resource, need)
        if cpus and self._settings.static_cpu:
            see_that_some_is_left((CPU,), self._crowded)
            self._take_cpus(holding, cpus)
        if memory and self._settings.static_memory:
            see_that_some_is_left(memory, self._crowded)
            self._take_memory(holding, memory, merged)
        elif self._request.asks_without_memory and self._settings.static_memory:
            if not merged.mask:
                raise unexpected(NO_MEMORY_HINT)
            self._see_that_groups_allow(merged.mask)

    def _take_devices(self, holding: verdict.Holding, resource: str, need: int) -> None:
        """Those lent first, then free ones of the mask, then of other zones, then those without a zone."""
        lent = self._lent.setdefault(resource, [0] * self._table.zones)
        shared = self._node.devices.get(resource)
        from_lent = _ascending(lent, range(len(lent)), need)
        left = need - sum(from_lent)
        whole = shared.free if shared is not None else self._node.whole(resource)
        if left > whole:
            raise unexpected(
                f"requested number of devices unavailable for {resource}. Requested: {left}, Available: {whole}"
            )
        drawn = self._drawn(holding, resource, need)
        if drawn is None:
            taken = self._choose_devices(holding, resource, need=need, left=left)
        else:
            from_lent = [min(amount, lent[zone]) for zone, amount in enumerate(drawn)]
            left = need - sum(from_lent)
            taken = [amount - again for amount, again in zip(drawn, from_lent, strict=True)]
        self._settle(holding, resource, taken, from_lent)
        if shared is not None:
            self._node.devices[resource] = NodeDevices(shared.total, shared.free - left)

    def _choose_devices(self, holding: verdict.Holding, resource: str, *, need: int, left: int) -> list[int]:
        lent, free = self._lent[resource], self._node.free[resource]
        inside = zones_of(holding.mask)
        taken = _ascending(free, inside, left)
        if len(inside) == 1 and taken[inside[0]] == left == need:
            self._note_choice(holding, resource, {inside[0]: free[inside[0]]}, left)
            return taken
        others = [zone for zone in range(len(free)) if zone not in inside]
        more = _ascending([free[zone] if zone in others else 0 for zone in range(len(free))], others, left - sum(taken))
        self._note_choice(holding, resource, {zone: lent[zone] for zone in range(len(lent))}, need - left)
        self._note_choice(holding, resource, {zone: free[zone] for zone in inside}, sum(taken))
        self._note_choice(holding, resource, {zone: free[zone] for zone in others}, left - sum(taken))
        return [one + other for one, other in zip(taken, more, strict=True)]

    def _drawn(self, holding: verdict.Holding, resource: str, need: int) -> list[int] | None:
        """Return from which zones a container is known to have drawn a resource, None if that is not known."""
        drawn = self._seen.get(holding.container.name, _UNSEEN).amounts.get(resource)
        if drawn is None or sum(drawn) != need:
            return None
        room = zip(drawn, self._node.free[resource], self._lent[resource], strict=True)
        if any(amount > max(free, 0) + lent for amount, free, lent in room):
            raise unexpected(f"the zones have not as much {resource} as was drawn from them")
        return list(drawn)

    def _note_choice(self, holding: verdict.Holding, resource: str, room: Mapping[int, int], part: int) -> None:
        """Note when the kubelet may take a part from one zone or another, or once did in this pod."""
        choices = sum(amount > 0 for amount in room.values())
        if part and choices > 1 and sum(room.values()) > part:
            self._open.add(resource)
        if part and resource in self._open:
            holding.uncertain.add(resource)

    def _take_cpus(self, holding: verdict.Holding, need: int) -> None:
        """As many as the mask has, the rest from anywhere (`policy_static.go` allocateCPUs)."""
        free = self._node.free[CPU]
        lent = self._lent.setdefault(CPU, [0] * self._table.zones)
        threads = self._settings.threads_per_core
        if self._settings.whole_cores_only:
            see_that_cores_are_whole(need // 1000, threads=threads, whole=self._node.whole(CPU) // 1000)
        available = [one + other for one, other in zip(free, lent, strict=True)]
        inside: Sequence[int] = zones_of(holding.mask)
        if self._settings.aligns_by_socket:
            sockets = {zone // self._settings.zones_per_socket for zone in inside}
            inside = [zone for zone in range(len(free)) if zone // self._settings.zones_per_socket in sockets]
        aligned = max(min(need, sum(available[zone] for zone in inside)), 0)
        whole = self._node.whole(CPU) + sum(lent)
        if need > whole:
            count = f"requested={(need - aligned) // 1000}, available={(whole - aligned) // 1000}"
            raise unexpected(f"not enough cpus available to satisfy request: {count}")
        drawn = self._drawn(holding, CPU, need)
        taken = drawn or [0] * len(free)
        for zones, part in () if drawn else ((inside, aligned), (range(len(free)), need - aligned)):
            if not part:
                continue
            room = {zone: available[zone] - taken[zone] for zone in zones if available[zone] > taken[zone]}
            self._note_choice(holding, CPU, room, part)
            for zone, amount in self._split(room, part, mask=holding.mask).items():
                taken[zone] += amount
        # The whole has it, and only what may be on one zone or another leaves no zone enough.
        taken[0] += need - sum(taken)
        if not self._lends_cpus:
            self._settle(holding, CPU, taken, [0] * len(taken))
            return
        from_lent = [self._from_lent(zone, amount, holding) for zone, amount in enumerate(taken)]
        taken = [amount - more for amount, more in zip(taken, from_lent, strict=True)]
        self._settle(holding, CPU, taken, from_lent)

    def _split(self, room: dict[int, int], part: int, *, mask: int) -> dict[int, int]:
        """Split CPUs over zones as the kubelet's options have it."""
        spreading, capacity = self._settings.spreading, self._node.capacity[CPU]
        if spreading is None:
            return pack(room, capacity, part, threads=self._settings.threads_per_core)
        if spreading.at_least:
            spreading = replace(spreading, at_least=mask.bit_count())
        return distribute(room, capacity, part, by=spreading)

    def _from_lent(self, zone: int, amount: int, holding: verdict.Holding) -> int:
        """The lent part of the CPUs that are taken of a zone."""
        if self._settings.threads_per_core != 2:
            return min(amount, self._lent[CPU][zone])
        if zone not in self._cores:
            self._cores[zone] = self._worlds(zone)
        likeliest, *others = self._cores[zone]
        # The kubelet has the CPUs that the walk takes, so a world that has too few is not the real one.
        worlds = self._cores[zone] = [likeliest, *(one for one in others if one.left >= amount // 1000)]
        lend = holding.container.kind is ContainerKind.INIT
        likely, *_ = [world.take(amount // 1000, lend=lend) for world in worlds]
        return 1000 * likely

    def _worlds(self, zone: int) -> list[CoreCounts]:
        """The possible CPUs of a zone; CPUs that earlier pods perhaps hold are free in some of the worlds only."""
        free = max(self._node.free[CPU][zone], 0) // 1000
        held = self._node.perhaps_held.get(CPU)
        least = max(free - held[zone] // 1000, 0) if held else free
        # A container that lends nothing breaks one core at most, and takes one that is broken at most.
        broken, most = self._node.broken[zone], len(self._request.containers) + 1
        return [
            world for left in range(free, least - 1, -1) for world in CoreCounts.worlds(left, broken=broken, most=most)
        ]

    def _settle(self, holding: verdict.Holding, resource: str, taken: list[int], from_lent: list[int]) -> None:
        lent, free = self._lent[resource], self._node.free[resource]
        init = holding.container.kind is ContainerKind.INIT
        for zone, (fresh, again) in enumerate(zip(taken, from_lent, strict=True)):
            free[zone] -= fresh
            # What an init container takes, and what it took over, is lent on; what others take over is lent no more.
            lent[zone] += fresh if init else -again
        if not init and (any(taken) or any(from_lent)):
            holding.amounts[resource] = [one + other for one, other in zip(taken, from_lent, strict=True)]

    def _take_memory(self, holding: verdict.Holding, needs: dict[str, int], merged: Merged) -> None:
        """From the mask, or from the best that contains it where it has too little (`policy_static.go` Allocate)."""
        memory = self._node.memory
        mask = self._memory_mask(needs, merged)
        self._see_that_groups_allow(mask)
        init = holding.container.kind is ContainerKind.INIT
        for resource, need in needs.items():
            lent = self._lent_memory.get((mask, resource), 0)
            drawn = memory.draw(resource, mask, max(need - lent, 0))
            self._lent_memory[mask, resource] = max(lent, need) if init else max(lent - need, 0)
            holding.blocks.append(MemoryBlock(resource, mask, need, init, drawn))

    def _see_that_groups_allow(self, mask: int) -> None:
        if self._settings.refuses_mixed_memory_groups and self._node.memory.conflicts(mask):
            raise unexpected("[memorymanager] preferred hint violates NUMA node allocation")

    def _memory_mask(self, needs: dict[str, int], merged: Merged) -> int:
        memory, table = self._node.memory, self._table
        mask, preferred = merged.mask, merged.preferred
        if not mask:
            hints = memory.hints(table, needs, self._lent_memory)
            if not hints.feasible:
                raise unexpected(NO_MEMORY_HINT)
            if preferred and not hints.preferred:
                raise unexpected("[memorymanager] failed to find the default preferred hint")
            mask = table.masks[lowest_place(hints.preferred or hints.feasible)]
            preferred = bool(hints.preferred)
        if memory.suffices(mask, needs):
            return mask
        hints = memory.hints(table, needs, self._lent_memory)
        wider = hints.feasible & table.with_all(zones_of(mask))
        if not wider:
            raise unexpected("[memorymanager] failed to find NUMA nodes to extend the current topology hint")
        if preferred and not wider & hints.preferred:
            raise unexpected("[memorymanager] failed to find the extended preferred hint")
        return table.masks[lowest_place(wider & hints.preferred or wider)]

    def _shrink_lenders(self) -> None:
        """An init container's block keeps what no later container took over of it."""
        for place, holding in enumerate(self._holdings):
            lenders = [item for item in self._holdings[:place] if item.container.kind is ContainerKind.INIT]
            for index in range(len(holding.blocks)):
                for lender in lenders:
                    block = holding.blocks[index]
                    reused = block.size - sum(amount for _, amount in block.drawn)
                    if reused:
                        moved = shrink(lender.blocks, block, reused)
                        holding.blocks[index] = redrawn(block, block.size, moved, sign=1)


def _ascending(free: Sequence[int], zones: Sequence[int], need: int) -> list[int]:
    """Take from zones in their order; whatever is missing stays missing."""
    taken = [0] * len(free)
    for zone in zones:
        part = max(min(need, free[zone]), 0)
        taken[zone] = part
        need -= part
    return taken
