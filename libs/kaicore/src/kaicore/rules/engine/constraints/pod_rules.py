"""Rules of a class that look at the pods near a node: filters on the rows as they are now.

Affinity, anti-affinity both ways, topology spread, host ports and shared claims, as kube-scheduler's plugins
InterPodAffinity, PodTopologySpread, NodePorts and VolumeRestrictions decide. Each rule answers for all rows at once,
from sums over topology domains that every charge of the cycle keeps up to date.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from kaicore.rules.engine.constraints.node_filter import MaskFilter
from kaicore.rules.engine.constraints.pod_marks import claim_mark, kept_mark, port_mark, selection_mark, term_mark
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.events.reasons.base import NodeReason
from kaicore.rules.events.reasons.node import (
    AntiAffinityOfOthers,
    HostPortTaken,
    NoTopologyLabel,
    PodAffinity,
    PodAntiAffinity,
    TopologySpread,
    VolumeInUse,
    VolumeOutOfReach,
)
from kaicore.rules.model.pod import HostPort, PodTerm, SpreadConstraint
from kaicore.rules.model.selector import Selection
from kaicore.rules.numa.columns import Flags, Ints

#: More pods than any row takes.
NO_LIMIT = 2**31


class PodRule(Protocol):
    """One rule of one class."""

    def filters(self) -> list[MaskFilter]:
        """Return the rule as filters on the rows as they are now, in the order in which they are shown."""

    def limits(self) -> Ints:
        """Return how many pods of the class the rule lets each row take at most, whatever pods of it others get."""


def pod_rules(pod_class: PodClass, columns: NodeColumns, *, fitting: Flags, tolerated: Flags) -> list[PodRule]:
    """Return the rules of a class; none for most.

    Args:
        fitting: rows that meet the class's node selector and required node affinity.
        tolerated: rows with taints that it tolerates, or none.
    """
    class_rules: list[PodRule] = []
    rules = pod_class.rules
    if rules is not None:
        required = [constraint for constraint in rules.spread if constraint.required]
        if required:
            keyed = having(columns, {constraint.topology_key for constraint in required})
            for constraint in required:
                counting = counting_rows(constraint, keyed, fitting=fitting, tolerated=tolerated)
                class_rules.append(_TopologySpread(constraint, pod_class, columns, counting))
        if rules.affinity:
            class_rules.append(_PodAffinity(rules.affinity, pod_class, columns))
        for own in rules.anti_affinity:
            mark = selection_mark((own.selector,))
            class_rules.append(_NoMarkInDomain(mark, own.topology_key, columns, pod_class.marks, PodAntiAffinity))
        class_rules += [_host_port(port, columns) for port in rules.host_ports]
    for carried in columns.marks.terms_on(pod_class.selected):
        if carried.weight is None:
            mark = term_mark(carried)
            rule = _NoMarkInDomain(mark, carried.topology_key, columns, pod_class.marks, AntiAffinityOfOthers)
            class_rules.append(rule)
    class_rules += [_exclusive_claim(key, columns) for key in pod_class.volumes.exclusive]
    class_rules += [_unbound_shared_claim(key, columns) for key in pod_class.volumes.together]
    return class_rules


def having(columns: NodeColumns, keys: set[str]) -> Flags:
    """Tell which nodes have all of some labels."""
    flags = columns.present.copy()
    for key in sorted(keys):
        flags &= columns.label_values(key)[0] >= 0
    return flags


def counting_rows(constraint: SpreadConstraint, keyed: Flags, *, fitting: Flags, tolerated: Flags) -> Flags:
    """Tell which nodes' pods and domains count for a spread constraint (its node inclusion policies)."""
    counting = keyed.copy()
    if constraint.honor_affinity:
        counting &= fitting
    if constraint.honor_taints:
        counting &= tolerated
    return counting


class _TopologySpread:
    """No domain may have more than `maxSkew` pods above the domain with the fewest."""

    def __init__(
        self, constraint: SpreadConstraint, pod_class: PodClass, columns: NodeColumns, counting: Flags
    ) -> None:
        self._constraint = constraint
        self._columns = columns
        mark = selection_mark((constraint.selector,))
        self._own = int(mark in pod_class.selected)
        values = columns.label_values(constraint.topology_key)
        self._codes, _ = values
        self._sums = columns.marks.sums(mark, constraint.topology_key, values, counting=counting)
        self._domains = np.unique(self._sums.codes[self._sums.codes >= 0])

    def filters(self) -> list[MaskFilter]:
        constraint, skews = self._constraint, self._skews()

        def detail(row: int) -> dict[str, object]:
            return {
                "topology_key": constraint.topology_key,
                "max_skew": constraint.max_skew,
                "skew": int(skews[row]),
            }

        return [
            MaskFilter(self._columns, NoTopologyLabel, self._codes < 0, {"label": constraint.topology_key}),
            MaskFilter(self._columns, TopologySpread, skews > constraint.max_skew, detail),
        ]

    def limits(self) -> Ints:
        # Pods elsewhere make room for more: skews are not looked at.
        return _limits(self._codes < 0)

    def _skews(self) -> Ints:
        """Per row, how far its domain would be above the least one with another pod."""
        sums = self._sums.sums
        few = len(self._domains) < self._constraint.min_domains
        least = 0 if few or not len(self._domains) else int(sums[self._domains].min())
        skews: Ints = self._sums.at_rows() + (self._own - least)
        return skews


