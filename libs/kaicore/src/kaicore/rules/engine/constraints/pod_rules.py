"""Rules of a class that look at the pods near a node: which rows they refuse now.

Affinity, anti-affinity both ways, topology spread, host ports and shared claims, as kube-scheduler's plugins
InterPodAffinity, PodTopologySpread, NodePorts and VolumeRestrictions decide. Each rule answers for all rows at once,
from sums over topology domains that every charge of the cycle keeps up to date.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kaicore.rules.engine.constraints.pod_marks import (
    CarriedTerm,
    DomainSums,
    claim_mark,
    port_mark,
    selection_mark,
    term_mark,
)
from kaicore.rules.engine.explain.reasons import Code
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.model.pod_rules import HostPort, PodTerm, SpreadConstraint
from kaicore.rules.model.selector import Selection
from kaicore.rules.numa.zone_arrays import Flags, Ints


@dataclass(frozen=True, slots=True)
class RuleRefusal:
    """Rows that a rule refuses, and why.

    Attributes:
        need: what the rule allows, where it is a number.
        found: per row, what it would be there; None where `need` says nothing.
    """

    rows: Flags
    code: Code
    detail: str
    need: int = 0
    found: Ints | None = None


class PodRule(Protocol):
    """One rule of one class."""

    def refused(self) -> Flags:
        """Return the rows that it refuses now."""
        ...

    def refusals(self) -> list[RuleRefusal]:
        """Say so, and why; in the order in which the reasons are to be found."""
        ...


def pod_rules(pod_class: PodClass, columns: NodeColumns, *, fitting: Flags, tolerated: Flags) -> list[PodRule]:
    """Return the rules of a class; none for most.

    Args:
        pod_class: the class.
        columns: the cycle's own copy.
        fitting: rows that meet the class's node selector and required node affinity.
        tolerated: rows whose taints it tolerates.
    """
    found: list[PodRule] = []
    rules = pod_class.rules
    if rules is not None:
        required = [constraint for constraint in rules.spread if constraint.required]
        if required:
            keyed = having(columns, {constraint.topology_key for constraint in required})
            for constraint in required:
                counting = counting_rows(constraint, keyed, fitting=fitting, tolerated=tolerated)
                found.append(_Spread(constraint, pod_class, columns, counting))
        if rules.affinity:
            found.append(_Affinity(rules.affinity, pod_class, columns))
        found += [_Apart(term, columns) for term in rules.anti_affinity]
        found += [_Port(port, columns) for port in rules.host_ports]
    found += [_KeptOut(term, columns) for term in columns.marks.terms_on(pod_class.selected) if term.weight is None]
    found += [_Exclusive(key, columns) for key in pod_class.volumes.exclusive]
    found += [_Together(key, columns) for key in pod_class.volumes.together]
    return found


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


class _Spread:
    """No domain may have more than `maxSkew` pods above the domain with the fewest."""

    def __init__(
        self, constraint: SpreadConstraint, pod_class: PodClass, columns: NodeColumns, counting: Flags
    ) -> None:
        self._constraint = constraint
        mark = selection_mark((constraint.selector,))
        self._own = int(mark in pod_class.selected)
        values = columns.label_values(constraint.topology_key)
        self._codes, _ = values
        self._sums = columns.marks.sums(mark, constraint.topology_key, values, counting=counting)
        self._domains = np.unique(self._sums.codes[self._sums.codes >= 0])

    def refused(self) -> Flags:
        refused: Flags = (self._codes < 0) | (self._skews() > self._constraint.max_skew)
        return refused

    def refusals(self) -> list[RuleRefusal]:
        constraint, skews = self._constraint, self._skews()
        return [
            RuleRefusal(self._codes < 0, Code.TOPOLOGY_LABEL, constraint.topology_key),
            RuleRefusal(
                skews > constraint.max_skew,
                Code.TOPOLOGY_SPREAD,
                constraint.topology_key,
                constraint.max_skew,
                skews,
            ),
        ]

    def _skews(self) -> Ints:
        """Per row, how far its domain would be above the least one with another pod."""
        sums = self._sums.sums
        few = len(self._domains) < self._constraint.min_domains
        least = 0 if few or not len(self._domains) else int(sums[self._domains].min())
        skews: Ints = self._sums.at_rows() + (self._own - least)
        return skews


class _Affinity:
    """Each term's domain must have a pod that all terms select, unless the pod would be the first of its kind."""

    def __init__(self, terms: tuple[PodTerm, ...], pod_class: PodClass, columns: NodeColumns) -> None:
        selection: Selection = tuple(term.selector for term in terms)
        mark = selection_mark(selection)
        self._selects_itself = mark in pod_class.selected
        self._keys = tuple(sorted({term.topology_key for term in terms}))
        self._having = having(columns, set(self._keys))
        self._sums = [columns.marks.sums(mark, key, columns.label_values(key)) for key in self._keys]

    def refused(self) -> Flags:
        return ~self._having | self._alone()

    def refusals(self) -> list[RuleRefusal]:
        keys = ", ".join(self._keys)
        return [
            RuleRefusal(~self._having, Code.TOPOLOGY_LABEL, keys),
            RuleRefusal(self._alone(), Code.POD_AFFINITY, keys),
        ]

    def _alone(self) -> Flags:
        if self._selects_itself and not any(sums.sums.any() for sums in self._sums):
            return np.zeros(len(self._having), np.bool_)
        flags = np.zeros(len(self._having), np.bool_)
        for sums in self._sums:
            flags |= sums.at_rows() <= 0
        return flags


