"""The CPUs of a zone that containers take over from init containers, two CPUs to a core."""

import pytest
from kaicore.rules.numa.kubelet.cpu_packing import CoreCounts


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
def test_zones_tell_fresh_cpus_from_lent_ones(free: int, inits: list[int], mains: list[int], fresh: int) -> None:
    (cores,) = CoreCounts.worlds(free, broken=0, most=9)
    taken = sum(need - cores.take(need, lend=True) for need in inits)
    taken += sum(need - cores.take(need, lend=False) for need in mains)
    assert taken == fresh
    left = cores.free_whole + cores.free_single + cores.mixed
    assert left == free - fresh, "every CPU is free, lent or taken"


def test_cores_that_may_be_broken_make_worlds_of_their_own_the_likeliest_first() -> None:
    def broken(free: int, *, broken: int, most: int = 9) -> list[int]:
        return [world.free_single for world in CoreCounts.worlds(free, broken=broken, most=most)]

    assert broken(8, broken=0) == broken(8, broken=1) == [0]
    assert broken(8, broken=5) == [0, 2, 4]
    assert broken(7, broken=5) == [1, 3, 5]
    assert broken(7, broken=0) == [1], "an odd number is free, so one core is broken"
    assert broken(3, broken=20) == [1, 3]
    assert broken(20, broken=20, most=3) == [0, 2]


def test_with_two_broken_cores_a_single_cpu_is_taken_of_one_of_them_and_not_of_what_is_lent() -> None:
    whole, broken = CoreCounts.worlds(8, broken=2, most=2)
    for cores in (whole, broken):
        assert cores.take(4, lend=True) == 0
    assert whole.take(1, lend=False) == 1
    assert broken.take(1, lend=False) == 0
    assert (whole.lent, broken.lent) == (3, 4)
