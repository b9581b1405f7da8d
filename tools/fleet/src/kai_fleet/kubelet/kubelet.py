"""One kubelet: decides on pods one after the other and keeps what they hold.

The kubelet's checks after the resource managers: whether the node as a whole suits the pod.

`lifecycle/predicate.go`.

The topology manager: asks for hints, merges them, and has the managers allocate.

`topologymanager/scope_container.go`, `scope_pod.go`, `scope_none.go`.

Its report of its resources: contents of the podresources API, and sums per zone for publishers
(`podresources/server_v1.go`). Since 1.34 only active pods are listed; regular containers and sidecars, never ordinary
init containers. Without the static policy the CPU manager reports no allocatable CPUs, and the memory manager no
memory (facts row 1).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kai_fleet.kubelet.cpus import CpuManager
from kai_fleet.kubelet.devices import DeviceManager
from kai_fleet.kubelet.hints import NO_AFFINITY, Affinity, Hints, merge
from kai_fleet.kubelet.machine import KubeletConfig, Machine, members
from kai_fleet.kubelet.memory import Block, MemoryManager
from kai_fleet.kubelet.pod import TOPOLOGY_AFFINITY, AdmissionError, Container, Pod, Rejection, out_of, predicate_failed


@dataclass(slots=True)
class TopologyManager:
    """The three managers under one policy and scope."""

    machine: Machine
    config: KubeletConfig
    cpus: CpuManager = field(init=False)
    devices: DeviceManager = field(init=False)
    memory: MemoryManager = field(init=False)

    def __post_init__(self) -> None:
        self.cpus = CpuManager(self.machine, self.config)
        self.devices = DeviceManager(self.machine, self.config)
        self.memory = MemoryManager(self.machine, self.config)

    def admit(self, pod: Pod) -> dict[str, Affinity]:
        """Allocate everything the pod needs, container by container; return each container's affinity.

        What was allocated before a rejection stays until `release`: the kubelet sweeps it at the head of the next
        admission. Raises AdmissionError: the policy is not met, or a manager could not allocate.
        """
        affinities: dict[str, Affinity] = {}
        policy, scope = self.config.topology_policy, self.config.topology_scope
        common = NO_AFFINITY
        if policy != "none" and scope == "pod":
            common = self._decide(self.pod_hints(pod))
        for container in pod.containers:
            affinity = common
            if policy != "none" and scope == "container":
                affinity = self._decide(self.container_hints(pod, container))
            affinities[container.name] = affinity
            self.devices.allocate(pod, container, affinity)
            self.cpus.allocate(pod, container, affinity)
            self.memory.allocate(pod, container, affinity)
        return affinities

    def container_hints(self, pod: Pod, container: Container) -> list[Hints | None]:
        """The managers' record of one container."""
        return [
            *self.devices.container_hints(pod, container),
            self.cpus.container_hints(pod, container),
            self.memory.container_hints(pod, container),
        ]

    def pod_hints(self, pod: Pod) -> list[Hints | None]:
        """The managers' record of the pod as a whole."""
        return [*self.devices.pod_hints(pod), self.cpus.pod_hints(pod), self.memory.pod_hints(pod)]

    def _decide(self, hints: list[Hints | None]) -> Affinity:
        policy = self.config.topology_policy
        affinity = merge(hints, policy=policy, machine=self.machine, prefer_closest=self.config.prefer_closest)
        if policy != "best-effort" and not affinity.preferred:
            raise AdmissionError(TOPOLOGY_AFFINITY)
        return affinity

    def release(self, uid: str) -> None:
        """Free everything that a pod holds."""
        self.cpus.release(uid)
        self.devices.release(uid)
        self.memory.release(uid)

    def holders(self) -> set[str]:
        """Return the uids of all pods that hold something."""
        return {*self.cpus.assigned, *self.devices.assigned, *self.memory.assigned}


#: The order in which the scheduler's resource fit, which the kubelet re-uses, names what is lacking.
_FIRST = ("pods", "cpu", "memory", "ephemeral-storage")


def check_predicates(
    pod: Pod,
    *,
    allocatable: Mapping[str, int],
    used: Mapping[str, int],
    labels: Mapping[str, str],
    host_ports: Iterable[tuple[str, str, int]],
) -> Rejection | None:
    """Return the first thing that speaks against the pod, or None.

    Args:
        allocatable: what the node offers as a whole, `pods` included.
        used: what the node's active pods request in all, `pods` included.
        labels: of the node, its name under `metadata.name`.
    """
    return (
        _lacking(pod, allocatable, used)
        or (predicate_failed("NodeAffinity") if pod.node_affinity and not pod.node_affinity(labels) else None)
        or (predicate_failed("NodePorts") if _conflict(pod.host_ports, host_ports) else None)
    )


