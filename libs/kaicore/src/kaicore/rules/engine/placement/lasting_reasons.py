"""Reasons that no charge changes why nodes are not for a class, kept from cycle to cycle on small clusters.

Most classes that wait on a full cluster find that no node has enough free. Of a few nodes, all that comes before that
look costs many times as much as the look: the labels, taints and zones that a class is compared with, for nodes that
have not changed. It is settled once for each class, and again when a node, its kubelet or the settings change.

Classes are left out for which more counts than their key: rules about other pods, volumes, claims, shares of GPUs.
"""

from collections.abc import Iterable
from typing import NamedTuple, cast

import numpy as np

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.claims.demands import NO_DEVICES
from kaicore.rules.engine.constraints.class_filters import ClassFilters
from kaicore.rules.engine.constraints.node_filter import NodeFilter
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import NO_VOLUMES, PodClass
from kaicore.rules.events.reasons.base import NodeReason
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.numa.columns import Ints

#: On more nodes nothing is kept.
_FEW = 64
#: Of so many classes it begins anew.
_MOST_CLASSES = 4096


class LastingReasons(NamedTuple):
    """The reasons of one class.

    Attributes:
        eligible: rows that may take a pod, whatever is free there.
        left: rows that have none of the reasons.
    """

    eligible: Ints
    reasons: list[NodeReason]
    left: Ints


class SettledClasses:
    """The classes that were settled on nodes as they are; not to be used on others.

    Attributes:
        by_key: reasons by the class's key.
        facts: all that they depend on besides the class.
    """

    def __init__(self, facts: tuple[object, ...]) -> None:
        self.by_key: dict[str, LastingReasons] = {}
        self.facts = facts

    @classmethod
    def of(cls, columns: NodeColumns, config: EngineConfig) -> "SettledClasses | None":
        """Return what is settled on a cycle's own columns, with what earlier cycles found; None on many nodes."""
        if len(columns.names) > _FEW or columns.gpus.exposed(len(columns.present)).any():
            return None
        facts, memory = _facts(columns, config), columns.zones.remembered
        kept: SettledClasses | None = memory.settled
        if kept is None or kept.facts != facts or len(kept.by_key) > _MOST_CLASSES:
            kept = memory.settled = cls(facts)
        return kept

    def settle(self, pod_class: PodClass, filters: ClassFilters, rows: Ints) -> None:
        """Keep the reasons of a class, as its filters have them, about all rows that are nodes."""
        if len(rows) and pod_class.key not in self.by_key and _follows_from_key(pod_class):
            eligible = np.flatnonzero(filters.eligible)
            self.by_key[pod_class.key] = LastingReasons(eligible, *failing(filters.lasting(), rows))


def _facts(columns: NodeColumns, config: EngineConfig) -> tuple[object, ...]:
    """Return all that lasting reasons depend on besides the class."""
    zones, names = columns.zones, [one and [zone.name for zone in one.zones] for one in columns.topologies]
    figures = (columns.present, columns.ready, columns.unschedulable, columns.taint_set, columns.allocatable)
    of_zones = (zones.shape, zones.kubelet, zones.unknown, zones.unknown_since, zones.reported)
    known = list(columns.resources), list(zones.resources), list(zones.kubelets)
    return config, list(columns.facts), names, known, [figure.tobytes() for figure in (*figures, *of_zones)]


def _follows_from_key(pod_class: PodClass) -> bool:
    """Tell whether nothing counts for a class but its nodes, and what follows from its key."""
    near = pod_class.rules is not None or pod_class.selected or pod_class.work is not None or pod_class.kept_off
    given = pod_class.gpu_share is not None or pod_class.devices != NO_DEVICES or pod_class.volumes != NO_VOLUMES
    return not (near or given)


def failing(filters: Iterable[NodeFilter], rows: Ints) -> tuple[list[NodeReason], Ints]:
    """Return why rows fail, and those that fail no filter.

    Args:
        filters: in order; a later one is not asked about rows that fail an earlier one.
    """
    reasons: list[NodeReason] = []
    for one in filters:
        if not len(rows):
            break
        fails = one.failing(rows)
        if np.any(fails):
            reasons += one.reasons(rows[fails])
            rows = rows[~fails]
    return reasons, rows


def most_frequent_first(reasons: Iterable[NodeReason]) -> tuple[Reason, ...]:
    """Return reasons in order, those of most nodes first."""
    # Every class of NodeReason is a member of the union.
    return tuple(cast("Reason", reason) for reason in sorted(reasons, key=lambda reason: reason.sort_key))
