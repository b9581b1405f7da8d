"""Slots and segments: what rows of nodes still take."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kaicore.rules.topology.published import sizes_to_show, slots

AMOUNTS = st.lists(st.integers(-4, 40), min_size=3, max_size=3)


@given(st.lists(AMOUNTS, min_size=1, max_size=5), AMOUNTS.map(lambda one: [max(amount, 0) for amount in one]))
def test_one_slot_more_than_there_are_does_not_fit(free: list[list[int]], request: list[int]) -> None:
    if not any(request):
        return
    found = slots(np.array(free, np.int64), np.array(request, np.int64), np.ones(len(free), np.bool_))
    for row, count in zip(free, found.tolist(), strict=True):
        assert all(count * asked <= max(have, 0) for have, asked in zip(row, request, strict=True) if asked)
        assert any((count + 1) * asked > max(have, 0) for have, asked in zip(row, request, strict=True) if asked)


def test_a_row_that_takes_no_pods_has_no_slots() -> None:
    free = np.array([[8], [8]], np.int64)
    assert slots(free, np.array([4], np.int64), np.array([True, False])).tolist() == [2, 0]


def test_a_pod_that_asks_for_nothing_has_no_number_of_slots() -> None:
    with pytest.raises(ValueError, match="asks for nothing"):
        slots(np.zeros((1, 1), np.int64), np.zeros(1, np.int64), np.ones(1, np.bool_))


@pytest.mark.parametrize(("most", "sizes"), [(0, ()), (1, ()), (18, (2, 4, 8, 16)), (32, (2, 4, 8, 16, 32))])
def test_sizes_are_powers_of_two_up_to_the_largest_domain(most: int, sizes: tuple[int, ...]) -> None:
    assert sizes_to_show(most) == sizes
