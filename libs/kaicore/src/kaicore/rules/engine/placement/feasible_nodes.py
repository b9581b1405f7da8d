# long: one class against all nodes, evaluated, kept up to date and explained
"""One class of pods against all nodes: the nodes that can take a pod, the best one, and the reasons of the others.

It is evaluated once per cycle and class. Afterwards only the rows that were charged meanwhile are evaluated again. The
scores of a class have parts that depend on more of a row than its state: devices of claims, and the classes that it is
for. They are computed at once for rows that are alike, and added to the scores of states.
"""

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import TypeVar

import numpy as np

from kaicore.policy import MOST, Facts, Policy, PolicyBand, Work
from kaicore.rules.engine.config import EngineConfig, PlacementStrategy
from kaicore.rules.engine.constraints.claims.supplies import GivenClaim, GivenVolume
from kaicore.rules.engine.constraints.class_filters import ClassFilters, ReservedNodes
from kaicore.rules.engine.constraints.zones.doubts import Doubts
from kaicore.rules.engine.placement.lasting_reasons import failing, most_frequent_first
from kaicore.rules.engine.placement.node_columns import DeviceCounts, NodeColumns
from kaicore.rules.engine.placement.node_score import (
    BANDS,
    FULL,
    KEEPS,
    LEAVES,
    MOST_TAKEN,
    NEVER,
    OFFSETS,
    OPENED,
    TAKEN,
    ZONES,
    LevelRanking,
    Levels,
    Ranking,
    RowScore,
    by_devices,
    handicap,
    parts_of,
)
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.placement.room_for_work import NodeRoom, RoomForWork
from kaicore.rules.engine.placement.row_states import RowStates
from kaicore.rules.engine.placement.share_fit import NONE, ShareFit, reservation_class
from kaicore.rules.engine.policies.builtin import MOST_IDLE, IdleDevices, PackedNodes, SpreadPods
from kaicore.rules.engine.policies.class_policies import ClassPolicies
from kaicore.rules.engine.policies.node_facts import NodesOfRows
from kaicore.rules.events.reasons.node import NoNodes
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.device import DeviceRequest
from kaicore.rules.model.gpu_share import GPU, WHOLE
from kaicore.rules.model.quantity import is_native
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.numa.kubelet.verdict import PredictedPlacement

#: A row, or several; a cost, or several.
Rows = TypeVar("Rows", int, Ints)
#: A pod is mostly followed by others of its gang: the room of so many on one row is worked out together.
_FOLLOWING = 8
#: So many kinds are found without sorting.
_MOST_COUNTED_KINDS = 1 << 20


