"""The settings of a node's kubelet that affect admission, inferred from the data that the node publishes.

No API shows a kubelet's configuration. A NodeResourceTopology names Topology Manager policy, scope and, by convention,
options. CPUs and memory count as aligned if the zones have any to allot. Both publishers take these figures from the
kubelet's podresources API, which has none without the static CPU manager (or Static memory manager). Settings that
nothing publishes, such as CPU manager options, are configured per node label
(`kaicore.rules.engine.config.KubeletOverride`).

Differences between versions and feature gates of kubelets are in `kaicore.rules.numa.kubelet.versions`.
"""

import msgspec

from kaicore.rules.model.node import Node, NodeTopology, TopologyPolicy, TopologyScope
from kaicore.rules.model.quantity import CPU, MEMORY
from kaicore.rules.numa.kubelet.cpu_packing import Spreading
from kaicore.rules.numa.kubelet.versions import GATES, REFERENCE_MINOR, PodLevel, kubelet_model

#: Node Feature Discovery's label for nodes with more than one thread per core.
MULTITHREADING_LABEL = "feature.node.kubernetes.io/cpu-hardware_multithreading"

PREFER_CLOSEST = "prefer-closest-numa-nodes"
ALIGN_BY_SOCKET = "align-by-socket"
FULL_PCPUS_ONLY = "full-pcpus-only"
DISTRIBUTE_ACROSS_NUMA = "distribute-cpus-across-numa"


class KubeletSettings(msgspec.Struct, frozen=True):
    """A kubelet's settings.

    Attributes:
        policy: of the Topology Manager.
        scope: of the Topology Manager; without meaning under policy `none`.
        topology_options: names of the Topology Manager options that are on.
        static_cpu: whether the CPU manager's policy is `static`.
        cpu_options: names of the CPU manager options that are on.
        threads_per_core: how many CPUs a core has.
        threads_known: whether that is reported; else there may be two.
        zones_per_socket: how many zones a socket has; those of a socket are numbered one after another.
        static_memory: whether the memory manager's policy is `Static`.
        minor: the minor version of the kubelet's rules, 36 for 1.36; none older than `versions.OLDEST_MINOR`.
        gates_on: names of the feature gates that are known to be on; of the others each version has its default.
        gates_off: names of those that are known to be off.
    """

    policy: TopologyPolicy = TopologyPolicy.NONE
    scope: TopologyScope = TopologyScope.CONTAINER
    topology_options: frozenset[str] = frozenset()
    static_cpu: bool = False
    cpu_options: frozenset[str] = frozenset()
    threads_per_core: int = 1
    threads_known: bool = True
    zones_per_socket: int = 1
    static_memory: bool = False
    minor: int = REFERENCE_MINOR
    gates_on: frozenset[str] = frozenset()
    gates_off: frozenset[str] = frozenset()

    def gate(self, name: str) -> bool:
        """True if a feature gate of `GATES` is on: as reported, else by the version's default."""
        gate = GATES[name]
        if self.minor < gate.since:
            return False
        return name in self.gates_on or (name not in self.gates_off and gate.is_default(self.minor))

    @property
    def pod_level(self) -> PodLevel:
        """The aligned part of a pod with resources of its own (`spec.resources`), besides devices."""
        if self.minor < 34:
            return PodLevel.CONTAINERS
        if not self.gate("PodLevelResources"):
            return PodLevel.REFUSED
        return PodLevel.BUDGET if self.gate("PodLevelResourceManagers") else PodLevel.NOTHING

    @property
    def refuses_mixed_memory_groups(self) -> bool:
        """True if memory is refused on a mask of several zones of which one is in use otherwise.

        Since 1.32 (kubernetes/kubernetes#123443); kubelets before that regroup the zones.
        """
        return self.minor >= 32

    @property
    def asks_memory_manager_for_nothing(self) -> bool:
        """True if the memory manager allocates for containers that have nothing to align, which it mostly refuses.

        Up to 1.33 it does not know pods with resources of their own. 1.36 with PodLevelResourceManagers asks for their
        containers without a share, but for those under pod scope; 1.37 skips them (`policy_static.go` Allocate).
        """
        if self.pod_level is PodLevel.BUDGET:
            return self.minor < 37 and not self.pod_scope
        return True

    @property
    def spreading(self) -> Spreading | None:
        """The unit of spreading CPUs over zones (`distribute-cpus-across-numa`, since 1.23); None where packed.

        The zones of the affinity mask are the fewest since 1.38, which `at_least` says by being 1.
        """
        if DISTRIBUTE_ACROSS_NUMA not in self.cpu_options:
            return None
        return Spreading(
            group=self.threads_per_core if self.whole_cores_only else 1,
            threads=self.threads_per_core,
            at_least=1 if self.minor >= 38 else 0,
            zones_per_socket=self.zones_per_socket,
            keeps_socket=self.aligns_by_socket and self.minor >= 37,
        )

    @property
    def may_have_half_cores(self) -> bool:
        """True if half of a core may be free: then a later container may leave a CPU alone that was lent to it."""
        return self.threads_per_core == 2 or not self.threads_known

    @property
    def pod_scope(self) -> bool:
        """True if hints are asked for the pod as one; without a policy there is no scope."""
        return self.scope is TopologyScope.POD and self.policy is not TopologyPolicy.NONE

    @property
    def prefers_closest(self) -> bool:
        """True if of equally wide masks the one with the smallest distances wins (an option since 1.26).

        The single-numa-node policy ignores the option.
        """
        return PREFER_CLOSEST in self.topology_options

    @property
    def whole_cores_only(self) -> bool:
        """True if CPUs are only given by whole cores (`full-pcpus-only`, since 1.22)."""
        return FULL_PCPUS_ONLY in self.cpu_options

    @property
    def aligns_by_socket(self) -> bool:
        """True if CPUs of one socket are as good as those of one zone (`align-by-socket`, since 1.25).

        Only with several zones to a socket does it change anything.
        """
        return ALIGN_BY_SOCKET in self.cpu_options and self.zones_per_socket > 1

    @property
    def device_masks_are_of_hosting_zones(self) -> bool:
        """True if device hints range over the zones that have devices of the resource, not over all (since 1.36)."""
        return self.minor >= 36


def infer_settings(topology: NodeTopology, node: Node | None) -> KubeletSettings:
    """Infer a kubelet's settings from what its node publishes.

    A zone with nothing to allot is published as `cpu: allocatable 0` even without a static CPU manager; so a manager
    counts as static only if some zone has something to allot.
    """
    allotted = {name for zone in topology.zones for name, item in zone.resources.items() if item.allocatable}
    labels = node.labels if node is not None else {}
    model = kubelet_model(node)
    reported = {name: on for name, on in topology.feature_gates.items() if name in GATES}
    off = frozenset(name for name, on in reported.items() if not on)
    return KubeletSettings(
        policy=topology.policy,
        scope=topology.scope,
        topology_options=_switched_on(topology.options),
        static_cpu=CPU in allotted,
        cpu_options=_switched_on(topology.cpu_options),
        threads_per_core=2 if labels.get(MULTITHREADING_LABEL) == "true" else 1,
        threads_known=MULTITHREADING_LABEL in labels,
        static_memory=MEMORY in allotted,
        minor=model.minor,
        gates_on=model.gates_on.union(reported) - off,
        gates_off=off,
    )


def _switched_on(options: dict[str, str]) -> frozenset[str]:
    return frozenset(name for name, value in options.items() if value.lower() == "true")
