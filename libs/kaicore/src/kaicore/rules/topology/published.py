"""Topologies in the terms of other projects: statuses of their objects, and Kueue's `topologyAssignment` with capacity.

Capacity is counted for rows of nodes and for the domains of a topology: slots for pods of one shape, whole nodes.

Sources: Kueue v0.20.0-devel, apis/kueue/v1beta2/workload_types.go (`TopologyAssignment`: slices, values stored as a
common prefix and suffix with roots) and apis/kueue/v1beta1/workload_types.go (domains one by one); Volcano
v1.16.0-alpha.1 (`HyperNodeStatus` in staging/src/volcano.sh/apis/pkg/apis/topology/v1alpha1); Koordinator v1.8.0
(`makeStatus` in pkg/scheduler/frameworkext/networktopology/tree_manager.go).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kaicore.rules.model.node import CLUSTER_LAYER, TopologyLevel
from kaicore.rules.topology.paths import HyperNodeProblem, Path
from kaicore.rules.topology.tree import TopologyTree

Ints = NDArray[np.int64]


def slots(free: Ints, request: Ints, takes: NDArray[np.bool_]) -> Ints:
    """Return how many pods of one shape each row takes, by amounts alone.

    Raises ValueError: a pod that asks for nothing.

    Args:
        free: amounts by row and resource; less than nothing counts as nothing.
        request: of one pod, by resource; at least one is more than 0.
    """
    asked = request > 0
    if not asked.any():
        raise ValueError("a pod that asks for nothing fits any number of times")
    fitting = np.maximum(free[:, asked], 0) // request[asked]
    return np.where(takes, fitting.min(axis=1), 0).astype(np.int64)


def sizes_to_show(most: int) -> tuple[int, ...]:
    """Return the sizes of segments that are worth a look: powers of two, from 2 up to the largest domain's nodes."""
    return tuple(1 << power for power in range(1, most.bit_length()))


Document = dict[str, Any]

#: Most domains of a slice.
_MOST_DOMAINS = 100_000


class AssignedDomain(NamedTuple):
    """A domain, by its value at each level, and how many pods are in it."""

    values: tuple[str, ...]
    pods: int


def as_domains(levels: Sequence[str], domains: Iterable[AssignedDomain]) -> Document:
    """Return an assignment as v1beta1 has it, in order of the values.

    Args:
        levels: their labels, from the widest to the narrowest.
        domains: those that have pods; none twice.
    """
    counted = [{"values": list(one.values), "count": one.pods} for one in sorted(domains)]
    return {"levels": list(levels), "domains": counted}


def as_slices(levels: Sequence[str], domains: Iterable[AssignedDomain]) -> Document:
    """Return an assignment as v1beta2 has it, in order of the values.

    Args:
        levels: their labels, from the widest to the narrowest.
        domains: those that have pods; none twice.
    """
    ordered = sorted(domains)
    slices = [
        _slice(len(levels), ordered[first : first + _MOST_DOMAINS]) for first in range(0, len(ordered), _MOST_DOMAINS)
    ]
    return {"levels": list(levels), "slices": slices}


def _slice(levels: int, domains: Sequence[AssignedDomain]) -> Document:
    counts = [one.pods for one in domains]
    return {
        "domainCount": len(domains),
        "valuesPerLevel": [_level([one.values[level] for one in domains]) for level in range(levels)],
        "podCounts": {"universal": counts[0]} if len(set(counts)) == 1 else {"individual": counts},
    }


def _level(values: Sequence[str]) -> Document:
    if len(set(values)) == 1:
        return {"universal": values[0]}
    prefix = _common_prefix(values)
    suffix = _common_prefix([value[len(prefix) :][::-1] for value in values])[::-1]
    # No root is empty: one value may be the beginning of another.
    if any(len(value) == len(prefix) + len(suffix) for value in values):
        suffix = ""
    if prefix in values:
        prefix = prefix[:-1]
    individual: Document = {"roots": [value[len(prefix) : len(value) - len(suffix)] for value in values]}
    if prefix:
        individual["prefix"] = prefix
    if suffix:
        individual["suffix"] = suffix
    return {"individual": individual}


def _common_prefix(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    length = next((place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first if length is None else first[:length]


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
