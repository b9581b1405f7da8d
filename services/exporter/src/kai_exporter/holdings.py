"""What a pod holds of its node's NUMA zones, made of what podresources says of it.

Rules, for podresources v1 as kubelets up to 1.36 serve it (`pkg/kubelet/apis/podresources/server_v1.go`,
`containerDevicesFromResourceDeviceInstances` in `pkg/kubelet/cm/container_manager_linux.go`):

- `cpu_ids` are a container's exclusive CPUs; each is 1000 millicores of the NUMA node that sysfs says;
- a device of several NUMA nodes is listed once for each of them, so entries are put together by device id; a device of
  one NUMA node is 1 of its zone, of several it is 1 of their span, of none it is left out;
- a memory block of one NUMA node is that zone's; of several it is their span: it is bound to all of them, and in which
  its bytes lie is not said;
- order means nothing: kubelets walk Go maps.

Zones are named as NodeResourceTopology names them, `node-<NUMA node id>`.
"""

from collections.abc import Iterable, Mapping

import msgspec
from kaicore.podresources import ContainerResources, PodResources

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
    """What one container holds, zones and spans in order of NUMA node ids."""

    name: str
    zones: tuple[ZoneHolding, ...] = ()
    spans: tuple[SpanHolding, ...] = ()


class PodHoldings(msgspec.Struct, frozen=True):
    """What the long-running containers of a pod hold, in podresources' order of containers."""

    namespace: str
    name: str
    containers: tuple[ContainerHoldings, ...]

    @property
    def empty(self) -> bool:
        """Whether nothing of the pod is bound to a zone."""
        return not any(container.zones or container.spans for container in self.containers)


class UnknownCpus(Exception):
    """Podresources names CPUs that sysfs does not know; `ids` are sorted."""

    def __init__(self, container: str, ids: list[int]) -> None:
        super().__init__(f"container {container}: cpu_ids: {ids}")
        self.container = container
        self.ids = ids


_Amounts = dict[tuple[int, ...], dict[str, int]]


def pod_holdings(pod: PodResources, numa_node_of_cpu: Mapping[int, int]) -> PodHoldings:
    """Return what a pod holds.

    Args:
        pod: as podresources lists it.
        numa_node_of_cpu: see `kai_exporter.cpu_topology`.

    Raises:
        UnknownCpus: a CPU's zone is unknown, so nothing true can be said of the pod as a whole.
    """
    return PodHoldings(
        pod.namespace,
        pod.name,
        tuple(_container_holdings(container, numa_node_of_cpu) for container in pod.containers),
    )


def _container_holdings(container: ContainerResources, numa_node_of_cpu: Mapping[int, int]) -> ContainerHoldings:
    amounts: _Amounts = {}
    cpus = set(container.cpu_ids)
    if unknown := sorted(cpus - numa_node_of_cpu.keys()):
        raise UnknownCpus(container.name, unknown)
    for cpu in cpus:
        _add(amounts, {numa_node_of_cpu[cpu]}, CPU, 1000)
    devices: dict[tuple[str, str], set[int]] = {}
    for entry in container.devices:
        numa_nodes = {node.ID for node in entry.topology.nodes}
        for device in entry.device_ids:
            devices.setdefault((entry.resource_name, device), set()).update(numa_nodes)
    for (resource, _), numa_nodes in devices.items():
        _add(amounts, numa_nodes, resource, 1)
    for block in container.memory:
        _add(amounts, {node.ID for node in block.topology.nodes}, block.memory_type, block.size)
    return ContainerHoldings(
        container.name,
        tuple(ZoneHolding(_zone(at[0]), held) for at, held in sorted(amounts.items()) if len(at) == 1),
        tuple(SpanHolding(tuple(map(_zone, at)), held) for at, held in sorted(amounts.items()) if len(at) > 1),
    )


def _add(amounts: _Amounts, numa_nodes: Iterable[int], resource: str, amount: int) -> None:
    # Kubelets write -1 for a device that is on no NUMA node.
    at = tuple(sorted(node for node in numa_nodes if node >= 0))
    if at and amount:
        held = amounts.setdefault(at, {})
        held[resource] = held.get(resource, 0) + amount


def _zone(numa_node: int) -> str:
    return f"node-{numa_node}"
