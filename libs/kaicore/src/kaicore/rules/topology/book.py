"""All topologies of a cluster, side by side over the same nodes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, get_args

from kaicore.rules.events import payloads
from kaicore.rules.model import node as models
from kaicore.rules.topology.paths import HyperNodePaths, LabelPaths, Paths
from kaicore.rules.topology.tree import TopologyColumns, TopologyTree
from kaicore.spelling import closest


class TopologyKey(NamedTuple):
    """The identity of a topology: the kind of the object that defines it, with its API group, and the object's name.

    HyperNodes are one topology together, without a name. A topology that no object defines is of the kind `LABEL` and
    has the label as its name, or several from the widest to the narrowest, divided by commas.
    """

    kind: str
    name: str

    @property
    def text(self) -> str:
        """For people, such as `Topology gpu`, or `HyperNodes`."""
        kind = self.kind.partition(".")[0]
        return f"{kind} {self.name}" if self.name else f"{kind}s"


#: What is recorded of topologies.
TopologyFact = (
    payloads.TopologyDefinitionObserved
    | payloads.TopologyDefinitionDeleted
    | payloads.HyperNodeObserved
    | payloads.HyperNodeDeleted
)
#: Types of the events from which a book can be followed.
EVENT_TYPES = tuple(
    sorted(fact.__name__ for fact in (payloads.NodeObserved, payloads.NodeDeleted, *get_args(TopologyFact)))
)


class TopologyBook:
    """The definitions, and a tree of each that follows the nodes.

    A definition that changes has its tree made anew when it is asked for next; a node changes its own path in each.
    The tree of a label is made when it is asked for first.

    Attributes:
        revision: grows whenever a definition changes, or whether any node has a label; not of the folded state.
    """

    def __init__(self) -> None:
        self.definitions: dict[TopologyKey, models.TopologyDefinition] = {}
        self.hyper_nodes: dict[str, models.HyperNode] = {}
        self._nodes: dict[str, Mapping[str, str]] = {}
        self._paths: dict[TopologyKey, Paths] = {}
        self._trees: dict[TopologyKey, TopologyTree] = {}
        #: How many nodes have a label.
        self._labels: Counter[str] = Counter()
        self.revision = 0
        #: Trees over rows, each with the tree that it was made from, that tree's number of changes, and the rows.
        self._columns: dict[TopologyKey, tuple[TopologyTree, int, int, TopologyColumns]] = {}

    def definition_seen(self, definition: models.TopologyDefinition) -> None:
        """Take in a definition by labels, new or changed."""
        key = TopologyKey(definition.kind, definition.name)
        self.definitions[key] = definition
        self._changed(key)

    def hyper_node_seen(self, hyper_node: models.HyperNode) -> None:
        """Take in a HyperNode, new or changed."""
        self.hyper_nodes[hyper_node.name] = hyper_node
        self._changed(_HYPER_NODES)

    def node_seen(self, name: str, labels: Mapping[str, str]) -> None:
        """Take in a node, or its labels as they are now."""
        before = self._nodes.get(name)
        if before == labels:
            return
        self._nodes[name] = labels
        self._count_labels(before or {}, labels)
        for tree in self._trees.values():
            tree.put(name, labels)

    def take(self, payload: payloads.Payload) -> None:
        """Take in a fact about a topology or a node; of the end of a definition that has a successor nothing."""
        match payload:
            case payloads.NodeObserved(node):
                self.node_seen(node.name, node.labels)
            case payloads.NodeDeleted(name=name):
                self.node_gone(name)
            case payloads.TopologyDefinitionObserved(definition):
                self.definition_seen(definition)
            case payloads.TopologyDefinitionDeleted(kind=kind, uid=uid, name=name):
                key = TopologyKey(kind, name)
                if key in self.definitions and self.definitions[key].uid == uid:
                    del self.definitions[key]
                    self._changed(key)
            case payloads.HyperNodeObserved(hyper_node):
                self.hyper_node_seen(hyper_node)
            case payloads.HyperNodeDeleted(uid=uid, name=name):
                if name in self.hyper_nodes and self.hyper_nodes[name].uid == uid:
                    del self.hyper_nodes[name]
                    self._changed(_HYPER_NODES)

    @property
    def nodes(self) -> Mapping[str, Mapping[str, str]]:
        """The nodes' labels, by name."""
        return self._nodes

    def node_gone(self, name: str) -> None:
        """Forget a node."""
        self._count_labels(self._nodes.pop(name, {}), {})
        for tree in self._trees.values():
            tree.remove(name)

    def topologies(self) -> list[TopologyKey]:
        """Return which topologies there are, in order of kind and name."""
        return sorted([*self.definitions, *([_HYPER_NODES] if self.hyper_nodes else [])])

    def is_label(self, label: str) -> bool:
        """Tell whether any node has a label."""
        return label in self._labels

    def label_like(self, name: str) -> str:
        """Return the label of nodes with the key closest to a name; empty where none is close."""
        return closest(name, self._labels)

    def problems(self) -> list[str]:
        """Return what is wrong with the topologies, each with which it is, in their order: see `TopologyTree`."""
        return [f"{key.text}: {problem}" for key in self.topologies() for problem in self.tree(key).problems]

    def paths(self, key: TopologyKey) -> Paths:
        """Return the levels of a topology, and what is wrong with its definition.

        Raises KeyError: there is no such topology.
        """
        paths = self._paths.get(key)
        if paths is None:
            paths = self._paths[key] = self._paths_of(key)
        return paths

    def tree(self, key: TopologyKey) -> TopologyTree:
        """Return the tree of a topology. Raises KeyError: there is no such topology."""
        tree = self._trees.get(key)
        if tree is None:
            tree = self._trees[key] = TopologyTree(self.paths(key))
            for name, labels in self._nodes.items():
                tree.put(name, labels)
        return tree

    def columns(self, key: TopologyKey, names: Sequence[str]) -> TopologyColumns:
        """Return the tree of a topology over rows of nodes; made anew only where a path has changed or rows came.

        Raises KeyError: there is no such topology.

        Args:
            names: by row; a row belongs to a name for good.
        """
        tree = self.tree(key)
        kept = self._columns.get(key)
        if kept is None or kept[0] is not tree or kept[1:3] != (tree.changes, len(names)):
            kept = self._columns[key] = tree, tree.changes, len(names), tree.columns(names)
        return kept[3]

    def _paths_of(self, key: TopologyKey) -> Paths:
        if key == _HYPER_NODES:
            return HyperNodePaths(self.hyper_nodes.values())
        if key.kind == models.LABEL:
            levels = tuple(
                models.TopologyLevel(name, (name,)) for name in key.name.split(",") if name != models.HOSTNAME
            )
            return LabelPaths(models.TopologyDefinition(models.LABEL, key.name, "", "", levels))
        return LabelPaths(self.definitions[key])

    def _changed(self, key: TopologyKey) -> None:
        self._paths.pop(key, None)
        self._trees.pop(key, None)
        self.revision += 1

    def _count_labels(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        for label in after.keys() - before.keys():
            self.revision += label not in self._labels
            self._labels[label] += 1
        for label in before.keys() - after.keys():
            self._labels[label] -= 1
            if not self._labels[label]:
                del self._labels[label]
                self.revision += 1


_HYPER_NODES = TopologyKey(models.HYPER_NODE, "")
