"""The score of a node for a class of pods: a table of named bands, the most important first, in one integer.

A band's unit weighs more than all that the bands below it can differ by, so the first band in which two nodes differ
decides between them. `score` of a node is the sum of its parts, each times its band's step; `parts_of` takes it apart.
Devices of claims are not in the score: nodes that are alike share a score, and their devices are asked of each by
itself (`by_devices`). Rows are kept by score in blocks, each with its highest score, so the first row is found without
looking at all of them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np

from kaicore.policy import MOST, PolicyBand
from kaicore.rules.engine.constraints.claims.device_closeness import DeviceScore
from kaicore.rules.engine.policies.builtin import FULLEST, LAST_TURN, MOST_OPENED, MOST_TAKEN
from kaicore.rules.numa.columns import Flags, Ints

#: A score, or several.
_Score = TypeVar("_Score", int, Ints)
#: Score of a row that is not wanted.
NEVER = -(2**62)
#: Rows of a block: about the square root of the rows of a large cluster.
_BLOCK = 128


#: Above all levels.
_ABOVE = 2**62


class Levels:
    """Levels by which policies prefer rows, for all classes about which they say the same.

    Attributes:
        by_row: the levels, not negative; higher is better.
        of_row: the same memory, of which single elements are read faster.
        places: by row, its place among the rows of its level, once these were asked for.
    """

    def __init__(self, by_row: Ints) -> None:
        self.by_row, self.of_row = by_row, by_row.data
        self.places: Ints = np.zeros(len(by_row), np.int64)
        self._rows: dict[int, Ints] = {}
        self._below: dict[int, int] = {}

    def rows(self, level: int) -> Ints:
        """Return the rows of a level."""
        if level not in self._rows:
            rows = self._rows[level] = np.flatnonzero(self.by_row == level)
            self.places[rows] = np.arange(len(rows))
        return self._rows[level]

    def below(self, level: int) -> int:
        """Return the next level below another, for `_ABOVE` the highest one; -1 if there is none."""
        if level not in self._below:
            self._below[level] = int(self.by_row[self.by_row < level].max(initial=-1))
        return self._below[level]


class Ranking:
    """Scores by row, higher is better; no two are equal but `NEVER`. The first row is one of the highest level, if any.

    An integer has no room for levels, too. So with them only the rows of the highest level that is wanted are ranked;
    when none of them is left, or a higher one comes back, others are looked for.

    Attributes:
        by_row: shape (rows,); changed by the methods that set scores only.
    """

    def __init__(self, rows: int, levels: "Levels | None" = None, scores: Ints | None = None) -> None:
        """Args:
        rows: how many there are.
        levels: of the rows; None where all are alike.
        scores: of all rows; with levels in this very memory. None where none is wanted.
        """
        #: The level that is ranked, above which no row is wanted; `_ABOVE` where it is to be looked for.
        self._level = _ABOVE
        self._rank_places(0 if levels is not None else rows)
        self.by_row: Ints = self._ranked
        if levels is None and scores is not None:
            self._set_places(scores)
        if levels is not None:
            self.by_row = np.full(rows, NEVER) if scores is None else scores
        self._of_all = self.by_row.data
        self.relevel(levels)

    def relevel(self, levels: "Levels | None") -> None:
        """Take over other levels."""
        self._levels, self._level = levels, _ABOVE
        #: By row, its level, and its place in it; and by place of the level that is ranked, the row.
        self._level_of = self._place_of = self._row_of = self._of_all
        if levels is not None:
            self._level_of, self._place_of = levels.of_row, levels.places.data

    @property
    def has_levels(self) -> bool:
        """True if rows have levels."""
        return self._levels is not None

    def _rank_places(self, count: int) -> None:
        """Rank so many places, which are rows where there are no levels; none is wanted."""
        blocks = -(-count // _BLOCK)
        self._blocks: Ints = np.full((blocks, _BLOCK), NEVER)
        self._highest: Ints = np.full(blocks, NEVER)
        self._ranked: Ints = self._blocks.reshape(-1)[:count]
        #: The same memory, of which single elements are read and written several times faster.
        self._of_place, self._of_block = self._ranked.data, self._highest.data
        #: By block, whether its highest score is perhaps lower than `_highest` says.
        self._lowered: Flags = np.zeros(blocks, np.bool_)
        self._lower = self._lowered.data
        #: The place of the highest score as it was found last, and its score; -1 where it is to be looked for.
        self._first, self._first_score = -1, NEVER

    def first(self) -> int | None:
        """Return the row of the highest score; None if no row is wanted."""
        if self._levels is None:
            return self._first_place()
        if self._level != _ABOVE:
            place = self._first_place()
            if place is not None:
                return self._row_of[place]
        levels, scores = self._levels, self.by_row
        # Mostly it is the next one, of which all classes with these levels share the rows.
        level = levels.below(self._level)
        of_level = scores[levels.rows(level)]
        if level >= 0 and of_level.max(initial=NEVER) == NEVER:
            level = int(levels.by_row[scores != NEVER].max(initial=-1))
            of_level = scores[levels.rows(level)]
        if level < 0:
            return None
        self._level, self._row_of = level, levels.rows(level).data
        self._rank_places(len(of_level))
        self._set_places(of_level)
        place = self._first_place()
        return None if place is None else self._row_of[place]

    def _first_place(self) -> int | None:
        if self._first >= 0:
            return self._first
        of_block, lower, looked_at, place = self._of_block, self._lower, -1, 0
        if not len(of_block):
            return None
        block = int(self._highest.argmax())
        while lower[block]:
            lower[block], looked_at = False, block
            place = block * _BLOCK + int(self._blocks[block].argmax())
            of_block[block] = self._of_place[place]
            block = int(self._highest.argmax())
        highest = of_block[block]
        if highest == NEVER:
            return None
        if block != looked_at:
            place = block * _BLOCK + int(self._blocks[block].argmax())
        self._first, self._first_score = place, highest
        return place

    def set(self, row: int, score: int) -> None:
        """Set a row's score."""
        self.set_few([(row, score)])

    def set_few(self, scores: Iterable[tuple[int, int]]) -> None:
        """Set the scores of some rows: for few of them, that is faster than `set_many`."""
        of_place, of_block, lower, of_all = self._of_place, self._of_block, self._lower, self._of_all
        with_levels, level_of, ranked = self._levels is not None, self._level_of, self._level
        first, first_score = self._first, self._first_score
        for row, score in scores:
            place = row
            if with_levels:
                of_all[row], level = score, level_of[row]
                if level != ranked:
                    if level > ranked and score != NEVER:
                        self._level = _ABOVE
                    continue
                place = self._place_of[row]
            if first >= 0:
                if place == first and score < first_score:
                    first = -1
                elif score >= first_score:
                    first, first_score = place, score
            block = place // _BLOCK
            highest = of_block[block]
            if score >= highest:
                of_block[block], lower[block] = score, False
            elif of_place[place] == highest:
                lower[block] = True
            of_place[place] = score
        self._first, self._first_score = first, first_score

    def refuse(self, rows: Ints) -> None:
        """Have rows not be wanted."""
        places = rows
        if self._levels is not None:
            self.by_row[rows] = NEVER
            places = self._levels.places[rows[self._levels.by_row[rows] == self._level]]
        before = self._ranked[places]
        wanted = before != NEVER
        places, before = places[wanted], before[wanted]
        self._ranked[places] = NEVER
        if self._first >= 0 and self._of_place[self._first] == NEVER:
            self._first = -1
        blocks = places // _BLOCK
        self._lowered[blocks[before == self._highest[blocks]]] = True

    def set_first(self, scores: Ints) -> None:
        """Set the scores of the first rows."""
        if self._levels is None:
            self._set_places(scores)
        else:
            self.by_row[: len(scores)] = scores
            self._level = _ABOVE

    def _set_places(self, scores: Ints) -> None:
        """Set the scores of the first places."""
        self._ranked[: len(scores)] = scores
        self._first = -1
        self._lowered.fill(False)
        np.maximum.reduce(self._blocks, axis=1, out=self._highest)

    def set_many(self, rows: Ints, scores: Ints) -> None:
        """Set the scores of rows; a row that is there twice has the same score twice."""
        places = rows
        if self._levels is not None:
            self.by_row[rows] = scores
            if self._level == _ABOVE:
                return
            levels, highest = self._levels.by_row[rows], self._levels.below(_ABOVE)
            if self._level != highest and ((levels > self._level) & (scores != NEVER)).any():
                self._level = _ABOVE
                return
            of_level = np.flatnonzero(levels == self._level)
            places, scores = self._levels.places[rows[of_level]], scores[of_level]
        self._first = -1
        self._ranked[places] = scores
        changed = np.zeros(len(self._highest), np.bool_)
        changed[places // _BLOCK] = True
        blocks = np.flatnonzero(changed)
        self._highest[blocks] = np.maximum.reduce(self._blocks[blocks], axis=1)
        self._lowered[blocks] = False


#: More nodes than a cluster has.
_NODES = 2**22


class Band(NamedTuple):
    """A part of a score: higher is better, from `least` to `most`; one unit weighs `step`."""

    name: str
    least: int
    most: int
    step: int


def _table(*bands: tuple[str, int, int]) -> MappingProxyType[str, Band]:
    """Return bands by name, the most important first, each with its step."""
    table, step = [], 1
    for name, least, most in reversed(bands):
        table.append(Band(name, least, most, step))
        step *= most - least + 1
    return MappingProxyType({band.name: band for band in reversed(table)})


#: What decides between the nodes that can take a pod, after the pod's own preferences. All but the last are filled by
#: the built-in rules (`kaicore.rules.engine.policies.builtin`), or the policies that replace them.
BANDS = _table(
    ("leaves_devices", 0, 1),
    ("avoided", -1, 0),
    ("keeps_policy", 0, 1),
    ("turn", -LAST_TURN, 0),
    ("zones", -1, 100),  # See `kaicore.rules.numa.scoring`.
    ("room_taken", -MOST_TAKEN, 0),
    ("opened", -MOST_OPENED, 0),
    ("full", -FULLEST * 1000, FULLEST * 1000),  # Per mille in use of what the class asks for; negative to spread.
    ("name", 1 - _NODES, 0),  # Less the place by name.
)
#: What one unit of a band weighs.
LEAVES, _, _, TURN, ZONES, _, _, FULL, _ = (band.step for band in BANDS.values())
#: What is added to the scores of policies, and of built-in ones, to get their part in a band.
OFFSETS = {band: -MOST if band is PolicyBand.ROOM_TAKEN else 0 for band in PolicyBand}


def score_range(band: PolicyBand | str) -> tuple[int, int]:
    """Return the least and the highest score of a policy in a band."""
    place = PolicyBand(band)
    if place is PolicyBand.PREFERRED:
        return 0, MOST
    return BANDS[place].least - OFFSETS[place], BANDS[place].most - OFFSETS[place]


#: What is added to a score so that no part of it is negative.
BIAS = -sum(band.least * band.step for band in BANDS.values())
#: The devices of no more rows than this are compared, those that score best without them: each costs a search.
_MOST_COMPARED = 128


@dataclass(frozen=True, slots=True)
class RowScore:
    """The score of a row that can take a pod; the first part in which two rows differ decides between them.

    Attributes:
        preference: how much the pod's own preferences are met, 0 and more; rows with less than the most come last.
        leaves_devices: whether it leaves alone devices that the pod does not ask for.
        turn: how many other replicas of the shard take it first, up to 3.
        avoided: whether pods of the class come here last, because of what happened to one.
        keeps_policy: whether it keeps the pod's own policy `best-effort`; also where the pod has none.
        choices: how early in their lists the alternatives are that its claims get (`DeviceScore.choices`).
        near: per cent of the zones of its CPUs that the devices of its claims are close to, -1 where it is not known.
        zones: how well its zones serve the pod, -1 to 100 (`kaicore.rules.numa.scoring`).
        whole: per cent of the devices of its claims that break up nothing of which nothing is in use.
        room_taken: the room for recent work that a pod with devices takes there, hundredths of a device; the less the
            better. For a share without known recent work, the cost of its GPU.
        opened: how many GPUs are opened for it, up to 3.
        idle_devices: how many of its devices are free, for a pod that asks for none; the fewer the better.
        full: per mille in use of what the class asks for, afterwards; the more the better unless pods are spread.
        policies: the scores of the operator's policies, by their names.
    """

    row: int
    preference: int
    leaves_devices: bool
    turn: int
    avoided: bool
    keeps_policy: bool
    choices: int
    near: int
    zones: int
    whole: int
    room_taken: int
    opened: int
    idle_devices: int
    full: int
    policies: Mapping[str, int] = field(default_factory=dict)


def parts_of(score: int) -> dict[str, int]:
    """Return the parts of a score by band."""
    parts, rest = {}, score + BIAS
    for band in BANDS.values():
        part, rest = divmod(rest, band.step)
        parts[band.name] = part + band.least
    return parts


def with_part(score: _Score, band: Band, part: _Score) -> _Score:
    """Return a score, or many, with another part in a band; of `NEVER`, a number that means nothing."""
    _, least, most, step = band
    above, size = (score + BIAS) // step, most - least + 1
    # Numpy divides by a number several times faster than it finds remainders.
    other: _Score = score + (part - (above - above // size * size + least)) * step
    return other


def by_devices(ranking: Ints, score: Callable[[int], DeviceScore], *, spread: bool) -> list[int]:
    """Return the rows that score best, the best first, by their devices too.

    Alternatives and closeness count for more than scores of zones; that nothing is broken up for less, and nothing
    where pods are spread.

    Args:
        ranking: by row, `NEVER` for one that is not wanted.
        spread: whether the emptiest row is the best.
    """
    rows = np.flatnonzero(ranking != NEVER)
    if len(rows) > _MOST_COMPARED:
        rows = rows[np.argpartition(-ranking[rows], _MOST_COMPARED - 1)[:_MOST_COMPARED]]

    def key(row: int) -> tuple[int, ...]:
        total, devices = int(ranking[row]), score(row)
        above, zones = (total + BIAS) // TURN, (total + BIAS) // ZONES
        return above, devices.choices, devices.near, zones, 0 if spread else devices.whole, total

    return sorted(rows.tolist(), key=key, reverse=True)
