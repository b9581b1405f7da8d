"""Which of a zone's CPUs containers take over from init containers, two CPUs to a core."""

import pytest
from kaicore.numa.cpu_packing import CoreCounts


@pytest.mark.parametrize(
    ("free", "inits", "mains", "fresh"),
    [
        (26, [23], [17], 23),  # the 23rd CPU breaks a core of its own, and is none of the 22 just taken
        (28, [3], [1, 1, 1], 3),  # a core and a half are lent; single CPUs empty the whole core before the half one
        (28, [3, 1], [1, 1], 3),
        (16, [3], [2, 2], 4),  # both CPUs of the half core: one is fresh
        (15, [3], [4], 5),  # the single one is of a core that another pod has broken, and stays behind
        (8, [8], [3, 3, 2], 8),
        (8, [5, 7], [6], 7),
    ],
)
def test_what_is_fresh_and_what_was_lent(free: int, inits: list[int], mains: list[int], fresh: int) -> None:
    cores = CoreCounts.of(free)
    taken = sum(need - cores.take(need, lend=True) for need in inits)
    taken += sum(need - cores.take(need, lend=False) for need in mains)
    assert taken == fresh
    left = cores.free_whole + cores.free_single + cores.mixed
    assert left == free - fresh, "every CPU is free, lent or taken"
