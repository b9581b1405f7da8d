"""Facts of a kubelet's state files beyond podresources: pod uids, and what ordinary init containers keep.

podresources names pods and shows their long-running containers. The state files
(`kaicore.kube.wire.kubelet_checkpoints`) have every container, by pod uid, but no names. Both show the CPUs and devices
of a container, and no two pods have the same ones: by that they are matched. Pods that have ended stay in the files for
a while. They are in no podresources answer, and so in no report.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from kaicore.errors import InvalidObject
from kaicore.kube.wire.kubelet_checkpoints import (
    CPU_STATE,
    DEVICE_CHECKPOINT,
    MEMORY_STATE,
    CpuManagerState,
    DeviceManagerState,
    MemoryManagerState,
    decode_cpu_state,
    decode_device_state,
    decode_memory_state,
)

from kai_exporter.holdings import Allocation, PodAllocations

#: No machine has a CPU with a greater id; a longer list is garbage.
MAX_CPU_ID = 65_535

_NODE = re.compile(r"node(\d+)", re.ASCII)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def parse_cpulist(text: str, *, subject: str, field: str) -> list[int]:
    """Return the CPU ids of a list such as `0-3,8-11`, in the order in which it names them.

    Raises InvalidObject: when it is no such list.

    Args:
        text: the list; surrounding white space is ignored.
    """
    ids: list[int] = []
    for part in filter(None, text.strip().split(",")):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= MAX_CPU_ID:
            raise InvalidObject(subject, field, text.strip(), "not a list of CPUs such as 0-3,8")
        ids += range(first, last + 1)
    return ids


def numa_nodes(sysfs_root: Path) -> Iterator[tuple[int, Path]]:
    """Yield the id and the directory of each NUMA node. Raises OSError: sysfs does not list them."""
    for entry in sorted((sysfs_root / "devices/system/node").iterdir()):
        if (match := _NODE.fullmatch(entry.name)) is not None:
            yield int(match[1]), entry


def read_cpu_topology(sysfs_root: Path, *, subject: str) -> Mapping[int, int]:
    """Return the NUMA node's id of each CPU that is on one.

    Raises InvalidObject: when sysfs does not list NUMA nodes there, or a list is garbage or contradicts another.

    Args:
        sysfs_root: where sysfs is mounted, usually `/sys`.
    """
    directory = sysfs_root / "devices/system/node"
    numa_node: dict[int, int] = {}
    try:
        for number, entry in numa_nodes(sysfs_root):
            path = entry / "cpulist"
            for cpu in parse_cpulist(path.read_text("ascii"), subject=subject, field=str(path)):
                if numa_node.setdefault(cpu, number) != number:
                    raise InvalidObject(subject, str(path), cpu, f"this CPU is on NUMA node {numa_node[cpu]} too")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidObject(subject, "sysfs", str(directory), f"cannot be read ({error})") from error
    if not numa_node:
        raise InvalidObject(subject, "sysfs", str(directory), "lists no CPU of any NUMA node")
    return numa_node


_State = TypeVar("_State")

#: The memory manager's policy that binds memory to NUMA nodes.
_STATIC_MEMORY = "Static"


@dataclass(slots=True)
class Allocations:
    """The contents of one kubelet's state files.

    Attributes:
        pods: by uid; pods that have ended may be among them.
        binds_memory: whether containers with exclusive CPUs have memory blocks, too.
    """

    pods: dict[str, PodAllocations]
    binds_memory: bool

    def uids(self, shown: Mapping[_State, PodAllocations]) -> dict[_State, str]:
        """Return the uid of each pod of podresources, of those that these files distinguish and agree about.

        Args:
            shown: what podresources tells of each pod, by any key.
        """
        owner = {
            (container, item): uid
            for uid, containers in self.pods.items()
            for container, held in containers.items()
            for item in held.exclusive
        }
        uid_by_state: dict[_State, str] = {}
        plain: dict[_State, PodAllocations] = {}
        for key, containers in shown.items():
            items = [(name, item) for name, held in containers.items() for item in held.exclusive]
            if not items:
                if any(held.memory for held in containers.values()):
                    plain[key] = containers
                continue
            owners = {owner.get(item) for item in items}
            uid = owners.pop()
            if uid is not None and not owners and self._agrees(uid, containers):
                uid_by_state[key] = uid
        self._by_memory(plain, uid_by_state)
        return uid_by_state

    def _by_memory(self, shown: Mapping[_State, PodAllocations], uid_by_state: dict[_State, str]) -> None:
        """Pods with nothing but memory: where just one pod and one uid are alike they belong together."""
        left = self.pods.keys() - set(uid_by_state.values())
        alike = {key: [uid for uid in left if self._agrees(uid, pod)] for key, pod in shown.items()}
        for key, uids in alike.items():
            if len(uids) == 1 and sum(uids[0] in others for others in alike.values()) == 1:
                uid_by_state[key] = uids[0]

    def _agrees(self, uid: str, shown: PodAllocations) -> bool:
        pod = self.pods[uid]
        return all(pod.get(name, Allocation()) == held for name, held in shown.items())

    def complete(self, shown: PodAllocations) -> bool:
        """Tell whether a pod's admission is over as far as can be seen: memory comes last, after CPUs and devices."""
        return not self.binds_memory or all(held.memory for held in shown.values() if held.cpus)


