"""A container's CPUs and devices, one by one, as podresources or a state file shows them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kai_exporter.wire import ContainerMemory, ContainerResources


@dataclass(slots=True)
class Allocation:
    """What one container has.

    Attributes:
        cpus: ids of its exclusive CPUs.
        devices: by resource and id, the NUMA nodes of each device; none for a device without.
        memory: type, bytes and NUMA nodes of each block, sorted.
    """

    cpus: frozenset[int] = frozenset()
    devices: dict[tuple[str, str], frozenset[int]] = field(default_factory=dict)
    memory: tuple[tuple[str, int, tuple[int, ...]], ...] = ()

    @property
    def exclusive(self) -> Iterable[object]:
        """CPUs and devices, none of which another pod has."""
        yield from self.cpus
        yield from self.devices


#: By container.
PodAllocations = dict[str, Allocation]


def shown_by(containers: Iterable[ContainerResources]) -> PodAllocations:
    """Return what podresources tells of a pod's containers."""
    pod: PodAllocations = {}
    for container in containers:
        held = pod[container.name] = Allocation(frozenset(container.cpu_ids))
        for entry in container.devices:
            nodes = frozenset(node for node in entry.numa_nodes if node >= 0)
            for device in entry.device_ids:
                key = (entry.resource_name, device)
                held.devices[key] = held.devices.get(key, frozenset()) | nodes
        held.memory = memory_blocks(container.memory)
    return pod


def memory_blocks(blocks: Iterable[ContainerMemory]) -> tuple[tuple[str, int, tuple[int, ...]], ...]:
    """Return type, bytes and NUMA nodes of each block, sorted."""
    return tuple(sorted((block.memory_type, block.size, tuple(sorted(block.numa_nodes))) for block in blocks))
