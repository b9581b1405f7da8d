"""Network topologies of KAI, Kueue, Koordinator and Volcano on the wire, reduced to the fields that are read."""

import msgspec

from kaicore.rules.objects.wire import KubernetesObject, LabelSelector, Wire


class LevelOfLabel(Wire):
    """A level of a Topology; only KAI's have aliases."""

    node_label: str = ""
    alias: str | None = None


class LabelTopologySpec(Wire):
    """The spec of a Topology: its levels from the widest to the narrowest."""

    levels: list[LevelOfLabel] | None = None


class LabelTopologyObject(KubernetesObject):
    """A `kai.scheduler` or `kueue.x-k8s.io` Topology."""

    spec: LabelTopologySpec = msgspec.field(default_factory=LabelTopologySpec)


class TopologyLayer(Wire):
    """A layer of a ClusterNetworkTopology, in any order."""

    topology_layer: str = ""
    label_key: list[str] | None = None
    parent_topology_layer: str | None = None


class ClusterNetworkTopologySpec(Wire):
    """The spec of a ClusterNetworkTopology."""

    network_topology_spec: list[TopologyLayer] | None = None


class ClusterNetworkTopologyObject(KubernetesObject):
    """A `scheduling.koordinator.sh` ClusterNetworkTopology."""

    spec: ClusterNetworkTopologySpec = msgspec.field(default_factory=ClusterNetworkTopologySpec)


class ExactMatch(Wire):
    """The name of a member."""

    name: str = ""


class RegexMatch(Wire):
    """A regular expression, in Go's syntax, that the names of members match."""

    pattern: str = ""


class MemberSelector(Wire):
    """A selection of members; exactly one of the fields is set."""

    exact_match: ExactMatch | None = None
    regex_match: RegexMatch | None = None
    label_match: LabelSelector | None = None


class HyperNodeMemberSpec(Wire):
    """Members of a HyperNode: Nodes or HyperNodes."""

    type: str = ""
    selector: MemberSelector = msgspec.field(default_factory=MemberSelector)


class HyperNodeSpec(Wire):
    """The spec of a HyperNode; the tier was text once."""

    tier: int | str | None = None
    tier_name: str | None = None
    members: list[HyperNodeMemberSpec] | None = None


class HyperNodeObject(KubernetesObject):
    """A `topology.volcano.sh` HyperNode."""

    spec: HyperNodeSpec = msgspec.field(default_factory=HyperNodeSpec)
