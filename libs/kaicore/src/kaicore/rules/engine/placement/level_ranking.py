"""A ranking in which a level that policies give a row counts before its score.

An integer has no room for both. So the rows of the highest level that is wanted are ranked by themselves; only when
none of them is left, or a higher one comes back, are others looked for.
"""

import numpy as np

from kaicore.rules.engine.placement.node_score import NEVER, Ranking
from kaicore.rules.numa.columns import Ints


class LevelRanking(Ranking):
    """Scores by row, as `Ranking` has them; the first row is one of the highest level."""

    def __init__(self, rows: int, levels: Ints) -> None:
        """Args:
        rows: how many there are; none is wanted.
        levels: by row; higher is better. They may change before all scores are set again.
        """
        super().__init__(rows)
        self._levels = levels
        #: The wanted rows of one level, above which none is wanted; None where the level is to be looked for.
        self._top: Ranking | None = None
        self._level = 0

    def relevel(self, levels: Ints) -> None:
        """Take over other levels."""
        self._levels, self._top = levels, None

    def first(self) -> int | None:
        """Return the row of the highest score of the highest level; None if no row is wanted."""
        row = None if self._top is None else self._top.first()
        if row is not None:
            return row
        wanted = self.by_row != NEVER
        if not wanted.any():
            return None
        self._level = int(self._levels[wanted].max())
        self._top = Ranking(len(self.by_row))
        self._top.set_first(np.where(wanted & (self._levels == self._level), self.by_row, NEVER))
        return self._top.first()

    def set(self, row: int, score: int) -> None:
        """Set a row's score."""
        self.by_row[row] = score
        if self._top is None:
            return
        level = int(self._levels[row])
        if level == self._level:
            self._top.set(row, score)
        elif level > self._level and score != NEVER:
            self._top = None

    def set_first(self, scores: Ints) -> None:
        """Set the scores of the first rows."""
        self.by_row[: len(scores)] = scores
        self._top = None

    def set_many(self, rows: Ints, scores: Ints) -> None:
        """Set the scores of rows; a row that is there twice has the same score twice."""
        self.by_row[rows] = scores
        if self._top is None:
            return
        levels = self._levels[rows]
        if ((levels > self._level) & (scores != NEVER)).any():
            self._top = None
        else:
            of_level = levels == self._level
            self._top.set_many(rows[of_level], scores[of_level])
