"""The ordinary Kubernetes rules of a class: the rows that they refuse, and the preferred ones among the others."""

import numpy as np

from kaicore.rules.engine.constraints.claims.demands import VolumeDemand, WantedVolume
from kaicore.rules.engine.constraints.claims.device_rule import DeviceRule
from kaicore.rules.engine.constraints.claims.supplies import GivenClaim, GivenVolume
from kaicore.rules.engine.constraints.claims.volume_rule import VolumeRule
from kaicore.rules.engine.constraints.node_filter import MaskFilter
from kaicore.rules.engine.constraints.node_matching import affine
from kaicore.rules.engine.constraints.pod_rules import NO_LIMIT, PodRule, pod_rules
from kaicore.rules.engine.constraints.preferences import Preferences
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.events.reasons.devices import ResourceClaimOutOfReach
from kaicore.rules.events.reasons.pods_nearby import VolumeOutOfReach
from kaicore.rules.numa.columns import Flags, Ints


class ConstraintEvaluator:
    """The rules and preferences of one class in one cycle; charges of the cycle are seen as they happen."""

    def __init__(self, pod_class: PodClass, columns: NodeColumns, *, fitting: Flags, tolerated: Flags) -> None:
        """Args:
        pod_class: the class.
        columns: the cycle's own copy.
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
        feasible = ranking != never
        for one in self.filters():
            feasible &= ~one.mask
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
        feasible = ranking != never
        for one in self.filters():
            feasible &= ~one.mask
        return np.where(feasible, self._preferences.scores(feasible) if self._preferences else 0, -1)

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
        filters = [
            MaskFilter(self._columns, VolumeOutOfReach, ~affine(self._columns, terms), {"constraint": constraint})
            for constraint, terms in self._volumes.places
        ]
        filters += [
            MaskFilter(
                self._columns, ResourceClaimOutOfReach, ~affine(self._columns, terms), {"constraint": constraint}
            )
            for constraint, terms in self._devices.places
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
            row: the row.
            zones: NUMA zones to which its devices had better be close; none for no preference.
            only_close: they have to be close.
        """
        return () if self._device_rule is None else self._device_rule.choose(row, zones, only_close=only_close)


def _by_storage_class(demand: VolumeDemand, columns: NodeColumns) -> dict[str, VolumeRule]:
    wanted: dict[str, list[WantedVolume]] = {}
    for item in demand.wanted:
        wanted.setdefault(item.storage_class, []).append(item)
    return {name: VolumeRule(items, columns) for name, items in wanted.items()}
