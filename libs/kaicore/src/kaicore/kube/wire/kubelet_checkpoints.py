"""The checkpoint files of a kubelet's resource managers: the resources of each container, by pod uid.

podresources names pods but not their uids, and no ordinary init containers; these files have both. They are those of
kubelets 1.26 to 1.37 (`pkg/kubelet/cm/cpumanager/state`, `cm/memorymanager/state`, `cm/devicemanager/checkpoint`). Each
carries a checksum: FNV-1a, 32 bits, over the Go value as go-spew prints it with `%#v`, keys sorted
(`pkg/kubelet/checkpointmanager/checksum`). Since 1.37 the files of CPUs and memory have the contents twice: in the old
form, for older kubelets, and as JSON in `data` with `dataChecksum`, which a kubelet reads (CPUManagerCheckpointV4,
MemoryManagerCheckpointV3). A file without the known fields, or with checksums that do not fit, is refused.

A kubelet replaces a file as a whole, with each change and before the container starts. It does not remove a pod when
the pod ends. CPUs are removed at the next admission or within 10 s, memory at the next admission, devices when a
container is next given devices. A reader must know which pods are gone.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from kaicore.errors import InvalidObject

KeyT = TypeVar("KeyT", int, str)
StateT = TypeVar("StateT")

#: Below the kubelet's root directory, usually `/var/lib/kubelet`.
CPU_STATE: Final = "cpu_manager_state"
MEMORY_STATE: Final = "memory_manager_state"
DEVICE_CHECKPOINT: Final = "device-plugins/kubelet_internal_checkpoint"

#: The NUMA node under which the device manager lists devices that have none.
NO_NUMA_NODE: Final = -1

#: No machine has as many.
_MOST_CPUS: Final = 65536


class PodCpus(msgspec.Struct, frozen=True, rename="camel"):
    """CPUs of a pod as a whole; only with feature PodLevelResourceManagers of 1.36."""

    cpu_set: str = ""


class CpuManagerState(msgspec.Struct, frozen=True, omit_defaults=True):
    """`cpu_manager_state`: exclusive CPUs as CPU lists (`0-3,8`).

    Attributes:
        policy: `static` or `none`.
        shared: CPUs that no container has to itself, reserved ones included; empty with policy `none`.
        entries: pod uid → container → its CPUs.
    """

    policy: str = msgspec.field(name="policyName")
    shared: str = msgspec.field(name="defaultCpuSet")
    entries: dict[str, dict[str, str]] = {}
    pod_entries: dict[str, PodCpus] = msgspec.field(name="podEntries", default_factory=dict)


class MemoryTable(msgspec.Struct, frozen=True, rename="camel"):
    """Bytes of one type on one NUMA node."""

    total: int
    system_reserved: int
    allocatable: int
    reserved: int
    free: int


class NumaNodeState(msgspec.Struct, frozen=True, rename="camel"):
    """One NUMA node of the memory manager: how many blocks include it, and the group of nodes it serves now."""

    number_of_assignments: int
    memory_map: dict[str, MemoryTable]
    cells: list[int]


class MemoryEntry(msgspec.Struct, frozen=True):
    """Bytes of one type bound to a set of NUMA nodes; how much lies on which is not said."""

    numa_nodes: list[int] = msgspec.field(name="numaAffinity")
    type: str
    size: int


class PodMemory(msgspec.Struct, frozen=True, rename="camel"):
    """Memory of a pod as a whole; only with feature PodLevelResourceManagers of 1.36."""

    memory_blocks: list[MemoryEntry] = []


class MemoryManagerState(msgspec.Struct, frozen=True, omit_defaults=True):
    """`memory_manager_state`: memory and hugepages.

    Attributes:
        policy: `Static` or `None`.
        machine: NUMA node → its state; empty with policy `None`.
        entries: pod uid → container → its blocks. An init container's are gone when a later container has started,
            and smaller when one has taken them over.
    """

    policy: str = msgspec.field(name="policyName")
    machine: dict[int, NumaNodeState] = msgspec.field(name="machineState")
    entries: dict[str, dict[str, list[MemoryEntry]]] = {}
    pod_entries: dict[str, PodMemory] = msgspec.field(name="podEntries", default_factory=dict)


class DeviceEntry(msgspec.Struct, frozen=True):
    """One container's share of one resource: NUMA node → device ids; one of several nodes is under each of them."""

    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    devices: dict[int, list[str]] = msgspec.field(name="DeviceIDs")
    #: What the plugin answered, a serialized `ContainerAllocateResponse`.
    response: bytes | None = msgspec.field(name="AllocResp", default=b"")


class DeviceManagerState(msgspec.Struct, frozen=True):
    """`kubelet_internal_checkpoint`: who has which devices, and which healthy devices each resource has."""

    entries: list[DeviceEntry] | None = msgspec.field(name="PodDeviceEntries", default=None)
    registered: dict[str, list[str]] | None = msgspec.field(name="RegisteredDevices", default=None)


