"""Toleration of nodes' taints for a class of pods: by the pods themselves, or by a flavor of their queue.

kai-ledger does not write a flavor's tolerations on pods (Kueue does so when it admits a workload). So they count where
taints only keep pods from being scheduled. A pod that does not tolerate `NoExecute` is refused by a kubelet and evicted
by the cluster.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from kaicore.rules.engine.constraints.node_matching import affine, matches_toleration, tolerates
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.model.node import Taint
from kaicore.rules.model.pod import Toleration
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
