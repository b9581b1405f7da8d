"""Facts about nodes and their NUMA zones."""

from kaicore.rules.events.payloads.base import Payload
from kaicore.rules.model.node import Node, NodeTopology


class NodeObserved(Payload, frozen=True):
    """The watcher saw a node that is new or has changed in what scheduling needs."""

    node: Node


class NodeDeleted(Payload, frozen=True):
    """The watcher saw a node go, or missed it on a relist."""

    uid: str
    name: str


class TopologyObserved(Payload, frozen=True):
    """The watcher saw a NodeResourceTopology that is new or has changed."""

    topology: NodeTopology


class TopologyDeleted(Payload, frozen=True):
    """A NodeResourceTopology is gone."""

    node: str