def _lacking(pod: Pod, allocatable: Mapping[str, int], used: Mapping[str, int]) -> Rejection | None:
    """Name the first resource that is short.

    Extended resources that the node does not have at all are no concern of the kubelet
    (`removeMissingExtendedResources`).
    """
    requests = pod.node_requests()
    requests["pods"] = 1
    for resource in (*_FIRST, *sorted(requests.keys() - set(_FIRST))):
        requested = requests.get(resource, 0)
        if not requested:
            continue
        capacity = allocatable.get(resource)
        if capacity is None:
            if _is_extended(resource):
                continue
            capacity = 0
        if used.get(resource, 0) + requested > capacity:
            return out_of(resource, requested=requested, used=used.get(resource, 0), capacity=capacity)
    return None


def _is_extended(resource: str) -> bool:
    """True if the name is qualified by a domain that is not Kubernetes' own."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


def _conflict(wanted: frozenset[tuple[str, str, int]], taken: Iterable[tuple[str, str, int]]) -> bool:
    """Same protocol and port, on the same address or on all of them."""
    if not wanted:
        return False
    everywhere = ("0.0.0.0", "::", "")  # noqa: S104
    return any(
        protocol == other_protocol and port == other_port and (ip == other or ip in everywhere or other in everywhere)
        for ip, protocol, port in wanted
        for other, other_protocol, other_port in taken
    )


@dataclass(slots=True)
class Kubelet:
    """Pods of one node, from admission until they hold nothing any more.

    A pod that ended is no longer *active* at once, but the managers free its state at the head of the next admission
    (`removeStaleState`), or when `sweep` is called, as the kubelet's reconcile loop does every 10 s.
    """

    machine: Machine
    config: KubeletConfig
    managers: TopologyManager = field(init=False)
    #: Active pods by uid, in the order of their admission.
    pods: dict[str, Pod] = field(default_factory=dict)
    #: uid → container → merged hint, of active pods.
    affinities: dict[str, dict[str, Affinity]] = field(default_factory=dict)
    #: What active pods request of the node as a whole.
    used: dict[str, int] = field(default_factory=dict)
    #: What the node offers as a whole now: less when devices are unhealthy.
    allocatable: dict[str, int] = field(init=False)
    #: The labels of the Node object.
    labels: Mapping[str, str] = field(init=False)
    #: Counts the occasions on which the managers give or take, and so write their files.
    changes: int = 0
    _stale: bool = False

    def __post_init__(self) -> None:
        self.managers = TopologyManager(self.machine, self.config)
        self.allocatable = dict(self.config.allocatable)
        self.labels = self.config.labels

    def admit(self, pod: Pod) -> Rejection | None:
        """Admit a pod, which makes it active and gives it what it needs, or say why not.

        First the resource managers, then the predicates (facts section 2.7 item 6). A pod that is active already
        stays as it is.
        """
        if pod.uid in self.pods:
            return None
        self.sweep()
        self.changes += 1
        try:
            affinities = self.managers.admit(pod)
        except AdmissionError as error:
            self._stale = True
            return error.rejection
        ports = (port for other in self.pods.values() for port in other.host_ports)
        rejection = check_predicates(
            pod, allocatable=self.allocatable, used=self.used, labels=self.labels, host_ports=ports
        )
        if rejection is not None:
            self._stale = True
            return rejection
        self.restore(pod, affinities)
        return None

    def restore(self, pod: Pod, affinities: dict[str, Affinity]) -> None:
        """Count a pod as active without looking at it; a checkpoint restores what it holds."""
        self.pods[pod.uid] = pod
        self.affinities[pod.uid] = affinities
        self._count(pod, 1)

    def _count(self, pod: Pod, sign: int) -> None:
        used = self.used
        for resource, amount in pod.node_requests().items():
            used[resource] = used.get(resource, 0) + sign * amount
        used["pods"] = used.get("pods", 0) + sign

    def containers_started(self, uid: str, *, through: str | None = None) -> None:
        """Note that the containers up to `through` (all by default) have been started, in spec order.

        When a container starts, the memory manager frees what earlier init containers hold (`memory_manager.go`
        AddContainer); the CPU and device managers free nothing before the pod ends.
        """
        pod = self.pods.get(uid)
        if pod is None:
            return
        self.changes += 1
        finished: list[str] = []
        for container in pod.containers:
            for name in finished:
                self.managers.memory.release_container(uid, name)
            finished = [*finished, container.name] if container.kind == "init" else finished
            if container.name == through:
                return

    def terminated(self, uid: str) -> None:
        """Note that a pod is no longer active: all its containers have ended, or it is gone."""
        pod = self.pods.pop(uid, None)
        if pod is None:
            return
        del self.affinities[uid]
        self._count(pod, -1)
        self._stale = True

    def set_device_health(self, resource: str, device_id: str, *, healthy: bool) -> None:
        """Take note of a device plugin's update; pods that hold the device keep it.

        Raises KeyError: there is no such device.
        """
        self.managers.devices.set_health(resource, device_id, healthy=healthy)
        self.allocatable[resource] = self.managers.devices.pools[resource].healthy.bit_count()

    def sweep(self) -> None:
        """Free what pods hold that are not active (any more)."""
        if not self._stale:
            return
        self._stale = False
        for uid in sorted(self.managers.holders() - self.pods.keys()):
            self.managers.release(uid)


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
