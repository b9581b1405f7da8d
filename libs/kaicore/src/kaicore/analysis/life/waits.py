"""Waiting times in figures, with the wording for people."""

from collections.abc import Sequence

from kaicore.analysis.json_spelling import Answer


class Waits(Answer, frozen=True, kw_only=True):
    """Waiting times, seconds; work that has not started counts with its wait so far. None without any work."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None

    @property
    def text(self) -> str:
        """The median and the 99th percentile, for people."""
        return f"{wait_text(self.p50)} / {wait_text(self.p99)}"


def waits_of(seconds: Sequence[float]) -> Waits:
    """Return waiting times, in seconds, in figures."""
    seconds = sorted(seconds)
    p50, p90, p99 = (quantile(seconds, share) for share in (0.5, 0.9, 0.99))
    return Waits(count=len(seconds), p50=p50, p90=p90, p99=p99)


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that so large a share of the values does not exceed; None of none.

    Args:
        share: from 0 to 1; 0.5 for the median.
    """
    if not values:
        return None
    rank = -(-share * len(values) // 1)
    return sorted(values)[max(int(rank), 1) - 1]


def wait_text(seconds: float | None) -> str:
    """Write a wait: `1.5 s`, `3.0 min`, `2.5 h`."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def signed_wait_text(seconds: float | None) -> str:
    """Write a difference of waits: `+1.5 s`."""
    if seconds is None:
        return "-"
    return f"{'-' if seconds < 0 else '+'}{wait_text(abs(seconds))}"
