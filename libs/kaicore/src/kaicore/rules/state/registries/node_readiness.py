"""Nodes that may have failed, according to the log: nodes that are not ready, and nodes deleted with pods on them."""

from collections.abc import Collection

import msgspec

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.cycle_input import FailedNode, NodeFailure
from kaicore.rules.model.node import Node

#: Where so large a share of the nodes is not ready, in per cent, it is not the nodes that failed. The same figure keeps
#: the node lifecycle controller from evicting (kube-controller-manager v1.36, `--unhealthy-zone-threshold`).
_MOST_NOT_READY = 55
#: Of so few nodes, each may fail.
_FEW = 3


class NodeReadiness(msgspec.Struct):
    """The memory of nodes that may have failed.

    Attributes:
        not_ready_since: recorded time at which a node was first seen not ready, microseconds since the epoch, by name.
        deleted: names of nodes that were deleted while pods were charged to them.
    """

    not_ready_since: dict[str, int] = {}
    deleted: set[str] = set()

    def node_seen(self, node: Node, *, at: int) -> None:
        """Take in a node as it is now."""
        self.deleted.discard(node.name)
        if node.ready:
            self.not_ready_since.pop(node.name, None)
        else:
            self.not_ready_since.setdefault(node.name, at)

    def node_gone(self, name: str, *, with_pods: Collection[str]) -> None:
        """Take in that a node was deleted.

        Args:
            with_pods: names of nodes with pods; deleted nodes that no pod is on any more are forgotten.
        """
        self.not_ready_since.pop(name, None)
        self.deleted = {other for other in (*self.deleted, name) if other in with_pods}

    def failed(self, config: EngineConfig, *, now: int, nodes: int, tainted: Collection[str]) -> dict[str, FailedNode]:
        """Return the nodes that have failed, or have failed for groups with pods that terminate there, by name.

        Args:
            now: microseconds since the epoch.
            tainted: names of nodes that keep pods off. A node that is not ready has a taint for that alone.
        """
        failed_by_name = {name: FailedNode(name, NodeFailure.DELETED) for name in sorted(self.deleted)}
        on_termination = config.replace_on_pod_termination
        if on_termination:
            for name in sorted(set(tainted) - self.not_ready_since.keys()):
                failed_by_name[name] = FailedNode(name, NodeFailure.TAINTED, once_pods_end=True)
        if len(self.not_ready_since) > _FEW and len(self.not_ready_since) * 100 >= nodes * _MOST_NOT_READY:
            return failed_by_name
        for name, since in sorted(self.not_ready_since.items()):
            if on_termination:
                failed_by_name[name] = FailedNode(name, NodeFailure.NOT_READY, once_pods_end=True)
            elif now - since >= config.node_not_ready_us:
                failed_by_name[name] = FailedNode(name, NodeFailure.NOT_READY)
        return failed_by_name

    def may_have_failed(self, with_pods: Collection[str]) -> bool:
        """Tell whether a node with pods is not ready, or was deleted under them."""
        return any(name in with_pods for name in (*self.not_ready_since, *self.deleted))

    def due(self, config: EngineConfig) -> list[int]:
        """Return when nodes that are not ready will have failed, microseconds since the epoch."""
        if not config.replace_failed_nodes or config.replace_on_pod_termination:
            return []
        return [since + config.node_not_ready_us for since in self.not_ready_since.values()]
