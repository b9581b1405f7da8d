"""The kubelet's state files for tests, written as a kubelet writes them, of what each pod has by uid and container."""

from collections.abc import Mapping
from pathlib import Path

from kaicore.kube.wire.kubelet_checkpoints import (
    CPU_STATE,
    DEVICE_CHECKPOINT,
    MEMORY_STATE,
    CpuManagerState,
    DeviceEntry,
    DeviceManagerState,
    MemoryEntry,
    MemoryManagerState,
    encode_cpu_state,
    encode_device_state,
    encode_memory_state,
)

from tests.given.cluster.podresources import GPU

#: CPU lists by uid and container.
Cpus = Mapping[str, Mapping[str, str]]


def write_state_files(
    directory: Path,
    cpus: Cpus,
    *,
    gpus: Mapping[tuple[str, str], Mapping[int, list[str]]] | None = None,
    memory: Mapping[str, Mapping[str, list[tuple[str, int, tuple[int, ...]]]]] | None = None,
    static_memory: bool = False,
) -> None:
    """Write all three files.

    Args:
        directory: the kubelet's root directory.
        cpus: by uid and container.
        gpus: by uid and container, device ids by NUMA node.
        memory: type, bytes and NUMA nodes of blocks by uid and container.
        static_memory: whether the memory manager binds memory.
    """
    (directory / DEVICE_CHECKPOINT).parent.mkdir(parents=True, exist_ok=True)
    entries = {uid: dict(containers) for uid, containers in cpus.items()}
    (directory / CPU_STATE).write_bytes(encode_cpu_state(CpuManagerState("static", "0", entries)))
    blocks = {
        uid: {
            name: [MemoryEntry(list(nodes), kind, size) for kind, size, nodes in every] for name, every in held.items()
        }
        for uid, held in (memory or {}).items()
    }
    policy = "Static" if static_memory else "None"
    (directory / MEMORY_STATE).write_bytes(encode_memory_state(MemoryManagerState(policy, {}, blocks)))
    devices = [DeviceEntry(uid, name, GPU, dict(ids)) for (uid, name), ids in (gpus or {}).items()]
    (directory / DEVICE_CHECKPOINT).write_bytes(encode_device_state(DeviceManagerState(devices, {})))
