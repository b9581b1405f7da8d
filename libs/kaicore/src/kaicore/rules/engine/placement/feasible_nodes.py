# long: one class against all nodes, evaluated, kept up to date and explained
"""One class of pods against all nodes: the nodes that can take a pod, the best one, and the reasons of the others.

It is evaluated once per cycle and class. Afterwards only the rows that were charged meanwhile are evaluated again. The
scores of a class have parts that depend on more of a row than its state: devices of claims, and the classes that it is
for. They are computed at once for rows that are alike, and added to the scores of states.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property

import msgspec
import numpy as np

from kaicore.policy import MOST, NodeFinding
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.claims.supplies import GivenClaim, GivenVolume
from kaicore.rules.engine.constraints.class_filters import ClassFilters, ExcludedNodes
from kaicore.rules.engine.constraints.zones.doubts import Doubts
from kaicore.rules.engine.placement.lasting_reasons import failing, most_frequent_first
from kaicore.rules.engine.placement.node_columns import DeviceCounts, NodeColumns
from kaicore.rules.engine.placement.node_score import (
    NEVER,
    Levels,
    Ranking,
    RowScore,
    by_devices,
    parts_of,
)
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.placement.room_for_work import RoomForWork
from kaicore.rules.engine.placement.row_states import Before, RowStates
from kaicore.rules.engine.placement.share_fit import NONE, ShareFit
from kaicore.rules.engine.policies.class_policies import ClassPolicies
from kaicore.rules.engine.policies.class_rules import OF_NODES, ClassRules, RowRules, rank_by_cycle
from kaicore.rules.events.reasons.node import NoNodes
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.placement import Placement
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.numa.kubelet.verdict import PredictedPlacement
from kaicore.rules.numa.kubelet.zones import ZoneCharge

#: Score of a row that cannot take the pod, and of a state that was not evaluated yet.
_NO = NEVER
_UNKNOWN = NEVER - 1
#: Up to this many rows are looked at one by one.
_FEW = 64
#: Room for so many states at first.
_STATES = 256


class FollowingPod(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a pod that comes to a row of one state.

    Attributes:
        before: the row without it.
        after: the row with it.
        charge: as it comes about.
    """

    before: Before
    after: Before
    placement: Placement | None
    charge: ZoneCharge


