"""The part of `/sys/devices/system` that shows the place of each CPU, as files.

An exporter maps the CPU ids of the podresources API to NUMA nodes with it. Nodes that are alike share one tree: a
thousand machines of 128 CPUs would be half a million files.
"""

from pathlib import Path

from kai_fleet.kubelet import Machine
from kai_fleet.kubelet.bitsets import members, to_cpulist


class SysfsTrees:
    """Trees below one directory, one for each kind of machine, written when first needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / ".machines"
        self._trees: dict[int, Path] = {}
        self._kept: list[Machine] = []

    def link(self, machine: Machine, link: Path) -> None:
        """Make `link` the `sys` of a node with this machine."""
        tree = self._trees.get(id(machine))
        if tree is None:
            tree = self._trees[id(machine)] = self._directory / f"machine-{len(self._trees)}" / "sys"
            # Its id stands for it only as long as it lives.
            self._kept.append(machine)
            write_tree(machine, tree)
        link.unlink(missing_ok=True)
        link.symlink_to(tree.absolute(), target_is_directory=True)


def write_tree(machine: Machine, root: Path) -> None:
    """Write the files of one machine below `root`, its `/sys`."""
    system = root / "devices" / "system"
    zones = range(machine.zones)
    _write(system / "node" / "online", f"0-{machine.zones - 1}" if machine.zones > 1 else "0")
    for zone in zones:
        node = system / "node" / f"node{zone}"
        _write(node / "cpulist", to_cpulist(machine.zone_cpus[zone]))
        _write(node / "distance", " ".join(str(distance) for distance in machine.distances[zone]))
        total = machine.zone_memory[zone].get("memory", 0)
        _write(node / "meminfo", f"Node {zone} MemTotal:       {total // 1024} kB")
    cpus = machine.cpus
    _write(system / "cpu" / "online", to_cpulist(cpus.all))
    _write(system / "cpu" / "present", to_cpulist(cpus.all))
    for socket, cores in enumerate(cpus.cores_of_socket):
        for core in cores:
            for cpu in members(core):
                topology = system / "cpu" / f"cpu{cpu}" / "topology"
                _write(topology / "thread_siblings_list", to_cpulist(core))
                _write(topology / "core_id", str((core & -core).bit_length() - 1))
                _write(topology / "physical_package_id", str(socket))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", "ascii")
