"""Facts about network topologies."""

from kaicore.rules.events.payloads.base import Payload
from kaicore.rules.model.network_topology import HyperNode, TopologyDefinition


class TopologyDefinitionObserved(Payload, frozen=True):
    """The watcher saw a Topology or ClusterNetworkTopology that is new or has changed."""

    definition: TopologyDefinition


class TopologyDefinitionDeleted(Payload, frozen=True):
    """A Topology or ClusterNetworkTopology is gone; `kind` with its API group."""

    kind: str
    uid: str
    name: str


class HyperNodeObserved(Payload, frozen=True):
    """The watcher saw a HyperNode that is new or has changed."""

    hyper_node: HyperNode


class HyperNodeDeleted(Payload, frozen=True):
    """A HyperNode is gone."""

    uid: str
    name: str
