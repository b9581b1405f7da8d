"""From a profile to nodes: machine, kubelet configuration and whole-node amounts of each.

What a real kubelet would refuse to start with is an error here too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kaicore.errors import ConfigurationError

from kai_fleet.kubelet import Device, KubeletConfig, Machine
from kai_fleet.kubelet.cpus import packed
from kai_fleet.kubelet.machine import HUGEPAGES_PREFIX, bits, from_cpulist
from kai_fleet.profiles.profile import DeviceProfile, NodeGroup, Profile, ZoneProfile

#: SLIT distances of a zone to itself, to another of its socket, and to one of another socket.
_LOCAL, _NEAR, _REMOTE = 10, 12, 21


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node of the fleet, before anything happened on it."""

    name: str
    #: Position in the fleet, from 0.
    number: int
    group: NodeGroup
    machine: Machine
    config: KubeletConfig
    labels: Mapping[str, str]
    #: `status.capacity`: millicores, bytes, counts.
    capacity: Mapping[str, int]
    #: The fleet's.
    seed: int = 0

    @property
    def internal_ip(self) -> str:
        """The node's address, in 172.16.0.0/12."""
        return f"172.{16 + (self.number >> 16 & 15)}.{self.number >> 8 & 255}.{self.number & 255}"

    @property
    def pod_cidr(self) -> str:
        """The addresses of its pods, a /24 in 10.0.0.0/8."""
        return f"10.{self.number >> 8 & 255}.{self.number & 255}.0/24"

    def pod_ip(self, ordinal: int) -> str:
        """Return an address for the `ordinal`-th pod that ran here."""
        return f"10.{self.number >> 8 & 255}.{self.number & 255}.{2 + ordinal % 252}"


def expand(profile: Profile, *, source: str = "profile") -> list[NodeSpec]:
    """Return the nodes of a profile, in its order; `source` is what errors call it.

    Raises ConfigurationError: naming the group, the field and the value a kubelet would not start with.
    """
    return _expand(profile, [], reserve=False, source=source)


def reserve_of(profile: Profile, *, source: str = "profile") -> list[NodeSpec]:
    """Return the nodes that an autoscaler may add, numbered on from the others; raises as `expand` does."""
    nodes = expand(profile, source=source)
    return _expand(profile, nodes, reserve=True, source=source)[len(nodes) :]


def _expand(profile: Profile, before: list[NodeSpec], *, reserve: bool, source: str) -> list[NodeSpec]:
    nodes = list(before)
    for group in profile.groups:
        try:
            machine = _machine(group)
            config = _config(group, machine)
        except ConfigurationError as error:
            raise ConfigurationError(f"profile {source}: {error}") from error
        capacity = _capacity(group, machine)
        first = group.first + group.count if reserve else group.first
        for number in range(first, first + (group.reserve if reserve else group.count)):
            name = f"{group.name}-{number}"
            labels = {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux",
                "kubernetes.io/hostname": name,
                **{
                    label: f"{label.rpartition('/')[2].rpartition('-')[2]}-{len(nodes) // size}"
                    for label, size in profile.topology_labels.items()
                },
                **group.labels,
            }
            matched = {**labels, "metadata.name": name}
            own = replace(config, labels=matched)
            nodes.append(NodeSpec(name, len(nodes), group, machine, own, labels, capacity, profile.seed))
    return nodes


def _wrong(group: NodeGroup, field: str, value: object, problem: str) -> ConfigurationError:
    return ConfigurationError(f"group {group.name}: {field}: {problem} (got {value!r})")


def _machine(group: NodeGroup) -> Machine:
    zones = group.zone_list
    sockets = group.sockets if group.sockets is not None else min(2, len(zones))
    if len(zones) % sockets and sockets % len(zones):
        raise _wrong(group, "sockets", sockets, f"does not divide {len(zones)} zones, nor they it")
    devices = {
        resource: tuple(sorted(of_resource, key=lambda device: device.id))
        for resource, of_resource in _devices(group, zones).items()
        if of_resource
    }
    for resource, of_resource in devices.items():
        for device in of_resource:
            if device.zones >> len(zones):
                raise _wrong(group, f"devices.{resource}", device.id, "names a zone that the node does not have")
        if len({device.id for device in of_resource}) < len(of_resource):
            raise _wrong(group, f"devices.{resource}", [device.id for device in of_resource], "an id appears twice")
    return Machine(
        zone_cpus=_zone_cpus(group, zones),
        zone_memory=tuple(
            {"memory": zone.memory, **{HUGEPAGES_PREFIX + size: total for size, total in zone.hugepages.items()}}
            for zone in zones
        ),
        sockets=sockets,
        threads_per_core=group.threads_per_core,
        devices=devices,
        distances=_distances(group, len(zones), sockets),
    )


