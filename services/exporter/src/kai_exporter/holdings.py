"""A pod's part of its node's NUMA zones, computed from podresources.

Rules, for podresources v1 as kubelets up to 1.36 serve it (`pkg/kubelet/apis/podresources/server_v1.go`,
`containerDevicesFromResourceDeviceInstances` in `pkg/kubelet/cm/container_manager_linux.go`):

- `cpu_ids` are a container's exclusive CPUs; each is 1000 millicores of the NUMA node that sysfs says;
- a device of several NUMA nodes is listed once for each of them, so entries are put together by device id; a device of
  one NUMA node is 1 of its zone, of several it is 1 of their span, of none it is left out;
- a memory block of one NUMA node is that zone's; of several it is their span: it is bound to all of them, and in which
  its bytes lie is not said;
- order means nothing: kubelets walk Go maps;
- since 1.37 a pod with resources of its own has `cpu_ids` and `memory` besides, those of its containers among them
  (kubernetes/kubernetes#138738): what no container has is the pod's, under a container without a name. In 1.36 each
  container that shares shows all that is shared (PodLevelResourceManagers): a CPU counts once per pod.

What ordinary init containers keep is in the kubelet's state files only (`kai_exporter.checkpoints`).

Zones are named as NodeResourceTopology names them, `node-<NUMA node id>`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from kai_exporter.wire import ContainerMemory, ContainerResources, PodResources


@dataclass(slots=True)
class Allocation:
    """One container's resources.

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


CPU = "cpu"


class ZoneHolding(msgspec.Struct, frozen=True):
    """Amounts of one zone: millicores, bytes, counts, by resource."""

    zone: str
    amount: dict[str, int]


class SpanHolding(msgspec.Struct, frozen=True):
    """Amounts that lie somewhere in several zones."""

    zones: tuple[str, ...]
    amount: dict[str, int]


class ContainerHoldings(msgspec.Struct, frozen=True, omit_defaults=True):
    """One container's holdings, zones and spans in order of NUMA node ids."""

    name: str
    zones: tuple[ZoneHolding, ...] = ()
    spans: tuple[SpanHolding, ...] = ()


class PodHoldings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The holdings of a pod's long-running containers, in podresources' order of containers.

    Attributes:
        uid: the pod's, where the kubelet's state files tell it.
        init_containers: what ordinary init containers keep beyond that, None where no state file tells it.
        checked: the state files say the same of all containers here, and the pod's admission is over.
        again: ingest has accepted a report of this pod, and the kubelet has said the same since.
    """

    namespace: str
    name: str
    containers: tuple[ContainerHoldings, ...]
    uid: str = ""
    init_containers: tuple[ContainerHoldings, ...] | None = None
    checked: bool = False
    again: bool = False

    @property
    def empty(self) -> bool:
        """True if nothing of the pod is bound to a zone."""
        every = (*self.containers, *(self.init_containers or ()))
        return not any(container.zones or container.spans for container in every)


class UnknownCpus(Exception):
    """Podresources names CPUs that sysfs does not know; `ids` are sorted."""

    def __init__(self, container: str, ids: list[int]) -> None:
        super().__init__(f"container {container}: cpu_ids: {ids}")
        self.container = container
        self.ids = ids


_Amounts = dict[tuple[int, ...], dict[str, int]]


def pod_holdings(pod: PodResources, numa_node_of_cpu: Mapping[int, int]) -> PodHoldings:
    """Return what a pod holds.

    Raises UnknownCpus: a CPU's zone is unknown, so nothing true can be said of the pod as a whole.
    """
    holdings = []
    seen = set[int]()
    for container in pod.containers:
        held = shown_by([container])[container.name]
        holdings.append(_container_holdings(container.name, replace(held, cpus=held.cpus - seen), numa_node_of_cpu))
        seen |= held.cpus
    shared = _shared(pod, seen)
    if shared.cpus or shared.memory:
        holdings.append(_container_holdings("", shared, numa_node_of_cpu))
    return PodHoldings(pod.namespace, pod.name, tuple(holdings))


def _shared(pod: PodResources, own: Collection[int]) -> Allocation:
    """Return what a pod has as a whole and no container for itself."""
    left = Counter[tuple[str, tuple[int, ...]]]()
    for kind, size, nodes in memory_blocks(pod.memory):
        left[kind, nodes] += size
    for container in pod.containers:
        for kind, size, nodes in memory_blocks(container.memory):
            left[kind, nodes] -= size
    memory = tuple(sorted((kind, size, nodes) for (kind, nodes), size in left.items() if size > 0))
    return Allocation(frozenset(pod.cpu_ids) - set(own), {}, memory)


def init_holdings(
    shown: PodAllocations, every: PodAllocations, numa_node_of_cpu: Mapping[int, int]
) -> tuple[ContainerHoldings, ...]:
    """Return what ordinary init containers keep of their pod: each CPU and device once, of those that no container took
    over. Raises UnknownCpus: a CPU's zone is unknown.

    Args:
        shown: the pod's other containers.
        every: all of its containers, by the state files.
    """
    cpus = {cpu for held in shown.values() for cpu in held.cpus}
    devices = {device for held in shown.values() for device in held.devices}
    holdings = []
    for name in sorted(every.keys() - shown.keys()):
        held = every[name]
        kept = Allocation(
            held.cpus - cpus,
            {device: nodes for device, nodes in held.devices.items() if device not in devices},
            held.memory,
        )
        cpus |= held.cpus
        devices |= held.devices.keys()
        holdings.append(_container_holdings(name, kept, numa_node_of_cpu))
    return tuple(holdings)


def _container_holdings(name: str, held: Allocation, numa_node_of_cpu: Mapping[int, int]) -> ContainerHoldings:
    amounts: _Amounts = {}
    if unknown := sorted(held.cpus - numa_node_of_cpu.keys()):
        raise UnknownCpus(name, unknown)
    for cpu in held.cpus:
        _add(amounts, {numa_node_of_cpu[cpu]}, CPU, 1000)
    for (resource, _), numa_nodes in held.devices.items():
        _add(amounts, numa_nodes, resource, 1)
    for kind, size, nodes in held.memory:
        _add(amounts, nodes, kind, size)
    return ContainerHoldings(
        name,
        tuple(ZoneHolding(_zone(at[0]), amount) for at, amount in sorted(amounts.items()) if len(at) == 1),
        tuple(SpanHolding(tuple(map(_zone, at)), amount) for at, amount in sorted(amounts.items()) if len(at) > 1),
    )


def _add(amounts: _Amounts, numa_nodes: Iterable[int], resource: str, amount: int) -> None:
    # Kubelets write -1 for a device that is on no NUMA node.
    at = tuple(sorted(node for node in numa_nodes if node >= 0))
    if at and amount:
        held = amounts.setdefault(at, {})
        held[resource] = held.get(resource, 0) + amount


def _zone(numa_node: int) -> str:
    return f"node-{numa_node}"
