"""Numbers of what rows are like: the same whether rows are looked at together or one by one."""

from random import Random

import numpy as np
from kaicore.rules.engine.placement.row_states import RowStates
from kaicore.rules.model.quantity import CPU, MEMORY
from kaicore.rules.numa.kubelet.memory_manager import MemoryBlock
from kaicore.rules.numa.kubelet.zones import ZoneCharge

from tests.given.cluster.factory import GI, Cluster, amounts, pod

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


def test_a_charge_repeated_on_another_row_comes_about_as_charged_by_itself() -> None:
    cluster, held = _cluster(30, kinds=3), MemoryBlock(MEMORY, 1, 2 * GI)
    columns, random = cluster.state.columns, Random(1)
    for row in range(30):
        blocks = tuple(MemoryBlock(MEMORY, random.randint(1, 3), GI) for _ in range(random.randrange(4)))
        columns.zones.charge(row, ZoneCharge(((row % 2, CPU, 1000 * random.randrange(5)),), blocks))
    one, together = columns.copy(), columns.copy()
    states, requests = RowStates(together), amounts(cpu=1, memory=2)
    for charge in (
        ZoneCharge(((0, CPU, 1000),), (held,), (CPU,), ((0, CPU, 1000),)),
        ZoneCharge(((1, CPU, 1000),), (MemoryBlock(MEMORY, 3, 5 * GI),)),
    ):
        for row in range(30):
            placed = states.charge(row, requests, charge, releasing=charge.blocks[0] is held)
            one.charge(row, requests, releasing=charge.blocks[0] is held)
            alone = one.zones.charge(row, charge, releasing=charge.blocks[0] is held)
            one.zones.assume(row, alone)
            assert placed == alone
    assert np.array_equal(one.used, together.used)
    assert np.array_equal(one.releasing, together.releasing)
    assert np.array_equal(one.zones.charged, together.zones.charged)
