"""The files in which a kubelet keeps what its resource managers gave, in the kubelet's own formats.

Written when a kubelet writes them: with each admission that changes them and when a container starts, before the API
knows of it, and replaced as a whole. A pod that has ended stays in them for a while
(`kaicore.kube.wire.kubelet_checkpoints`). What the fleet itself restarts from is its journal (`checkpoint`), not these
files.
"""

from collections.abc import Callable, Hashable
from pathlib import Path

from kaicore.kube.wire.kubelet_checkpoints import (
    CPU_STATE,
    DEVICE_CHECKPOINT,
    MEMORY_STATE,
    NO_NUMA_NODE,
    CpuManagerState,
    DeviceEntry,
    DeviceManagerState,
    MemoryEntry,
    MemoryManagerState,
    MemoryTable,
    NumaNodeState,
    encode_cpu_state,
    encode_device_state,
    encode_memory_state,
)

from kai_fleet.kubelet import Kubelet
from kai_fleet.kubelet.devices import DevicePool
from kai_fleet.kubelet.machine import members, to_cpulist
from kai_fleet.kubelet.memory import ZoneMemory

#: How often a kubelet frees CPUs of pods that have ended (`cpuManagerReconcilePeriod`), in seconds.
RECONCILE_PERIOD_S = 10.0


class StateFiles:
    """The state files of one node, in what is the kubelet's root directory to those who look at them."""

    def __init__(self, directory: Path, kubelet: Kubelet) -> None:
        """Write them for the first time.

        A kubelet with managers of policy `none` has them too; one without any device plugin so far has no
        checkpoint of devices. Raises OSError: the directory cannot be made.
        """
        self._directory = directory
        (directory / DEVICE_CHECKPOINT).parent.mkdir(exist_ok=True)
        self._cpu_changes = self._memory_changes = kubelet.changes
        self._cpus, self._memory = _cpu_holders(kubelet), _memory_holders(kubelet)
        self._devices, self._healthy = _device_holders(kubelet), _healthy(kubelet)
        #: Files that could not be written, and what goes into them.
        self._unwritten: dict[str, Callable[[Kubelet], bytes]] = {}
        self._write(CPU_STATE, kubelet, cpu_state)
        self._write(MEMORY_STATE, kubelet, memory_state)
        if kubelet.managers.devices.pools:
            self._write(DEVICE_CHECKPOINT, kubelet, device_state)

    def changed(self, kubelet: Kubelet, *, in_admission: bool = False) -> bool:
        """Write what a kubelet would have written by now; tell whether its reconcile loop will have to free CPUs.

        In the middle of an admission the memory manager, the last of the three, has not given anything yet.
        """
        for name, content in list(self._unwritten.items()):
            self._write(name, kubelet, content)
        devices, healthy = _device_holders(kubelet), _healthy(kubelet)
        if devices - self._devices or healthy != self._healthy:
            self._devices, self._healthy = devices, healthy
            self._write(DEVICE_CHECKPOINT, kubelet, device_state)
        if kubelet.changes != self._cpu_changes:
            self._cpu_changes = kubelet.changes
            self.reconciled(kubelet)
        if kubelet.changes != self._memory_changes and not in_admission:
            self._memory_changes = kubelet.changes
            memory = _memory_holders(kubelet)
            if memory != self._memory:
                self._memory = memory
                self._write(MEMORY_STATE, kubelet, memory_state)
        return not self._cpus <= kubelet.pods.keys()

    def reconciled(self, kubelet: Kubelet) -> None:
        """Write the CPUs if they have changed."""
        cpus = _cpu_holders(kubelet)
        if cpus != self._cpus:
            self._cpus = cpus
            self._write(CPU_STATE, kubelet, cpu_state)

    def _write(self, name: str, kubelet: Kubelet, content: Callable[[Kubelet], bytes]) -> None:
        path = self._directory / name
        temporary = path.with_name(f".{path.name}")
        self._unwritten.pop(name, None)
        try:
            temporary.write_bytes(content(kubelet))
            temporary.replace(path)
        except OSError:
            # A full disk, or the directory was removed: the next change tries again.
            self._unwritten[name] = content


def cpu_state(kubelet: Kubelet) -> bytes:
    """Return the contents of `cpu_manager_state`."""
    if not kubelet.config.static_cpus:
        return encode_cpu_state(CpuManagerState("none", ""))
    cpus = kubelet.managers.cpus
    strict = "strict-cpu-reservation" in kubelet.config.cpu_options
    shared = cpus.free if strict else cpus.shared
    entries = {
        uid: {container: to_cpulist(held) for container, held in containers.items()}
        for uid, containers in cpus.assigned.items()
    }
    return encode_cpu_state(CpuManagerState("static", to_cpulist(shared), entries))


def memory_state(kubelet: Kubelet) -> bytes:
    """Return the contents of `memory_manager_state`."""
    if not kubelet.config.static_memory:
        return encode_memory_state(MemoryManagerState("None", {}))
    memory = kubelet.managers.memory
    entries = {
        uid: {
            container: [MemoryEntry(list(members(block.zones)), block.type, block.size) for block in blocks]
            for container, blocks in containers.items()
        }
        for uid, containers in memory.assigned.items()
    }
    machine = {number: _numa_node(kubelet, number, zone) for number, zone in enumerate(memory.zones)}
    return encode_memory_state(MemoryManagerState("Static", machine, entries))


def _numa_node(kubelet: Kubelet, number: int, zone: ZoneMemory) -> NumaNodeState:
    reserved = kubelet.config.reserved_memory
    of_system = reserved[number] if number < len(reserved) else {}
    tables = {
        kind: MemoryTable(
            total=kubelet.machine.zone_memory[number][kind],
            system_reserved=of_system.get(kind, 0),
            allocatable=allocatable,
            reserved=allocatable - zone.free[kind],
            free=zone.free[kind],
        )
        for kind, allocatable in zone.allocatable.items()
    }
    return NumaNodeState(zone.assignments, tables, list(members(zone.cells)))


def device_state(kubelet: Kubelet) -> bytes:
    """Return the contents of `kubelet_internal_checkpoint`; the plugins answered that containers need nothing else."""
    devices = kubelet.managers.devices
    entries = [
        DeviceEntry(uid, container, resource, _by_numa_node(devices.pools[resource], numbers))
        for uid, containers in sorted(devices.assigned.items())
        for container, held in sorted(containers.items())
        for resource, numbers in sorted(held.items())
    ]
    registered = {resource: pool.ids(pool.healthy) for resource, pool in devices.pools.items()}
    return encode_device_state(DeviceManagerState(entries, registered))


def _by_numa_node(pool: DevicePool, devices: int) -> dict[int, list[str]]:
    result: dict[int, list[str]] = {}
    for number in members(devices):
        device = pool.devices[number]
        for zone in members(device.zones) if device.zones else (NO_NUMA_NODE,):
            result.setdefault(zone, []).append(device.id)
    return result


# What a container holds does not change while it holds it, so who holds something tells whether a file has changed.


def _cpu_holders(kubelet: Kubelet) -> frozenset[str]:
    return frozenset(kubelet.managers.cpus.assigned)


def _memory_holders(kubelet: Kubelet) -> frozenset[tuple[str, int]]:
    return frozenset((uid, len(containers)) for uid, containers in kubelet.managers.memory.assigned.items())


def _device_holders(kubelet: Kubelet) -> frozenset[str]:
    return frozenset(kubelet.managers.devices.assigned)


def _healthy(kubelet: Kubelet) -> Hashable:
    return tuple(pool.healthy for pool in kubelet.managers.devices.pools.values())
