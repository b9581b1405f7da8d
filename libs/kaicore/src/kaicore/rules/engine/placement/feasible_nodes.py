"""One class of pods against all nodes: who could take one, who is best, and why the others cannot.

Evaluated once per cycle and class; afterwards only the rows that were charged meanwhile are evaluated again.
"""

from collections.abc import Collection, Mapping

import numpy as np

from kaicore.rules.engine.config import EngineConfig, PlacementStrategy
from kaicore.rules.engine.constraints.class_filters import ClassFilters
from kaicore.rules.engine.constraints.doubts import Doubts
from kaicore.rules.engine.constraints.volume_supply import GivenVolume
from kaicore.rules.engine.explain.node_reasons import first_failing
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.placement.row_states import RowStates
from kaicore.rules.model.quantity import is_native
from kaicore.rules.numa.prediction import PredictedPlacement
from kaicore.rules.numa.zone_arrays import Flags, Ints
from kaicore.rules.reasons.node import NoNodes
from kaicore.rules.reasons.reason import Reason

#: Score of a row that cannot take the pod.
_NO = np.int64(-(2**62))
#: Scores of node rules are per mille; this keeps a place for the name's order below them.
_PLACE = 2**24
#: A node with more than so many times of what it has in use counts as one with that much: below 10**4 per mille.
_FULLEST = 9
#: What counts for more than any score of node rules, one above the other: scores of zones (-1 to 100), pods' own
#: `best-effort`, nodes that pods of the class are to leave alone if they can, devices that they do not need.
_ZONES, _OWN, _AVOIDED, _DEVICES = 10**4, 10**7, 10**8, 10**9

#: Up to this many rows it is looked up what they are like.
_FEW = 512


