"""The requests that the kubelet aligns: the amounts of each container that its hint providers are asked about.

Source: Kubernetes v1.36, `pkg/kubelet/cm/` (`devicemanager/topology_hints.go`, `cpumanager/policy_static.go`,
`memorymanager/policy_static.go`, `topologymanager/scope_pod.go`). The rules hold from Kubernetes 1.29 on, the first
with sidecars as a default. Later changes depend on the node's version (`kaicore.rules.numa.kubelet.settings`):

- devices are aligned for every QoS class (device manager, `GetTopologyHints`);
- CPUs are aligned for Guaranteed pods, for containers with a whole number of CPUs (CPU manager, static policy);
- memory and hugepages are aligned for Guaranteed pods (memory manager, Static policy);
- of a pod with pod-level resources it depends on the kubelet (`PodLevel`): neither its CPUs nor its memory by default
  since 1.34 (kubernetes/kubernetes#133279), those of its containers before, and with PodLevelResourceManagers
  (KEP-5526) those of the pod;
- pod overhead is not aligned;
- pod scope asks once for the pod: the larger of the sum of its long-running containers and the peak while the init
  containers run one after another beside the sidecars started before them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kaicore.rules.model.pod import Amounts, Container, ContainerKind, Pod, QosClass
from kaicore.rules.model.quantity import CPU, MEMORY, PODS, is_memory
from kaicore.rules.numa.kubelet.settings import KubeletSettings
from kaicore.rules.numa.kubelet.versions import PodLevel


@dataclass(frozen=True, slots=True)
class AlignedContainer:
    """A container and what the kubelet aligns of it; explicit requests of 0 devices are kept, for they count."""

    name: str
    kind: ContainerKind
    amounts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class AlignedRequest:
    """The part of a pod that the kubelet aligns.

    Attributes:
        containers: in the order in which the kubelet admits them.
        pod: what pod scope asks for.
        budget: under pod scope, the part of `pod` that is given to the pod and not to its containers; None where it is
            all given to containers.
        crowded: of `budget`, what containers with a share of their own use up, though others need some of it.
        others: what kubelets align that treat the pod's own resources otherwise; see `on`.
        asks_without_memory: whether the memory manager is asked for containers without any, too. By the pod's own
            resources the pod is Guaranteed although such a container asks for nothing, or has no share of its own.
        refused: whether the kubelet takes no pod with resources of its own.
        lends_cpus: whether ordinary init containers have CPUs of their own, which later containers take over.
    """

    containers: tuple[AlignedContainer, ...]
    pod: tuple[tuple[str, int], ...]
    budget: tuple[tuple[str, int], ...] | None = None
    crowded: frozenset[str] = frozenset()
    others: "tuple[tuple[PodLevel, AlignedRequest], ...]" = ()
    asks_without_memory: bool = False
    refused: bool = False
    lends_cpus: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        inits = (item for one in self._each for item in one.containers if item.kind is ContainerKind.INIT)
        lends = any(resource == CPU and amount for container in inits for resource, amount in container.amounts)
        object.__setattr__(self, "lends_cpus", lends)

    def on(self, settings: KubeletSettings) -> "AlignedRequest":
        """Return what a certain kubelet aligns."""
        if not self.others:
            return self
        asked = dict(self.others).get(settings.pod_level, self)
        if asked.asks_without_memory and not settings.asks_memory_manager_for_nothing:
            return replace(asked, asks_without_memory=False)
        return asked

    def allocated(self, *, pod_scope: bool) -> tuple[AlignedContainer, ...]:
        """Return the containers in order; what the pod is given as a whole comes last (`AllocatePod`)."""
        if self.budget is None or not pod_scope:
            return self.containers
        of_devices = (
            replace(item, amounts=tuple(part for part in item.amounts if part[0] != CPU and not is_memory(part[0])))
            for item in self.containers
        )
        return (*of_devices, AlignedContainer("", ContainerKind.APP, self.budget))

    @property
    def resources(self) -> tuple[str, ...]:
        """Names of all resources asked for, sorted."""
        names = {name for container in self.containers for name, _ in container.amounts}
        return tuple(sorted(names.union(name for name, _ in self.budget or ())))

    @property
    def _each(self) -> "tuple[AlignedRequest, ...]":
        return (self, *(other for _, other in self.others))

    @property
    def empty(self) -> bool:
        """True if no kubelet aligns anything of the pod."""
        return not any(one.resources or one.asks_without_memory for one in self._each)

    @property
    def one_device(self) -> bool:
        """True if no kubelet aligns more than one device of the pod: it has nothing that could be on another zone."""
        held = [part for one in self._each for item in one.containers for part in item.amounts if part[1]]
        budgets = [part for one in self._each for part in one.budget or ()]
        alone = len(held) == 1 and held[0][1] == 1 and held[0][0] != CPU and not is_memory(held[0][0])
        return alone and not budgets and not self.others

    def without(self, ignored: frozenset[str]) -> "AlignedRequest":
        """Return the request less some resources."""
        if not ignored:
            return self

        def kept(amounts: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
            return tuple(item for item in amounts if item[0] not in ignored)

        return AlignedRequest(
            tuple(AlignedContainer(item.name, item.kind, kept(item.amounts)) for item in self.containers),
            kept(self.pod),
            None if self.budget is None else kept(self.budget),
            self.crowded - ignored,
            tuple((level, other.without(ignored)) for level, other in self.others),
            self.asks_without_memory and MEMORY not in ignored,
            self.refused,
        )


def aligned_request(pod: Pod) -> AlignedRequest:
    """Return what the kubelet would align of a pod on a node that reports every resource per zone."""
    guaranteed = pod.qos is QosClass.GUARANTEED
    if pod.pod_resources is None:
        return _of_containers(pod, dict.fromkeys((item.name for item in pod.containers), guaranteed))
    plain = _of_containers(pod, {})
    if not guaranteed:
        return plain
    by_containers = replace(
        _of_containers(pod, dict.fromkeys((item.name for item in pod.containers), True)),
        asks_without_memory=any(not any(map(is_memory, item.requests)) for item in pod.containers),
    )
    refused = replace(by_containers, refused=True)
    by_budget = _of_budget(pod, pod.pod_resources)
    levels = (PodLevel.CONTAINERS, by_containers), (PodLevel.REFUSED, refused), (PodLevel.BUDGET, by_budget)
    return replace(plain, others=levels)


def _of_containers(pod: Pod, host_level: Mapping[str, bool]) -> AlignedRequest:
    """Return what is aligned where each container is given what it asks for; CPUs and memory only of some."""
    containers = tuple(
        AlignedContainer(item.name, item.kind, _aligned_amounts(item, host_level=host_level.get(item.name, False)))
        for item in pod.containers
    )
    return AlignedRequest(containers, _pod_scope(containers))


def _aligned_amounts(container: Container, *, host_level: bool) -> tuple[tuple[str, int], ...]:
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


def _of_budget(pod: Pod, asked: Amounts) -> AlignedRequest:
    """Return what is aligned with PodLevelResourceManagers.

    A container has a share of its own if it asks for CPUs and memory and is limited to just that
    (`cm/qos/helpers.go`); under pod scope all of it comes out of what the pod asks for.
    """
    of_its_own = {
        item.name: all(item.requests.get(name, 0) == item.limits.get(name, 0) > 0 for name in (CPU, MEMORY))
        for item in pod.containers
    }
    shares = _of_containers(pod, of_its_own)
    budget = {
        name: amount
        for name, amount in sorted(asked.items())
        if amount and (is_memory(name) or (name == CPU and amount % 1000 == 0))
    }
    devices = dict(item for item in shares.pod if item[0] != CPU and not is_memory(item[0]))
    return AlignedRequest(
        shares.containers,
        tuple(sorted((devices | budget).items())),
        tuple(budget.items()),
        frozenset(name for name in budget if _is_crowded(name, budget[name], shares.containers)),
        asks_without_memory=not all(any(is_memory(name) for name, _ in item.amounts) for item in shares.containers),
    )


def _is_crowded(resource: str, budget: int, containers: tuple[AlignedContainer, ...]) -> bool:
    """Tell whether shares of their own leave nothing to containers without (`validatePodScopeResources`)."""
    kept, waiting = 0, False
    for container in containers:
        amounts = dict(container.amounts)
        # The memory manager looks at all its resources together: a container without any shares what is left of each.
        shares = not any(is_memory(name) for name in amounts) if is_memory(resource) else CPU not in amounts
        if container.kind is ContainerKind.INIT:
            if shares and kept >= budget:
                return True
        elif shares:
            waiting = True
        else:
            kept += amounts.get(resource, 0)
    return waiting and kept >= budget


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
