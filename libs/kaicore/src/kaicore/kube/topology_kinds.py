"""The kinds of network topologies: their API paths, and their conversion into facts."""

from collections.abc import Callable
from typing import Any

from kaicore.kube.kind import Kind
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
from kaicore.kube.resources import ObjectT, OptionalResource
from kaicore.rules.events import payloads
from kaicore.rules.model.network_topology import (
    CLUSTER_NETWORK_TOPOLOGY,
    HYPER_NODE,
    KAI_TOPOLOGY,
    KUEUE_TOPOLOGY,
    TopologyDefinition,
)


def _resource(kind: str, plural: str, versions: tuple[str, ...], wire: type[ObjectT]) -> OptionalResource[ObjectT]:
    return OptionalResource(kind, kind.partition(".")[2], plural, versions, wire, namespaced=False)


def _definition(
    resource: OptionalResource[ObjectT], normalize: Callable[[ObjectT, Lost], TopologyDefinition]
) -> Kind[ObjectT]:
    observed, deleted = payloads.TopologyDefinitionObserved, payloads.TopologyDefinitionDeleted
    return Kind(resource, normalize, observed, deleted, "topology/{kind}/{name}")


#: Every kind of network topologies.
TOPOLOGY_KINDS: tuple[Kind[Any], ...] = (
    _definition(_resource(KAI_TOPOLOGY, "topologies", ("v1alpha1",), LabelTopologyObject), normalize_kai_topology),
    _definition(
        _resource(KUEUE_TOPOLOGY, "topologies", ("v1beta2", "v1beta1", "v1alpha1"), LabelTopologyObject),
        normalize_kueue_topology,
    ),
    _definition(
        _resource(CLUSTER_NETWORK_TOPOLOGY, "clusternetworktopologies", ("v1alpha1",), ClusterNetworkTopologyObject),
        normalize_cluster_network_topology,
    ),
    Kind(
        _resource(HYPER_NODE, "hypernodes", ("v1alpha1",), HyperNodeObject),
        normalize_hyper_node,
        payloads.HyperNodeObserved,
        payloads.HyperNodeDeleted,
        "hypernode/{name}",
    ),
)


def topology_kind(api_version: str, kind: str) -> Kind[Any] | None:
    """Return the kind of an object that defines a network topology; None for any other."""
    name = f"{kind}.{api_version.rpartition('/')[0]}"
    return next((row for row in TOPOLOGY_KINDS if row.name == name), None)
