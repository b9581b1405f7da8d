"""Network topologies: how nodes are grouped into racks, blocks and the like, as the cluster's objects define it."""

import msgspec

from kaicore.rules.model.selector import Requirement

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
        node: name of a node.
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
