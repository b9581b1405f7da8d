"""What the ordinary Kubernetes rules say of a class: rows that they refuse, and which of the others they prefer."""

import numpy as np

from kaicore.rules.engine.constraints.node_filters import affine
from kaicore.rules.engine.constraints.pod_rules import PodRule, RuleRefusal, pod_rules
from kaicore.rules.engine.constraints.preferences import Preferences
from kaicore.rules.engine.constraints.volume_demand import VolumeDemand, WantedVolume
from kaicore.rules.engine.constraints.volume_rule import VolumeRule
from kaicore.rules.engine.constraints.volume_supply import GivenVolume
from kaicore.rules.engine.explain.reasons import Code
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.numa.zone_arrays import Flags, Ints


class ConstraintEvaluator:
    """The rules and preferences of one class in one cycle; charges of the cycle are seen as they happen."""

    def __init__(self, pod_class: PodClass, columns: NodeColumns, *, fitting: Flags, tolerated: Flags) -> None:
        """Args:
        pod_class: the class.
        columns: the cycle's own copy.
        fitting: rows that meet its node selector and required node affinity.
        tolerated: rows whose taints it tolerates.
        """
        self._columns = columns
        self._volumes = pod_class.volumes
        self._wanted = _by_storage_class(self._volumes, columns)
        self._rules: list[PodRule] = pod_rules(pod_class, columns, fitting=fitting, tolerated=tolerated)
        self._rules += [rule for rule in self._wanted.values() if rule.binding]
        self._preferences = Preferences(pod_class, columns, fitting=fitting, tolerated=tolerated)
        self._indifferent = not self._rules and not self._preferences
        self.reachable = self._reachable_rows()

    def refuses(self, row: int) -> bool:
        """Tell whether a row is refused, as the marks are now."""
        return any(bool(rule.refused()[row]) for rule in self._rules)

    def ranked(self, ranking: Ints, *, never: np.int64) -> Ints:
        """Return a ranking in which rows that are refused, or less preferred than others, are `never`.

        Args:
            ranking: by row, higher is better.
            never: what stands there for rows that cannot take the pod.
        """
        if self._indifferent:
            return ranking
        feasible = ranking != never
        for rule in self._rules:
            feasible &= ~rule.refused()
        if self._preferences and feasible.any():
            scores = self._preferences.scores(feasible)
            feasible &= scores == scores[feasible].max()
        return np.where(feasible, ranking, never)

    @property
    def may_change(self) -> bool:
        """Whether a charge may open a row that is refused now."""
        return bool(self._rules)

    def unreachable(self) -> list[RuleRefusal]:
        """Say which rows are out of reach for the pod's volumes, and why."""
        return [
            *(
                RuleRefusal(~affine(self._columns, terms), Code.VOLUME_NODE, detail)
                for detail, terms in self._volumes.places
            ),
            *(rule.unreachable() for rule in self._wanted.values()),
        ]

    def volumes(self, row: int) -> tuple[GivenVolume, ...]:
        """Return what a pod gets on a row for each volume that its demand wants."""
        if not self._wanted:
            return ()
        chosen = {name: iter(rule.choose(row)) for name, rule in self._wanted.items()}
        return tuple(next(chosen[item.storage_class]) for item in self._volumes.wanted)

    def refusals(self) -> list[RuleRefusal]:
        """Say which rows the rules refuse now, and why."""
        return [refusal for rule in self._rules for refusal in rule.refusals()]

    def _reachable_rows(self) -> Flags:
        rows = np.ones(len(self._columns.present), np.bool_)
        for _, terms in self._volumes.places:
            rows &= affine(self._columns, terms)
        for rule in self._wanted.values():
            rows &= rule.reachable
        return rows


def _by_storage_class(demand: VolumeDemand, columns: NodeColumns) -> dict[str, VolumeRule]:
    wanted: dict[str, list[WantedVolume]] = {}
    for item in demand.wanted:
        wanted.setdefault(item.storage_class, []).append(item)
    return {name: VolumeRule(items, columns) for name, items in wanted.items()}
