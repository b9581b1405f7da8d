"""The CPU manager: exclusive CPUs for containers of Guaranteed pods (`cpumanager/policy_static.go`).

Assignment of CPUs to a container, as in the static CPU manager (`cpumanager/cpu_assignment.go`).

*Packed*: whole zones and sockets while they fit, then whole cores, then threads; units that are already broken come
first.
*Distributed* (option distribute-cpus-across-numa): as evenly as possible over the fewest zones that allow it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from kai_fleet.kubelet.hints import Affinity, Hints
from kai_fleet.kubelet.machine import CpuTopology, KubeletConfig, Machine, lowest
from kai_fleet.kubelet.pod import Container, Pod, allocation_failed, smt_alignment


class NotEnoughCpus(Exception):
    """Fewer CPUs are available than requested."""

    def __init__(self, requested: int, available: int) -> None:
        super().__init__(f"not enough cpus available to satisfy request: requested={requested}, available={available}")


def packed(topology: CpuTopology, available: int, count: int, *, align_uncore: bool = False) -> int:
    """Return `count` CPUs out of `available`, packed; `align_uncore` is option prefer-align-cpus-by-uncorecache.

    Raises NotEnoughCpus: there are fewer.
    """
    if count == 0:
        return 0
    if available.bit_count() < count:
        raise NotEnoughCpus(count, available.bit_count())
    taking = _Taking(topology, available, count)
    if topology.zones_first:
        taking.take_zones()
        taking.take_sockets()
    else:
        taking.take_sockets()
        taking.take_zones()
    if taking.needed and align_uncore:
        taking.take_uncore_caches()
    if taking.needed:
        taking.take_whole(taking.cores(), taking.available)
    if taking.needed:
        taking.take_threads()
    return taking.taken


def _broken_first(units: Iterable[int], available: int) -> list[int]:
    """The units with something available, those with the least first; ties by id, which is the order given."""
    return sorted((unit for unit in units if unit & available), key=lambda unit: (unit & available).bit_count())


@dataclass(slots=True)
class _Taking:
    """An assignment in progress."""

    topology: CpuTopology
    available: int
    needed: int
    taken: int = 0

    def take(self, cpus: int) -> None:
        self.taken |= cpus
        self.available &= ~cpus
        self.needed -= cpus.bit_count()

    def take_whole(self, units: Iterable[int], available: int) -> None:
        """Take each unit that was entirely available and is not more than is needed."""
        for unit in units:
            if unit & available == unit and unit.bit_count() <= self.needed:
                self.take(unit)

    def take_zones(self) -> None:
        zones = self.topology.zones
        if any(zone.bit_count() <= self.needed for zone in zones):
            self.take_whole([zones[zone] for zone in self.zones()], self.available)

    def take_sockets(self) -> None:
        """Take whole sockets; one counts as whole when it has as many available CPUs as sockets have on average.

        With sockets of unequal size that is wrong, and hands out a reserved CPU, but it is what `isSocketFree` does.
        """
        topology, available = self.topology, self.available
        average = topology.all.bit_count() // len(topology.sockets)
        if average > self.needed:
            return
        for socket in self.sockets():
            cpus = topology.sockets[socket]
            if (cpus & available).bit_count() == average and cpus.bit_count() <= self.needed:
                self.take(cpus)

    def take_threads(self) -> None:
        for core in self.cores():
            self.take(lowest(core & self.available, self.needed))
            if not self.needed:
                return

    def cores(self) -> list[int]:
        """Cores with something available, in the order of the coarser units they are in, then broken ones first."""
        topology, available = self.topology, self.available
        if topology.zones_first:
            parts: Iterable[Sequence[int]] = (topology.cores_of_socket[socket] for socket in self.sockets())
        else:
            parts = (topology.cores_of_zone[zone] for zone in self.zones())
        return [core for cores in parts for core in _broken_first(cores, available)]

    def take_uncore_caches(self) -> None:
        """Whole last-level caches, then as much of one as is still needed; without cache data a cache is a socket."""
        order = self.sockets()
        caches = [self.topology.sockets[socket] for socket in order]
        threads = self.topology.threads_per_core
        for socket in order:
            self.take_whole(caches, self.available)
            if not self.needed:
                return
            cores = -(-self.needed // threads)
            free = 0
            for core in self.topology.cores_of_socket[socket]:
                if core & self.available and cores:
                    free |= core & self.available
                    cores -= 1
            if self.needed % 2 and threads > 1 and free.bit_count() > self.needed:
                free = lowest(free, free.bit_count() - 1)
            if free.bit_count() == self.needed:
                self.take(free)
                return

    def zones(self) -> list[int]:
        """Zones with something available: socket by socket when a socket holds several; the least first."""
        topology = self.topology
        if topology.zones_first:
            return self._least_first(topology.zones, range(len(topology.zones)))
        return [
            zone
            for socket in self._least_first(topology.sockets, range(len(topology.sockets)))
            for zone in self._least_first(topology.zones, topology.zones_of_socket[socket])
        ]

    def sockets(self) -> list[int]:
        """Sockets with something available: zone by zone when a zone holds several; the least first."""
        topology = self.topology
        if not topology.zones_first:
            return self._least_first(topology.sockets, range(len(topology.sockets)))
        return [
            socket
            for zone in self._least_first(topology.zones, range(len(topology.zones)))
            for socket in self._least_first(topology.sockets, topology.sockets_of_zone[zone])
        ]

    def _least_first(self, units: Sequence[int], chosen: Iterable[int]) -> list[int]:
        available = self.available
        counted = [((units[index] & available).bit_count(), index) for index in chosen if units[index] & available]
        return [index for _, index in sorted(counted)]


def distributed(topology: CpuTopology, available: int, count: int, *, group: int = 1) -> int:
    """Return `count` CPUs out of `available`, spread evenly over zones in multiples of `group` CPUs.

    Raises NotEnoughCpus: there are fewer.
    """
    if count % group:
        return packed(topology, available, count)
    if available.bit_count() < count:
        raise NotEnoughCpus(count, available.bit_count())
    if count == 0:
        return 0
    free = {zone: (cpus & available).bit_count() for zone, cpus in enumerate(topology.zones) if cpus & available}
    order = _Taking(topology, available, count).zones()
    for width in _widths(topology, needed_groups=-(-count // group), zones_available=len(free), group=group):
        spread = _best_spread(free, order, width=width, count=count, group=group)
        if spread is not None:
            return _hand_out(topology, available, spread, group=group)
    return packed(topology, available, count)


@dataclass(frozen=True, slots=True)
class _Spread:
    """So many CPUs from each of `zones`, and `remainder` more in groups, round robin from `remainder_zones`."""

    zones: tuple[int, ...]
    each: int
    remainder: int
    remainder_zones: tuple[int, ...]


def _widths(topology: CpuTopology, *, needed_groups: int, zones_available: int, group: int) -> range:
    groups = math.ceil(topology.all.bit_count() / group)
    groups_per_zone = math.ceil(groups / len(topology.zones))
    return range(-(-needed_groups // groups_per_zone), min(needed_groups, zones_available) + 1)


def _best_spread(free: dict[int, int], order: list[int], *, width: int, count: int, group: int) -> _Spread | None:
    """The spread over `width` zones after which the zones' free CPUs are the most alike; the first such in order."""
    best: _Spread | None = None
    best_balance = math.inf
    for zones in combinations(order, width):
        if best_balance == 0:
            break
        each = count // width // group * group
        if sum(free[zone] // group for zone in zones) * group < count or any(free[zone] < each for zone in zones):
            continue
        left = {zone: amount - each if zone in zones else amount for zone, amount in free.items()}
        remainder = count - each * width
        candidates = tuple(zone for zone in zones if left[zone] >= group)
        if remainder == 0:
            options: list[tuple[int, ...]] = [()]
        else:
            options = [
                subset for size in range(len(candidates), 0, -1) for subset in combinations(candidates, size)
                if sum(left[zone] for zone in subset) >= remainder
            ]  # fmt: skip
        for subset in options:
            balance = _deviation(_after_remainder(left, subset, remainder, group))
            if balance < best_balance:
                best_balance = balance
                best = _Spread(zones, each, remainder, subset)
    return best


def _after_remainder(left: dict[int, int], subset: tuple[int, ...], remainder: int, group: int) -> Iterable[int]:
    after = dict(left)
    while remainder > 0:
        before = remainder
        for zone in subset:
            if remainder > 0 and after[zone] >= group:
                after[zone] -= group
                remainder -= group
        if remainder == before:
            break
    return after.values()


def _deviation(values: Iterable[int]) -> float:
    """Standard deviation; mean and result are rounded to thousandths, as the kubelet does before comparing."""
    numbers = list(values)
    mean = _thousandths(sum(numbers) / len(numbers))
    return _thousandths(math.sqrt(sum((number - mean) ** 2 for number in numbers) / len(numbers)))


def _thousandths(value: float) -> float:
    return math.floor(value * 1000 + 0.5) / 1000


def _hand_out(topology: CpuTopology, available: int, spread: _Spread, *, group: int) -> int:
    taken = 0
    for zone in spread.zones:
        taken |= packed(topology, topology.zones[zone] & available & ~taken, spread.each)
    remainder = spread.remainder
    while remainder > 0:
        for zone in spread.remainder_zones:
            free = topology.zones[zone] & available & ~taken
            if remainder > 0 and free.bit_count() >= group:
                taken |= packed(topology, free, group)
                remainder -= group
    return taken


def exclusive_cpus(pod: Pod, container: Container) -> int:
    """The number of CPUs of the container alone: an integral request in a Guaranteed pod, otherwise none.

    With pod-level resources none either, as long as feature PodLevelResourceManagers is off (its default).
    """
    if pod.qos != "Guaranteed" or pod.has_pod_level_resources:
        return 0
    cpus, fraction = divmod(container.requests.get("cpu", 0), 1000)
    return 0 if fraction else cpus


@dataclass(slots=True)
class CpuManager:
    """The static policy's state; with policy none it has no opinion and allocates nothing."""

    machine: Machine
    config: KubeletConfig
    #: uid → container → exclusive CPUs.
    assigned: dict[str, dict[str, int]] = field(default_factory=dict)
    #: CPUs that no container has to itself, reserved ones included.
    shared: int = 0
    _reusable: int = 0
    _reusable_uid: str = ""

    def __post_init__(self) -> None:
        self.shared = self.machine.cpus.all

    @property
    def free(self) -> int:
        """CPUs that can be given away."""
        return self.shared & ~self.config.reserved_cpus

    def container_hints(self, pod: Pod, container: Container) -> Hints | None:
        """Hints for one container."""
        return self._hints(pod, exclusive_cpus(pod, container))

    def pod_hints(self, pod: Pod) -> Hints | None:
        """Hints for the pod as a whole: only integral requests are summed."""
        if pod.qos != "Guaranteed":
            return None
        return self._hints(pod, pod.total(lambda c: {"cpu": exclusive_cpus(pod, c)}).get("cpu", 0))

    def _hints(self, pod: Pod, requested: int) -> Hints | None:
        if not requested or not self.config.static_cpus:
            return None
        topology = self.machine.cpus
        reusable = self._reusable if self._reusable_uid == pod.uid else 0
        free = self.free | reusable
        width = self.machine.zones
        masks: list[int] = []
        for mask, cpus in topology.in_zones.items():
            # The width counts every CPU of the zones, reserved ones too; what an init container lends must be inside.
            if mask.bit_count() < width and cpus.bit_count() >= requested:
                width = mask.bit_count()
            if not reusable & ~cpus and (free & cpus).bit_count() >= requested:
                masks.append(mask)
        return Hints(tuple(masks), tuple(mask for mask in masks if self._is_preferred(mask, width)))

    def _is_preferred(self, mask: int, width: int) -> bool:
        if mask.bit_count() == width:
            return True
        if "align-by-socket" not in self.config.cpu_options:
            return False
        topology = self.machine.cpus
        zones_per_socket = self.machine.zones // self.machine.sockets
        if zones_per_socket == 0:
            return False
        sockets = sum(1 for zones in topology.zones_of_socket if any(mask >> zone & 1 for zone in zones))
        return sockets == -(-width // zones_per_socket)

    def allocate(self, pod: Pod, container: Container, affinity: Affinity) -> None:
        """Give the container its CPUs: those inside the affinity first, the rest from anywhere.

        Raises AdmissionError: there are not enough, or not in whole cores under full-pcpus-only.
        """
        count = exclusive_cpus(pod, container) if self.config.static_cpus else 0
        if not count:
            return
        self._check_whole_cores(count)
        if self._reusable_uid != pod.uid:
            self._reusable, self._reusable_uid = 0, pod.uid
        allocatable = self.free | self._reusable
        taken = 0
        try:
            if affinity.mask is not None:
                aligned = allocatable & self._aligned(affinity.mask)
                taken = self._take(aligned, min(count, aligned.bit_count()))
            taken |= self._take(allocatable & ~taken, count - taken.bit_count())
        except NotEnoughCpus as error:
            raise allocation_failed(str(error)) from error
        self.shared &= ~taken
        self.assigned.setdefault(pod.uid, {})[container.name] = taken
        if container.kind == "init":
            self._reusable |= taken
        else:
            self._reusable &= ~taken

    def _check_whole_cores(self, count: int) -> None:
        if "full-pcpus-only" not in self.config.cpu_options:
            return
        threads = self.machine.threads_per_core
        if count % threads:
            raise smt_alignment(count, threads_per_core=threads)
        free = (self.shared & ~self.machine.cpus.whole_cores(self.config.reserved_cpus)).bit_count()
        if count > free:
            raise smt_alignment(count, threads_per_core=threads, free_physical_cpus=free)

    def _aligned(self, mask: int) -> int:
        by_socket = "align-by-socket" in self.config.cpu_options
        return (self.machine.cpus.on_sockets_of if by_socket else self.machine.cpus.in_zones)[mask]

    def _take(self, cpus: int, count: int) -> int:
        topology, options = self.machine.cpus, self.config.cpu_options
        if "distribute-cpus-across-numa" in options:
            group = self.machine.threads_per_core if "full-pcpus-only" in options else 1
            return distributed(topology, cpus, count, group=group)
        return packed(topology, cpus, count, align_uncore="prefer-align-cpus-by-uncorecache" in options)

    def restore(self, uid: str, container: str, cpus: int) -> None:
        """Take up an assignment from a checkpoint."""
        self.assigned.setdefault(uid, {})[container] = cpus
        self.shared &= ~cpus

    def release(self, uid: str) -> None:
        """Return all CPUs of a pod to the shared pool."""
        for cpus in self.assigned.pop(uid, {}).values():
            self.shared |= cpus