class _Somebody:
    """Refuses the domains in which a mark is."""

    def __init__(self, sums: DomainSums, code: Code, detail: str) -> None:
        self._sums = sums
        self._code = code
        self._detail = detail

    def refused(self) -> Flags:
        refused: Flags = self._sums.at_rows() > 0
        return refused

    def refusals(self) -> list[RuleRefusal]:
        return [RuleRefusal(self.refused(), self._code, self._detail)]


class _Apart(_Somebody):
    """No pod that an anti-affinity term selects may be in the domain."""

    def __init__(self, term: PodTerm, columns: NodeColumns) -> None:
        key = term.topology_key
        sums = columns.marks.sums(selection_mark((term.selector,)), key, columns.label_values(key))
        super().__init__(sums, Code.POD_ANTI_AFFINITY, key)


class _KeptOut(_Somebody):
    """No pod may be in the domain whose own anti-affinity selects the class."""

    def __init__(self, term: CarriedTerm, columns: NodeColumns) -> None:
        key = term.topology_key
        sums = columns.marks.sums(term_mark(term), key, columns.label_values(key))
        super().__init__(sums, Code.KEPT_OUT, key)


class _Marked:
    """Refuses rows by where some marks are."""

    def __init__(self, marks: list[str], columns: NodeColumns, code: Code, *, detail: str) -> None:
        self._marks = marks
        self._columns = columns
        self._code = code
        self._detail = detail

    def refused(self) -> Flags:
        raise NotImplementedError

    def refusals(self) -> list[RuleRefusal]:
        return [RuleRefusal(self.refused(), self._code, self._detail)]

    def _rows(self) -> Flags:
        flags = np.zeros(len(self._columns.present), np.bool_)
        for mark in self._marks:
            flags[list(self._columns.marks.counts(mark))] = True
        return flags


class _Port(_Marked):
    """Nobody on the node may hold the port."""

    def __init__(self, port: HostPort, columns: NodeColumns) -> None:
        marks = [port_mark(other) for other in columns.marks.conflicting_ports(port)]
        super().__init__(marks, columns, Code.HOST_PORT, detail=f"{port.protocol} {port.port}")

    def refused(self) -> Flags:
        return self._rows()


class _Exclusive(_Marked):
    """A ReadWriteOncePod claim is of one pod, wherever that is."""

    def __init__(self, key: str, columns: NodeColumns) -> None:
        super().__init__([claim_mark(key)], columns, Code.VOLUME_IN_USE, detail=key)

    def refused(self) -> Flags:
        flags = self._rows()
        flags[:] = flags.any()
        return flags


class _Together(_Marked):
    """A claim that is not bound yet will be where the first pod that uses it goes."""

    def __init__(self, key: str, columns: NodeColumns) -> None:
        super().__init__([claim_mark(key)], columns, Code.VOLUME_NODE, detail=key)

    def refused(self) -> Flags:
        flags = self._rows()
        return ~flags if flags.any() else flags
