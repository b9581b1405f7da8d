"""Static eligibility of nodes for a class of pods, whatever is free there: Kubernetes' node rules over columns.

Taints are tolerated by the pods themselves, or by a flavor of their queue. kai-ledger does not write a flavor's
tolerations on pods (Kueue does so when it admits a workload). So they count where taints only keep pods from being
scheduled. A pod that does not tolerate `NoExecute` is refused by a kubelet and evicted by the cluster.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.model.node import Taint
from kaicore.rules.model.pod import Toleration
from kaicore.rules.model.selector import Requirement
from kaicore.rules.numa.columns import Flags, Ints

_EVICTING_EFFECT = "NoExecute"
_SOFT_EFFECT = "PreferNoSchedule"
_Tolerations = tuple[Toleration, ...]


def tolerated_rows(pod_class: PodClass, columns: NodeColumns) -> Flags:
    """Tell per row whether all its taints that keep pods away are tolerated."""
    own = pod_class.tolerations
    tolerated = columns.taints_where(partial(tolerates, own))[0]
    for rows, more in _by_flavors(pod_class, columns):
        tolerated = tolerated | (rows & columns.taints_where(partial(_tolerates, own, more))[0])
    return tolerated


def soft_taints(pod_class: PodClass, columns: NodeColumns) -> Ints | None:
    """Count per row the `PreferNoSchedule` taints that are not tolerated; None when there are none."""
    if not any(taint.effect == _SOFT_EFFECT for taints in columns.taint_sets for taint in taints):
        return None
    counts = _soft(columns, pod_class.tolerations)
    for rows, more in _by_flavors(pod_class, columns):
        fewer = _soft(columns, (*pod_class.tolerations, *more))
        counts = np.where(rows, np.minimum(counts, fewer), counts)
    return counts if counts.any() else None


def _by_flavors(pod_class: PodClass, columns: NodeColumns) -> Iterator[tuple[Flags, _Tolerations]]:
    """Yield what flavors tolerate, and on which rows."""
    for tolerance in pod_class.flavors.tolerances:
        # A term without requirements is met nowhere, a flavor without labels is for all nodes.
        rows = affine(columns, (tolerance.nodes,) if tolerance.nodes else ())
        yield rows, tolerance.tolerations


def _tolerates(own: _Tolerations, more: _Tolerations, taint: Taint) -> bool:
    return tolerates(own, taint) or (taint.effect != _EVICTING_EFFECT and matches_toleration(more, taint))


def _soft(columns: NodeColumns, tolerations: _Tolerations) -> Ints:
    counts = [
        sum(taint.effect == _SOFT_EFFECT and not matches_toleration(tolerations, taint) for taint in taints)
        for taints in columns.taint_sets
    ]
    return np.array(counts, np.int64)[columns.taint_set]


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
            wanted = np.array([_compares(value, requirement) for value in values] + [False], np.bool_)
            return wanted[codes]
        case _:
            return np.zeros(len(columns.present), np.bool_)


def _compares(value: str, requirement: Requirement) -> bool:
    try:
        have, bound = int(value), int(requirement.values[0])
    except (ValueError, IndexError):
        return False
    return have > bound if requirement.operator == "Gt" else have < bound


def in_pool(columns: NodeColumns, config: EngineConfig) -> Flags:
    """Tell per row whether the node is in the shard's node pool."""
    nodes = columns.facts
    flags = np.zeros(len(columns.present), np.bool_)
    flags[: len(nodes)] = [node is not None and config.in_pool(node.labels) for node in nodes]
    return flags
