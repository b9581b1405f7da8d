"""Nodes that have failed for groups with a topology constraint, and the pods on them."""

from collections.abc import Mapping

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.class_filters import CORDONED
from kaicore.rules.engine.constraints.node_matching import tolerates
from kaicore.rules.engine.cycle_input import FailedNode
from kaicore.rules.model.node import Node
from kaicore.rules.model.pod import Pod
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pod_entry import PodEntry


def failed_nodes(state: ClusterState, config: EngineConfig, *, now: int) -> Mapping[str, FailedNode]:
    """Return the nodes that have failed, by name; none where the shard does not replace any."""
    if not config.replace_failed_nodes:
        return {}
    tainted: set[str] = set()
    for entry in state.workload_index.leaving.values():
        node = state.columns.facts[state.columns.row(entry.node)]
        if node is not None and entry.pod.deletion_at is not None and _keeps_off(node, entry.pod):
            tainted.add(entry.node)
    nodes = int(state.columns.present.sum())
    return state.node_readiness.failed(config, now=now, nodes=nodes, tainted=tainted)


def on_failed_nodes(state: ClusterState, failed: Mapping[str, FailedNode], config: EngineConfig) -> list[PodEntry]:
    """Return our scheduler's pods on failed nodes that are in groups with a topology constraint, by uid."""
    workloads = state.workload_index.workloads
    uids = sorted(uid for name in failed for uid in state.charges.on_node.get(name, ()))
    entries = [state.pods[uid] for uid in uids]
    return [
        entry
        for entry in entries
        if entry.pod.scheduler_name == config.scheduler_name
        and entry.group in workloads
        and workloads[entry.group].constrained
    ]


def _keeps_off(node: Node, pod: Pod) -> bool:
    """Tell whether a pod would not be placed on a node for its taints, or because it is cordoned."""
    taints = [*node.taints, *([CORDONED] if node.unschedulable else [])]
    return any(not tolerates(pod.tolerations, taint) for taint in taints)
