"""The number of pods of a class that each node takes in its present state, without other new pods.

The free amounts of a node as a whole are divided. Where kubelets bind zones, pods are put on one node of each kind
until it refuses one: the zones that the kubelet leaves free are not known otherwise.
"""

from collections.abc import Callable

import numpy as np

from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes
from kaicore.rules.engine.placement.row_states import RowStates
from kaicore.rules.engine.placement.statement import Statement
from kaicore.rules.numa.zone_arrays import Ints


def row_counts(
    feasible: FeasibleNodes,
    statement: Statement,
    put: Callable[[int], None],
    *,
    most: int,
    created_at: int,
    among: Ints | None = None,
) -> Ints:
    """Count; shape (rows,).

    Args:
        feasible: of the class, as the rows are now.
        statement: of the rows; what is tried is rolled back.
        put: puts a pod of the class on a row, what it leaves for the rules of others aside.
        most: more are not counted.
        created_at: when the pods were created, seconds since the epoch.
        among: rows that are counted, the others are 0; None for all.
    """
    counts = feasible.counts(most, among)
    if not feasible.zoned:
        return counts
    rows = feasible.by_zones(np.flatnonzero(counts))
    for alike in _alike(feasible, statement.states, rows):
        example = int(alike[0])
        taken, wanted, savepoint = 0, int(counts[alike].max()), statement.savepoint()
        while taken < wanted and feasible.zones_take(example, created_at=created_at):
            put(example)
            taken += 1
        statement.rollback(savepoint)
        counts[alike] = np.minimum(counts[alike], taken)
        if not taken:
            for row in alike.tolist():
                # So that it is remembered which rows are uncertain.
                feasible.takes(row, created_at=created_at)
    return counts


def _alike(feasible: FeasibleNodes, states: RowStates, rows: Ints) -> list[Ints]:
    """Group rows of one state about which the doubts are the same."""
    groups: dict[tuple[int, object], list[int]] = {}
    for row, state in zip(rows.tolist(), states.states(rows).tolist(), strict=True):
        groups.setdefault((state, feasible.doubts_about(row)), []).append(row)
    return [np.array(group, np.int64) for group in groups.values()]
