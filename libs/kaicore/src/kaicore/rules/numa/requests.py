"""What the kubelet aligns of a pod: which amounts of which containers ask its hint providers for zones.

Source: Kubernetes v1.36, `pkg/kubelet/cm/` (`devicemanager/topology_hints.go`, `cpumanager/policy_static.go`,
`memorymanager/policy_static.go`, `topologymanager/scope_pod.go`). The rules hold from Kubernetes 1.29 on, the first
with sidecars as a default; what changed since is asked of the node's version in `kaicore.rules.numa.kubelet_settings`:

- devices are aligned for every QoS class (device manager, `GetTopologyHints`);
- CPUs are aligned for Guaranteed pods, for containers with a whole number of CPUs (CPU manager, static policy);
- memory and hugepages are aligned for Guaranteed pods (memory manager, Static policy);
- a pod with pod-level resources has neither its CPUs nor its memory aligned (on by default since 1.34;
  PodLevelResourceManagers is off);
- pod overhead is not aligned;
- pod scope asks once for the pod: the larger of the sum of its long-running containers and the peak while the init
  containers run one after another beside the sidecars started before them.
"""

from dataclasses import dataclass

from kaicore.rules.model.pod import Amounts, Container, ContainerKind, Pod, QosClass
from kaicore.rules.model.quantity import CPU, PODS, is_memory


@dataclass(frozen=True, slots=True)
class AlignedContainer:
    """A container and what the kubelet aligns of it; explicit requests of 0 devices are kept, for they count."""

    name: str
    kind: ContainerKind
    amounts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class AlignedRequest:
    """What the kubelet aligns of a pod.

    Attributes:
        containers: in the order in which the kubelet admits them.
        pod: what pod scope asks for.
    """

    containers: tuple[AlignedContainer, ...]
    pod: tuple[tuple[str, int], ...]

    @property
    def resources(self) -> tuple[str, ...]:
        """Names of all resources asked for, sorted."""
        return tuple(sorted({name for container in self.containers for name, _ in container.amounts}))

    @property
    def empty(self) -> bool:
        """Whether nothing of the pod is aligned."""
        return not any(container.amounts for container in self.containers)

    @property
    def lends_cpus(self) -> bool:
        """Whether ordinary init containers have CPUs of their own, which later containers take over."""
        inits = (container for container in self.containers if container.kind is ContainerKind.INIT)
        return any(resource == CPU and amount for container in inits for resource, amount in container.amounts)

    def nothing(self) -> "AlignedRequest":
        """Return a request for nothing."""
        return AlignedRequest((), ())

    def without(self, ignored: frozenset[str]) -> "AlignedRequest":
        """Return the request less some resources."""
        if not ignored:
            return self

        def kept(amounts: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
            return tuple(item for item in amounts if item[0] not in ignored)

        return AlignedRequest(
            tuple(AlignedContainer(item.name, item.kind, kept(item.amounts)) for item in self.containers),
            kept(self.pod),
        )


def aligned_request(pod: Pod) -> AlignedRequest:
    """Return what the kubelet would align of a pod on a node that reports every resource per zone."""
    containers = tuple(
        AlignedContainer(container.name, container.kind, _aligned_amounts(pod, container))
        for container in pod.containers
    )
    return AlignedRequest(containers, _pod_scope(containers))


def _aligned_amounts(pod: Pod, container: Container) -> tuple[tuple[str, int], ...]:
    host_level = pod.qos is QosClass.GUARANTEED and pod.pod_resources is None
    aligned: Amounts = {}
    for resource, amount in container.requests.items():
        if resource == CPU:
            if host_level and amount and amount % 1000 == 0:
                aligned[resource] = amount
        elif is_memory(resource):
            if host_level and amount:
                aligned[resource] = amount
        elif resource not in ("ephemeral-storage", PODS):
            aligned[resource] = amount
    return tuple(sorted(aligned.items()))


def _pod_scope(containers: tuple[AlignedContainer, ...]) -> tuple[tuple[str, int], ...]:
    running: Amounts = {}
    peak: Amounts = {}
    for container in containers:
        for resource, amount in container.amounts:
            before = running.get(resource, 0)
            peak[resource] = max(peak.get(resource, 0), before + amount)
            if container.kind is not ContainerKind.INIT:
                running[resource] = before + amount
    return tuple(sorted(peak.items()))


def counted_request(pod: Pod) -> AlignedRequest:
    """Return what the counting rule looks at: every amount of a Guaranteed pod, whatever the kubelet aligns."""
    if pod.qos is not QosClass.GUARANTEED:
        return AlignedRequest((), ())
    containers = tuple(
        AlignedContainer(
            container.name, container.kind, tuple(sorted((k, v) for k, v in container.requests.items() if v))
        )
        for container in pod.containers
    )
    running: Amounts = {}
    inits: Amounts = {}
    for container in containers:
        init = container.kind is ContainerKind.INIT
        for resource, amount in container.amounts:
            if init:
                inits[resource] = max(inits.get(resource, 0), amount)
            else:
                running[resource] = running.get(resource, 0) + amount
    every = {name: max(running.get(name, 0), inits.get(name, 0)) for name in sorted({*running, *inits})}
    return AlignedRequest(containers, tuple(every.items()))
