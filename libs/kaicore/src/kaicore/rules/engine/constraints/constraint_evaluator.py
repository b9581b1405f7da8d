"""The ordinary Kubernetes rules of a class: the rows that they refuse, and the preferred ones among the others.

Preferences are kube-scheduler's scoring rules, over all rows at once. Preferred node affinity, preferred pod affinity
both ways, `ScheduleAnyway` spread and `PreferNoSchedule` taints are each scaled to 0 to 100 over the rows that can take
the pod, with kube-scheduler's default weights. Integers only: where the original takes a logarithm, this takes it in
fixed point.

Taints are tolerated by the pods themselves, or by a flavor of their queue. kai-ledger does not write a flavor's
tolerations on pods (Kueue does so when it admits a workload). So they count where taints only keep pods from being
scheduled. A pod that does not tolerate `NoExecute` is refused by a kubelet and evicted by the cluster.
"""

from collections.abc import Iterator
from functools import lru_cache, partial

import numpy as np

from kaicore.rules.engine.constraints.claims.demands import VolumeDemand, WantedVolume
from kaicore.rules.engine.constraints.claims.device_rule import DeviceRule
from kaicore.rules.engine.constraints.claims.supplies import GivenClaim, GivenVolume
from kaicore.rules.engine.constraints.claims.volume_rule import VolumeRule
from kaicore.rules.engine.constraints.node_filter import MaskFilter, any_mask
from kaicore.rules.engine.constraints.node_matching import affine, matches_toleration, tolerates
from kaicore.rules.engine.constraints.pod_marks import DomainSums, selection_mark, term_mark
from kaicore.rules.engine.constraints.pod_rules import NO_LIMIT, PodRule, counting_rows, having, pod_rules
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.events.reasons.node import ResourceClaimOutOfReach, VolumeOutOfReach
from kaicore.rules.model.node import Taint
from kaicore.rules.model.pod import SpreadConstraint, Toleration
from kaicore.rules.numa.columns import Flags, Ints

#: Default weights of kube-scheduler's plugins.
TAINT_WEIGHT, NODE_WEIGHT, SPREAD_WEIGHT, POD_WEIGHT = 3, 2, 2, 2

_FULL = 100
_BITS = 20


