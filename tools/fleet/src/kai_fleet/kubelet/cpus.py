"""The CPU manager: exclusive CPUs for containers of Guaranteed pods (`cpumanager/policy_static.go`)."""

from dataclasses import dataclass, field

from kai_fleet.kubelet.cpu_assignment import NotEnoughCpus, distributed, packed
from kai_fleet.kubelet.hints import Affinity, Hints
from kai_fleet.kubelet.machine import KubeletConfig, Machine
from kai_fleet.kubelet.pod import Container, Pod
from kai_fleet.kubelet.rejection import allocation_failed, smt_alignment


def exclusive_cpus(pod: Pod, container: Container) -> int:
    """How many CPUs the container gets for itself: an integral request in a Guaranteed pod, otherwise none.

    With pod-level resources none either, as long as feature PodLevelResourceManagers is off (its default).
    """
    if pod.qos != "Guaranteed" or pod.has_pod_level_resources:
        return 0
    cpus, fraction = divmod(container.requests.get("cpu", 0), 1000)
    return 0 if fraction else cpus


@dataclass(slots=True)
class CpuManager:
    """The static policy's state; with policy none it has no opinion and allocates nothing."""

    machine: Machine
    config: KubeletConfig
    #: uid → container → exclusive CPUs.
    assigned: dict[str, dict[str, int]] = field(default_factory=dict)
    #: CPUs that no container has to itself, reserved ones included.
    shared: int = 0
    _reusable: int = 0
    _reusable_uid: str = ""

    def __post_init__(self) -> None:
        self.shared = self.machine.cpus.all

    @property
    def free(self) -> int:
        """CPUs that can be given away."""
        return self.shared & ~self.config.reserved_cpus

    def container_hints(self, pod: Pod, container: Container) -> Hints | None:
        """Hints for one container."""
        return self._hints(pod, exclusive_cpus(pod, container))

    def pod_hints(self, pod: Pod) -> Hints | None:
        """Hints for the pod as a whole: only integral requests are summed."""
        if pod.qos != "Guaranteed":
            return None
        return self._hints(pod, pod.total(lambda c: {"cpu": exclusive_cpus(pod, c)}).get("cpu", 0))

    def _hints(self, pod: Pod, requested: int) -> Hints | None:
        if not requested or not self.config.static_cpus:
            return None
        topology = self.machine.cpus
        reusable = self._reusable if self._reusable_uid == pod.uid else 0
        free = self.free | reusable
        width = self.machine.zones
        masks: list[int] = []
        for mask, cpus in topology.in_zones.items():
            # The width counts every CPU of the zones, reserved ones too; what an init container lends must be inside.
            if mask.bit_count() < width and cpus.bit_count() >= requested:
                width = mask.bit_count()
            if not reusable & ~cpus and (free & cpus).bit_count() >= requested:
                masks.append(mask)
        return Hints(tuple(masks), tuple(mask for mask in masks if self._is_preferred(mask, width)))

    def _is_preferred(self, mask: int, width: int) -> bool:
        if mask.bit_count() == width:
            return True
        if "align-by-socket" not in self.config.cpu_options:
            return False
        topology = self.machine.cpus
        zones_per_socket = self.machine.zones // self.machine.sockets
        if zones_per_socket == 0:
            return False
        sockets = sum(1 for zones in topology.zones_of_socket if any(mask >> zone & 1 for zone in zones))
        return sockets == -(-width // zones_per_socket)

    def allocate(self, pod: Pod, container: Container, affinity: Affinity) -> None:
        """Give the container its CPUs: those inside the affinity first, the rest from anywhere.

        Raises:
            AdmissionError: there are not enough, or not in whole cores under full-pcpus-only.
        """
        count = exclusive_cpus(pod, container) if self.config.static_cpus else 0
        if not count:
            return
        self._check_whole_cores(count)
        if self._reusable_uid != pod.uid:
            self._reusable, self._reusable_uid = 0, pod.uid
        allocatable = self.free | self._reusable
        taken = 0
        try:
            if affinity.mask is not None:
                aligned = allocatable & self._aligned(affinity.mask)
                taken = self._take(aligned, min(count, aligned.bit_count()))
            taken |= self._take(allocatable & ~taken, count - taken.bit_count())
        except NotEnoughCpus as error:
            raise allocation_failed(str(error)) from error
        self.shared &= ~taken
        self.assigned.setdefault(pod.uid, {})[container.name] = taken
        if container.kind == "init":
            self._reusable |= taken
        else:
            self._reusable &= ~taken

    def _check_whole_cores(self, count: int) -> None:
        if "full-pcpus-only" not in self.config.cpu_options:
            return
        threads = self.machine.threads_per_core
        if count % threads:
            raise smt_alignment(count, threads_per_core=threads)
        free = (self.shared & ~self.machine.cpus.whole_cores(self.config.reserved_cpus)).bit_count()
        if count > free:
            raise smt_alignment(count, threads_per_core=threads, free_physical_cpus=free)

    def _aligned(self, mask: int) -> int:
        by_socket = "align-by-socket" in self.config.cpu_options
        return (self.machine.cpus.on_sockets_of if by_socket else self.machine.cpus.in_zones)[mask]

    def _take(self, cpus: int, count: int) -> int:
        topology, options = self.machine.cpus, self.config.cpu_options
        if "distribute-cpus-across-numa" in options:
            group = self.machine.threads_per_core if "full-pcpus-only" in options else 1
            return distributed(topology, cpus, count, group=group)
        return packed(topology, cpus, count, align_uncore="prefer-align-cpus-by-uncorecache" in options)

    def restore(self, uid: str, container: str, cpus: int) -> None:
        """Take up an assignment from a checkpoint."""
        self.assigned.setdefault(uid, {})[container] = cpus
        self.shared &= ~cpus

    def release(self, uid: str) -> None:
        """Return all CPUs of a pod to the shared pool."""
        for cpus in self.assigned.pop(uid, {}).values():
            self.shared |= cpus
