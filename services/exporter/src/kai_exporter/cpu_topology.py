"""NUMA node of each CPU, read from sysfs.

The kubelet's podresources API names CPUs by id only. Linux lists the CPUs of each NUMA node in
`devices/system/node/node<id>/cpulist`, in the format of `man 7 cpuset`: `0-3,8-11`; it is empty for a NUMA node that is
only memory.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from kaicore.errors import InvalidObject

#: No machine has a CPU with a greater id; a longer list is garbage.
MAX_CPU_ID = 65_535

_NODE = re.compile(r"node(\d+)", re.ASCII)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def parse_cpulist(text: str, *, subject: str, field: str) -> list[int]:
    """Return the CPU ids of a list such as `0-3,8-11`, in the order in which it names them.

    Args:
        text: the list; surrounding white space is ignored.
        subject: the list's owner, for the error.
        field: which list, for the error.

    Raises:
        InvalidObject: when it is no such list.
    """
    ids: list[int] = []
    for part in filter(None, text.strip().split(",")):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= MAX_CPU_ID:
            raise InvalidObject(subject, field, text.strip(), "not a list of CPUs such as 0-3,8")
        ids += range(first, last + 1)
    return ids


def read_cpu_topology(sysfs_root: Path, *, subject: str) -> Mapping[int, int]:
    """Return the NUMA node's id of each CPU that is on one.

    Args:
        sysfs_root: where sysfs is mounted, usually `/sys`.
        subject: the node, for errors.

    Raises:
        InvalidObject: when sysfs does not list NUMA nodes there, or a list is garbage or contradicts another.
    """
    directory = sysfs_root / "devices/system/node"
    numa_node: dict[int, int] = {}
    try:
        for entry in sorted(directory.iterdir()):
            if (match := _NODE.fullmatch(entry.name)) is None:
                continue
            path = entry / "cpulist"
            for cpu in parse_cpulist(path.read_text("ascii"), subject=subject, field=str(path)):
                if numa_node.setdefault(cpu, int(match[1])) != int(match[1]):
                    raise InvalidObject(subject, str(path), cpu, f"this CPU is on NUMA node {numa_node[cpu]} too")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidObject(subject, "sysfs", str(directory), f"cannot be read ({error})") from error
    if not numa_node:
        raise InvalidObject(subject, "sysfs", str(directory), "lists no CPU of any NUMA node")
    return numa_node
