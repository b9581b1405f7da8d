"""All topologies of a cluster, side by side over the same nodes."""

from collections.abc import Mapping
from typing import NamedTuple

from kaicore.rules.model.network_topology import HYPER_NODE, HyperNode, TopologyDefinition
from kaicore.rules.topology.hyper_node_paths import HyperNodePaths
from kaicore.rules.topology.label_paths import LabelPaths
from kaicore.rules.topology.tree import TopologyTree


class TopologyKey(NamedTuple):
    """Which topology: the kind of the object that defines it, with its API group, and the object's name.

    HyperNodes are one topology together, without a name.
    """

    kind: str
    name: str


class TopologyBook:
    """The definitions, and a tree of each that follows the nodes.

    A definition that changes has its tree made anew when it is asked for next; a node changes its own path in each.
    """

    def __init__(self) -> None:
        self.definitions: dict[TopologyKey, TopologyDefinition] = {}
        self.hyper_nodes: dict[str, HyperNode] = {}
        self._nodes: dict[str, Mapping[str, str]] = {}
        self._trees: dict[TopologyKey, TopologyTree] = {}

    def definition_seen(self, definition: TopologyDefinition) -> None:
        """Take in a definition by labels, new or changed."""
        key = TopologyKey(definition.kind, definition.name)
        self.definitions[key] = definition
        self._trees.pop(key, None)

    def hyper_node_seen(self, hyper_node: HyperNode) -> None:
        """Take in a HyperNode, new or changed."""
        self.hyper_nodes[hyper_node.name] = hyper_node
        self._trees.pop(_HYPER_NODES, None)

    def node_seen(self, name: str, labels: Mapping[str, str]) -> None:
        """Take in a node, or its labels as they are now."""
        if self._nodes.get(name) == labels:
            return
        self._nodes[name] = labels
        for tree in self._trees.values():
            tree.put(name, labels)

    def topologies(self) -> list[TopologyKey]:
        """Return which topologies there are, in order of kind and name."""
        return sorted([*self.definitions, *([_HYPER_NODES] if self.hyper_nodes else [])])

    def tree(self, key: TopologyKey) -> TopologyTree:
        """Return the tree of a topology.

        Raises:
            KeyError: there is no such topology.
        """
        tree = self._trees.get(key)
        if tree is None:
            paths = (
                HyperNodePaths(self.hyper_nodes.values()) if key == _HYPER_NODES else LabelPaths(self.definitions[key])
            )
            tree = self._trees[key] = TopologyTree(paths)
            for name, labels in self._nodes.items():
                tree.put(name, labels)
        return tree


_HYPER_NODES = TopologyKey(HYPER_NODE, "")
