"""A node's hardware topology and its kubelet's configuration. Shared by all nodes that are alike.

Zones (NUMA nodes) are numbered from 0 without gaps; sets of zones, CPUs and devices are bit sets. Millicores, bytes,
counts.

Sets of small integers (CPU ids, zones, devices of one resource) as the bits of an int.

Set algebra is then integer arithmetic and a size is `int.bit_count()`, which is what lets one process hold a thousand
kubelets.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Literal


def bits(numbers: Iterable[int]) -> int:
    """Return the set of `numbers`."""
    result = 0
    for number in numbers:
        result |= 1 << number
    return result


def members(subset: int) -> Iterator[int]:
    """Yield the numbers in the set, ascending."""
    while subset:
        low = subset & -subset
        yield low.bit_length() - 1
        subset ^= low


def lowest(subset: int, count: int) -> int:
    """Return the `count` smallest members, or all if there are fewer."""
    result = 0
    for _ in range(min(count, subset.bit_count())):
        low = subset & -subset
        result |= low
        subset ^= low
    return result


def highest(subset: int, count: int) -> int:
    """Return the `count` greatest members, or all if there are fewer."""
    for _ in range(subset.bit_count() - count):
        subset &= subset - 1
    return subset


@lru_cache(maxsize=64)
def nonempty_subsets(universe: int) -> tuple[int, ...]:
    """Return every non-empty subset, narrow ones first (`bitmask.IterateBitMasks`)."""
    single = tuple(members(universe))
    return tuple(bits(chosen) for width in range(1, len(single) + 1) for chosen in combinations(single, width))


def to_cpulist(subset: int) -> str:
    """Write the set in the kernel's list format: `0-3,8`."""
    ranges: list[str] = []
    first = last = -2
    for number in (*members(subset), -2):
        if number == last + 1:
            last = number
            continue
        if first >= 0:
            ranges.append(str(first) if first == last else f"{first}-{last}")
        first = last = number
    return ",".join(ranges)


def from_cpulist(text: str) -> int:
    """Read the kernel's list format. Raises ValueError: the text is not in that format."""
    result = 0
    for part in text.split(","):
        if not part.strip():
            continue
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high <= 65535:
            raise ValueError(f"not a list of CPU ids: {text!r}")
        result |= ((1 << (high - low + 1)) - 1) << low
    return result


TopologyPolicy = Literal["none", "best-effort", "restricted", "single-numa-node"]
TopologyScope = Literal["container", "pod"]

MEMORY = "memory"
HUGEPAGES_PREFIX = "hugepages-"


def is_memory_type(resource: str) -> bool:
    """True if the memory manager accounts for the resource."""
    return resource == MEMORY or resource.startswith(HUGEPAGES_PREFIX)


@dataclass(frozen=True, slots=True)
class Device:
    """One device as its plugin reported it; `zones` is 0 when it reported no topology."""

    id: str
    zones: int
    healthy: bool = True


class CpuTopology:
    """The core, zone and socket of each CPU (`cpumanager/topology/topology.go`).

    A core's id is its lowest CPU. Siblings are numbered as Linux does: in a zone of 2n CPUs the i-th and the
    (n+i)-th. Zone z is on socket z·sockets/zones; with more sockets than zones a zone's cores are divided evenly
    among its sockets.
    """

    def __init__(self, zones: tuple[int, ...], *, sockets: int, threads_per_core: int) -> None:
        self.zones = zones
        self.all = bits(cpu for zone in zones for cpu in members(zone))
        self.threads_per_core = threads_per_core
        cores_of_zone: list[tuple[int, ...]] = []
        for zone in zones:
            ids = tuple(members(zone))
            stride = len(ids) // threads_per_core
            cores_of_zone.append(tuple(bits(ids[core::stride]) for core in range(stride)))
        #: Per zone its cores, each a set of CPUs, by core id.
        self.cores_of_zone = tuple(cores_of_zone)
        self.sockets, self.zones_of_socket, self.sockets_of_zone = _sockets(zones, self.cores_of_zone, sockets)
        self.cores_of_socket = tuple(
            tuple(sorted((c for cores in cores_of_zone for c in cores if c & socket), key=lambda core: core & -core))
            for socket in self.sockets
        )
        #: Zones are taken as the first, coarser level, unless a socket holds several.
        self.zones_first = sockets >= len(zones)
        everywhere = (1 << len(zones)) - 1
        #: Set of zones → the CPUs in them.
        self.in_zones = {
            mask: bits(cpu for zone in members(mask) for cpu in members(zones[zone]))
            for mask in nonempty_subsets(everywhere)
        }
        #: Set of zones → the CPUs on the sockets of those zones.
        self.on_sockets_of = {
            mask: bits(
                cpu
                for zone in members(mask)
                for socket in self.sockets_of_zone[zone]
                for cpu in members(self.sockets[socket])
            )
            for mask in self.in_zones
        }

    def whole_cores(self, cpus: int) -> int:
        """Return the CPUs of every core that has a CPU in the set."""
        return bits(cpu for cores in self.cores_of_zone for core in cores if core & cpus for cpu in members(core))