class RowParts:
    """The parts of one class in one cycle.

    Attributes:
        taken: the room that a pod takes, by the row's state, pattern, free devices of claims, kind of open GPUs, and
            `ShareFit.fixed` for a share.
        ahead: the same by a row's pattern, kind of open GPUs and free amounts, for rows as further pods will make them.
    """

    def __init__(
        self,
        pod_class: PodClass,
        columns: NodeColumns,
        config: EngineConfig,
        *,
        room: RoomForWork | None,
        counts: DeviceCounts | None,
        share: ShareFit | None,
        like: "RowParts | None" = None,
        replaced: bool = False,
    ) -> None:
        """Args: see `FeasibleNodes`.

        like: has the parts of pods with the same requests, on the same columns.
        replaced: whether policies fill the band of fullness.
        """
        self._columns, self._counts, self._share = columns, counts, share
        self._claimed = _claimed(pod_class)
        requested = any(not is_native(name) for name in pod_class.requests)
        self._asks_none = not (requested or pod_class.devices.wanted or pod_class.gpu_share)
        self._by_claims = _by_claims(pod_class, counts)
        #: Where pods are spread they are not kept together for the sake of others.
        spread = config.strategy(devices=not self._asks_none) is PlacementStrategy.SPREAD
        self._room = None if self._asks_none or spread else room
        self._full = 0 if replaced else -FULL if spread else FULL
        #: Columns of the kubelets' devices.
        self._of_kubelets: Ints = np.array(columns.device_columns(), np.int64)
        self._need: Ints = columns.vector(pod_class.requests)
        if room is not None:
            self._need = self._need[room.asked]
            if share is not None:
                self._opening: Ints = columns.vector(reservation_class().requests)[room.asked]
        self.taken: dict[tuple[int, ...], int] = {} if like is None else like.taken
        self.ahead: dict[tuple[int, int, bytes], int] = {} if like is None else like.ahead
        #: All that is added for a share, by its likeness and the pattern.
        self._of_alike: dict[tuple[tuple[int, int, int], int], int] = {}
        #: Whether free parts of GPUs count as devices that are left alone.
        self._spares_parts = self._asks_none and any(True for _ in columns.gpus.rows)

    def __bool__(self) -> bool:
        by_counts = self._counts is not None and (self._asks_none or self._by_claims)
        return self._room is not None or self._share is not None or by_counts or self._spares_parts

    def of_row(self, row: int, state: int) -> int:
        """Return what is added to the score of a row in a state; `_NO` for one without the parts of a share."""
        share, room = self._share, self._room
        if self._counts is None and share is not None:
            alike = share.likeness(row), 0 if room is None else room.pattern_of[row]
            added = self._of_alike.get(alike)
            if added is None:
                added = self._of_alike[alike] = self._of_share(share, row, state)
            return added
        if self._counts is None and room is not None:
            return -TAKEN * min(self._taken_on_row(room, row, state), MOST_TAKEN)
        if share is not None and share.cost(row) == NONE:
            return _NO
        return int(self.of_rows(np.array([row], np.int64), np.array([state], np.int64))[0]) if self else 0

    def _of_share(self, share: ShareFit, row: int, state: int) -> int:
        """Return what is added for a share, where no node has devices of claims."""
        cost = share.cost(row)
        if cost == NONE:
            return _NO
        taken = cost if self._room is None else min(self._taken_on_row(self._room, row, state), MOST_TAKEN)
        return int(self._of_opened(share, row, cost)) + share.by_zones(row) - TAKEN * taken

    def of_rows(self, rows: Ints, states: Ints) -> Ints:
        """Return what is added to the scores of rows in these states."""
        added = np.zeros(len(rows), np.int64)
        if not len(rows):
            return added
        counts = self._counts
        idle = np.zeros(len(rows), np.int64)
        if counts is not None:
            counts.catch_up()
            total, free = counts.total[rows], counts.free[rows]
            if self._asks_none:
                others = self._columns.allocatable[rows][:, self._of_kubelets].any(axis=1)
                added -= LEAVES * ((total > 0) & ~others)
                idle += free
            elif self._by_claims:
                used = np.minimum(total - free + self._claimed, total)
                added += self._full * (used * 1000 // np.maximum(total, 1))
        if self._spares_parts:
            idle += self._columns.gpus.free_parts(rows).sum(axis=1) // WHOLE
        added -= TAKEN * np.minimum(idle, MOST_IDLE)
        costs = None if self._share is None else self._share.costs(rows)
        if self._share is not None and costs is not None:
            added += self._of_opened(self._share, rows, costs) + self._share.by_zones_of(rows)
        if self._room is not None:
            added -= TAKEN * np.minimum(self._taken_on(self._room, rows, states), MOST_TAKEN)
        elif costs is not None:
            added -= TAKEN * costs
        return added

    def _of_opened(self, share: ShareFit, rows: Rows, costs: Rows) -> Rows:
        """Return what the GPUs add that are opened for a share: each is one more that is in use."""
        opened, gpu = share.openings(costs), self._columns.resources[GPU]
        most = np.maximum(self._columns.allocatable[rows, gpu], 1)
        used = self._columns.used[rows, gpu]
        added: Rows = self._full * ((used + opened) * 1000 // most - used * 1000 // most) - OPENED * opened
        return added

    def _taken_on_row(self, room: RoomForWork, row: int, state: int) -> int:
        """Return the room taken on one row, where no node has devices of claims; `_taken_on` for most placements."""
        fixed = 0 if self._share is None else int(self._share.fixed[row])
        key = state, room.pattern_of[row], 0, self._columns.gpus.kind(row), fixed
        taken = self.taken.get(key)
        if taken is None:
            taken = self.taken[key] = self._one_by_one(room, row)
        return taken

    def _one_by_one(self, room: RoomForWork, row: int) -> int:
        """Work out the room taken on one row, and without a share, with the pods that will probably follow there."""
        if self._share is not None:
            return int(self._work_out(room, np.array([row], np.int64), np.zeros(1, np.int64))[0])
        alike = room.pattern_of[row], self._columns.gpus.kind(row)
        now = room.free(self._columns, row)
        taken = self.ahead.get((*alike, now.tobytes()))
        if taken is None:
            rows = np.full(_FOLLOWING, row)
            before = room.of_rows(self._columns, rows, claimable=np.zeros(_FOLLOWING, np.int64))
            free = before.free - np.arange(_FOLLOWING)[:, None] * self._need
            after = NodeRoom(free - self._need, before.claimable - self._claimed, before.parts)
            every = room.taken(before._replace(free=free), after, room.patterns[rows]).tolist()
            self.ahead |= zip(((*alike, one.tobytes()) for one in free), every, strict=True)
            taken = every[0]
        return taken

    def prepare(self, rows: Iterable[tuple[int, int]]) -> None:
        """Work out the room taken on rows in their states at once, as far as it is not known: that is faster."""
        room = self._room
        if room is None or self._counts is not None or self._share is not None:
            return
        kind = self._columns.gpus.kind
        keys = {(state, room.pattern_of[row], 0, kind(row), 0): row for row, state in rows}
        new = {key: row for key, row in keys.items() if key not in self.taken}
        if len(new) > 1:
            taken = self._work_out(room, np.array(list(new.values()), np.int64), np.zeros(len(new), np.int64))
            self.taken |= zip(new, taken.tolist(), strict=True)

    def _taken_on(self, room: RoomForWork, rows: Ints, states: Ints) -> Ints:
        free = np.zeros(len(rows), np.int64) if self._counts is None else self._counts.free[rows]
        patterns, known = room.patterns[rows], self.taken
        kinds = self._columns.gpus.kinds(len(self._columns.present))[rows]
        fixed = np.zeros(len(rows), np.int64) if self._share is None else self._share.fixed[rows]
        figures = states, patterns, free, kinds, fixed
        whole = figures[0]
        for figure in figures[1:]:
            whole = whole * (int(figure.max()) + 1) + figure
        first, which = _alike(whole)
        alike = list(zip(*(figure[first].tolist() for figure in figures), strict=True))
        new = np.array([place for place, key in enumerate(alike) if key not in known], np.int64)
        if len(new):
            asked = first[new]
            taken = self._work_out(room, rows[asked], free[asked])
            known |= zip((alike[place] for place in new.tolist()), taken.tolist(), strict=True)
        found: Ints = np.array([known[key] for key in alike], np.int64)[which]
        return found

    def _work_out(self, room: RoomForWork, rows: Ints, free: Ints) -> Ints:
        before = room.of_rows(self._columns, rows, claimable=free)
        need, parts = self._need, before.parts
        if self._share is not None:
            opened, parts = self._share.after(rows)
            need = need + opened[:, None] * self._opening
        after = NodeRoom(before.free - need, before.claimable - self._claimed, parts)
        return room.taken(before, after, room.patterns[rows])


def _alike(kinds: Ints) -> tuple[Ints, Ints]:
    """Return the first place of each kind, by kind, and by place the number of its kind; kinds are not negative."""
    size = int(kinds.max()) + 1
    if size > _MOST_COUNTED_KINDS:
        _, first, which = np.unique(kinds, return_index=True, return_inverse=True)
        return first, which
    places = np.full(size, -1, np.int64)
    places[kinds[::-1]] = np.arange(len(kinds) - 1, -1, -1)
    there = np.flatnonzero(places >= 0)
    numbers = np.empty(size, np.int64)
    numbers[there] = np.arange(len(there))
    return places[there], numbers[kinds]


def _claimed(pod_class: PodClass) -> int:
    """Return how many devices the claims of a pod take, without those that are offered as an extended resource."""
    wanted = [want for want in pod_class.devices.wanted if not want.extended]
    return sum(_devices_of(request) for want in wanted for request in want.requests)


def _by_claims(pod_class: PodClass, counts: DeviceCounts | None) -> bool:
    """Tell whether the devices of claims in use order rows, for a class that asks for no others."""
    return counts is not None and bool(_claimed(pod_class)) and all(map(is_native, pod_class.requests))


def _devices_of(request: DeviceRequest) -> int:
    """Return how many devices a request takes; of alternatives, the first."""
    if request.alternatives:
        return _devices_of(request.alternatives[0])
    return 0 if request.admin else request.count


#: Score of a row that cannot take the pod, and of a state that was not evaluated yet.
_NO = NEVER
_UNKNOWN = NEVER - 1
#: The most that the band of fullness adds.
_MOST_FULL = BANDS["full"].most * FULL
#: The built-in policies ask for none.
_NO_FACTS = Facts()
#: Up to this many rows are looked at one by one.
_FEW = 64
#: Room for so many states at first.
_STATES = 256


class FeasibleNodes:
    """A cycle's knowledge of a class.

    Attributes:
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
        rejecting: Mapping[int, str],
        reserved: Sequence[ReservedNodes] = (),
        suspects: Mapping[int, str],
        avoid: Collection[int] = (),
        turns: Ints | None = None,
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
            rejecting: rows that rejected such a pod and have not changed since, with the kubelet's reason.
            reserved: the nodes of the reservations that keep the class off.
            suspects: rows that are suspect for such pods, and why.
            turns: by row, how many other replicas take it before this one; None where this one has all rows.
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
        self._need = columns.vector(pod_class.requests)
        self.filters: ClassFilters = (
            ClassFilters(
                pod_class,
                columns,
                config,
                states=states,
                rejecting=rejecting,
                reserved=reserved,
                suspects=suspects,
                doubts=doubts,
                policies=policies,
            )
            if like is None or policies is None
            else like.filters.with_policies(policies)
        )
        self.share: ShareFit | None = self.filters.share
        self._policies = policies
        self._numa, self._constraints = self.filters.numa, self.filters.constraints
        self._closeness = self.filters.closeness
        self._states = states
        #: What a row's score is below its state's: its place by name, and more if it is avoided.
        self._handicap: Ints = handicap(columns.name_order(), turns=turns, avoid=avoid)
        full = None if policies is None else policies.full
        if full is not None:
            self._handicap = self._handicap + _MOST_FULL - full * FULL
        #: Whether policies fill the band of fullness: what a row has less than the most of it is in `_handicap`.
        self._fullness_replaced = full is not None
        self._among = among
        self._eligible = self.filters.eligible if among is None else self.filters.eligible & among
        self._eligible_bytes = self._eligible.tobytes()
        #: States of nodes that admit a pod for certain, whatever comes; of a share, what `ShareFit.likeness` tells.
        self._admitting: set[object] = set()
        #: Scores of rows that were refused only for what is not known of them yet.
        self._doubtful: dict[int, int] = {}
        self._all_eligible = np.count_nonzero(self._eligible) == len(columns.names)
        rows = len(columns.present)
        self._ranking = self._ranking_of(rows, None)
        #: How many of the cycle's charges are taken into account.
        self._charges_seen = charges
        self._room, self._counts, self._alike_parts = room, counts, like
        self._weigh()
        #: As what scores are kept for later cycles; None where they depend on how many rows are looked at together.
        self._asking = self._all_that_scores_depend_on()
        #: Scores by the state of a row, `_NO` for one that cannot take the pod.
        self._scores_by_state: Ints = np.full(_STATES, _UNKNOWN)
        if self._asking is not None:
            self._scores_by_state = states.numbers.scores.setdefault(self._asking, self._scores_by_state)
        #: Scores of rows that refused a pod when asked, until they change; for classes that are like this one.
        self._passed_over: dict[int, int] = {}
        #: Whether another class may take over the scores of its rows.
        self._shares = not (policies is None or policies.live or avoid)
        #: Where rows are evaluated, for a class that is like another one; with that one's ranking and `_passed_over`.
        self._like: tuple[FeasibleNodes, Ranking | LevelRanking, dict[int, int]] | None = None
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
        eligible = filters.eligible if self._among is None else filters.eligible & self._among
        if (eligible & ~self._eligible).any():
            return None
        return copy(self).taking_over(self, policies, filters, eligible)

    def taking_over(
        self, like: "FeasibleNodes", policies: ClassPolicies, filters: ClassFilters, eligible: Flags
    ) -> "FeasibleNodes":
        """Have policies of its own, for a copy of the nodes of a class that it is like; return it."""
        self._like = like, self._ranking, self._passed_over
        before = self._ranking.by_row.copy()
        if self._passed_over:
            before[[*self._passed_over]] = [*self._passed_over.values()]
        if (eligible != self._eligible).any():
            self._eligible, self._eligible_bytes = eligible, eligible.tobytes()
            before[~eligible] = _NO
        self.filters, self._policies, self._doubtful, self._passed_over = filters, policies, {}, {}
        self._ranking = self._ranking_of(len(before), before)
        return self

    def _ranking_of(self, rows: int, scores: Ints | None) -> Ranking | LevelRanking:
        levels = None if self._policies is None else self._policies.shared_levels
        if levels is not None:
            return LevelRanking(rows, levels, scores)
        ranking = Ranking(rows)
        if scores is not None:
            ranking.set_first(scores)
        return ranking

    def _weigh(self) -> None:
        """Settle the differences by which nodes are ordered, besides their zones."""
        pod_class, columns, config = self._class, self._columns, self._config
        devices = [name for name in pod_class.requests if not is_native(name)]
        if pod_class.gpu_share is not None:
            devices = [GPU]
        self._asks_devices = bool(devices or pod_class.devices.wanted)
        self._by_claims = _by_claims(pod_class, self._counts)
        #: Columns of the devices that had better be left alone.
        self._spared: Ints = np.array([] if devices else columns.device_columns(), np.int64)
        self._spread = config.strategy(devices=self._asks_devices) is PlacementStrategy.SPREAD
        share = pod_class.gpu_share
        #: The built-in policies of the class, and what they see of its pods; by devices of claims, rows differ one by
        #: one (`RowParts`).
        self._work = Work(requests=pod_class.requests, shares_gpu=share is not None)
        rules: list[Policy] = []
        if not (self._by_claims or self._fullness_replaced):
            rules.append(SpreadPods() if self._spread else PackedNodes())
        if len(self._spared) and not self._asks_devices:
            rules.append(IdleDevices())
        self._rules = [(one, PolicyBand(one.band)) for one in rules]

    @cached_property
    def parts(self) -> RowParts:
        """The parts of scores that depend on more of a row than its state; made for the first row that takes a pod."""
        return RowParts(
            self._class,
            self._columns,
            self._config,
            room=self._room(),
            counts=self._counts,
            share=self.share,
            like=None if self._alike_parts is None else self._alike_parts.parts,
            replaced=self._fullness_replaced,
        )

    def _all_that_scores_depend_on(self) -> object:
        """Return what tells the score of a state, besides the state."""
        config, pod_class, numa = self._config, self._class, self._numa
        if config.numa and not numa.discerns and not numa.asks_nothing:
            return None
        requests = tuple(pod_class.requests.items())
        return (
            requests,
            pod_class.gpu_share is not None,
            self._asks_devices,
            self._by_claims,
            self._spread,
            self._fullness_replaced,
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
        self._passed_over[row] = int(self._ranking.by_row[row])
        self._ranking.set(row, _NO)

    def doubtful_before(self, row: int) -> list[int]:
        """Return the rows that ranked before one and were refused only for what is not known of them yet, in order.

        For explanations, after `best` has returned the row.
        """
        score = int(self._constraints.ranked(self._ranking.by_row, never=np.int64(_NO))[row])
        return sorted(other for other, before in self._doubtful.items() if (-before, other) < (-score, row))

    def _by_devices(self, ranking: Ints) -> list[int]:
        return by_devices(ranking, self._closeness.score, spread=self._spread)

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
        parts, devices, own = (
            parts_of(int(self._ranking.by_row[row])),
            self._closeness.score(row),
            self._class.numa_policy,
        )
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
            room_taken=-parts["room_taken"] if self._asks_devices else 0,
            opened=-parts["opened"],
            idle_devices=0 if self._asks_devices else -parts["room_taken"],
            full=(0 if self._by_claims else MOST) - parts["full"] if self._spread else parts["full"],
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
        able = self._eligible & (self._ranking.by_row != _NO)
        return self._constraints.scores(able if able.any() else self._eligible)

    @property
    def zoned(self) -> bool:
        """True if the number of pods that a row takes may depend on zones."""
        return self._config.numa and not self._numa.asks_nothing

    def by_zones(self, rows: Ints) -> Ints:
        """Return those of some rows where it depends on zones how many pods they take, for a class that is `zoned`."""
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
        if self.share is not None and not (self.share.admits(row) and self.share.keeps(row)):
            return False
        return self._numa.admits(row) and keeps and self._numa.is_certain(row, created_at=created_at)

    @property
    def eligible(self) -> Flags:
        """Rows that may take a pod, whatever is free there."""
        return self._eligible

    @property
    def need(self) -> Ints:
        """A pod's amounts, over the columns' resources."""
        return self._need

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
                    if isinstance(self._ranking, LevelRanking) and self._policies.levels is not None:
                        self._ranking.relevel(Levels(self._policies.levels))
            if self._like is None:
                self._look_again(rows)
            else:
                like, ranking, passed_over = self._like
                like.catch_up(touched)
                self._take_over(ranking.by_row, passed_over, rows)

    def _take_over(self, by_row: Ints, passed_over: Mapping[int, int], rows: "array[int]") -> None:
        """Take over the scores of rows that a class has that it is like."""
        if len(rows) > _FEW:
            charged = np.zeros(len(by_row), np.bool_)
            charged[np.frombuffer(rows, np.int64)] = True
            every = np.flatnonzero(charged & self._eligible)
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
        # Pods are packed, so that few rows are charged many times.
        distinct = set(rows)
        if len(distinct) > _FEW:
            self._refresh(np.fromiter(distinct, np.int64, len(distinct)))
            return
        # Bytes, for they are read one by one many times faster than an array.
        eligible, state_of, scores = self._eligible_bytes, self._states.state, self._scores_by_state
        policies = self._policies
        if policies is not None and not policies.rescores:
            policies = None
        able: list[tuple[int, int, int]] = []
        changed: list[tuple[int, int]] = []
        for row in distinct:
            if eligible[row]:
                state = state_of(row)
                score = int(scores[state]) if state < len(scores) else _UNKNOWN
                if score == _UNKNOWN:
                    score = self._score(row)
                    if state >= len(scores):
                        self._reserve()
                        scores = self._scores_by_state
                    scores[state] = score
                if score == _NO:
                    changed.append((row, _NO))
                else:
                    able.append((row, state, score))
        if len(able) > 1:
            self.parts.prepare([(row, state) for row, state, _ in able])
        for row, state, of_state in able:
            added = self.parts.of_row(row, state)
            score = _NO if added == _NO else of_state + added - int(self._handicap[row])
            if policies is not None:
                score = policies.of_row(row, score)
            changed.append((row, score))
        self._ranking.set_few(changed)
        if self._passed_over:
            for row, _ in changed:
                self._passed_over.pop(row, None)

    def _look_at_all(self) -> None:
        """Evaluate all rows that are eligible."""
        rows = np.flatnonzero(self._eligible)
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
        """Evaluate rows again."""
        rows = rows[self._eligible[rows]]
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
            self._find_scores(np.sort(examples[examples >= 0]))
            scores = self._scores_by_state.take(states)
        if self.share is not None:
            scores[self.share.costs(rows) == NONE] = _NO
        able = np.flatnonzero(scores != _NO)
        if len(able) and self.parts:
            scores[able] += self.parts.of_rows(rows[able], states[able])
        return scores

    def _find_scores(self, rows: Ints) -> None:
        """Evaluate rows, and keep their scores for all rows of the same states."""
        scores, states = self._evaluated(rows), self._states.states(rows)
        self._reserve()
        self._scores_by_state[states] = scores

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
        by_zones = np.zeros(len(places), np.int64)
        if self._config.numa and len(places) and self._numa.discerns:
            fit, own = self._numa.zone_fit(rows[places]), self._class.numa_policy
            taking = fit.admit & fit.keeps if own is not None and own.binding else fit.admit
            wishes = fit.keeps * KEEPS if own is not None and not own.binding else by_zones
            places, by_zones = places[taking], (wishes + fit.score * ZONES)[taking]
        if len(places):
            scores[places] = by_zones + self._by_amounts(rows[places])
        return scores

    def _by_amounts(self, rows: Ints) -> Ints:
        """Return what the band of devices that are left alone and the built-in policies add to the scores of rows."""
        columns, nodes = self._columns, NodesOfRows(self._columns, rows)
        total: Ints = np.full(len(rows), LEAVES + (_MOST_FULL if self._fullness_replaced else 0))
        if len(self._spared):
            total -= LEAVES * columns.allocatable[rows][:, self._spared].any(axis=1)
        for rule, band in self._rules:
            total += BANDS[band].step * (rule.score(nodes, self._work, _NO_FACTS) + OFFSETS[band])
        return total

    def _score(self, row: int) -> int:
        """Return the score of a row by its state alone, `_NO` if it cannot take the pod."""
        columns, own = self._columns, self._class.numa_policy
        allocatable, used = columns.allocatable[row].tolist(), columns.used[row].tolist()
        if self.filters.room.fails(allocatable, used):
            return _NO
        by_zones = 0
        if self._config.numa and self._numa.discerns:
            admits, keeps, score = self._numa.fit(row)
            if not admits or (own is not None and own.binding and not keeps):
                return _NO
            by_zones = score * ZONES + (KEEPS if own is not None and not own.binding and keeps else 0)
        elif self._config.numa and not self._numa.admits(row):
            return _NO
        return by_zones + int(self._by_amounts(np.array([row], np.int64))[0])
