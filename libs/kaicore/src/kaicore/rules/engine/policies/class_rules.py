"""The built-in rules of the score table for one class of pods: which are asked, about which nodes, and what they say.

A rule is asked once for all rows of one state (`RowStates`), for amounts and zones follow from it. Rows of one state
may differ in what their pods' claims and shares hold, and in the recent work that they are for. So rules that look at
that are asked again by row (`RowRules`): what they say more with it is added. The answer holds for all rows that are
alike in it.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import numpy as np

from kaicore.policy import Facts, NodeFinding, Policy, PolicyBand, Work
from kaicore.rules.engine.config import EngineConfig, PlacementStrategy
from kaicore.rules.engine.constraints.zones.numa_verdicts import NumaVerdicts
from kaicore.rules.engine.placement.node_columns import DeviceCounts, NodeColumns
from kaicore.rules.engine.placement.node_score import BANDS, FULL, LEAVES, NEVER, OFFSETS
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.placement.room_for_work import NodeRoom, RoomForWork
from kaicore.rules.engine.placement.share_fit import NONE, ShareFit, reservation_class
from kaicore.rules.engine.policies import builtin
from kaicore.rules.engine.policies.node_facts import NodesOfRows
from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.model.quantity import CPU, MEMORY, is_native
from kaicore.rules.numa.columns import Ints

#: Findings by name.
Findings = Mapping[str, Ints]
#: Those of nodes as they are, whatever pods come.
OF_NODES = frozenset({NodeFinding.CLAIMABLE, NodeFinding.FREE_CLAIMABLE, NodeFinding.FREE_PARTS})
#: A pod is mostly followed by others of its gang: the room of so many on one row is worked out together.
_FOLLOWING = 8
_IN_TURN: Ints = np.arange(_FOLLOWING + 1)[:, None]
#: So many kinds are found without sorting.
_MOST_COUNTED_KINDS = 1 << 20
#: The rules ask for no facts of the cycle.
_NO_FACTS = Facts()
_NOTHING_FOUND: Findings = MappingProxyType({})
#: The most that the band of fullness adds.
MOST_FULL = BANDS["full"].most * FULL


class AskedRules:
    """Some rules, asked together."""

    def __init__(self, *rules: Policy) -> None:
        self.names = tuple(one.name for one in rules)
        bands = [(one, PolicyBand(one.band)) for one in rules]
        self._rules = [(one.score, BANDS[band].step, OFFSETS[band]) for one, band in bands]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def scores(self, nodes: NodesOfRows, work: Work) -> Ints:
        """Return what the rules add to the scores of nodes."""
        total = np.zeros(len(nodes), np.int64)
        for score, step, offset in self._rules:
            total += step * (score(nodes, work, _NO_FACTS) + offset)
        return total


def rank_by_cycle(columns: NodeColumns, turns: Ints | None, avoid: Collection[int], work: Work) -> Ints:
    """Return what rows' scores are below those of their states for the whole cycle: by their names, and by two rules.

    Args: see `FeasibleNodes`.
    """
    below = columns.name_order()
    if turns is None and not avoid:
        return below
    rules, found, rows = list[Policy](), dict[str, Ints](), np.arange(len(columns.present))
    if turns is not None:
        rules.append(builtin.OwnTurnFirst())
        found[NodeFinding.TURN] = turns
    if avoid:
        rules.append(builtin.AvoidRejected())
        found[NodeFinding.AVOIDED] = np.isin(rows, list(avoid)).astype(np.int64)
    ranks: Ints = below - AskedRules(*rules).scores(NodesOfRows(columns, rows, found), work)
    return ranks


class ClassRules:
    """The rules of one class.

    Attributes:
        asks_devices: whether its pods ask for any.
        by_claims: whether nodes are full by the devices of claims, for it asks for no others.
        spread: whether its pods are spread.
        spared: columns of the devices that had better be left alone.
        replaced: whether policies fill the band of fullness once for all.
        work: what the rules see of its pods.
    """

    def __init__(
        self,
        pod_class: PodClass,
        columns: NodeColumns,
        config: EngineConfig,
        numa: NumaVerdicts,
        *,
        counts: DeviceCounts | None,
        replaced: bool,
        known: dict[object, dict[object, int]],
    ) -> None:
        """Args: see `FeasibleNodes`.

        known: what rules of the cycle's classes said by state (`RowStates.said`).
        """
        requested = any(not is_native(name) for name in pod_class.requests)
        shares = pod_class.gpu_share is not None
        self.asks_devices = requested or shares or bool(pod_class.devices.wanted)
        claims = 0 if counts is None else pod_class.claimed
        self.by_claims = bool(claims) and not requested
        self.spread = config.strategy(devices=self.asks_devices) is PlacementStrategy.SPREAD
        self.spared: Ints = np.array([] if requested or shares else columns.device_columns(), np.int64)
        self.replaced = replaced
        self.work = Work(requests=pod_class.requests, shares_gpu=shares, claims=claims)
        self._columns = columns
        own = pod_class.numa_policy
        rules: list[Policy] = [builtin.LeaveDevices()] if len(self.spared) else []
        if config.numa and numa.discerns:
            rules += (
                [builtin.GoodZones()] if own is None or own.binding else [builtin.GoodZones(), builtin.KeepOwnPolicy()]
            )
        if len(self.spared) and not self.asks_devices:
            rules.append(builtin.IdleDevices())
        if not replaced:
            rules.append(self.full())
        self._by_state = AskedRules(*rules)
        #: In bands of which no rule is asked, all nodes have as much.
        self._alike = (0 if len(self.spared) else LEAVES) + (MOST_FULL if replaced else 0)
        weighed = [name for name in self.work.devices or (CPU, MEMORY) if name in columns.resources]
        #: Columns of the resources that the rules look at.
        self._looked_at: Ints = np.array(
            [*columns.device_columns(), *(columns.resources[name] for name in weighed)], np.int64
        )
        asked = tuple((name, pod_class.requests.get(name, 0)) for name in weighed)
        #: What they said, by what was found and the amounts of those; shared by classes that ask alike for these.
        self._said = known.setdefault((self._by_state.names, self._alike, asked, shares, claims), {})

    def full(self) -> Policy:
        """Return the rule of fullness."""
        return builtin.SpreadPods() if self.spread else builtin.PackedNodes()

    def of_states(self, rows: Ints, found: Findings) -> Ints:
        """Return the scores of rows that can take a pod, by their states."""
        return self._alike + self._by_state.scores(NodesOfRows(self._columns, rows, found), self.work)

    def of_state(self, row: int, found: Mapping[str, int]) -> int:
        """Return the score of a row that can take a pod, by its state."""
        columns, looked_at = self._columns, self._looked_at
        amounts = columns.allocatable[row].take(looked_at).tobytes() + columns.used[row].take(looked_at).tobytes()
        key = amounts, *found.values()
        said = self._said.get(key)
        if said is None:
            rows, findings = np.array([row], np.int64), {name: np.array([one]) for name, one in found.items()}
            said = self._said[key] = int(self.of_states(rows, findings)[0])
        return said


class RowRules:
    """The rules that are asked by row, for one class in one cycle.

    Attributes:
        known: what is added, by all that rows differ in (`_key`).
        ahead: the same by a row's pattern, kind of open GPUs and free amounts, for rows as further pods will make them.
    """

    def __init__(
        self,
        pod_class: PodClass,
        columns: NodeColumns,
        rules: ClassRules,
        numa: NumaVerdicts | None,
        *,
        room: RoomForWork | None,
        counts: DeviceCounts | None,
        share: ShareFit | None,
        like: "RowRules | None" = None,
    ) -> None:
        """Args: see `FeasibleNodes`.

        numa: None where zones are not looked at.
        like: those of pods with the same requests, on the same columns.
        """
        self._columns, self._counts, self._share, self._rules = columns, counts, share, rules
        self._numa = numa if numa is not None and numa.discerns else None
        #: Where pods are spread they are not kept together for the sake of others.
        self._room = room if rules.asks_devices and not rules.spread else None
        self._claimed = pod_class.claimed
        self._need: Ints = columns.vector(pod_class.requests)
        if room is not None:
            self._need = self._need[room.asked]
            if share is not None:
                self._opening: Ints = columns.vector(reservation_class().requests)[room.asked]
        #: Whether free parts of GPUs count as devices that are left alone.
        self._spares_parts = not rules.asks_devices and any(True for _ in columns.gpus.rows)
        self._choose()
        #: Whether rows of one state differ in nothing but the work that they are for.
        self._simple = counts is None and share is None
        alike = like is not None and like.asked.names == self.asked.names
        self.known: dict[tuple[int, ...], int] = like.known if like is not None and alike else {}
        self.ahead: dict[tuple[int, int, bytes], int] = like.ahead if like is not None and alike else {}

    def _choose(self) -> None:
        """Settle which rules are asked, and which of these were asked by state, too."""
        counts, share, rules = self._counts, self._share, self._rules
        again: list[Policy] = []
        if not rules.asks_devices and counts is not None:
            again.append(builtin.LeaveDevices())
        if self._spares_parts or (not rules.asks_devices and counts is not None):
            again.append(builtin.IdleDevices())
        if share is not None:
            again += [builtin.GoodZones(), builtin.KeepOwnPolicy()] if share.zoned else []
        if (share is not None or rules.by_claims) and not rules.replaced:
            again.append(rules.full())
        new: list[Policy] = [] if self._room is None else [builtin.KeepRoom()]
        if share is not None:
            new += [builtin.FewOpened()] if new else [builtin.FittingParts(), builtin.FewOpened()]
        self.asked, self._again = AskedRules(*again, *new), AskedRules(*again)

    def __bool__(self) -> bool:
        return bool(self.asked)

    def of_row(self, row: int, state: int) -> int:
        """Return what is added to the score of a row in a state; `NEVER` for one without the parts of a share."""
        if not self.asked:
            return 0
        key = self._key(row, state)
        added = self.known.get(key)
        if added is None:
            added = self.known[key] = self._of_row(row)
        return added

    def likeness(self, row: int) -> tuple[int, ...]:
        """Return all that rows of one state differ in; no charge of a pod without shares and claims changes it."""
        return self._key(row, 0)

    def _key(self, row: int, state: int) -> tuple[int, ...]:
        room, share, counts = self._room, self._share, self._counts
        pattern = 0 if room is None else room.pattern_of[row]
        if self._simple:
            return state, pattern, self._columns.gpus.kind(row)
        whole = state, pattern, *(share.likeness(row)[1:] if share is not None else (self._columns.gpus.kind(row), 0))
        if counts is None:
            return whole
        counts.catch_up()
        return *whole, int(counts.free[row]), int(counts.total[row])

    def _of_row(self, row: int) -> int:
        if self._share is not None and self._share.cost(row) == NONE:
            return NEVER
        if self._room is not None and self._simple:
            return self._following(self._room, row)
        return int(self._ask(np.array([row], np.int64))[0])

    def _following(self, room: RoomForWork, row: int) -> int:
        """Return what is added for one row, and find out what will be with the pods that will probably follow there."""
        alike = room.pattern_of[row], self._columns.gpus.kind(row)
        now = room.free(self._columns, row)
        added = self.ahead.get((*alike, now.tobytes()))
        if added is None:
            rows = np.full(_FOLLOWING + 1, row)
            free = now - _IN_TURN * self._need
            parts = self._columns.gpus.free_parts(rows)
            taken = room.taken_in_turn(NodeRoom(free, np.zeros(len(rows), np.int64), parts), room.patterns[rows])
            every = self._said(rows[1:], {NodeFinding.ROOM_TAKEN: taken}).tolist()
            self.ahead |= zip(((*alike, one.tobytes()) for one in free[:-1]), every, strict=True)
            added = int(every[0])
        return added

    def of_rows(self, rows: Ints, states: Ints) -> Ints:
        """Return what is added to the scores of rows in these states, which can take a pod."""
        if not len(rows):
            return np.zeros(0, np.int64)
        figures, known = self._figures(rows, states), self.known
        whole = figures[0]
        for figure in figures[1:]:
            whole = whole * (int(figure.max()) + 1) + figure
        first, which = _alike(whole)
        alike = list(zip(*(figure[first].tolist() for figure in figures), strict=True))
        new = np.array([place for place, key in enumerate(alike) if key not in known], np.int64)
        if len(new):
            added = self._ask(rows[first[new]])
            known |= zip((alike[place] for place in new.tolist()), added.tolist(), strict=True)
        found: Ints = np.array([known[key] for key in alike], np.int64)[which]
        return found

    def _figures(self, rows: Ints, states: Ints) -> tuple[Ints, ...]:
        """Return the keys of rows (`_key`), by column."""
        none, columns = np.zeros(len(rows), np.int64), self._columns
        patterns = none if self._room is None else self._room.patterns[rows]
        figures: tuple[Ints, ...] = states, patterns, columns.gpus.kinds(len(columns.present))[rows]
        if self._simple:
            return figures
        figures = *figures, none if self._share is None else self._share.fixed[rows]
        if self._counts is None:
            return figures
        self._counts.catch_up()
        return *figures, self._counts.free[rows], self._counts.total[rows]

    def prepare(self, rows: Iterable[tuple[int, int]]) -> None:
        """Find out what is added for rows in their states at once, as far as it is not known: that is faster."""
        if self._room is None or not self._simple:
            return
        new = {key: row for row, state in rows if (key := self._key(row, state)) not in self.known}
        if len(new) > 1:
            added = self._ask(np.array(list(new.values()), np.int64))
            self.known |= zip(new, added.tolist(), strict=True)

    def _ask(self, rows: Ints) -> Ints:
        """Ask the rules about rows that can take a pod."""
        found = self.of_nodes(rows) if self._counts is not None or self._spares_parts else {}
        if not self._spares_parts:
            found.pop(NodeFinding.FREE_PARTS, None)
        zoned = self._share is not None and self._share.zoned
        return self._said(
            rows, found | self.of_pods(rows, zoned=zoned), self._zones_of(rows) if zoned else _NOTHING_FOUND
        )

    def of_nodes(self, rows: Ints) -> dict[str, Ints]:
        """Return the findings about rows as they are."""
        total = free = np.zeros(len(rows), np.int64)
        if self._counts is not None:
            self._counts.catch_up()
            total, free = self._counts.total[rows], self._counts.free[rows]
        parts = self._columns.gpus.free_parts(rows).sum(axis=1) // WHOLE
        return {NodeFinding.CLAIMABLE: total, NodeFinding.FREE_CLAIMABLE: free, NodeFinding.FREE_PARTS: parts}

    def of_pods(self, rows: Ints, *, zoned: bool = True) -> dict[str, Ints]:
        """Return the findings about a pod on rows that can take it; `zoned` with those about zones."""
        share, room = self._share, self._room
        found = self._zones_of(rows) if zoned else {}
        if share is not None:
            costs = share.costs(rows)
            found |= {NodeFinding.PARTS: costs, NodeFinding.OPENED: share.openings(costs)}
            if zoned and share.zoned:
                found |= {name: found[name] + more for name, more in share.by_zones_of(rows).items()}
        if room is not None:
            found[NodeFinding.ROOM_TAKEN] = self._taken(room, rows)
        return found

    def _said(self, rows: Ints, found: Findings, before: Findings = _NOTHING_FOUND) -> Ints:
        """Return what the rules say of rows with findings, less what they said by state."""
        said = self.asked.scores(NodesOfRows(self._columns, rows, found), self._rules.work)
        if self._again:
            said -= self._again.scores(NodesOfRows(self._columns, rows, before), self._rules.work)
        return said

    def _zones_of(self, rows: Ints) -> dict[str, Ints]:
        """Return the findings about zones by the rows' states."""
        if self._numa is None:
            return dict.fromkeys(
                (NodeFinding.ZONES.value, NodeFinding.KEEPS_POLICY.value), np.zeros(len(rows), np.int64)
            )
        fit = self._numa.zone_fit(rows)
        return {NodeFinding.ZONES: fit.score, NodeFinding.KEEPS_POLICY: fit.keeps.astype(np.int64)}

    def _taken(self, room: RoomForWork, rows: Ints) -> Ints:
        free = np.zeros(len(rows), np.int64) if self._counts is None else self._counts.free[rows]
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