class Checkpoints:
    """Reads the state files of one kubelet; what has not changed is not decoded again."""

    def __init__(self, directory: Path, *, subject: str) -> None:
        self._directory = directory
        self._subject = subject
        self._contents: list[bytes | None] = []
        self._read: Allocations | None = None
        #: By file, what its last contents were decoded to.
        self._states: dict[str, tuple[bytes, Any]] = {}

    def read(self) -> Allocations | None:
        """Return what the files say; None where there are none.

        Raises InvalidObject: naming file, field and value that cannot be read or believed.
        """
        contents = [self._content(name) for name in (CPU_STATE, MEMORY_STATE, DEVICE_CHECKPOINT)]
        if contents != self._contents:
            self._contents, self._read = [], None
            self._read = self._decoded(*contents)
            self._contents = contents
        return self._read

    def _content(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InvalidObject(self._subject, str(self._directory / name), str(error), "cannot be read") from error

    def _decoded(self, cpus: bytes | None, memory: bytes | None, devices: bytes | None) -> Allocations | None:
        # Where no device plugin ever came there is no file of devices; the others every kubelet writes as it starts.
        if cpus is None or memory is None:
            return None
        state = self._state(decode_memory_state, MEMORY_STATE, memory)
        pods: dict[str, PodAllocations] = {}
        self._add_cpus(self._state(decode_cpu_state, CPU_STATE, cpus), pods)
        _add_memory(state, pods)
        if devices is not None:
            _add_devices(self._state(decode_device_state, DEVICE_CHECKPOINT, devices), pods)
        return Allocations(pods, state.policy == _STATIC_MEMORY)

    def _state(self, decode: Callable[[bytes], _State], name: str, content: bytes) -> _State:
        last_content, decoded = self._states.get(name, (b"", None))
        if last_content == content:
            return cast("_State", decoded)
        try:
            state = decode(content)
        except InvalidObject as error:
            field_ = f"{self._directory / name}: {error.field}"
            raise InvalidObject(self._subject, field_, error.value, error.problem) from error
        self._states[name] = content, state
        return state

    def _add_cpus(self, state: CpuManagerState, pods: dict[str, PodAllocations]) -> None:
        for uid, containers in state.entries.items():
            for name, cpulist in containers.items():
                where = f"{self._directory / CPU_STATE}: entries[{uid}][{name}]"
                ids = parse_cpulist(cpulist, subject=self._subject, field=where)
                _of(pods, uid, name).cpus = frozenset(ids)


def _add_memory(state: MemoryManagerState, pods: dict[str, PodAllocations]) -> None:
    for uid, containers in state.entries.items():
        for name, blocks in containers.items():
            _of(pods, uid, name).memory = tuple(
                sorted((block.type, block.size, tuple(sorted(block.numa_nodes))) for block in blocks)
            )


def _add_devices(state: DeviceManagerState, pods: dict[str, PodAllocations]) -> None:
    for entry in state.entries or ():
        held = _of(pods, entry.pod_uid, entry.container).devices
        for node, ids in entry.devices.items():
            nodes = frozenset({node} if node >= 0 else ())
            for device in ids:
                key = (entry.resource, device)
                held[key] = held.get(key, frozenset()) | nodes


def _of(pods: dict[str, PodAllocations], uid: str, container: str) -> Allocation:
    return pods.setdefault(uid, {}).setdefault(container, Allocation())