class _Sealed(msgspec.Struct, frozen=True, rename="camel"):
    checksum: int = 0
    data: str | None = None
    data_checksum: int = 0


class _DeviceFile(msgspec.Struct, frozen=True, rename="pascal"):
    data: DeviceManagerState
    checksum: int = 0


_encode = msgspec.json.Encoder().encode
_cpu_decoder = msgspec.json.Decoder(CpuManagerState)
_memory_decoder = msgspec.json.Decoder(MemoryManagerState)
_device_decoder = msgspec.json.Decoder(_DeviceFile)
_seal_decoder = msgspec.json.Decoder(_Sealed)


# --- writing ----------------------------------------------------------------------------------------------------------


def encode_cpu_state(state: CpuManagerState) -> bytes:
    """Return the file's contents as the kubelet writes them; maps come in the order of their keys."""
    entries = {uid: dict(sorted(held.items())) for uid, held in sorted(state.entries.items())}
    ordered = msgspec.structs.replace(state, entries=entries, pod_entries=dict(sorted(state.pod_entries.items())))
    return _sealed(_encode(ordered), _fnv(_cpu_dump(ordered)))


def encode_memory_state(state: MemoryManagerState) -> bytes:
    """Return the file's contents as the kubelet writes them; maps come in the order of their keys."""
    machine = {
        number: msgspec.structs.replace(node, memory_map=dict(sorted(node.memory_map.items())))
        for number, node in sorted(state.machine.items(), key=lambda item: str(item[0]))
    }
    entries = {uid: dict(sorted(held.items())) for uid, held in sorted(state.entries.items())}
    ordered = msgspec.structs.replace(
        state, machine=machine, entries=entries, pod_entries=dict(sorted(state.pod_entries.items()))
    )
    return _sealed(_encode(ordered), _fnv(_memory_dump(ordered)))


def encode_device_state(state: DeviceManagerState) -> bytes:
    """Return the file's contents as the kubelet writes them; entries stay in their order, which the checksum covers."""
    entries = [
        msgspec.structs.replace(entry, devices=dict(sorted(entry.devices.items(), key=lambda item: str(item[0]))))
        for entry in state.entries or ()
    ]
    ordered = DeviceManagerState(entries or None, dict(sorted((state.registered or {}).items())))
    return _encode(_DeviceFile(ordered, _fnv(_device_dump(ordered))))


def _sealed(body: bytes, checksum: int) -> bytes:
    return b'%b,"checksum":%d}' % (body[:-1], checksum)


# --- reading ----------------------------------------------------------------------------------------------------------


def decode_cpu_state(content: bytes) -> CpuManagerState:
    """Read the file's contents. Raises InvalidObject: they are no such file, or its checksum is wrong."""
    return _manager_state(CPU_STATE, _cpu_decoder, content, _cpu_dump)


def decode_memory_state(content: bytes) -> MemoryManagerState:
    """Read the file's contents. Raises InvalidObject: they are no such file, or its checksum is wrong."""
    return _manager_state(MEMORY_STATE, _memory_decoder, content, _memory_dump)


def _manager_state(
    name: str, decoder: "msgspec.json.Decoder[StateT]", content: bytes, dump: Callable[[StateT], str]
) -> StateT:
    try:
        seal = _seal_decoder.decode(content)
        if seal.data is not None:
            _check(name, seal.data_checksum, f"(string){seal.data}", field="dataChecksum", required=True)
            return decoder.decode(seal.data)
        state, checksum = decoder.decode(content), seal.checksum
    except msgspec.MsgspecError as error:
        raise _unreadable(name, error) from error
    plain = dump(state)
    # 1.36.0 hashes the name of its own struct, which has a version; all others hash the plain one.
    _check(
        name, checksum, plain, *(plain.replace("Checkpoint)", f"Checkpoint{version})", 1) for version in ("V1", "V2"))
    )
    return state


def decode_device_state(content: bytes) -> DeviceManagerState:
    """Read the file's contents. Raises InvalidObject: they are no such file, or its checksum is wrong."""
    try:
        file = _device_decoder.decode(content)
    except msgspec.MsgspecError as error:
        raise _unreadable(DEVICE_CHECKPOINT, error) from error
    _check(DEVICE_CHECKPOINT, file.checksum, _device_dump(file.data))
    return file.data


def _unreadable(name: str, error: msgspec.MsgspecError) -> InvalidObject:
    return InvalidObject(name, "content", str(error), "not a kubelet's checkpoint")


