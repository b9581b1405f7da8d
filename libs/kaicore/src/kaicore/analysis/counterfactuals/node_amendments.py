"""Changes to nodes so that they take a pod: uncordoned, untainted, labelled, made ready."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kaicore.analysis.counterfactuals.amendment import Amendment
from kaicore.analysis.counterfactuals.asked import Asked, edited
from kaicore.rules.engine.constraints.class_filters import CORDONED
from kaicore.rules.engine.constraints.node_matching import tolerates
from kaicore.rules.model.network_topology import HOSTNAME
from kaicore.rules.model.node import Node
from kaicore.rules.model.selector import Requirement
from kaicore.rules.reasons.base import NodeReason
from kaicore.rules.reasons.node import (
    NodeAffinityMismatch,
    NodeFlavorMismatch,
    NodeNotReady,
    NodeSelectorMismatch,
    NodeUnschedulable,
    UntoleratedTaint,
)
from kaicore.rules.reasons.pods_nearby import NoTopologyLabel, VolumeOutOfReach

#: A node as it is to be, and what is done to it; None where nothing that is known helps.
_Mended = tuple[Node, str] | None
#: Of alike nodes so many are tried one by one.
_MOST_ALONE = 3


def node_amendments(asked: Asked) -> Iterator[Amendment]:
    """Yield that nodes are tended which only what can be tended keeps from taking the pod."""
    mended = [pair for obstacles in asked.obstacles if (pair := _mended(asked, obstacles.row, obstacles.reasons))]
    for number, (before, after, words) in enumerate(mended):
        if number < _MOST_ALONE:
            yield asked.edit_nodes("tend-node", words, [(before, after)])
    count = 2
    while count <= min(len(mended), len(asked.fellows)):
        some = mended[:count]
        message = "; ".join(words for _, _, words in some)
        yield asked.edit_nodes("tend-node", message, [(before, after) for before, after, _ in some])
        count *= 2


def _mended(asked: Asked, row: int, reasons: Sequence[NodeReason]) -> tuple[Node, Node, str] | None:
    before = node = asked.node(row)
    words: list[str] = []
    for reason in reasons:
        mend = _MENDING.get(type(reason))
        mended = None if mend is None else mend(asked, node, reason)
        if mended is None:
            return None
        node, word = mended
        if word not in words:
            words.append(word)
    return (before, node, " and ".join(words)) if words else None


def _ready(asked: Asked, node: Node, reason: Any) -> _Mended:
    return edited(node, ready=True), f"get node {node.name} ready again"


def _uncordoned(asked: Asked, node: Node, reason: Any) -> _Mended:
    taints = tuple(taint for taint in node.taints if taint.key != CORDONED.key)
    return edited(node, unschedulable=False, taints=taints), f"uncordon node {node.name}"


def _untainted(asked: Asked, node: Node, reason: Any) -> _Mended:
    tolerations = asked.pod_class.tolerations
    left = tuple(taint for taint in node.taints if tolerates(tolerations, taint))
    gone = [f"{taint.key}:{taint.effect}" for taint in node.taints if taint not in left]
    if not gone:
        # It was the cordon's, which went with the cordon.
        return node, f"uncordon node {node.name}"
    return edited(node, taints=left), f"take the taint {', '.join(gone)} off node {node.name}"


def _labelled(node: Node, labels: dict[str, str | None]) -> _Mended:
    """Return a node with labels; a value of None takes one off."""
    news = {key: value for key, value in labels.items() if node.labels.get(key) != value}
    merged = {**node.labels, **news}
    after = {key: value for key, value in merged.items() if value is not None}
    parts = [f"{key}={value}" if value is not None else f"{key}-" for key, value in sorted(news.items())]
    return edited(node, labels=after), f"label node {node.name} with {', '.join(parts)}, if that is true"


def _selected(asked: Asked, node: Node, reason: Any) -> _Mended:
    return _labelled(node, dict(asked.pod_class.node_selector))


def _affine(asked: Asked, node: Node, reason: Any) -> _Mended:
    return _of_terms(node, asked.pod_class.node_affinity)


def _of_flavor(asked: Asked, node: Node, reason: Any) -> _Mended:
    places = [terms for words, terms in asked.pod_class.flavors.places if words == reason.flavors]
    return _of_terms(node, places[0]) if places else None


def _reached(asked: Asked, node: Node, reason: Any) -> _Mended:
    places = [terms for words, terms in asked.pod_class.volumes.places if words == reason.constraint]
    return _of_terms(node, places[0]) if places else None


def _topology_label(asked: Asked, node: Node, reason: Any) -> _Mended:
    labels: dict[str, str | None] = {}
    for key in reason.label.split(", "):
        if key in node.labels:
            continue
        values = sorted({other.labels[key] for other in asked.state.columns.facts if other and key in other.labels})
        labels[key] = node.name if key == HOSTNAME or not values else values[0]
    return _labelled(node, labels)


def _of_terms(node: Node, terms: Sequence[Sequence[Requirement]]) -> _Mended:
    """Return a node that meets the first of some terms that labels can meet."""
    for term in terms:
        labels: dict[str, str | None] = {}
        if term and all(_meet(node, one, labels) for one in term):
            return _labelled(node, labels)
    return None


def _meet(node: Node, one: Requirement, labels: dict[str, str | None]) -> bool:
    value = node.labels.get(one.key)
    if one.field:
        return one.operator == "In" and node.name in one.values
    match one.operator:
        case "In":
            labels[one.key] = value if value in one.values else one.values[0]
        case "NotIn":
            labels[one.key] = None if value in one.values else value
        case "Exists":
            labels[one.key] = value if value is not None else "true"
        case "DoesNotExist":
            labels[one.key] = None
        case "Gt" | "Lt":
            bound = int(one.values[0])
            labels[one.key] = str(bound + 1 if one.operator == "Gt" else bound - 1)
        case _:
            return False
    return True


_MENDING: dict[type[NodeReason], Callable[[Asked, Node, Any], _Mended]] = {
    NodeNotReady: _ready,
    NodeUnschedulable: _uncordoned,
    UntoleratedTaint: _untainted,
    NodeSelectorMismatch: _selected,
    NodeAffinityMismatch: _affine,
    NodeFlavorMismatch: _of_flavor,
    NoTopologyLabel: _topology_label,
    VolumeOutOfReach: _reached,
}
