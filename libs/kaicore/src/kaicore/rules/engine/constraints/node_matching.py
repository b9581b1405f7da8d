"""Static eligibility of nodes for a class of pods, whatever is free there: Kubernetes' node rules over columns."""

import numpy as np

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.model.node import Taint
from kaicore.rules.model.pod import Toleration
from kaicore.rules.model.selector import Requirement, compares
from kaicore.rules.numa.columns import Flags

#: Taint effects that keep a pod from being scheduled; `PreferNoSchedule` only ranks.
_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")


def tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    """Tell whether a pod with these tolerations may be put on a node with this taint."""
    return taint.effect not in _BLOCKING_EFFECTS or matches_toleration(tolerations, taint)


def matches_toleration(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    """Tell whether any toleration is about this taint, whatever the taint does."""
    return any(_matches(toleration, taint) for toleration in tolerations)


def _matches(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if not toleration.key and toleration.operator != "Exists":
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value


def selected(columns: NodeColumns, node_selector: dict[str, str]) -> Flags:
    """Tell per row whether the node has all labels of a node selector."""
    flags = np.ones(len(columns.present), np.bool_)
    for key, value in node_selector.items():
        flags &= _holds(columns, Requirement(key=key, operator="In", values=(value,)))
    return flags


def affine(columns: NodeColumns, terms: tuple[tuple[Requirement, ...], ...]) -> Flags:
    """Tell per row whether the node meets any of the required node affinity's terms; no terms, no constraint."""
    if not terms:
        return np.ones(len(columns.present), np.bool_)
    flags = np.zeros(len(columns.present), np.bool_)
    for term in terms:
        met = np.full(len(columns.present), bool(term))
        for requirement in term:
            met &= _holds(columns, requirement)
        flags |= met
    return flags


def _holds(columns: NodeColumns, requirement: Requirement) -> Flags:
    if requirement.field:
        # `metadata.name` is the only field that Kubernetes allows here.
        named = [columns.rows[name] for name in requirement.values if name in columns.rows]
        flags = np.zeros(len(columns.present), np.bool_)
        flags[named] = True
        return ~flags if requirement.operator == "NotIn" else flags
    codes, values = columns.label_values(requirement.key)
    absent = codes < 0
    match requirement.operator:
        case "Exists":
            return ~absent
        case "DoesNotExist":
            return absent
        case "In" | "NotIn":
            wanted = np.array([value in requirement.values for value in values] + [False], np.bool_)
            held: Flags = wanted[codes]
            return held if requirement.operator == "In" else ~held
        case "Gt" | "Lt":
            wanted = np.array([compares(value, requirement) for value in values] + [False], np.bool_)
            return wanted[codes]
        case _:
            return np.zeros(len(columns.present), np.bool_)


def in_pool(columns: NodeColumns, config: EngineConfig) -> Flags:
    """Tell per row whether the node is in the shard's node pool."""
    nodes = columns.facts
    flags = np.zeros(len(columns.present), np.bool_)
    flags[: len(nodes)] = [node is not None and config.in_pool(node.labels) for node in nodes]
    return flags
