"""The topology manager: asks for hints, merges them, and has the managers allocate.

`topologymanager/scope_container.go`, `scope_pod.go`, `scope_none.go`.
"""

from dataclasses import dataclass, field

from kai_fleet.kubelet.cpus import CpuManager
from kai_fleet.kubelet.devices import DeviceManager
from kai_fleet.kubelet.hints import NO_AFFINITY, Affinity, Hints, merge
from kai_fleet.kubelet.machine import KubeletConfig, Machine
from kai_fleet.kubelet.memory import MemoryManager
from kai_fleet.kubelet.pod import Container, Pod
from kai_fleet.kubelet.rejection import TOPOLOGY_AFFINITY, AdmissionError


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
        admission.

        Raises:
            AdmissionError: the policy is not met, or a manager could not allocate.
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
        """What the managers say of one container."""
        return [
            *self.devices.container_hints(pod, container),
            self.cpus.container_hints(pod, container),
            self.memory.container_hints(pod, container),
        ]

    def pod_hints(self, pod: Pod) -> list[Hints | None]:
        """What the managers say of the pod as a whole."""
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