class FeasibleNodes:
    """What a cycle knows of a class."""

    def __init__(
        self,
        pod_class: PodClass,
        columns: NodeColumns,
        config: EngineConfig,
        *,
        states: RowStates,
        rejecting: Mapping[int, str],
        avoid: Collection[int] = (),
        doubts: Doubts | None = None,
    ) -> None:
        """Evaluate the class on all rows.

        Args:
            pod_class: the class.
            columns: the cycle's own copy.
            config: the shard's settings.
            states: of the rows.
            rejecting: rows whose kubelet rejected such a pod and where nothing changed since, with the reason.
            avoid: rows that come last.
            doubts: about the rows; None where pods do not come to them now.
        """
        self._class = pod_class
        self._columns = columns
        self._config = config
        self._avoided = frozenset(avoid)
        self._avoid = np.zeros(len(columns.present), np.bool_)
        self._avoid[list(avoid)] = True
        self._need = columns.vector(pod_class.requests)
        #: Decides which rows may take a pod, and tells why others may not.
        self.filters = ClassFilters(pod_class, columns, config, states=states, rejecting=rejecting, doubts=doubts)
        self._numa = self.filters.numa
        self._constraints = self.filters.constraints
        self._states = states
        self._places: list[int] = columns.name_order().tolist()
        #: Scores by what a row is like, None for one that cannot take the pod.
        self._scores_by_state: dict[object, int | None] = {}
        self._eligible = self.filters.eligible
        self._eligible_bytes = self._eligible.tobytes()
        self._ranking = np.full(len(columns.present), _NO)
        #: How many of the cycle's charges are taken into account.
        self.charges_seen = 0
        self._evaluate(np.flatnonzero(self._eligible))

    def best(self, *, created_at: int, besides: int | None = None) -> int | None:
        """Return the row to place a pod on: the highest score, of equals the first by name; None if there is none.

        Args:
            created_at: when the pod was created, seconds since the epoch.
            besides: a row that is not wanted.
        """
        able = self._ranking
        if besides is not None:
            able = able.copy()
            able[besides] = _NO
        while len(able):
            ranking = self._constraints.ranked(able, never=_NO)
            row = int(ranking.argmax())
            if ranking[row] == _NO:
                return None
            if not self._config.numa or (self._numa.admits(row) and self.filters.is_certain(row, created_at)):
                return row
            # Not ruled out by the thousand, but refused when asked: a cycle only charges, so it stays so.
            able[row] = self._ranking[row] = _NO
        return None

    @property
    def non_monotonic(self) -> bool:
        """Whether a charge may make a node fit that did not before."""
        return self._constraints.non_monotonic

    def ruled_out(self, row: int) -> bool:
        """Tell whether a rule about other pods refuses a row now."""
        return self._constraints.refuses(row)

    def takes(self, row: int, *, created_at: int = 0) -> bool:
        """Tell whether a row can take a pod.

        Args:
            row: the row.
            created_at: when the pod was created, seconds since the epoch; by default before all others.
        """
        able = self._ranking[row] != _NO and not self.ruled_out(row)
        if not able or not self._config.numa:
            return bool(able)
        return self._numa.admits(row) and self.filters.is_certain(row, created_at)

    def counts(self, most: int, among: Ints | None = None) -> Ints:
        """Return for how many pods each row has room, zones aside; shape (rows,).

        Rules about other pods count as if no other row got pods of the class (`PodRule.limits`).

        Args:
            most: more are not counted.
            among: rows that are counted, the others are 0; None for all.
        """
        counts = np.zeros(len(self._columns.present), np.int64)
        able = self._ranking != _NO
        rows = np.flatnonzero(able) if among is None else among[able[among]]
        counts[rows] = np.minimum(self.filters.room.counts(rows), most)
        return np.minimum(counts, self._constraints.limits())

    def by_zones(self, rows: Ints) -> Ints:
        """Return those of some rows where it depends on zones how many pods they take."""
        if not self._config.numa or self._numa.asks_nothing:
            return rows[:0]
        zoned: Ints = rows[self._columns.zones.zone_count[rows] > 0]
        return zoned

    def doubts_about(self, row: int) -> object:
        """Return a key that is equal for rows of one state about which the doubts are the same."""
        return self._numa.doubts_about(row)

    def zones_take(self, row: int, *, created_at: int) -> bool:
        """Tell whether a row's kubelet admits a pod now, for certain and as the pod's own policy asks.

        Args: see `takes`.
        """
        own = self._class.numa_policy
        keeps = own is None or not own.binding or self._numa.stray(row) is None
        return self._numa.admits(row) and keeps and self._numa.is_certain(row, created_at=created_at)

    @property
    def eligible(self) -> Flags:
        """Rows that may take a pod, whatever is free there."""
        return self._eligible

    @property
    def need(self) -> Ints:
        """What a pod takes, over the columns' resources."""
        return self._need

    def predict(self, row: int) -> PredictedPlacement | None:
        """Predict the zones that a pod gets on a row; None when nothing of it is bound to zones."""
        return self._numa.predict(row) if self._config.numa else None

    def volumes(self, row: int) -> tuple[GivenVolume, ...]:
        """Return the volumes that a pod gets on a row (`ConstraintEvaluator.volumes`)."""
        return self._constraints.volumes(row)

    def refresh(self, rows: list[int]) -> None:
        """Evaluate rows again that were charged."""
        distinct = set(rows)
        if len(distinct) > _FEW:
            changed = np.fromiter(distinct, np.int64, len(distinct))
            self._evaluate(changed[self._eligible[changed]])
            return
        new_states = []
        # Bytes, for they are read one by one many times faster than an array.
        eligible, state_of, scores, avoided = (
            self._eligible_bytes,
            self._states.state,
            self._scores_by_state,
            self._avoided,
        )
        for row in distinct:
            if not eligible[row]:
                continue
            key = state_of(row), row in avoided
            if key not in scores:
                new_states.append((row, key))
                continue
            score = scores[key]
            self._ranking[row] = _NO if score is None else score * _PLACE - self._places[row]
        if new_states:
            self._evaluate(np.array([row for row, _ in new_states], np.int64))
            for row, key in new_states:
                ranking = int(self._ranking[row])
                self._scores_by_state[key] = None if ranking == _NO else (ranking + self._places[row]) // _PLACE

    def reasons(self) -> tuple[Reason, ...]:
        """Say why nodes cannot take a pod of the class, counted over nodes, most frequent first."""
        rows = np.flatnonzero(self._columns.present)
        return first_failing(self.filters.in_order(), rows) if len(rows) else (NoNodes(),)

    def _evaluate(self, rows: Ints) -> None:
        self._ranking[rows] = _NO
        rows = rows[~self.filters.room.failing(rows)]
        if self._config.numa and len(rows):
            rows = rows[self._numa.may_admit(rows)]
        by_zones = np.zeros(len(rows), np.int64)
        if self._config.numa and len(rows) and self._numa.discerns:
            fit, own = self._numa.zone_fit(rows), self._class.numa_policy
            taking = fit.admit & fit.keeps if own is not None and own.binding else fit.admit
            wishes = fit.keeps * _OWN if own is not None and not own.binding else by_zones
            rows, by_zones = rows[taking], (wishes + fit.score * _ZONES)[taking]
        if len(rows):
            score = self._scores(rows) + by_zones - self._avoid[rows] * _AVOIDED
            self._ranking[rows] = score * _PLACE - self._columns.name_order()[rows]

    def _scores(self, rows: Ints) -> Ints:
        """Per mille in use of what the class asks for, afterwards; nodes with devices last if it asks for none."""
        columns = self._columns
        devices = [name for name in self._class.requests if not is_native(name)]
        weighed = [columns.resources[name] for name in devices or ("cpu", "memory") if name in columns.resources]
        allocatable = columns.allocatable[rows][:, weighed]
        after = columns.used[rows][:, weighed] + self._need[weighed]
        # Of what the class does not ask for, more may be in use than there is.
        after = np.minimum(after, np.maximum(allocatable, 1) * _FULLEST)
        full: Ints = (after * 1000 // np.maximum(allocatable, 1)).sum(axis=1) // max(len(weighed), 1)
        if self._config.strategy(devices=bool(devices)) is PlacementStrategy.SPREAD:
            full = -full
        if devices:
            return full
        return full - _DEVICES * columns.allocatable[rows][:, columns.device_columns()].any(axis=1)
