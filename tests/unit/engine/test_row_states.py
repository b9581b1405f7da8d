"""Numbers of what rows are like: the same whether rows are looked at together or one by one."""

import numpy as np
from kaicore.rules.engine.placement.row_states import RowStates

from tests.given.cluster.factory import Cluster, amounts, pod

ZONE = amounts(cpu=8, memory=16)


def _cluster(nodes: int, *, kinds: int) -> Cluster:
    cluster = Cluster()
    for number in range(nodes):
        cluster.add_node(f"n{number:03}", amounts(cpu=8 + number % kinds, memory=16), ZONE)
    return cluster


def test_rows_looked_at_together_have_one_number_exactly_where_they_have_one_by_itself() -> None:
    cluster = _cluster(200, kinds=3)
    for number in range(40):
        cluster.add_pod(pod(f"p{number}", cpu=1 + number % 2, memory=1, created_at=number))
    cluster.cycle()
    columns = cluster.state.columns.copy()
    rows = np.arange(200)
    together, alone = RowStates(columns), RowStates(columns)
    for many, one in ((together.states(rows), alone.state), (together.kinds(rows), alone.kind)):
        pairs = set(zip(many.tolist(), [one(row) for row in rows.tolist()], strict=True))
        assert len({number for number, _ in pairs}) == len({number for _, number in pairs}) == len(pairs) > 3


def test_rows_that_a_cycle_did_not_change_have_their_numbers_in_the_next_one() -> None:
    columns = _cluster(100, kinds=100).state.columns
    first = columns.copy()
    states = RowStates(first)
    numbers = states.states(np.arange(100))
    first.charge(7, amounts(cpu=1))
    states.changed(7)
    changed = states.state(7)
    columns.charge(8, amounts(cpu=1))
    again = RowStates(columns.copy())
    assert again.count == len({*numbers.tolist(), changed})
    assert again.states(np.arange(100)).tolist()[:8] == numbers.tolist()[:8]
    assert again.state(8) == again.count - 1
