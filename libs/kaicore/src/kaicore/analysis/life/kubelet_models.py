"""The kubelet version that a node's zones are predicted with, and the reason: reported by the node, or configured."""

from collections.abc import Mapping

from kaicore.rules.engine.config import KubeletOverride
from kaicore.rules.model.node import Node
from kaicore.rules.numa.kubelet_versions import GATES, kubelet_model, versioned_model
from kaicore.rules.state.views import FleetView


def kubelet_text(state: FleetView, name: str) -> str:
    """Say as which kubelet a node's zones are predicted; empty for a node without any.

    Args:
        state: with the node, and the configuration of its shard.
        name: the node's.
    """
    row = state.columns.rows.get(name)
    topology = None if row is None else state.columns.topologies[row]
    if row is None or topology is None:
        return ""
    node = state.columns.facts[row]
    text = kubelet_model(node).text()
    configured = [] if node is None else [one for one in state.config().kubelets if _is_for(one, node)]
    for override in configured:
        if override.version is not None:
            text = f"as kubelet 1.{versioned_model(override.version).minor} (as configured)"
    published = {gate: on for gate, on in topology.feature_gates.items() if gate in GATES}
    text += _gates_text(published, "as is published")
    gates = {gate: on for one in configured for gate, on in (one.feature_gates or {}).items()}
    return text + _gates_text(gates, "as configured")


def _gates_text(gates: Mapping[str, bool], by: str) -> str:
    listed = ", ".join(f"{gate} {'on' if on else 'off'}" for gate, on in sorted(gates.items()))
    return f", with {listed}, {by}" if listed else ""


def _is_for(override: KubeletOverride, node: Node) -> bool:
    return all(node.labels.get(key) == value for key, value in override.match_labels.items())
