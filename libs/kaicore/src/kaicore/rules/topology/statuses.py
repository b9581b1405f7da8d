"""Statuses of objects that define topologies, in the terms of their projects.

Sources: Volcano v1.16.0-alpha.1 (`HyperNodeStatus` in staging/src/volcano.sh/apis/pkg/apis/topology/v1alpha1),
Koordinator v1.8.0 (`makeStatus` in pkg/scheduler/frameworkext/networktopology/tree_manager.go).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kaicore.rules.model.node import CLUSTER_LAYER, TopologyLevel
from kaicore.rules.topology.paths import HyperNodeProblem, Path
from kaicore.rules.topology.tree import TopologyTree

Document = dict[str, Any]

#: Types of a HyperNode's conditions.
READY, OVERLAPPING = "Ready", "Overlapping"

#: Problems that one condition tells; a message has an end (metav1.Condition: 32,768 bytes).
_MOST_PROBLEMS = 5


class HyperNodeCondition(NamedTuple):
    """A condition of a HyperNode, without the time since when it has been so."""

    type: str
    true: bool
    reason: str
    message: str

    def document(self, since: str) -> Document:
        """Return the condition as Kubernetes has it; `since` as Kubernetes writes times."""
        return {
            "type": self.type,
            "status": "True" if self.true else "False",
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": since,
        }


def node_counts(tree: TopologyTree) -> dict[str, int]:
    """Return how many nodes each HyperNode has, those of its members included; of a tree of HyperNodes."""
    counts: dict[str, int] = {}
    for level in range(len(tree.levels) - 1):
        for path, count in tree.domains(level).items():
            counts[path[-1]] = count
    return counts


def hyper_node_conditions(
    names: Iterable[str], problems: Sequence[HyperNodeProblem], overlaps: Mapping[str, Sequence[str]]
) -> dict[str, tuple[HyperNodeCondition, ...]]:
    """Return the conditions of each HyperNode.

    Args:
        names: the HyperNodes'.
        problems: of all HyperNodes; while there are any, none is used.
        overlaps: HyperNodes by node that is in several, of which none is in another.
    """
    own: dict[str, list[str]] = {}
    for problem in problems:
        for name in dict.fromkeys(problem.hyper_nodes):
            own.setdefault(name, []).append(problem.text)
    shared: dict[str, list[str]] = {}
    for node in sorted(overlaps):
        for name in overlaps[node]:
            others = ", ".join(other for other in sorted(overlaps[node]) if other != name)
            shared.setdefault(name, []).append(f"node {node} is also in {others}")
    of_others = HyperNodeCondition(READY, False, "InvalidTopology", "")
    if problems:
        texts = _several([problem.text for problem in problems])
        of_others = of_others._replace(message=f"no HyperNode is used until others are mended: {texts}")
    conditions: dict[str, tuple[HyperNodeCondition, ...]] = {}
    for name in names:
        ready = HyperNodeCondition(READY, True, "Valid", "it is used") if not problems else of_others
        if name in own:
            ready = HyperNodeCondition(READY, False, "InvalidDefinition", _several(own[name]))
        overlapping = HyperNodeCondition(
            OVERLAPPING, False, "NoOverlap", "none of its nodes is in a HyperNode beside it"
        )
        if name in shared:
            text = f"{_several(shared[name])}; such nodes are in no HyperNode"
            overlapping = HyperNodeCondition(OVERLAPPING, True, "NodesInSeveral", text)
        conditions[name] = ready, overlapping
    return conditions


def _several(texts: Sequence[str]) -> str:
    shown = "; ".join(texts[:_MOST_PROBLEMS])
    return shown if len(texts) <= _MOST_PROBLEMS else f"{shown}; and {len(texts) - _MOST_PROBLEMS} more"


def detail_status(tree: TopologyTree) -> list[Document]:
    """Return the `detailStatus` of a ClusterNetworkTopology: its domains depth first, children in order of name.

    Only nodes count that are in a domain of every layer.
    """
    levels = tree.levels
    counts: dict[Path, int] = {}
    children: dict[Path, set[Path]] = {}
    for path in tree.domains(len(levels) - 1):
        for depth in range(len(path)):
            counts[path[:depth]] = counts.get(path[:depth], 0) + 1
            if depth:
                children.setdefault(path[: depth - 1], set()).add(path[:depth])
    return list(_walk((), levels, counts, children))


def _walk(
    path: Path, levels: Sequence[TopologyLevel], counts: Mapping[Path, int], children: Mapping[Path, set[Path]]
) -> Iterable[Document]:
    inside = sorted(children.get(path, ()))
    entry: Document = {"topologyInfo": _info(path, levels), "nodeNum": counts.get(path, 0)}
    if path:
        entry["parentTopologyInfo"] = _info(path[:-1], levels)
    if counts.get(path):
        entry["childTopologyLayer"] = levels[len(path)].name
    if inside:
        entry["childTopologyNames"] = [child[-1] for child in inside]
    yield entry
    for child in inside:
        yield from _walk(child, levels, counts, children)


def _info(path: Path, levels: Sequence[TopologyLevel]) -> Document:
    layer = levels[len(path) - 1].name if path else CLUSTER_LAYER
    return {"topologyLayer": layer, "topologyName": path[-1] if path else ""}
