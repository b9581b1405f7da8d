"""A pod as the resource managers see it: containers with amounts, and the sums that the kubelet makes of them.

Rejections of pods by a kubelet: the `reason` and `message` in the pod's status and in a Warning event.

`lifecycle.PodAdmitResult`, `topologymanager/topology_manager.go`, `cpumanager/policy_static.go`,
`lifecycle/predicate.go`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kai_fleet.kubelet.machine import is_memory_type


@dataclass(frozen=True, slots=True)
class Rejection:
    """A refusal; `status.message` of the pod is `Pod was rejected: ` and the message."""

    reason: str
    message: str


class AdmissionError(Exception):
    """Raised by a resource manager that cannot allocate; carries the rejection."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.message)
        self.rejection = rejection


#: The merged hint is not what the node's policy demands.
TOPOLOGY_AFFINITY = Rejection("TopologyAffinityError", "Resources cannot be allocated with Topology locality")


def allocation_failed(cause: str) -> AdmissionError:
    """An error of a manager's Allocate that has no type of its own."""
    return AdmissionError(
        Rejection("UnexpectedAdmissionError", f"Allocate failed due to {cause}, which is unexpected"),
    )


def smt_alignment(requested: int, *, threads_per_core: int, free_physical_cpus: int | None = None) -> AdmissionError:
    """CPU manager option full-pcpus-only: an uneven request, or (with `free_physical_cpus`) too few whole cores."""
    if free_physical_cpus is None:
        text = f"requested {requested} cpus not multiple cpus per core = {threads_per_core}"
    else:
        text = (
            f"not enough free physical CPUs: available physical CPUs = {free_physical_cpus}, "
            f"requested CPUs = {requested}, CPUs per core = {threads_per_core}"
        )
    return AdmissionError(Rejection("SMTAlignmentError", f"SMT Alignment Error: {text}"))


def out_of(resource: str, *, requested: int, used: int, capacity: int) -> Rejection:
    """The node as a whole has too little; CPU in millicores, memory in bytes, the rest in counts."""
    return Rejection(
        f"OutOf{resource}",
        f"Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}",
    )


def predicate_failed(predicate: str) -> Rejection:
    """A predicate without amounts (NodeAffinity, NodePorts) does not hold."""
    return Rejection(predicate, f"Predicate {predicate} failed")


Kind = Literal["init", "sidecar", "app"]
Qos = Literal["Guaranteed", "Burstable", "BestEffort"]
Amounts = Mapping[str, int]

#: Resources that `spec.resources` may name, hugepages beside.
_POD_LEVEL = ("cpu", "memory")


@dataclass(frozen=True, slots=True)
class Container:
    """One container; a sidecar is a restartable init container. Millicores, bytes, counts."""

    name: str
    kind: Kind = "app"
    requests: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod; init containers and sidecars come first, as `InitContainers ++ Containers`."""

    uid: str
    namespace: str
    name: str
    containers: tuple[Container, ...]
    overhead: Amounts = field(default_factory=dict)
    #: `spec.resources`: pod-level requests and limits.
    pod_requests: Amounts = field(default_factory=dict)
    pod_limits: Amounts = field(default_factory=dict)
    #: A predicate of this pod over the node's labels, or None when it goes anywhere.
    node_affinity: Callable[[Mapping[str, str]], bool] | None = None
    #: (host IP, protocol, port) of every host port.
    host_ports: frozenset[tuple[str, str, int]] = frozenset()
    #: The QoS class, as the kubelet computes it.
    qos: Qos = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "qos", _qos(self))

    @property
    def has_pod_level_resources(self) -> bool:
        """True if `spec.resources` names a resource that counts (`resourcehelper.IsPodLevelResourcesSet`)."""
        return any(
            resource in _POD_LEVEL or is_memory_type(resource) for resource in (*self.pod_requests, *self.pod_limits)
        )

    def total(self, amounts: Callable[[Container], Amounts]) -> dict[str, int]:
        """Sum what the containers hold at the worst moment.

        App containers and all sidecars together, or an init container with the sidecars before it, whichever is more,
        per resource (KEP-753; `resource.PodRequests`, `podGuaranteedCPUs`, `getPodRequestedResources`).
        """
        together: dict[str, int] = {}
        sidecars: dict[str, int] = {}
        peak: dict[str, int] = {}
        for container in self.containers:
            for resource, amount in amounts(container).items():
                if container.kind == "init":
                    peak[resource] = max(peak.get(resource, 0), sidecars.get(resource, 0) + amount)
                    continue
                together[resource] = together.get(resource, 0) + amount
                if container.kind == "sidecar":
                    sidecars[resource] = sidecars.get(resource, 0) + amount
        for resource, amount in peak.items():
            together[resource] = max(together.get(resource, 0), amount)
        return together

    def node_requests(self) -> dict[str, int]:
        """The pod's use of the node: pod-level resources win over the containers' sum; overhead is added."""
        requests = self.total(lambda container: container.requests)
        for resource, amount in self.pod_requests.items():
            if resource in _POD_LEVEL or is_memory_type(resource):
                requests[resource] = amount
        for resource, amount in self.overhead.items():
            requests[resource] = requests.get(resource, 0) + amount
        return requests


def _qos(pod: Pod) -> Qos:
    """`qos.ComputePodQOS`: by CPU and memory alone; with pod-level resources by those alone."""
    if pod.has_pod_level_resources:
        parts: list[tuple[Amounts, Amounts]] = [(pod.pod_requests, pod.pod_limits)]
    else:
        parts = [(container.requests, container.limits) for container in pod.containers]
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    guaranteed = True
    for part_requests, part_limits in parts:
        for resource in _POD_LEVEL:
            requests[resource] = requests.get(resource, 0) + part_requests.get(resource, 0)
            limit = part_limits.get(resource, 0)
            limits[resource] = limits.get(resource, 0) + limit
            guaranteed = guaranteed and limit > 0
    if not any(requests.values()) and not any(limits.values()):
        return "BestEffort"
    return "Guaranteed" if guaranteed and requests == limits else "Burstable"
