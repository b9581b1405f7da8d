"""Backoff: the wait before something that failed is tried again. All retries follow this one rule.

The caller counts the failures in a row and supplies the random number, so the rule is pure.
"""

from typing import TypeVar

N = TypeVar("N", int, float)

#: More doublings than any wait needs, and few enough for every number.
_MOST_DOUBLINGS = 32


def backoff(failures: int, *, first: N, most: N) -> N:
    """Return the wait after so many failures in a row: `first`, doubled with each further failure, up to `most`.

    Args:
        failures: in a row; with none there is nothing to wait for, and the wait is zero.
        first: the wait after one failure, in any unit of time.
        most: the longest wait, in the same unit.
    """
    if failures <= 0:
        return first * 0
    return min(first * (1 << min(failures - 1, _MOST_DOUBLINGS)), most)


def jittered(delay_s: float, jitter: float) -> float:
    """Return a wait between half of `delay_s` and all of it, so that not all who wait come back at once.

    Args:
        delay_s: seconds.
        jitter: a random number, 0 to 1.
    """
    return delay_s * (0.5 + 0.5 * jitter)
