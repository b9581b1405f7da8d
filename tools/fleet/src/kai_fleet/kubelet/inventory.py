"""A kubelet's report of its resources: contents of the podresources API, and sums per zone for publishers.

`podresources/server_v1.go`: since 1.34 only active pods are listed; regular containers and sidecars, never ordinary
init containers. Without the static policy the CPU manager reports no allocatable CPUs, and the memory manager no
memory (facts row 1).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kai_fleet.kubelet.kubelet import Kubelet
from kai_fleet.kubelet.machine import members
from kai_fleet.kubelet.memory import Block
from kai_fleet.kubelet.pod import Container, Pod

#: Resource → amount per zone, in millicores, bytes and counts.
ZoneMap = dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Held:
    """One container's exclusive holdings."""

    container: Container
    cpus: int
    #: Resource → devices.
    devices: dict[str, int]
    blocks: list[Block]


def held_by(kubelet: Kubelet, pod: Pod) -> Iterator[Held]:
    """Yield what each listed container of an active pod holds."""
    managers = kubelet.managers
    cpus = managers.cpus.assigned.get(pod.uid, {})
    devices = managers.devices.assigned.get(pod.uid, {})
    memory = managers.memory.assigned.get(pod.uid, {})
    for container in pod.containers:
        if container.kind != "init":
            name = container.name
            yield Held(container, cpus.get(name, 0), devices.get(name, {}), memory.get(name, []))


def allocatable_cpus(kubelet: Kubelet) -> int:
    """CPUs that could be exclusive (`GetAllocatableResources.cpu_ids`)."""
    return kubelet.machine.cpus.all & ~kubelet.config.reserved_cpus if kubelet.config.static_cpus else 0


def allocatable(kubelet: Kubelet) -> ZoneMap:
    """Sum `GetAllocatableResources` per zone; a device of several zones counts in each."""
    zones = range(kubelet.machine.zones)
    result: ZoneMap = {}
    if kubelet.config.static_cpus:
        cpus = allocatable_cpus(kubelet)
        result["cpu"] = [(cpus & zone).bit_count() * 1000 for zone in kubelet.machine.zone_cpus]
    if kubelet.config.static_memory:
        kinds = {kind for zone in kubelet.managers.memory.zones for kind in zone.allocatable}
        for kind in sorted(kinds):
            result[kind] = [kubelet.managers.memory.zones[zone].allocatable.get(kind, 0) for zone in zones]
    for resource, pool in sorted(kubelet.managers.devices.pools.items()):
        if pool.with_topology:
            result[resource] = [(pool.healthy & pool.of_zone.get(zone, 0)).bit_count() for zone in zones]
    return result


def subtract_held(available: ZoneMap, kubelet: Kubelet, held: Held) -> None:
    """Take what a container holds from `available`, in place.

    A device counts against each of its zones; a memory block of several zones is drained from them in ascending order.
    """
    if held.cpus and "cpu" in available:
        row = available["cpu"]
        for zone, cpus in enumerate(kubelet.machine.zone_cpus):
            row[zone] -= (held.cpus & cpus).bit_count() * 1000
    for resource, devices in held.devices.items():
        pool = kubelet.managers.devices.pools[resource]
        for zone, local in pool.of_zone.items():
            available[resource][zone] -= (devices & local).bit_count()
    for block in held.blocks:
        size = block.size
        row = available[block.type]
        for zone in members(block.zones):
            taken = min(size, row[zone])
            row[zone] -= taken
            size -= taken


def available(kubelet: Kubelet) -> ZoneMap:
    """Return allocatable less what the listed containers of active pods hold."""
    result = allocatable(kubelet)
    for pod in kubelet.pods.values():
        for held in held_by(kubelet, pod):
            subtract_held(result, kubelet, held)
    return result
