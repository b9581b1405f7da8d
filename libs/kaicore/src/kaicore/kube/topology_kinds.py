"""The kinds of network topologies: where they are served, and what reads each."""

from collections.abc import Callable
from typing import Any

from kaicore.kube.losses import Lost
from kaicore.kube.network_topology_objects import (
    ClusterNetworkTopologyObject,
    HyperNodeObject,
    LabelTopologyObject,
)
from kaicore.kube.normalize_network_topology import (
    normalize_cluster_network_topology,
    normalize_hyper_node,
    normalize_kai_topology,
    normalize_kueue_topology,
)
from kaicore.kube.objects import KubernetesObject
from kaicore.kube.resources import OptionalResource
from kaicore.rules.model.network_topology import (
    CLUSTER_NETWORK_TOPOLOGY,
    HYPER_NODE,
    KAI_TOPOLOGY,
    KUEUE_TOPOLOGY,
    HyperNode,
    TopologyDefinition,
)

_Row = tuple[OptionalResource[Any], Callable[[Any, Lost], TopologyDefinition | HyperNode]]


def _resource(
    kind: str, plural: str, versions: tuple[str, ...], wire: type[KubernetesObject]
) -> OptionalResource[KubernetesObject]:
    return OptionalResource(kind, kind.partition(".")[2], plural, versions, wire, namespaced=False)


#: Every kind of network topologies.
TOPOLOGY_KINDS: tuple[_Row, ...] = (
    (_resource(KAI_TOPOLOGY, "topologies", ("v1alpha1",), LabelTopologyObject), normalize_kai_topology),
    (
        _resource(KUEUE_TOPOLOGY, "topologies", ("v1beta2", "v1beta1", "v1alpha1"), LabelTopologyObject),
        normalize_kueue_topology,
    ),
    (
        _resource(CLUSTER_NETWORK_TOPOLOGY, "clusternetworktopologies", ("v1alpha1",), ClusterNetworkTopologyObject),
        normalize_cluster_network_topology,
    ),
    (_resource(HYPER_NODE, "hypernodes", ("v1alpha1",), HyperNodeObject), normalize_hyper_node),
)