class FeasibleNodes:
    """A cycle's knowledge of a class.

    Attributes:
        eligible: rows that may take a pod, whatever is free there.
        need: a pod's amounts, over the columns' resources.
        filters: which decide which rows may take a pod, and tell why others may not.
        share: the fit of the class's share on the nodes' GPUs; None for a class without one.
    """

    def __init__(  # long: one line for each part of the nodes
        self,
        pod_class: PodClass,
        columns: NodeColumns,
        config: EngineConfig,
        *,
        states: RowStates,
        excluded: ExcludedNodes,
        among: Flags | None = None,
        doubts: Doubts | None = None,
        room: Callable[[], RoomForWork | None] = lambda: None,
        counts: DeviceCounts | None = None,
        policies: ClassPolicies | None = None,
        charges: int = 0,
        like: "FeasibleNodes | None" = None,
    ) -> None:
        """Evaluate the class on all rows.

        Args:
            excluded: rows that certain classes do not get, or get last.
            among: rows that are looked at; None for all.
            doubts: about the rows; None where pods do not come to them now.
            room: returns that for recent work; None where it does not matter.
            counts: of the columns' devices of claims; None where no node has any.
            policies: the operator's, on these columns; None where none decides about the class.
            charges: how many charges the rows have had (`catch_up`).
            like: of a class that differs in nothing but what policies know of its pods, and was rejected nowhere
                either; None where there is none.
        """
        self._class, self._columns, self._config = pod_class, columns, config
        self.need: Ints = columns.vector(pod_class.requests)
        self.filters: ClassFilters = (
            ClassFilters(pod_class, columns, config, states=states, excluded=excluded, doubts=doubts, policies=policies)
            if like is None or policies is None
            else like.filters.with_policies(policies)
        )
        self.share: ShareFit | None = self.filters.share
        self._policies = policies
        self._numa, self._constraints = self.filters.numa, self.filters.constraints
        self._closeness = self.filters.closeness
        self._states = states
        replaced = policies is not None and policies.fills_fullness
        #: Where policies fill the band of fullness, what a row has less than the most of it is in `_handicap`.
        self._rules = ClassRules(
            pod_class, columns, config, self._numa, counts=counts, replaced=replaced, known=states.said
        )
        self._among, self._turns, self._avoid = among, excluded.turns, excluded.avoid.get(pod_class.key, set())
        #: What a row's score is below its state's: its place by name, and more if it is avoided.
        self._handicap: Ints = rank_by_cycle(columns, self._turns, self._avoid, self._rules.work)
        if policies is not None:
            self._handicap = policies.handicap(self._handicap)
        #: The same memory, of which single elements are read faster.
        self._handicap_of = self._handicap.data
        self.eligible: Flags = self.filters.eligible if among is None else self.filters.eligible & among
        self._eligible_bytes = self.eligible.tobytes()
        #: States of nodes that admit a pod for certain, whatever comes; of a share, what `ShareFit.likeness` tells.
        self._admitting: set[object] = set()
        #: Scores of rows that were refused only for what is not known of them yet.
        self._doubtful: dict[int, int] = {}
        self._all_eligible = np.count_nonzero(self.eligible) == len(columns.names)
        rows = len(columns.present)
        self._ranking = Ranking(rows, None if policies is None else policies.shared_levels)
        #: How many of the cycle's charges are taken into account.
        self._charges_seen = charges
        self._room, self._counts, self._alike_rules = room, counts, like
        #: As what scores are kept for later cycles; None where they depend on how many rows are looked at together.
        self._asking = self._all_that_scores_depend_on()
        #: Scores by the state of a row, `_NO` for one that cannot take the pod.
        self._scores_by_state: Ints = np.full(_STATES, _UNKNOWN)
        if self._asking is not None:
            self._scores_by_state = states.numbers.scores.setdefault(self._asking, self._scores_by_state)
        #: See `_scores_of`.
        self._foreseen: dict[tuple[int, ...], dict[int, int]] = {}
        #: By the state of a row, what comes of a pod there; kept for later cycles with the scores.
        self._following: dict[int, FollowingPod] = {}
        if self._asking is not None:
            self._following = states.numbers.following.setdefault(self._asking, self._following)
        #: Scores of rows that refused a pod when asked, until they change; for classes that are like this one.
        self._passed_over: dict[int, int] = {}
        #: Whether another class may take over the scores of its rows.
        self._shares = not (policies is None or policies.live or self._avoid)
        #: Where rows are evaluated, for a class that is like another one; with that one's ranking and `_passed_over`.
        self._like: tuple[FeasibleNodes, Ranking, dict[int, int]] | None = None
        self._look_at_all()

    def with_policies(self, policies: ClassPolicies | None) -> "FeasibleNodes | None":
        """Return the nodes of a class that differs in nothing but what policies know of its pods, and avoids no row.

        Rows go on being evaluated here, once for both. None where that does not do: the one or the other has no
        policies or live ones, or they fill bands otherwise, or it may have rows that this one may not.
        """
        if not self._shares or policies is None or policies.live or self._policies is None:
            return None
        if policies.fill != self._policies.fill:
            return None
        filters = self.filters.with_policies(policies)
        eligible = self.eligible
        if filters.eligible is not self.filters.eligible:
            eligible = filters.eligible if self._among is None else filters.eligible & self._among
            if (eligible & ~self.eligible).any():
                return None
            if np.array_equal(eligible, self.eligible):
                eligible = self.eligible
        return copy(self).taking_over(self, policies, filters, eligible)

    def taking_over(
        self, like: "FeasibleNodes", policies: ClassPolicies, filters: ClassFilters, eligible: Flags
    ) -> "FeasibleNodes":
        """Have policies of its own, for a copy of the nodes of a class that it is like; return it."""
        levels, ranking = policies.shared_levels, self._ranking
        self.filters, self._policies = filters, policies
        if eligible is self.eligible and levels is not None and ranking.has_levels and not self.doubted:
            # What rows refuse one of them when asked, they refuse the other: nothing but the levels is its own.
            self._like, self._ranking = (like, ranking, {}), Ranking(len(ranking.by_row), levels, ranking.by_row)
            return self
        self._like = like, ranking, self._passed_over
        before = ranking.by_row.copy()
        if self._passed_over:
            before[[*self._passed_over]] = [*self._passed_over.values()]
        if eligible is not self.eligible:
            self.eligible, self._eligible_bytes = eligible, eligible.tobytes()
            before[~eligible] = _NO
        self._doubtful, self._passed_over = {}, {}
        self._ranking = Ranking(len(before), levels, before)
        return self

    @cached_property
    def row_rules(self) -> RowRules:
        """The rules that look at more of a row than its state; made for the first row that takes a pod."""
        return RowRules(
            self._class,
            self._columns,
            self._rules,
            self._numa if self._config.numa else None,
            room=self._room(),
            counts=self._counts,
            share=self.share,
            like=None if self._alike_rules is None else self._alike_rules.row_rules,
        )

    def found(self, finding: str, rows: Ints) -> Ints:
        """Return a finding about rows as they are now; 0 where it is about a pod there, and a row cannot take one."""
        if finding == NodeFinding.TURN:
            return np.zeros(len(rows), np.int64) if self._turns is None else self._turns[rows]
        if finding == NodeFinding.AVOIDED:
            return np.isin(rows, list(self._avoid)).astype(np.int64)
        if finding in OF_NODES:
            return self.row_rules.of_nodes(rows)[finding]
        found = np.zeros(len(rows), np.int64)
        able = np.flatnonzero(self._ranking.by_row[rows] != _NO)
        if len(able):
            found[able] = self.row_rules.of_pods(rows[able]).get(finding, 0)
        return found

    def _all_that_scores_depend_on(self) -> object:
        """Return what tells the score of a state, besides the state."""
        config, pod_class, numa, rules = self._config, self._class, self._numa, self._rules
        if config.numa and not numa.discerns and not numa.asks_nothing:
            return None
        requests = tuple(pod_class.requests.items())
        return (
            requests,
            pod_class.gpu_share is not None,
            rules.asks_devices,
            rules.by_claims,
            rules.spread,
            rules.replaced,
            config.numa,
            pod_class.numa_policy,
            numa.asking,
        )

    def best(self, *, created_at: int, besides: int | None = None) -> int | None:
        """Return the row to place a pod on: the highest score, of equals the first by name; None if there is none.

        Args:
            created_at: when the pod was created, seconds since the epoch.
            besides: a row that is not wanted.
        """
        ranking = self._ranking
        if besides is None and self._constraints.indifferent:
            while (row := ranking.first()) is not None:
                if self._takes_by_zones(row, created_at):
                    return row
                self._pass_over(row, int(ranking.by_row[row]))
            return None
        able = ranking.by_row
        if besides is not None:
            able = able.copy()
            able[besides] = _NO
        while len(able):
            ranked = self._constraints.ranked(able, never=np.int64(_NO))
            if self._policies is not None:
                ranked = self._policies.preferred(ranked)
            row = int(ranked.argmax())
            if ranked[row] == _NO:
                return None
            if self._closeness.compares:
                row = self._by_devices(ranked)[0]
            if self._takes_by_zones(row, created_at):
                return row
            # Not ruled out by the thousand, but refused when asked: a cycle only charges, so it stays so.
            self._pass_over(row, int(ranked[row]))
            able[row] = _NO
        return None

    def _pass_over(self, row: int, score: int) -> None:
        if self.filters.is_doubted(row):
            self._doubtful[row] = score
        self._passed_over.setdefault(row, int(self._ranking.by_row[row]))
        self._ranking.set(row, _NO)

    def doubtful_before(self, row: int) -> list[int]:
        """Return the rows that ranked before one and were refused only for what is not known of them yet, in order.

        For explanations, after `best` has returned the row.
        """
        score = int(self._constraints.ranked(self._ranking.by_row, never=np.int64(_NO))[row])
        return sorted(other for other, before in self._doubtful.items() if (-before, other) < (-score, row))

    def _by_devices(self, ranking: Ints) -> list[int]:
        return by_devices(ranking, self._closeness.score, spread=self._rules.spread)

    def _takes_by_zones(self, row: int, created_at: int) -> bool:
        if self._closeness.required and not self._closeness.takes(row):
            return False
        share = self.share
        alike = self._states.state(row) if share is None else share.likeness(row)
        if alike in self._admitting:
            return True
        if share is not None and not share.admits(row):
            return False
        takes = not self._config.numa or (self._numa.admits(row) and self.filters.is_certain(row, created_at))
        if takes and not self.doubted:
            self._admitting.add(alike)
        return takes

    def ranked_rows(self) -> Ints:
        """Return the rows that can take a pod, as they are now, the best first; for explanations."""
        ranking = self._ranking.by_row
        rows = np.flatnonzero(ranking != _NO)
        preferred = self._constraints.preferences(ranking, never=np.int64(_NO))
        policies, keys = self._policies, [ranking]
        if policies is not None and policies.levels is not None:
            keys.append(policies.levels)
        if preferred is not None:
            rows = rows[preferred[rows] >= 0]
            keys.append(preferred)
        ordered: Ints = rows[np.lexsort([-key[rows] for key in keys])]
        if preferred is not None and self._closeness.compares and len(ordered):
            most = np.where(preferred == preferred[ordered[0]], ranking, np.int64(_NO))
            first = self._by_devices(most if policies is None else policies.preferred(most))
            ordered = np.concatenate([np.array(first, np.int64), ordered[~np.isin(ordered, first)]])
        return ordered

    def row_score(self, row: int) -> RowScore:
        """Return by what a row is ranked that can take a pod as it is now; for explanations."""
        preferred = self._constraints.preferences(self._ranking.by_row, never=np.int64(_NO))
        parts, devices = parts_of(int(self._ranking.by_row[row])), self._closeness.score(row)
        own, rules = self._class.numa_policy, self._rules
        return RowScore(
            row=int(row),
            preference=0 if preferred is None else int(preferred[row]),
            leaves_devices=bool(parts["leaves_devices"]),
            turn=-parts["turn"],
            avoided=bool(parts["avoided"]),
            keeps_policy=own is None or own.binding or bool(parts["keeps_policy"]),
            choices=devices.choices,
            near=devices.near,
            zones=parts["zones"],
            whole=devices.whole,
            room_taken=-parts["room_taken"] if rules.asks_devices else 0,
            opened=-parts["opened"],
            idle_devices=0 if rules.asks_devices else -parts["room_taken"],
            full=MOST - parts["full"] if rules.spread else parts["full"],
            policies={} if self._policies is None else self._policies.scores_of(int(row)),
        )

    @property
    def non_monotonic(self) -> bool:
        """True if a charge may make another node fit."""
        return self._constraints.non_monotonic or (self._policies is not None and self._policies.live)

    @property
    def doubted(self) -> bool:
        """True if a pod's creation time matters to the class, for facts of nodes that are unknown."""
        return self._config.numa and self._numa.doubted

    def ruled_out(self, row: int) -> bool:
        """Tell whether a rule about other pods refuses a row now."""
        return self._constraints.refuses(row)

    def takes(self, row: int, *, created_at: int = 0) -> bool:
        """Tell whether a row can take a pod.

        Args:
            created_at: when the pod was created, seconds since the epoch; by default before all others.
        """
        able = self._ranking.by_row[row] != _NO and not self.ruled_out(row)
        return bool(able) and self._takes_by_zones(row, created_at)

    def counts(self, most: int, among: Ints | None = None) -> Ints:
        """Return for how many pods each row has room, zones aside; shape (rows,).

        Rules about other pods count as if no other row got pods of the class (`PodRule.limits`).

        Args:
            most: more are not counted.
            among: rows that are counted, the others are 0; None for all.
        """
        counts, scores = np.zeros(len(self._columns.present), np.int64), self._ranking.by_row
        rows = np.flatnonzero(scores != _NO) if among is None else among[scores[among] != _NO]
        counts[rows] = np.minimum(self.filters.room.counts(rows), most)
        if self.share is not None:
            counts[rows] = np.minimum(counts[rows], self.share.counts(rows))
        return np.minimum(counts, self._constraints.limits()) if self._constraints.non_monotonic else counts

    def preferences(self) -> Ints | None:
        """Return how much each row is preferred, as the rows are now; None where the class prefers none.

        Rows without room are distinguished as well, for room may be made there.
        """
        able = self.eligible & (self._ranking.by_row != _NO)
        return self._constraints.scores(able if able.any() else self.eligible)

    def by_zones(self, rows: Ints) -> Ints:
        """Return those of some rows where it depends on zones how many pods of the class they take."""
        zoned: Ints = rows[self._columns.zones.zone_count[rows] > 0]
        return zoned if self._config.numa and not self._numa.asks_nothing else zoned[:0]

    def zones_take(self, row: int, *, created_at: int) -> bool:
        """Tell whether a row's kubelet admits a pod now, for certain and as the pod's own policy asks.

        Args: see `takes`.
        """
        own = self._class.numa_policy
        keeps = own is None or not own.binding or self._numa.stray(row) is None
        if self.share is not None and not (self.share.admits(row) and self.share.keeps(row)):
            return False
        return self._numa.admits(row) and keeps and self._numa.is_certain(row, created_at=created_at)

    def predict(self, row: int) -> PredictedPlacement | None:
        """Predict the zones that a pod gets on a row; None when nothing of it is bound to zones."""
        return self._numa.predict(row) if self._config.numa else None

    def volumes(self, row: int) -> tuple[GivenVolume, ...]:
        """Return the volumes that a pod gets on a row (`ConstraintEvaluator.volumes`)."""
        return self._constraints.volumes(row) if self._class.volumes.wanted else ()

    def devices(self, row: int) -> tuple[GivenClaim, ...]:
        """Return the devices that a pod's claims get on a row, close to the zones that it is predicted to get there."""
        return self._closeness.given_anyway(row)

    def catch_up(self, touched: "array[int]") -> None:
        """Evaluate rows again that were charged since the last time.

        Args:
            touched: every row that was charged, in order; one may be there more than once.
        """
        if self._charges_seen < len(touched):
            rows, self._charges_seen = touched[self._charges_seen :], len(touched)
            if self._policies is not None and self._policies.live:
                # What live policies say of a row may depend on the charges of another.
                changed = self._policies.renew(rows)
                if len(changed):
                    rows.extend(changed.tolist())
                    if self._ranking.has_levels and self._policies.levels is not None:
                        self._ranking.relevel(Levels(self._policies.levels))
            if self._like is None:
                self._look_again(rows)
            else:
                like, ranking, passed_over = self._like
                like.catch_up(touched)
                self._take_over(ranking.by_row, passed_over, rows)

    @property
    def foresees(self) -> bool:
        """True if the state of a row settles what comes of a pod there (`follow`)."""
        policies, pod_class = self._policies, self._class
        plain = self.share is None and not pod_class.volumes.wanted and not pod_class.devices.wanted
        settled = self._constraints.indifferent and self._like is None
        return plain and settled and (policies is None or not (policies.live or policies.rescores))

    def follow(self, row: int, ages: Sequence[int]) -> list[FollowingPod]:
        """Return what comes of pods that follow each other on the best row, as far as that is known.

        They are as many as go there if pods go one by one, each to the best row (`best`). The caller charges them at
        once, and calls `look_again` then.

        Args:
            ages: when pods were created that may go there, seconds since the epoch.
        """
        known, admitting, most = self._following, self._admitting, len(ages)
        #: Whether doubts about the row refuse none of them; None where that was not asked yet.
        certain = None if self.doubted else False
        state = self._states.state(row)
        if state not in known:
            return []
        ranking, below = self._ranking, self._handicap_of[row]
        score_of, best = self._scores_of(row), int(ranking.by_row[row])
        following, score = list[FollowingPod](), best
        while (one := known.get(state)) is not None:
            following.append(one)
            state = one.after.state
            alone = score_of.get(state)
            if alone is None:
                return following
            score = alone if alone == _NO else alone - below
            if score < best:
                ranking.set(row, score)
                if ranking.first() != row:
                    break
            if len(following) == most:
                break
            if certain is None:
                certain = self._numa.is_certain_in_turn(row, ages)
            if not certain and state not in admitting:
                # Where there may be doubts, each pod is asked about.
                break
            best = score
        ranking.set(row, score)
        # The charge to come is taken into account.
        self._charges_seen += 1
        return following

    def look_again(self, row: int, touched: "array[int]") -> None:
        """Catch up with the charges of a row, and keep its score for rows that will be as it is."""
        if self._charges_seen < len(touched):
            self.catch_up(touched)
            score = int(self._ranking.by_row[row])
            self._scores_of(row)[self._states.state(row)] = score if score == _NO else score + self._handicap_of[row]

    def learn(self, before: Before, after: Before, predicted: PredictedPlacement | None, charge: ZoneCharge) -> None:
        """Keep what came of a pod, to foresee what comes of others (`FollowingPod`)."""
        placement = None if predicted is None else predicted.placement
        self._following[before.state] = FollowingPod(before, after, placement, charge)

    def _scores_of(self, row: int) -> dict[int, int]:
        """Return the scores of rows like one, as far as they are known, by state; places by name and such aside."""
        return self._foreseen.setdefault(self.row_rules.likeness(row), {})

    def _take_over(self, by_row: Ints, passed_over: Mapping[int, int], rows: "array[int]") -> None:
        """Take over the scores of rows that a class has that it is like."""
        if len(rows) > _FEW:
            charged = np.zeros(len(by_row), np.bool_)
            charged[np.frombuffer(rows, np.int64)] = True
            every = np.flatnonzero(charged & self.eligible)
            self._ranking.set_many(every, by_row[every])
            if passed_over:
                self._ranking.set_few((row, passed_over[row]) for row in every.tolist() if row in passed_over)
            return
        scores, eligible = by_row.data, self._eligible_bytes
        changed = [(row, scores[row]) for row in {*rows} if eligible[row]]
        if passed_over:
            changed = [(row, passed_over.get(row, score)) for row, score in changed]
        self._ranking.set_few(changed)

    def _look_again(self, rows: "array[int]") -> None:
        # Pods are packed, so that few rows are charged many times, and most of these are full then.
        distinct = set(rows)
        if len(distinct) > _FEW:
            distinct = set(self._without_full(np.fromiter(distinct, np.int64, len(distinct))))
        if len(distinct) > _FEW:
            self._refresh(np.fromiter(distinct, np.int64, len(distinct)))
            return
        # Bytes and memory, for they are read one by one many times faster than an array.
        eligible, states, scores = self._eligible_bytes, self._states, self._scores_by_state.data
        state_of = states.of_rows
        policies = self._policies
        if policies is not None and not policies.rescores:
            policies = None
        able: list[tuple[int, int, int]] = []
        changed: list[tuple[int, int]] = []
        for row in distinct:
            if eligible[row]:
                state = state_of[row]
                if state < 0:
                    state = states.state(row)
                score = scores[state] if state < len(scores) else _UNKNOWN
                if score == _UNKNOWN:
                    score = self._score(row)
                    if state >= len(scores):
                        self._reserve()
                        scores = self._scores_by_state.data
                    scores[state] = score
                if score == _NO:
                    changed.append((row, _NO))
                else:
                    able.append((row, state, score))
        if len(able) > 1:
            self.row_rules.prepare([(row, state) for row, state, _ in able])
        for row, state, of_state in able:
            added = self.row_rules.of_row(row, state)
            score = _NO if added == _NO else of_state + added - self._handicap_of[row]
            if policies is not None:
                score = policies.of_row(row, score)
            changed.append((row, score))
        self._ranking.set_few(changed)
        if self._passed_over:
            for row, _ in changed:
                self._passed_over.pop(row, None)

    def _without_full(self, rows: Ints) -> list[int]:
        """Leave out rows that may take no pod, and those of which it is known from their states that they take none."""
        if not self._all_eligible:
            rows = rows[self.eligible[rows]]
        states = self._states.states(rows)
        self._reserve()
        full = self._scores_by_state.take(states) == _NO
        refused = rows[full]
        self._ranking.refuse(refused)
        if self._passed_over:
            for row in refused.tolist():
                self._passed_over.pop(row, None)
        left: list[int] = rows[~full].tolist()
        return left

    def _look_at_all(self) -> None:
        rows = np.flatnonzero(self.eligible)
        if len(rows) <= _FEW and self.filters.room.failing(rows).all():
            # A full small cluster is looked at for each class that waits, in each cycle.
            return
        if len(rows) and self._all_eligible:
            # They are the first ones then, and a look at them as they lie costs half of one through their numbers.
            scores = self._scores(rows, self._states.first_states(len(rows)))
            self._ranking.set_first(self._final(rows, scores, self._handicap[: len(rows)]))
        else:
            self._refresh(rows)

    def _refresh(self, rows: Ints) -> None:
        rows = rows[self.eligible[rows]]
        if len(rows):
            scores = self._scores(rows, self._states.states(rows))
            self._ranking.set_many(rows, self._final(rows, scores, self._handicap[rows]))

    def _final(self, rows: Ints, scores: Ints, below: Ints) -> Ints:
        """Return the scores of rows, less what they are below those of their states, and as policies have them."""
        final: Ints = np.maximum(scores - below, _NO)
        if self._policies is not None:
            final = self._policies.of_rows(rows, final)
        if self._passed_over:
            for row in rows.tolist():
                self._passed_over.pop(row, None)
        return final

    def _scores(self, rows: Ints, states: Ints) -> Ints:
        """Return the scores of rows in these states; of those in one state, the first is evaluated."""
        self._reserve()
        scores: Ints = self._scores_by_state.take(states)
        unknown = scores == _UNKNOWN
        if np.count_nonzero(unknown):
            examples = np.full(self._states.count, -1)
            # Of equal ones the last is kept.
            examples[states[unknown][::-1]] = rows[unknown][::-1]
            first = np.sort(examples[examples >= 0])
            self._scores_by_state[self._states.states(first)] = self._evaluated(first)
            scores = self._scores_by_state.take(states)
        if self.share is not None:
            scores[self.share.costs(rows) == NONE] = _NO
        able = np.flatnonzero(scores != _NO)
        if len(able) and self.row_rules:
            scores[able] += self.row_rules.of_rows(rows[able], states[able])
        return scores

    def _reserve(self) -> None:
        """Make room for the scores of all states."""
        short = self._states.count - len(self._scores_by_state)
        if short > 0:
            more = np.full(max(short, len(self._scores_by_state)), _UNKNOWN)
            self._scores_by_state = np.concatenate([self._scores_by_state, more])
            if self._asking is not None:
                self._states.numbers.scores[self._asking] = self._scores_by_state

    def reasons(self) -> tuple[Reason, ...]:
        """Say why nodes cannot take a pod of the class, counted over nodes, most frequent first."""
        rows = np.flatnonzero(self._columns.present)
        return most_frequent_first(failing(self.filters.in_order(), rows)[0]) if len(rows) else (NoNodes(),)

    def _evaluated(self, rows: Ints) -> Ints:
        """Return the scores of rows as `_score` does, many at once."""
        scores = np.full(len(rows), _NO)
        places = np.flatnonzero(~self.filters.room.failing(rows))
        if self._config.numa and len(places):
            places = places[self._numa.may_admit(rows[places])]
        found: dict[str, Ints] = {}
        if self._config.numa and len(places) and self._numa.discerns:
            fit, own = self._numa.zone_fit(rows[places]), self._class.numa_policy
            taking = fit.admit & fit.keeps if own is not None and own.binding else fit.admit
            places = places[taking]
            found = {NodeFinding.ZONES: fit.score[taking], NodeFinding.KEEPS_POLICY: fit.keeps[taking].astype(np.int64)}
        if len(places):
            scores[places] = self._rules.of_states(rows[places], found)
        return scores

    def _score(self, row: int) -> int:
        """Return the score of a row by its state alone, `_NO` if it cannot take the pod."""
        columns, own = self._columns, self._class.numa_policy
        allocatable, used = columns.allocatable[row].tolist(), columns.used[row].tolist()
        if self.filters.room.fails(allocatable, used):
            return _NO
        found: dict[str, int] = {}
        if self._config.numa and self._numa.discerns:
            admits, keeps, score = self._numa.fit(row)
            if not admits or (own is not None and own.binding and not keeps):
                return _NO
            found = {NodeFinding.ZONES: score, NodeFinding.KEEPS_POLICY: int(keeps)}
        elif self._config.numa and not self._numa.admits(row):
            return _NO
        return self._rules.of_state(row, found)
