"""Manifests of topologies, in the words of KAI, Kueue, Koordinator and Volcano."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kaicore.rules.model.network_topology import HOSTNAME, KAI_TOPOLOGY, NODE_LAYER, TopologyDefinition, TopologyLevel
from kaicore.rules.topology.paths import LabelPaths, Path
from kaicore.rules.topology.tree import TopologyTree

from kai_cli.topology.presets import LabelLevel

Manifest = dict[str, Any]
Dialect = Literal["kai", "kueue", "koordinator", "volcano"]

#: The longest name of an object, and the longest last part of one that is made here, which leaves room for a number.
_MOST_NAME = 253
_NUMBER_ROOM = 8


@dataclass(frozen=True, slots=True)
class Described:
    """A topology that is to be written down.

    Attributes:
        name: of the object, where the dialect leaves the choice.
        levels: above the nodes, from the widest to the narrowest.
        nodes: labels by name, those of the levels included.
        added: labels that nodes do not have yet, by name of node; they are written down with the topology.
    """

    name: str
    levels: tuple[LabelLevel, ...]
    nodes: Mapping[str, Mapping[str, str]]
    added: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def manifests(described: Described, dialect: Dialect) -> list[Manifest]:
    """Return the objects that define a topology in a dialect."""
    return _DIALECTS[dialect](described)


def _labelled(described: Described) -> list[Manifest]:
    """Return nodes with just the labels that they need, to be applied with `kubectl apply --server-side`."""
    return [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(labels)}}
        for name, labels in sorted(described.added.items())
    ]


def _kai(described: Described) -> list[Manifest]:
    levels = [
        {"nodeLabel": level.label, **({"alias": level.alias} if level.alias else {})} for level in described.levels
    ]
    return [*_labelled(described), _topology("kai.scheduler/v1alpha1", described.name, levels)]


def _kueue(described: Described) -> list[Manifest]:
    levels = [{"nodeLabel": level.label} for level in described.levels]
    return [*_labelled(described), _topology("kueue.x-k8s.io/v1beta2", described.name, levels)]


def _topology(api_version: str, name: str, levels: list[dict[str, str]]) -> Manifest:
    spec = {"levels": [*levels, {"nodeLabel": HOSTNAME}]}
    return {"apiVersion": api_version, "kind": "Topology", "metadata": {"name": name}, "spec": spec}


def _koordinator(described: Described) -> list[Manifest]:
    """Return the one ClusterNetworkTopology, which has to be called `default` (apis/scheduling/v1alpha1, v1.8.0)."""
    layers: list[Manifest] = []
    for layer, level in zip(_layer_names(described.levels), described.levels, strict=True):
        parent = {"parentTopologyLayer": layers[-1]["topologyLayer"]} if layers else {}
        layers.append({"topologyLayer": layer, "labelKey": [level.label], **parent})
    layers.append({"topologyLayer": NODE_LAYER, "parentTopologyLayer": layers[-1]["topologyLayer"]})
    topology = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "ClusterNetworkTopology",
        "metadata": {"name": "default"},
        "spec": {"networkTopologySpec": layers},
    }
    return [*_labelled(described), topology]


def _layer_names(levels: Sequence[LabelLevel]) -> list[str]:
    """Return `RackLayer` for `example.com/rack`; the whole label, where the short name is another level's too."""
    short = [_camel(level.alias or level.label.rpartition("/")[2]) for level in levels]
    taken = [*short, NODE_LAYER]
    return [name if taken.count(name) == 1 else _camel(level.label) for name, level in zip(short, levels, strict=True)]


def _camel(text: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", text)) + "Layer"


def _volcano(described: Described) -> list[Manifest]:
    """Return a HyperNode per domain, tier 1 right above the nodes.

    Members are found by labels, so that nodes that come later are found too; by name where nodes have no labels yet.
    """
    labels = [level.label for level in described.levels]
    levels = tuple(TopologyLevel(label, (label,)) for label in labels)
    tree = TopologyTree(LabelPaths(TopologyDefinition(KAI_TOPOLOGY, described.name, "", "", levels)))
    for name, own in described.nodes.items():
        tree.put(name, own)
    names = sorted(described.nodes)
    columns = tree.columns(names)
    called = _HyperNodeNames()
    hyper_nodes: list[Manifest] = []
    for depth in reversed(range(len(levels))):
        for number, path in enumerate(columns.domains[depth]):
            within: list[Path] = []
            inside = columns.of_rows[depth] == number
            if depth + 1 < len(levels):
                within = [one for one in columns.domains[depth + 1] if one[:-1] == path]
                inside &= columns.of_rows[depth + 1] < 0
            right_below = [names[row] for row in inside.nonzero()[0]]
            members = [{"type": "HyperNode", "selector": {"exactMatch": {"name": called.of(one)}}} for one in within]
            if described.added:
                members += [{"type": "Node", "selector": {"exactMatch": {"name": name}}} for name in right_below]
            elif right_below:
                members.append({"type": "Node", "selector": {"labelMatch": _selector(labels, path)}})
            spec: Manifest = {"tier": len(levels) - depth, "tierName": labels[depth], "members": members}
            metadata = {"name": called.of(path)}
            hyper_nodes.append(
                {"apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode", "metadata": metadata, "spec": spec}
            )
    return hyper_nodes


def _selector(labels: Sequence[str], path: Path) -> Manifest:
    """Return what selects the nodes of a domain that are in none of the next level."""
    selector: Manifest = {"matchLabels": dict(zip(labels, path, strict=False))}
    if len(path) < len(labels):
        selector["matchExpressions"] = [{"key": labels[len(path)], "operator": "DoesNotExist"}]
    return selector


class _HyperNodeNames:
    """Names of objects for domains: the names of the path, as DNS allows them; with a number where that is taken."""

    def __init__(self) -> None:
        self._names: dict[Path, str] = {}
        self._taken: set[str] = set()

    def of(self, path: Path) -> str:
        if path not in self._names:
            name = re.sub(r"[^a-z0-9.-]+|\.(?=[.-])|(?<=-)\.", "-", "-".join(path).lower())
            name = name.strip("-.")[: _MOST_NAME - _NUMBER_ROOM].strip("-.") or "domain"
            number, unique = 1, name
            while unique in self._taken:
                number += 1
                unique = f"{name}-{number}"
            self._taken.add(unique)
            self._names[path] = unique
        return self._names[path]


_DIALECTS: dict[Dialect, Callable[[Described], list[Manifest]]] = {
    "kai": _kai,
    "kueue": _kueue,
    "koordinator": _koordinator,
    "volcano": _volcano,
}