def _check(name: str, checksum: int, *dumps: str, field: str = "checksum", required: bool = False) -> None:
    """Compare the checksum; 0 is none, as an old file backend wrote it, unless it is required."""
    if (checksum or required) and all(_fnv(dump) != checksum for dump in dumps):
        raise InvalidObject(name, field, checksum, "does not fit the contents: the file is torn or was edited")


# --- checksums --------------------------------------------------------------------------------------------------------


def _fnv(text: str) -> int:
    """FNV-1a, 32 bits."""
    checksum = 0x811C9DC5
    for byte in text.encode():
        checksum = (checksum ^ byte) * 0x01000193 & 0xFFFFFFFF
    return checksum


def _map(items: Iterable[tuple[object, str]]) -> str:
    return f"map[{' '.join(f'{key}:{value}' for key, value in items)}]"


def _list(items: Iterable[object]) -> str:
    return f"[{' '.join(map(str, items))}]"


def _cpu_dump(state: CpuManagerState) -> str:
    entries = _map((uid, _map(sorted(held.items()))) for uid, held in sorted(state.entries.items()))
    pods = ""
    if state.pod_entries:
        sets = [(uid, f"{{CPUSet:(cpuset.CPUSet){_cpu_set(pod.cpu_set)}}}") for uid, pod in state.pod_entries.items()]
        pods = f" PodEntries:(state.PodCPUAssignments){_map(sorted(sets))}"
    return (
        f"(*state.CPUManagerCheckpoint){{PolicyName:(string){state.policy} DefaultCPUSet:(string){state.shared} "
        f"Entries:(map[string]map[string]string){entries}{pods} Checksum:(checksum.Checksum)0}}"
    )


def _cpu_set(cpulist: str) -> str:
    cpus: list[int] = []
    for part in filter(None, cpulist.split(",")):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and int(last or first) < _MOST_CPUS):
            raise InvalidObject(CPU_STATE, "podEntries", cpulist, "not a list of CPU ids")
        cpus.extend(range(int(first), int(last or first) + 1))
    return f"{{elems:(map[int]struct {{}}){_map((cpu, '{}') for cpu in sorted(cpus))}}}"


def _memory_dump(state: MemoryManagerState) -> str:
    machine = _map((number, _numa_node(node)) for number, node in sorted(state.machine.items()))
    entries = _map(
        (uid, _map((container, _blocks(blocks)) for container, blocks in sorted(held.items())))
        for uid, held in sorted(state.entries.items())
    )
    pods = ""
    if state.pod_entries:
        blocks = [
            (uid, f"{{MemoryBlocks:([]state.Block){_blocks(p.memory_blocks)}}}") for uid, p in state.pod_entries.items()
        ]
        pods = f" PodEntries:(state.PodMemoryAssignments){_map(sorted(blocks))}"
    return (
        f"(*state.MemoryManagerCheckpoint){{PolicyName:(string){state.policy} "
        f"MachineState:(state.NUMANodeMap){machine} "
        f"Entries:(state.ContainerMemoryAssignments){entries}{pods} Checksum:(checksum.Checksum)0}}"
    )


def _numa_node(node: NumaNodeState) -> str:
    tables = _map(
        (
            kind,
            f"<*>{{TotalMemSize:(uint64){table.total} SystemReserved:(uint64){table.system_reserved} "
            f"Allocatable:(uint64){table.allocatable} Reserved:(uint64){table.reserved} Free:(uint64){table.free}}}",
        )
        for kind, table in sorted(node.memory_map.items())
    )
    return (
        f"<*>{{NumberOfAssignments:(int){node.number_of_assignments} "
        f"MemoryMap:(map[v1.ResourceName]*state.MemoryTable){tables} Cells:([]int){_list(node.cells)}}}"
    )


def _blocks(blocks: Iterable[MemoryEntry]) -> str:
    return _list(
        f"{{NUMAAffinity:([]int){_list(block.numa_nodes)} "
        f"Type:(v1.ResourceName){block.type} Size:(uint64){block.size}}}"
        for block in blocks
    )


def _device_dump(state: DeviceManagerState) -> str:
    entries = "<nil>" if state.entries is None else _list(map(_device_entry, state.entries))
    registered = "<nil>" if state.registered is None else _map(_lists(state.registered))
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} "
        f"RegisteredDevices:(map[string][]string){registered}}}"
    )


def _device_entry(entry: DeviceEntry) -> str:
    response = "<nil>" if entry.response is None else _list(entry.response)
    return (
        f"{{PodUID:(string){entry.pod_uid} ContainerName:(string){entry.container} "
        f"ResourceName:(string){entry.resource} DeviceIDs:(checkpoint.DevicesPerNUMA){_map(_lists(entry.devices))} "
        f"AllocResp:([]uint8){response}}}"
    )


def _lists(lists: Mapping[KeyT, list[str]]) -> Iterable[tuple[KeyT, str]]:
    return ((key, _list(lists[key])) for key in sorted(lists))
