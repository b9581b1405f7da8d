"""One class of pods against all nodes: who could take one, who is best, and why the others cannot.

Evaluated once per cycle and class; afterwards only the rows that were charged meanwhile are evaluated again.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np

from kaicore.rules.engine.config import EngineConfig, PlacementStrategy
from kaicore.rules.engine.constraints.constraint_evaluator import ConstraintEvaluator
from kaicore.rules.engine.constraints.doubts import Doubts
from kaicore.rules.engine.constraints.node_filters import affine, selected, tolerates
from kaicore.rules.engine.constraints.numa_verdicts import NumaVerdicts
from kaicore.rules.engine.constraints.pod_rules import RuleRefusal
from kaicore.rules.engine.constraints.taint_tolerance import tolerated_rows
from kaicore.rules.engine.constraints.volume_supply import GivenVolume
from kaicore.rules.engine.explain.reasons import Code
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.placement.row_states import RowStates
from kaicore.rules.model.node import Taint
from kaicore.rules.model.quantity import is_native
from kaicore.rules.numa.explain import NumaRefusal, Refusal
from kaicore.rules.numa.prediction import PredictedPlacement
from kaicore.rules.numa.zone_arrays import Flags, Ints
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

#: What a pod must tolerate to be put on a cordoned node, as kube-scheduler's NodeUnschedulable asks.
_CORDONED = Taint("node.kubernetes.io/unschedulable", "NoSchedule")

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
        self._rejecting = rejecting
        self._avoided = frozenset(avoid)
        self._avoid = np.zeros(len(columns.present), np.bool_)
        self._avoid[list(avoid)] = True
        self._need = columns.vector(pod_class.requests)
        self._asked = np.flatnonzero(self._need)
        self._numa = NumaVerdicts(columns, pod_class, config, states, doubts)
        #: Rows that admit a pod as they are accounted, but not for certain.
        self._uncertain: set[int] = set()
        self._states = states
        self._places: list[int] = columns.name_order().tolist()
        #: Scores by what a row is like, None for one that cannot take the pod.
        self._known: dict[object, int | None] = {}
        self._eligible = self._eligible_rows()
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
            ranking = self._neighbourhood.ranked(able, never=_NO)
            row = int(ranking.argmax())
            if ranking[row] == _NO:
                return None
            if not self._config.numa or (self._numa.admits(row) and self._is_certain(row, created_at)):
                return row
            # Not ruled out by the thousand, but refused when asked: a cycle only charges, so it stays so.
            able[row] = self._ranking[row] = _NO
        return None

    @property
    def may_change(self) -> bool:
        """Whether a charge may make a node fit that did not before."""
        return self._neighbourhood.may_change

    def ruled_out(self, row: int) -> bool:
        """Tell whether a rule about other pods refuses a row now."""
        return self._neighbourhood.refuses(row)

    def takes(self, row: int, *, created_at: int = 0) -> bool:
        """Tell whether a row can take a pod.

        Args:
            row: the row.
            created_at: when the pod was created, seconds since the epoch; by default before all others.
        """
        able = self._ranking[row] != _NO and not self.ruled_out(row)
        if not able or not self._config.numa:
            return bool(able)
        return self._numa.admits(row) and self._is_certain(row, created_at)

    def _is_certain(self, row: int, created_at: int) -> bool:
        if self._numa.is_certain(row, created_at=created_at):
            return True
        self._uncertain.add(row)
        return False

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
        return self._neighbourhood.volumes(row)

    def refresh(self, rows: list[int]) -> None:
        """Evaluate rows again that were charged."""
        distinct = set(rows)
        if len(distinct) > _FEW:
            found = np.fromiter(distinct, np.int64, len(distinct))
            self._evaluate(found[self._eligible[found]])
            return
        unknown = []
        # Bytes, for they are read one by one many times faster than an array.
        eligible, state_of, known, avoided = self._eligible_bytes, self._states.state, self._known, self._avoided
        for row in distinct:
            if not eligible[row]:
                continue
            key = state_of(row), row in avoided
            if key not in known:
                unknown.append((row, key))
                continue
            score = known[key]
            self._ranking[row] = _NO if score is None else score * _PLACE - self._places[row]
        if unknown:
            self._evaluate(np.array([row for row, _ in unknown], np.int64))
            for row, key in unknown:
                ranking = int(self._ranking[row])
                self._known[key] = None if ranking == _NO else (ranking + self._places[row]) // _PLACE

    def reasons(self) -> tuple[Reason, ...]:
        """Say why no node can take a pod of the class, counted over nodes, most frequent first."""
        return _Explanation(self).reasons()

    def _eligible_rows(self) -> Flags:
        columns = self._columns
        eligible = columns.present & columns.ready & ~self._cordoned()
        fitting = selected(columns, self._class.node_selector) & affine(columns, self._class.node_affinity)
        for _, terms in self._class.flavors.places:
            fitting &= affine(columns, terms)
        tolerated = tolerated_rows(self._class, columns)
        self._neighbourhood = ConstraintEvaluator(self._class, columns, fitting=fitting, tolerated=tolerated)
        eligible &= fitting & tolerated & self._neighbourhood.reachable
        eligible[list(self._rejecting)] = False
        return eligible & ~self._awaiting_observation()

    def _cordoned(self) -> Flags:
        flags = self._columns.unschedulable
        return np.zeros_like(flags) if tolerates(self._class.tolerations, _CORDONED) else flags

    def _awaiting_observation(self) -> Flags:
        """Rows where a pod that would be bound to zones waits until it is observed what others hold."""
        zones, config = self._columns.zones, self._config
        if not (config.numa and config.wait_for_observation) or self._class.aligned.empty:
            return np.zeros(len(self._columns.present), np.bool_)
        waits: Flags = zones.unknown[: len(self._columns.present)] > 0
        return waits

    def _evaluate(self, rows: Ints) -> None:
        columns = self._columns
        idle = (columns.allocatable - columns.used)[rows]
        fits = (idle[:, self._asked] >= self._need[self._asked]).all(axis=1)
        self._ranking[rows] = _NO
        rows = rows[fits]
        if self._config.numa and len(rows):
            rows = rows[self._numa.may_admit(rows)]
        by_zones = np.zeros(len(rows), np.int64)
        if self._config.numa and len(rows) and self._numa.discerns:
            prospects, own = self._numa.prospects(rows), self._class.numa_policy
            taking = prospects.admit & prospects.keeps if own is not None and own.binding else prospects.admit
            wishes = prospects.keeps * _OWN if own is not None and not own.binding else by_zones
            rows, by_zones = rows[taking], (wishes + prospects.score * _ZONES)[taking]
        if len(rows):
            score = self._scores(rows) + by_zones - self._avoid[rows] * _AVOIDED
            self._ranking[rows] = score * _PLACE - columns.name_order()[rows]

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


class _Explanation:
    """Finds for each node the first rule that it fails."""

    def __init__(self, outlook: FeasibleNodes) -> None:
        self._outlook = outlook
        self._columns = outlook._columns  # noqa: SLF001 - one thing in two classes: the outlook and why
        self._class = outlook._class  # noqa: SLF001
        self._left = self._columns.present.copy()
        self._reasons: list[Reason] = []

    def reasons(self) -> tuple[Reason, ...]:
        columns, pod_class = self._columns, self._class
        if not self._left.any():
            return (Reason(code=Code.NO_NODES),)
        self._strike(~columns.ready, Code.NODE_NOT_READY)
        self._strike(self._outlook._cordoned(), Code.NODE_UNSCHEDULABLE)  # noqa: SLF001
        self._strike(~selected(columns, pod_class.node_selector), Code.NODE_SELECTOR)
        self._strike(~affine(columns, pod_class.node_affinity), Code.NODE_AFFINITY)
        for flavors, terms in pod_class.flavors.places:
            self._strike(~affine(columns, terms), Code.NODE_FLAVOR, detail=flavors)
        self._strike_taints()
        neighbourhood = self._outlook._neighbourhood  # noqa: SLF001
        self._strike_rules(neighbourhood.unreachable())
        self._strike_rejecting()
        config, numa = self._outlook._config, self._outlook._numa  # noqa: SLF001
        self._strike_short(Code.TOO_SMALL, columns.allocatable)
        awaiting = self._outlook._awaiting_observation() & self._left  # noqa: SLF001
        if awaiting.any():
            self._strike(awaiting, Code.HISTORY_INCOMPLETE, detail=self._gap(columns.rows[self._first(awaiting)]))
        if config.numa:
            self._strike_unaligned(lambda row: never(numa.never(row)))
            self._strike_stray(Code.OWN_POLICY_NEVER)
        self._strike_short(Code.INSUFFICIENT, columns.allocatable - columns.used)
        if config.numa:
            self._strike_unaligned(numa.refusal)
            self._strike_stray(Code.OWN_POLICY_NOW)
            self._strike(self._uncertain(), Code.NOT_OBSERVED_YET)
        self._strike_rules(neighbourhood.refusals())
        return tuple(
            sorted(self._reasons, key=lambda reason: (-reason.nodes, reason.code, reason.resource, reason.detail))
        )

    def _strike(self, failing: Flags, code: Code, *, resource: str = "", detail: str = "") -> None:
        failing = failing & self._left
        if failing.any():
            example = self._first(failing)
            self._reasons.append(
                Reason(code=code, nodes=int(failing.sum()), example=example, resource=resource, detail=detail)
            )
            self._left &= ~failing

    def _uncertain(self) -> Flags:
        failing = np.zeros(len(self._left), np.bool_)
        failing[list(self._outlook._uncertain)] = True  # noqa: SLF001
        return failing

    def _first(self, failing: Flags) -> str:
        rows = np.flatnonzero(failing)
        return self._columns.names[int(rows[self._columns.name_order()[rows].argmin()])]

    def _strike_taints(self) -> None:
        columns = self._columns
        untolerated = ~tolerated_rows(self._class, columns)
        _, offending = columns.taints_where(lambda taint: tolerates(self._class.tolerations, taint))
        for index, taint in enumerate(offending):
            if taint is not None:
                detail = f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
                self._strike((columns.taint_set == index) & untolerated, Code.UNTOLERATED_TAINT, detail=detail)

    def _strike_rejecting(self) -> None:
        by_reason: dict[str, list[int]] = {}
        for row, reason in self._outlook._rejecting.items():  # noqa: SLF001
            by_reason.setdefault(reason, []).append(row)
        for reason, rows in sorted(by_reason.items()):
            failing = np.zeros(len(self._left), np.bool_)
            failing[rows] = True
            self._strike(failing, Code.REJECTED_HERE, detail=reason)

    def _strike_stray(self, code: Code) -> None:
        """Strike the nodes whose kubelets would take the pod, but not as its own policy asks."""
        own, numa = self._class.numa_policy, self._outlook._numa  # noqa: SLF001
        if own is None or not own.binding:
            return
        groups: dict[tuple[str, str], list[int]] = {}
        for row in self._rows_left():
            stray = numa.stray(row, empty=code is Code.OWN_POLICY_NEVER)
            if stray is not None:
                topology = self._columns.topologies[row]
                names = tuple(zone.name for zone in topology.zones) if topology is not None else ()
                groups.setdefault((stray.resource, stray.text(names)), []).append(row)
        for (resource, text), rows in sorted(groups.items()):
            failing = np.zeros(len(self._left), np.bool_)
            failing[rows] = True
            if text:
                self._strike(failing, code, detail=f"{own}: it may get {text}")
            else:
                self._strike(failing, Code.OWN_POLICY_UNTOLD, resource=resource, detail=str(own))

    def _strike_rules(self, refusals: list[RuleRefusal]) -> None:
        columns = self._columns
        for refusal in refusals:
            failing = refusal.rows & self._left
            if failing.any():
                example = columns.rows[self._first(failing)]
                self._reasons.append(
                    Reason(
                        code=refusal.code,
                        nodes=int(failing.sum()),
                        example=columns.names[example],
                        need=refusal.need,
                        free=0 if refusal.found is None else int(refusal.found[example]),
                        detail=refusal.detail,
                    )
                )
                self._left &= ~failing

    def _strike_short(self, code: Code, free: Ints) -> None:
        """Strike the nodes that have less than is needed; the most that any of them has is told, and where."""
        columns = self._columns
        for resource in sorted(self._class.requests):
            column, need = columns.resources[resource], self._class.requests[resource]
            failing = (free[:, column] < need) & self._left
            if not failing.any():
                continue
            most = free[failing, column].max()
            example = columns.rows[self._first(failing & (free[:, column] == most))]
            leaving = int(columns.releasing[example, column])
            soon = code is Code.INSUFFICIENT and most + leaving >= need
            self._reasons.append(
                Reason(
                    code=code,
                    nodes=int(failing.sum()),
                    example=columns.names[example],
                    resource=resource,
                    need=need,
                    free=max(int(most), 0),
                    detail="enough with what is being released" if soon else "",
                )
            )
            self._left &= ~failing

    def _gap(self, row: int) -> str:
        zones = self._columns.zones
        count = int(zones.unknown[row])
        if not count:
            return ""
        return f"history incomplete since position {int(zones.unknown_since[row])}: zones of {count} pods unknown"

    def _rows_left(self) -> list[int]:
        rows: list[int] = np.flatnonzero(self._left).tolist()
        return rows

    def _strike_unaligned(self, refusal_of: Callable[[int], Refusal | None]) -> None:
        """Strike the nodes that a rule of their zones refuses; of rows that are alike, one is asked."""
        columns, rows = self._columns, np.flatnonzero(self._left)
        if not len(rows):
            return
        kinds = self._outlook._states.kinds(rows)  # noqa: SLF001
        _, first, which = np.unique(kinds, return_index=True, return_inverse=True)
        found = [refusal_of(int(rows[place])) for place in first.tolist()]
        groups: dict[tuple[str, str, str], list[int]] = {}
        for number, refusal in enumerate(found):
            if refusal is not None:
                groups.setdefault((refusal.code, refusal.resource, refusal.rejection), []).append(number)
        order = columns.name_order()
        for (code, resource, rejection), numbers in sorted(groups.items()):
            places = np.flatnonzero(np.isin(which, numbers))
            place = int(places[order[rows[places]].argmin()])
            example, refusal = int(rows[place]), found[int(which[place])]
            topology = columns.topologies[example]
            assert topology is not None
            assert refusal is not None
            self._left[rows[places]] = False
            self._reasons.append(
                Reason(
                    code=code,
                    nodes=len(places),
                    example=columns.names[example],
                    resource=resource,
                    zone=topology.zones[refusal.zone].name if refusal.zone >= 0 else "",
                    need=refusal.need,
                    free=refusal.free,
                    detail=", ".join(part for part in (refusal.detail, self._gap(example)) if part),
                    rejection=rejection,
                )
            )


def never(refusal: Refusal | None) -> Refusal | None:
    """Say of a refusal on an empty node that it will last."""
    return (
        refusal
        if refusal is None or refusal.code is NumaRefusal.WIDTHS_DIFFER
        else replace(refusal, code=NumaRefusal.NEVER_FITS)
    )