class Preferences:
    """Scores of one class."""

    def __init__(self, pod_class: PodClass, columns: NodeColumns, *, fitting: Flags, tolerated: Flags) -> None:
        """See `pod_rules`."""
        rules = pod_class.rules
        self._rows = len(columns.present)
        self._taints = soft_taints(pod_class, columns)
        self._nodes: Ints | None = None
        if rules is not None and rules.preferred_nodes:
            self._nodes = np.zeros(self._rows, np.int64)
            for preferred in rules.preferred_nodes:
                self._nodes += preferred.weight * affine(columns, (preferred.requirements,))
        self._pods = _weighted_sums(pod_class, columns)
        soft = [constraint for constraint in rules.spread if not constraint.required] if rules is not None else []
        self._keyed = having(columns, {constraint.topology_key for constraint in soft})
        self._spread = [
            _SoftSpread(
                constraint, columns, counting_rows(constraint, self._keyed, fitting=fitting, tolerated=tolerated)
            )
            for constraint in soft
        ]

    def __bool__(self) -> bool:
        return self._taints is not None or self._nodes is not None or bool(self._pods) or bool(self._spread)

    def scores(self, feasible: Flags) -> Ints:
        """Return a score per row, of which only those of feasible rows mean anything."""
        total = np.zeros(self._rows, np.int64)
        if not feasible.any():
            return total
        if self._taints is not None:
            most = int(self._taints[feasible].max())
            if most:
                total += TAINT_WEIGHT * (_FULL - self._taints * _FULL // most)
        if self._nodes is not None:
            most = int(self._nodes[feasible].max())
            if most:
                total += NODE_WEIGHT * (self._nodes * _FULL // most)
        if self._pods:
            total += POD_WEIGHT * self._pod_scores(feasible)
        if self._spread:
            total += SPREAD_WEIGHT * self._spread_scores(feasible)
        return total

    def _pod_scores(self, feasible: Flags) -> Ints:
        """Source: InterPodAffinity's Score and NormalizeScore."""
        raw = np.zeros(self._rows, np.int64)
        for weight, sums in self._pods:
            raw += weight * sums.at_rows()
        least, most = int(raw[feasible].min()), int(raw[feasible].max())
        if least == most:
            return np.zeros(self._rows, np.int64)
        return _FULL * (raw - least) // (most - least)

    def _spread_scores(self, feasible: Flags) -> Ints:
        """Source: PodTopologySpread's Score and NormalizeScore; nodes without all the labels come last."""
        counted = feasible & self._keyed
        scores = np.zeros(self._rows, np.int64)
        if not counted.any():
            return scores
        fixed = np.zeros(self._rows, np.int64)
        for constraint in self._spread:
            fixed += constraint.raw(counted)
        raw = (fixed + (1 << (_BITS - 1))) >> _BITS
        least, most = int(raw[counted].min()), int(raw[counted].max())
        scores[counted] = _FULL * (most + least - raw[counted]) // most if most else _FULL
        return scores


class _SoftSpread:
    def __init__(self, constraint: SpreadConstraint, columns: NodeColumns, counting: Flags) -> None:
        values = columns.label_values(constraint.topology_key)
        self._codes, names = values
        self._domains = len(names)
        self._skew = constraint.max_skew
        mark = selection_mark((constraint.selector,))
        self._sums = columns.marks.sums(mark, constraint.topology_key, values, counting=counting)

    def raw(self, counted: Flags) -> Ints:
        """Pods of the row's domain, weighed by how many domains there are, in fixed point."""
        domains = int((np.bincount(self._codes[counted], minlength=self._domains) > 0).sum())
        scores: Ints = self._sums.at_rows() * ln_fixed(domains + 2) + ((self._skew - 1) << _BITS)
        return scores


@lru_cache(maxsize=1024)
def ln_fixed(number: int) -> int:
    """Return the natural logarithm of a whole number above 0, times 2**20, cut off."""
    exponent = number.bit_length() - 1
    mantissa = (number << 60) >> exponent
    logarithm = exponent
    for _ in range(32):
        mantissa = (mantissa * mantissa) >> 60
        logarithm <<= 1
        if mantissa >> 61:
            mantissa >>= 1
            logarithm |= 1
    # The logarithm of 2, times 2**32.
    return (logarithm * 2977044471) >> (64 - _BITS)


def _weighted_sums(pod_class: PodClass, columns: NodeColumns) -> list[tuple[int, DomainSums]]:
    """Return what pods near a node are worth: those that the class prefers, and those that prefer the class."""
    marks = columns.marks
    weighted = []
    if pod_class.rules is not None:
        for preferred in pod_class.rules.preferred_pods:
            key = preferred.term.topology_key
            sums = marks.sums(selection_mark((preferred.term.selector,)), key, columns.label_values(key))
            weighted.append((preferred.weight, sums))
    for term in marks.terms_on(pod_class.selected):
        if term.weight is not None:
            key = term.topology_key
            weighted.append((term.weight, marks.sums(term_mark(term), key, columns.label_values(key))))
    return weighted


class ConstraintEvaluator:
    """The rules and preferences of one class in one cycle; charges of the cycle are seen as they happen."""

    def __init__(self, pod_class: PodClass, columns: NodeColumns, *, fitting: Flags, tolerated: Flags) -> None:
        """Args:
        fitting: rows that meet its node selector and required node affinity.
        tolerated: rows with taints that it tolerates, or none.
        """
        self._columns = columns
        self._volumes = pod_class.volumes
        self._devices = pod_class.devices
        self._wanted = _by_storage_class(self._volumes, columns)
        self._rules: list[PodRule] = pod_rules(pod_class, columns, fitting=fitting, tolerated=tolerated)
        self._rules += [rule for rule in self._wanted.values() if rule.binding]
        wanted = self._devices.wanted
        self._device_rule = DeviceRule(wanted, columns, among=fitting & tolerated) if wanted else None
        if self._device_rule is not None:
            self._rules.append(self._device_rule)
        self._preferences = Preferences(pod_class, columns, fitting=fitting, tolerated=tolerated)
        #: Whether it refuses no row, and prefers none.
        self.indifferent = not self._rules and not self._preferences

    def filters(self) -> list[MaskFilter]:
        """Return the rules as filters on the rows as they are now."""
        return [one for rule in self._rules for one in rule.filters()]

    def refuses(self, row: int) -> bool:
        """Tell whether a row is refused, as the marks are now."""
        return any(bool(one.mask[row]) for one in self.filters())

    def ranked(self, ranking: Ints, *, never: np.int64) -> Ints:
        """Return a ranking in which rows that are refused, or less preferred than others, are `never`.

        Args:
            ranking: by row, higher is better.
            never: what stands there for rows that cannot take the pod.
        """
        if self.indifferent:
            return ranking
        feasible = self._feasible(ranking, never)
        if self._preferences and feasible.any():
            scores = self._preferences.scores(feasible)
            feasible &= scores == scores[feasible].max()
        return np.where(feasible, ranking, never)

    def preferences(self, ranking: Ints, *, never: np.int64) -> Ints | None:
        """Return how much each row is preferred that no rule refuses, -1 for the others; None where all are alike.

        Args: see `ranked`.
        """
        if self.indifferent:
            return None
        feasible = self._feasible(ranking, never)
        return np.where(feasible, self._preferences.scores(feasible) if self._preferences else 0, -1)

    def _feasible(self, ranking: Ints, never: np.int64) -> Flags:
        feasible: Flags = (ranking != never) & ~any_mask(self.filters(), len(ranking))
        return feasible

    def scores(self, feasible: Flags) -> Ints | None:
        """Return how much each row is preferred, over those that are feasible; None where nothing is preferred."""
        return self._preferences.scores(feasible) if self._preferences else None

    def limits(self) -> Ints:
        """Return how many pods of the class the rules let each row take at most, whatever pods of it others get."""
        limits = np.full(len(self._columns.present), NO_LIMIT)
        for rule in self._rules:
            limits = np.minimum(limits, rule.limits())
        return limits

    @property
    def non_monotonic(self) -> bool:
        """True if a charge may open a row that is refused now."""
        return bool(self._rules)

    @property
    def unreachable(self) -> list[MaskFilter]:
        """Filters on the rows where the pod's volumes or resource claims cannot be used, which no charge changes."""
        columns, demands = self._columns, ((VolumeOutOfReach, self._volumes), (ResourceClaimOutOfReach, self._devices))
        filters = [
            MaskFilter(columns, code, ~affine(columns, terms), {"constraint": constraint})
            for code, demand in demands
            for constraint, terms in demand.places
        ]
        return [*filters, *(rule.unreachable for rule in self._wanted.values())]

    def volumes(self, row: int) -> tuple[GivenVolume, ...]:
        """Return what a pod gets on a row for each volume that its demand wants."""
        if not self._wanted:
            return ()
        chosen = {name: iter(rule.choose(row)) for name, rule in self._wanted.items()}
        return tuple(next(chosen[item.storage_class]) for item in self._volumes.wanted)

    def devices(self, row: int, zones: frozenset[int], *, only_close: bool) -> tuple[GivenClaim, ...] | None:
        """Return what a pod gets on a row for each claim that its demand wants; None if that is too far off.

        Args:
            zones: NUMA zones to which its devices had better be close; none for no preference.
        """
        return () if self._device_rule is None else self._device_rule.choose(row, zones, only_close=only_close)


def _by_storage_class(demand: VolumeDemand, columns: NodeColumns) -> dict[str, VolumeRule]:
    wanted: dict[str, list[WantedVolume]] = {}
    for item in demand.wanted:
        wanted.setdefault(item.storage_class, []).append(item)
    return {name: VolumeRule(items, columns) for name, items in wanted.items()}


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
