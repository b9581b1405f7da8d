"""Which nodes may have failed, as the log tells: nodes that are not ready, and nodes deleted with pods on them."""

from collections.abc import Collection, Mapping

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
    """What is remembered of nodes that may have failed.

    Attributes:
        not_ready_since: recorded time at which a node was first seen not ready, microseconds since the epoch, by name.
        deleted_at: recorded time at which a node was deleted while pods were charged to it, by name.
    """

    not_ready_since: dict[str, int] = {}
    deleted_at: dict[str, int] = {}

    def node_seen(self, node: Node, *, at: int) -> None:
        """Take in a node as it is now."""
        self.deleted_at.pop(node.name, None)
        if node.ready:
            self.not_ready_since.pop(node.name, None)
        else:
            self.not_ready_since.setdefault(node.name, at)

    def node_gone(self, name: str, *, with_pods: Collection[str], at: int) -> None:
        """Take in that a node was deleted.

        Args:
            name: of the node.
            with_pods: names of nodes with pods; deleted nodes that no pod is on any more are forgotten.
            at: recorded time.
        """
        self.not_ready_since.pop(name, None)
        self.deleted_at = {other: since for other, since in self.deleted_at.items() if other in with_pods}
        if name in with_pods:
            self.deleted_at[name] = at

    def failed(
        self, config: EngineConfig, *, now: int, nodes: int, tainted: Mapping[str, int]
    ) -> dict[str, FailedNode]:
        """Return the nodes that have failed, or have so for groups whose pods terminate there, by name.

        Args:
            config: the shard's settings.
            now: microseconds since the epoch.
            nodes: how many nodes there are.
            tainted: nodes that keep pods off, since when, by name; 0 where that is not known.
        """
        failed_by_name = {name: FailedNode(name, NodeFailure.DELETED, since) for name, since in self.deleted_at.items()}
        on_termination = config.replace_on_pod_termination
        if on_termination:
            for name, since in tainted.items():
                failed_by_name[name] = FailedNode(name, NodeFailure.TAINTED, since, once_pods_end=True)
        if len(self.not_ready_since) > _FEW and len(self.not_ready_since) * 100 >= nodes * _MOST_NOT_READY:
            return failed_by_name
        for name, since in self.not_ready_since.items():
            if on_termination:
                failed_by_name[name] = FailedNode(name, NodeFailure.NOT_READY, since, once_pods_end=True)
            elif now - since >= config.node_not_ready_us:
                failed_by_name[name] = FailedNode(name, NodeFailure.NOT_READY, since)
        return failed_by_name

    def may_have_failed(self, with_pods: Collection[str]) -> bool:
        """Tell whether a node with pods is not ready, or was deleted under them."""
        return any(name in with_pods for name in (*self.not_ready_since, *self.deleted_at))

    def due(self, config: EngineConfig) -> list[int]:
        """Return when nodes that are not ready will have failed, microseconds since the epoch."""
        if not config.replace_failed_nodes or config.replace_on_pod_termination:
            return []
        return [since + config.node_not_ready_us for since in self.not_ready_since.values()]