def _zone_cpus(group: NodeGroup, zones: tuple[ZoneProfile, ...]) -> tuple[int, ...]:
    threads = group.threads_per_core
    by_id = [zone.cpu_ids is not None for zone in zones]
    if any(by_id) and not all(by_id):
        raise _wrong(group, "zones", "cpus and cpuIDs", "give CPUs by number in all zones or by id in all zones")
    result: list[int] = []
    cores = sum(zone.cpus or 0 for zone in zones) // threads
    first = 0
    for number, zone in enumerate(zones):
        if zone.cpu_ids is not None:
            cpus = from_cpulist(zone.cpu_ids)
        else:
            own = (zone.cpus or 0) // threads
            cpus = bits(thread * cores + first + core for thread in range(threads) for core in range(own))
            first += own
        if cpus.bit_count() % threads or not cpus or (zone.cpus or 0) % threads:
            raise _wrong(
                group, f"zones.{number}.cpus", zone.cpus or zone.cpu_ids, f"not whole cores of {threads} threads"
            )
        if any(cpus & other for other in result):
            raise _wrong(group, f"zones.{number}.cpuIDs", zone.cpu_ids, "a CPU is in two zones")
        result.append(cpus)
    return tuple(result)


def _devices(group: NodeGroup, zones: tuple[ZoneProfile, ...]) -> dict[str, list[Device]]:
    devices: dict[str, list[Device]] = {}
    counters: dict[str, int] = {}

    def add(resource: str, wanted: int | tuple[DeviceProfile, ...], zone: int | None) -> None:
        of_resource = devices.setdefault(resource, [])
        own = 0 if zone is None else 1 << zone
        if isinstance(wanted, int):
            for _ in range(wanted):
                number = counters[resource] = counters.get(resource, -1) + 1
                of_resource.append(Device(f"{resource.rpartition('/')[2]}-{number:02d}", own))
            return
        of_resource.extend(Device(device.id, bits(device.zones) or own, device.healthy) for device in wanted)

    for number, zone in enumerate(zones):
        for resource, wanted in zone.devices.items():
            add(resource, wanted, number)
    for resource, wanted in group.devices.items():
        add(resource, wanted, None)
    return devices


