"""Rows by rank, of which the first is found without looking at all of them.

Rows are in blocks, and each block's highest rank is kept: a change is looked at within its block.
"""

import numpy as np

from kaicore.rules.numa.zone_arrays import Ints

#: Rank of a row that is not wanted.
NEVER = -(2**62)
#: Rows of a block: about the square root of the rows of a large cluster.
_BLOCK = 128


class Ranking:
    """Ranks by row, higher is better; no two are equal but `NEVER`.

    Attributes:
        by_row: shape (rows,); changed by the methods that set ranks only.
    """

    def __init__(self, rows: int) -> None:
        """Args:
        rows: how many there are; none is wanted.
        """
        count = -(-rows // _BLOCK)
        self._blocks: Ints = np.full((count, _BLOCK), NEVER)
        self._highest: Ints = np.full(count, NEVER)
        self.by_row: Ints = self._blocks.reshape(-1)[:rows]
        #: By block, whether its highest rank is perhaps lower than `_highest` says.
        self._lower: list[bool] = [False] * count
        #: The row of the highest rank as it was found last, and its rank; -1 where it is to be looked for.
        self._first, self._first_rank = -1, NEVER

    def first(self) -> int | None:
        """Return the row of the highest rank; None if no row is wanted."""
        if self._first >= 0:
            return self._first
        if not len(self._highest):
            return None
        block = int(self._highest.argmax())
        while self._lower[block]:
            self._lower[block] = False
            self._highest[block] = np.maximum.reduce(self._blocks[block])
            block = int(self._highest.argmax())
        highest = int(self._highest[block])
        if highest == NEVER:
            return None
        self._first, self._first_rank = block * _BLOCK + int(self._blocks[block].argmax()), highest
        return self._first

    def set(self, row: int, rank: int) -> None:
        """Set a row's rank."""
        if self._first >= 0:
            if row == self._first and rank < self._first_rank:
                self._first = -1
            elif rank >= self._first_rank:
                self._first, self._first_rank = row, rank
        block = row // _BLOCK
        highest = self._highest[block]
        if rank >= highest:
            self._highest[block], self._lower[block] = rank, False
        elif self.by_row[row] == highest:
            self._lower[block] = True
        self.by_row[row] = rank

    def set_first(self, ranks: Ints) -> None:
        """Set the ranks of the first rows."""
        self._first = -1
        self.by_row[: len(ranks)] = ranks
        self._highest = np.maximum.reduce(self._blocks, axis=1)
        self._lower = [False] * len(self._highest)

    def set_many(self, rows: Ints, ranks: Ints) -> None:
        """Set the ranks of rows; a row that is there twice has the same rank twice."""
        self._first = -1
        self.by_row[rows] = ranks
        changed = np.zeros(len(self._highest), np.bool_)
        changed[rows // _BLOCK] = True
        blocks = np.flatnonzero(changed)
        self._highest[blocks] = np.maximum.reduce(self._blocks[blocks], axis=1)
        for block in blocks.tolist():
            self._lower[block] = False
