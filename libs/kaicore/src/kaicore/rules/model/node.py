"""Nodes, their NUMA topology, and the network between them, reduced to the fields that scheduling needs."""

from enum import StrEnum

import msgspec

from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.selector import Requirement


class Taint(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A node taint."""

    key: str
    effect: str
    value: str = ""


class Node(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A node as the scheduler knows it; `allocatable` and `capacity` are whole-node totals.

    Attributes:
        kubelet_version: as its kubelet reports it, such as `v1.36.2`; empty where it reports none.
        declared_features: names of features that its kubelet declares to have switched on, sorted (since 1.35).
        problems: types of conditions that are true and are not the kubelet's own, sorted, as a problem detector sets
            them (XID errors, …).
        gpus_repeated: its device plugin offers each GPU several times (HAMi), so what it offers are no whole GPUs.
    """

    uid: str
    name: str
    resource_version: str
    allocatable: Amounts = {}
    capacity: Amounts = {}
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = False
    kubelet_version: str = ""
    declared_features: tuple[str, ...] = ()
    gpus_repeated: bool = False
    problems: tuple[str, ...] = ()


class TopologyPolicy(StrEnum):
    """The kubelet's Topology Manager policies."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class TopologyScope(StrEnum):
    """The kubelet's Topology Manager scopes."""

    CONTAINER = "container"
    POD = "pod"


class ZoneResource(msgspec.Struct, frozen=True, gc=False):
    """One resource of one zone: hardware capacity, what pods may have, and what the exporter saw free."""

    capacity: int
    allocatable: int
    available: int


class Zone(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A NUMA node as a NodeResourceTopology names it.

    Attributes:
        name: as published, usually `node-<id>`.
        numa_id: the kubelet's NUMA node id, from the name.
        costs: distance to each zone by name, this one included (SLIT: 10 is local).
    """

    name: str
    numa_id: int
    resources: dict[str, ZoneResource] = {}
    costs: dict[str, int] = {}

    def lasts(self, other: "Zone") -> bool:
        """Tell whether another publication of the zone says the same, but for what the exporter saw free."""
        own, others = self.resources, other.resources
        return (
            own.keys() == others.keys()
            and msgspec.structs.replace(other, resources=own) == self
            and all(
                one.capacity == others[name].capacity and one.allocatable == others[name].allocatable
                for name, one in own.items()
            )
        )


class NodeTopology(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A node's NUMA zones, ordered by `numa_id`, and what its Topology Manager is set to.

    Attributes:
        options: Topology Manager options by name, as far as an attribute publishes them.
        cpu_options: CPU manager options, likewise.
        feature_gates: the kubelet's feature gates that are set on or off, likewise.
        fingerprint: the pods fingerprint at the time of publication, empty when there is none.
        fingerprint_method: `all` or `with-exclusive-resources`.
    """

    node: str
    resource_version: str
    zones: tuple[Zone, ...]
    policy: TopologyPolicy = TopologyPolicy.NONE
    scope: TopologyScope = TopologyScope.CONTAINER
    options: dict[str, str] = {}
    fingerprint: str = ""
    fingerprint_method: str = "all"
    uid: str = ""
    cpu_options: dict[str, str] = {}
    feature_gates: dict[str, bool] = {}

    def lasts(self, other: "NodeTopology") -> bool:
        """Tell whether both have the same `lasting`."""
        if len(self.zones) != len(other.zones):
            return False
        published = msgspec.structs.replace(
            other,
            zones=self.zones,
            resource_version=self.resource_version,
            uid=self.uid,
            fingerprint=self.fingerprint,
            fingerprint_method=self.fingerprint_method,
        )
        return published == self and all(map(Zone.lasts, self.zones, other.zones))

    def lasting(self) -> "NodeTopology":
        """Return what of it lasts from one publication to the next: all but what the exporter saw free."""
        zones = tuple(
            msgspec.structs.replace(
                zone,
                resources={
                    name: msgspec.structs.replace(resource, available=0) for name, resource in zone.resources.items()
                },
            )
            for zone in self.zones
        )
        return msgspec.structs.replace(
            self, zones=zones, resource_version="", uid="", fingerprint="", fingerprint_method=""
        )


#: The kinds of objects that define topologies, each with its API group.
KAI_TOPOLOGY = "Topology.kai.scheduler"
KUEUE_TOPOLOGY = "Topology.kueue.x-k8s.io"
CLUSTER_NETWORK_TOPOLOGY = "ClusterNetworkTopology.scheduling.koordinator.sh"
HYPER_NODE = "HyperNode.topology.volcano.sh"

#: Of a topology that no object defines: one label, by which nodes are distinguished, above the single nodes.
LABEL = "Label"

#: Koordinator's names for single nodes, and for all of them (apis/scheduling/v1alpha1, v1.8.0).
NODE_LAYER = "NodeTopologyLayer"
CLUSTER_LAYER = "ClusterTopologyLayer"

#: The label that every kubelet sets; a level of it is the level of single nodes.
HOSTNAME = "kubernetes.io/hostname"


class TopologyLevel(msgspec.Struct, frozen=True, omit_defaults=True):
    """One level of a topology.

    Attributes:
        name: a label key, a layer's name, or a tier's number.
        keys: the label that tells a node's domain; of several the first that the node has. Without any, each node is a
            domain of its own.
        aliases: other names of the level, sorted.
    """

    name: str
    keys: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


class TopologyDefinition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topology with domains that labels of nodes name.

    Attributes:
        kind: of the object, with its API group.
        levels: from the widest to the narrowest.
        fills_lowest: a node that lacks only the label of the level above the nodes is in a domain of its own there.
    """

    kind: str
    name: str
    uid: str
    resource_version: str
    levels: tuple[TopologyLevel, ...]
    fills_lowest: bool = False


class HyperNodeMember(msgspec.Struct, frozen=True, omit_defaults=True):
    """The members of a HyperNode; exactly one of the fields is set.

    Attributes:
        hyper_node: name of a HyperNode of a lower tier.
        pattern: regular expression in the syntax of RE2 (Go's), found anywhere in a node's name.
        labels: requirements, all of which a node meets.
    """

    hyper_node: str = ""
    node: str = ""
    pattern: str = ""
    labels: tuple[Requirement, ...] = ()


class HyperNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A domain of Volcano's topology, with its members; all HyperNodes of a cluster together are one topology.

    Attributes:
        tier: the lower, the closer its nodes are; 0 or more.
        tier_name: empty where it has none.
    """

    name: str
    uid: str
    resource_version: str
    tier: int
    tier_name: str = ""
    members: tuple[HyperNodeMember, ...] = ()