def _distances(group: NodeGroup, zones: int, sockets: int) -> tuple[tuple[int, ...], ...]:
    if group.distances is None:
        per_socket = max(1, zones // sockets)
        return tuple(
            tuple(_LOCAL if a == b else _NEAR if a // per_socket == b // per_socket else _REMOTE for b in range(zones))
            for a in range(zones)
        )
    if len(group.distances) != zones or any(len(row) != zones for row in group.distances):
        raise _wrong(group, "distances", group.distances, f"not a matrix of {zones} zones by {zones}")
    return group.distances


def _config(group: NodeGroup, machine: Machine) -> KubeletConfig:
    kubelet = group.kubelet
    options = kubelet.cpu_manager_policy_options
    policy = kubelet.topology_manager_policy
    most = kubelet.topology_manager_policy_options.max_allowable_numa_nodes
    if policy != "none" and machine.zones > most:
        raise _wrong(
            group, "kubelet.topologyManagerPolicyOptions", machine.zones, f"unsupported with more than {most} zones"
        )
    if options.align_by_socket and (policy == "single-numa-node" or machine.sockets > machine.zones):
        raise _wrong(
            group, "kubelet.cpuManagerPolicyOptions", "align-by-socket", "not with this policy or these sockets"
        )
    static_cpus = kubelet.cpu_manager_policy == "static"
    reserved_cpus, reserved_milli = _reserved_cpus(group, machine)
    if static_cpus and not reserved_cpus:
        raise _wrong(group, "kubelet.kubeReserved.cpu", 0, "the static policy wants a CPU reservation")
    static_memory = kubelet.memory_manager_policy == "Static"
    enabled = options.model_dump(by_alias=True)
    return KubeletConfig(
        topology_policy=policy,
        topology_scope=kubelet.topology_manager_scope,
        prefer_closest=kubelet.topology_manager_policy_options.prefer_closest_numa_nodes,
        static_cpus=static_cpus,
        cpu_options=frozenset(name for name, on in enabled.items() if on),
        static_memory=static_memory,
        reserved_cpus=reserved_cpus if static_cpus else 0,
        reserved_memory=_reserved_memory(group, machine) if static_memory else (),
        preferred_allocation=kubelet.preferred_allocation,
        allocatable=_allocatable(group, machine, reserved_milli),
    )


def _reserved_cpus(group: NodeGroup, machine: Machine) -> tuple[int, int]:
    """Return the CPUs that are never exclusive, and the reservation in millicores."""
    kubelet = group.kubelet
    if kubelet.reserved_system_cpus is not None:
        cpus = from_cpulist(kubelet.reserved_system_cpus)
        if cpus & ~machine.cpus.all:
            raise _wrong(
                group, "kubelet.reservedSystemCPUs", kubelet.reserved_system_cpus, "the node lacks some of them"
            )
        return cpus, cpus.bit_count() * 1000
    milli = kubelet.kube_reserved.cpu + kubelet.system_reserved.cpu
    if milli > machine.cpus.all.bit_count() * 1000:
        raise _wrong(group, "kubelet.kubeReserved.cpu", milli, "more than the node has (millicores)")
    return packed(machine.cpus, machine.cpus.all, -(-milli // 1000)), milli


def _reserved_memory(group: NodeGroup, machine: Machine) -> tuple[dict[str, int], ...]:
    """Per zone what the memory manager keeps; in sum what the kubelet reserves in all (`validateReservedMemory`)."""
    kubelet = group.kubelet
    due = kubelet.kube_reserved.memory + kubelet.system_reserved.memory + kubelet.eviction_hard
    result: list[dict[str, int]] = [{} for _ in range(machine.zones)]
    if not kubelet.reserved_memory:
        result[0]["memory"] = due
    for entry in kubelet.reserved_memory:
        if entry.numa_node >= machine.zones:
            raise _wrong(group, "kubelet.reservedMemory.numaNode", entry.numa_node, "the node has no such zone")
        result[entry.numa_node].update(entry.limits)
    total = sum(zone.get("memory", 0) for zone in result)
    if total != due:
        raise _wrong(
            group,
            "kubelet.reservedMemory",
            total,
            f"must be {due}: kubeReserved + systemReserved + evictionHard, in bytes",
        )
    for number, zone in enumerate(result):
        for kind, size in zone.items():
            if size > machine.zone_memory[number].get(kind, 0):
                raise _wrong(group, f"kubelet.reservedMemory.{number}.{kind}", size, "more than the zone has (bytes)")
    return tuple(result)


def _capacity(group: NodeGroup, machine: Machine) -> dict[str, int]:
    capacity = {"cpu": machine.cpus.all.bit_count() * 1000, "ephemeral-storage": group.ephemeral_storage}
    for zone in machine.zone_memory:
        for kind, size in zone.items():
            capacity[kind] = capacity.get(kind, 0) + size
    capacity.update({resource: len(devices) for resource, devices in machine.devices.items()})
    capacity.update(group.extended_resources)
    capacity["pods"] = group.kubelet.max_pods
    return capacity


def _allocatable(group: NodeGroup, machine: Machine, reserved_milli: int) -> dict[str, int]:
    kubelet = group.kubelet
    allocatable = _capacity(group, machine)
    allocatable["cpu"] -= reserved_milli
    hugepages = sum(size for kind, size in allocatable.items() if kind.startswith(HUGEPAGES_PREFIX))
    reserved = kubelet.kube_reserved.memory + kubelet.system_reserved.memory + kubelet.eviction_hard
    allocatable["memory"] -= reserved + hugepages
    if allocatable["memory"] < 0:
        raise _wrong(group, "kubelet.kubeReserved.memory", reserved, "more than the node has (bytes)")
    for resource, devices in machine.devices.items():
        allocatable[resource] = sum(device.healthy for device in devices)
    return allocatable