def _sockets(
    zones: tuple[int, ...], cores_of_zone: tuple[tuple[int, ...], ...], count: int
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    cpus = [0] * count
    zones_of = [dict[int, None]() for _ in range(count)]
    sockets_of = [dict[int, None]() for _ in zones]
    for zone, cores in enumerate(cores_of_zone):
        share = max(1, count // len(zones))
        for index, core in enumerate(cores):
            socket = zone * count // len(zones) + index * share // len(cores)
            cpus[socket] |= core
            zones_of[socket][zone] = None
            sockets_of[zone][socket] = None
    return tuple(cpus), tuple(tuple(z) for z in zones_of), tuple(tuple(s) for s in sockets_of)


@dataclass(frozen=True)
class Machine:
    """The hardware of a node."""

    #: Per zone the set of its CPUs.
    zone_cpus: tuple[int, ...]
    #: Per zone bytes by memory type; `memory` includes what is set aside for hugepages.
    zone_memory: tuple[Mapping[str, int], ...]
    sockets: int = 1
    threads_per_core: int = 1
    #: Resource → devices by id, each with the zones it is attached to.
    devices: Mapping[str, tuple[Device, ...]] = field(default_factory=dict)
    #: SLIT distances, by zone and zone.
    distances: tuple[tuple[int, ...], ...] = ()

    @property
    def zones(self) -> int:
        """The number of zones."""
        return len(self.zone_cpus)

    @property
    def all_zones(self) -> int:
        """The set of all zones: the default affinity."""
        return (1 << len(self.zone_cpus)) - 1

    @cached_property
    def cpus(self) -> CpuTopology:
        """The CPU topology."""
        return CpuTopology(self.zone_cpus, sockets=self.sockets, threads_per_core=self.threads_per_core)

    def distance(self, mask: int) -> float:
        """Mean distance over all ordered pairs of zones in the mask (`NUMADistances.CalculateAverageFor`)."""
        zones = tuple(members(mask))
        return sum(self.distances[a][b] for a in zones for b in zones) / (len(zones) ** 2)


@dataclass(frozen=True)
class KubeletConfig:
    """The part of a KubeletConfiguration that admission depends on, and what the node offers as a whole."""

    topology_policy: TopologyPolicy = "none"
    topology_scope: TopologyScope = "container"
    #: Topology manager option prefer-closest-numa-nodes.
    prefer_closest: bool = False
    static_cpus: bool = False
    #: CPU manager options that are on, by their kubelet names.
    cpu_options: frozenset[str] = frozenset()
    static_memory: bool = False
    #: CPUs that are never exclusive.
    reserved_cpus: int = 0
    #: Per zone bytes by memory type that are not for pods.
    reserved_memory: tuple[Mapping[str, int], ...] = ()
    #: Resources with a plugin that implements GetPreferredAllocation; it prefers the highest ids.
    preferred_allocation: frozenset[str] = frozenset()
    #: `status.allocatable` as totals: millicores, bytes, counts; `pods` included.
    allocatable: Mapping[str, int] = field(default_factory=dict)
    #: What node selectors and required node affinity are matched against, `metadata.name` included.
    labels: Mapping[str, str] = field(default_factory=dict)