class _PodAffinity:
    """Each term's domain must have a pod that all terms select, unless the pod would be the first of its kind.

    So it must be with the pods for which room is kept, and without them: they may start elsewhere, or never
    (kube-scheduler, `RunFilterPluginsWithNominatedPods`).
    """

    def __init__(self, terms: tuple[PodTerm, ...], pod_class: PodClass, columns: NodeColumns) -> None:
        selection: Selection = tuple(term.selector for term in terms)
        mark = selection_mark(selection)
        self._columns = columns
        self._selects_itself = mark in pod_class.selected
        self._keys = tuple(sorted({term.topology_key for term in terms}))
        self._having = having(columns, set(self._keys))
        self._sums, self._kept = (
            [columns.marks.sums(one, key, columns.label_values(key)) for key in self._keys]
            for one in (mark, kept_mark(mark))
        )

    def filters(self) -> list[MaskFilter]:
        keys = ", ".join(self._keys)
        return [
            MaskFilter(self._columns, NoTopologyLabel, ~self._having, {"label": keys}),
            MaskFilter(self._columns, PodAffinity, self._without(), {"topology_key": keys}),
        ]

    def limits(self) -> Ints:
        return _limits(~self._having | self._without())

    def _without(self) -> Flags:
        """Per row, whether a domain of it has none of the pods."""
        there, kept = ([sums.at_rows() for sums in one] for one in (self._sums, self._kept))
        flags = self._lacking(there)
        if any(rows.any() for rows in kept):
            flags |= self._lacking([rows - of_kept for rows, of_kept in zip(there, kept, strict=True)])
        return flags

    def _lacking(self, there: Sequence[Ints]) -> Flags:
        flags = np.zeros(len(self._having), np.bool_)
        if self._selects_itself and not any(rows.any() for rows in there):
            return flags
        for rows in there:
            flags |= rows <= 0
        return flags


class _NoMarkInDomain:
    """No pod with a mark may be in the domain: one that an anti-affinity of the class selects, or one that has such."""

    def __init__(
        self, mark: str, key: str, columns: NodeColumns, own_marks: tuple[str, ...], code: type[NodeReason]
    ) -> None:
        self._sums = columns.marks.sums(mark, key, columns.label_values(key))
        self._is_own = mark in own_marks
        self._key = key
        self._columns = columns
        self._code = code

    def filters(self) -> list[MaskFilter]:
        return [MaskFilter(self._columns, self._code, self._sums.at_rows() > 0, {"topology_key": self._key})]

    def limits(self) -> Ints:
        limits = _limits(self._sums.at_rows() > 0)
        return np.minimum(limits, np.where(self._sums.codes >= 0, 1, NO_LIMIT)) if self._is_own else limits


class _RefusedRows:
    """Nodes are refused by what is on them, or elsewhere; the others take a number of pods at most."""

    def __init__(
        self,
        columns: NodeColumns,
        code: type[NodeReason],
        detail: dict[str, str],
        refused: Callable[[], Flags],
        *,
        most: int = NO_LIMIT,
    ) -> None:
        self._columns, self._code, self._detail, self._refused, self._most = columns, code, detail, refused, most

    def filters(self) -> list[MaskFilter]:
        return [MaskFilter(self._columns, self._code, self._refused(), self._detail)]

    def limits(self) -> Ints:
        return np.minimum(_limits(self._refused()), self._most)


def _host_port(port: HostPort, columns: NodeColumns) -> _RefusedRows:
    """No pod on the node may hold the port."""
    marks = [port_mark(other) for other in columns.marks.conflicting_ports(port)]
    detail = {"port": f"{port.protocol} {port.port}"}
    return _RefusedRows(columns, HostPortTaken, detail, lambda: _rows_with(marks, columns), most=1)


def _exclusive_claim(claim: str, columns: NodeColumns) -> _RefusedRows:
    """A ReadWriteOncePod claim is of one pod, wherever that is."""

    def taken() -> Flags:
        flags = _rows_with([claim_mark(claim)], columns)
        flags[:] = flags.any()
        return flags

    return _RefusedRows(columns, VolumeInUse, {"claim": claim}, taken, most=1)


def _unbound_shared_claim(claim: str, columns: NodeColumns) -> _RefusedRows:
    """A claim that is not bound yet will be where the first pod that uses it goes."""

    def elsewhere() -> Flags:
        flags = _rows_with([claim_mark(claim)], columns)
        return ~flags if flags.any() else flags

    return _RefusedRows(columns, VolumeOutOfReach, {"constraint": claim}, elsewhere)


def _limits(refused: Flags) -> Ints:
    return np.where(refused, 0, NO_LIMIT)


def _rows_with(marks: list[str], columns: NodeColumns) -> Flags:
    """Tell per row whether a pod with any of some marks is there."""
    flags = np.zeros(len(columns.present), np.bool_)
    for mark in marks:
        flags[list(columns.marks.counts(mark))] = True
    return flags
