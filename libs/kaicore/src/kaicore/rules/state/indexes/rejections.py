"""Rejections by kubelets, by node and class of pods, so that a node is not offered the same class again in vain."""

import msgspec

from kaicore.rules.engine.placement.pod_class import base_key
from kaicore.rules.state.pods.pod_entry import PodEntry


class Rejection(msgspec.Struct, frozen=True):
    """A node's kubelet rejected pods of a class.

    Attributes:
        changes: the node's count of changes at the last rejection; as long as it stands there, the class is not offered
            to the node again.
        reason: the last one's.
    """

    changes: int = -1
    count: int = 0
    reason: str = ""


_NONE = Rejection()


class RejectionIndex:
    """Rejections by node and class.

    Attributes:
        by_node: rejections by the class's key, by node.
        changes: per node, how often something there changed that may change its kubelet's mind.
    """

    def __init__(self) -> None:
        self.by_node: dict[str, dict[str, Rejection]] = {}
        self.changes: dict[str, int] = {}

    def node_changed(self, node: str) -> None:
        """Something of a node changed."""
        self.changes[node] = self.changes.get(node, 0) + 1

    def forget_node(self, node: str) -> None:
        """A node is gone."""
        self.by_node.pop(node, None)

    def rejected(self, entry: PodEntry) -> None:
        """Count the rejection of a pod."""
        rejection = entry.rejection
        assert rejection is not None
        by_class = self.by_node.setdefault(rejection.node, {})
        count = by_class.get(entry.class_key, _NONE).count + 1
        by_class[entry.class_key] = Rejection(self.changes.get(rejection.node, 0), count, rejection.reason)

    def count(self, node: str, class_key: str) -> int:
        """Return how often a node's kubelet has rejected pods of a class, or of the class that it is a variant of."""
        by_class = self.by_node.get(node)
        return by_class.get(base_key(class_key), _NONE).count if by_class else 0

    def has_class(self, class_key: str) -> bool:
        """Return whether any kubelet is known to have rejected a class."""
        return any(class_key in by_class for by_class in self.by_node.values())

    def standing(self) -> dict[str, dict[str, str]]:
        """Return the reasons of rejections since which nothing of the node has changed, by class and node."""
        standing: dict[str, dict[str, str]] = {}
        for node, by_class in self.by_node.items():
            changes = self.changes.get(node, 0)
            for class_key, rejection in by_class.items():
                if rejection.changes == changes:
                    standing.setdefault(class_key, {})[node] = rejection.reason
        return standing
