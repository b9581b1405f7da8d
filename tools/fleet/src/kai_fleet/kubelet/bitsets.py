"""Sets of small integers (CPU ids, zones, devices of one resource) as the bits of an int.

Set algebra is then integer arithmetic and a size is `int.bit_count()`, which is what lets one process hold a thousand
kubelets.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import combinations


def bits(numbers: Iterable[int]) -> int:
    """Return the set of `numbers`."""
    result = 0
    for number in numbers:
        result |= 1 << number
    return result


def members(subset: int) -> Iterator[int]:
    """Yield the numbers in the set, ascending."""
    while subset:
        low = subset & -subset
        yield low.bit_length() - 1
        subset ^= low


def lowest(subset: int, count: int) -> int:
    """Return the `count` smallest members, or all if there are fewer."""
    result = 0
    for _ in range(count):
        low = subset & -subset
        result |= low
        subset ^= low
    return result


def highest(subset: int, count: int) -> int:
    """Return the `count` greatest members, or all if there are fewer."""
    for _ in range(subset.bit_count() - count):
        subset &= subset - 1
    return subset


@lru_cache(maxsize=64)
def nonempty_subsets(universe: int) -> tuple[int, ...]:
    """Return every non-empty subset, narrow ones first (`bitmask.IterateBitMasks`)."""
    single = tuple(members(universe))
    return tuple(bits(chosen) for width in range(1, len(single) + 1) for chosen in combinations(single, width))


def to_cpulist(subset: int) -> str:
    """Write the set in the kernel's list format: `0-3,8`."""
    ranges: list[str] = []
    first = last = -2
    for number in (*members(subset), -2):
        if number == last + 1:
            last = number
            continue
        if first >= 0:
            ranges.append(str(first) if first == last else f"{first}-{last}")
        first = last = number
    return ",".join(ranges)


def from_cpulist(text: str) -> int:
    """Read the kernel's list format.

    Raises:
        ValueError: the text is not in that format.
    """
    result = 0
    for part in text.split(","):
        if not part.strip():
            continue
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high <= 65535:
            raise ValueError(f"not a list of CPU ids: {text!r}")
        result |= ((1 << (high - low + 1)) - 1) << low
    return result
