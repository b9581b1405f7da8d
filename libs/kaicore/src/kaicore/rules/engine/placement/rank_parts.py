"""What a row's rank is made of, the parts one above the other in one integer, and where devices come in between.

Devices are not in the rank: rows that are alike share a rank, and their devices are asked of each row by itself.
"""

from collections.abc import Callable, Collection

import numpy as np

from kaicore.rules.engine.constraints.device_closeness import DeviceScore
from kaicore.rules.engine.placement.ranking import NEVER
from kaicore.rules.numa.zone_arrays import Ints

#: Scores of node rules are per mille; this keeps a place for the name's order below them.
PLACE = 2**24
#: A node with more than so many times of what it has in use counts as one with that much: below 10**4 per mille.
FULLEST = 9
#: What counts for more than any score of node rules, one above the other: scores of zones (-1 to 100), other replicas
#: that take the node first (up to the last turn that is told apart), pods' own `best-effort`, nodes that pods of the
#: class are to leave alone if they can, devices that they do not need.
ZONES, TURN, OWN, AVOIDED, DEVICES = 10**4, 2 * 10**6, 10**7, 10**8, 10**9
LAST_TURN = 3

#: More than zones and node rules can take off a score.
_LEAST = 10**5
#: The devices of no more rows than this are compared, those that rank best without them: each costs a search.
_MOST_COMPARED = 128


def handicap(name_order: Ints, *, turns: Ints | None, avoid: Collection[int]) -> Ints:
    """Return what a row's rank is below its state's: its place by name, more with each turn, most if it is avoided.

    Args: see `FeasibleNodes`.
    """
    total = name_order
    if turns is not None:
        total = total + np.minimum(turns, LAST_TURN) * (TURN * PLACE)
    if avoid:
        total = total.copy()
        total[list(avoid)] += AVOIDED * PLACE
    return total


def handicap_parts(of_row: int) -> tuple[int, bool]:
    """Return how many other replicas take a row first, and whether it is avoided."""
    return of_row % (AVOIDED * PLACE) // (TURN * PLACE), of_row >= AVOIDED * PLACE


def by_devices(ranking: Ints, score: Callable[[int], DeviceScore], *, spread: bool) -> list[int]:
    """Return the rows that rank best, the best first, by their devices too.

    Alternatives and closeness count for more than scores of zones; that nothing is broken up for less, and nothing
    where pods are spread.

    Args:
        ranking: by row, `NEVER` for one that is not wanted.
        score: of a row's devices.
        spread: whether the emptiest row is the best.
    """
    rows = np.flatnonzero(ranking != NEVER)
    if len(rows) > _MOST_COMPARED:
        rows = rows[np.argpartition(-ranking[rows], _MOST_COMPARED - 1)[:_MOST_COMPARED]]

    def key(row: int) -> tuple[int, ...]:
        rank, devices = int(ranking[row]), score(row)
        above, below = divmod(-(-rank // PLACE) + _LEAST, TURN)
        below -= _LEAST
        zones = -(-below // ZONES) if spread else below // ZONES
        return above, devices.choices, devices.near, zones, 0 if spread else devices.whole, rank

    return sorted(rows.tolist(), key=key, reverse=True)
