"""The estimated remaining time of a run of a given age, from the runs of its kind.

Kaplan and Meier's estimate (1958): at each length at which runs ended, the share of the runs going on at that length
that ended then. Runs that were cut short or go on count among the ones going on for as long as they lasted. Runs that
the log first saw at some age count from that age on.
"""

from collections.abc import Iterable

import numpy as np

from kaicore.rules.forecast.runs import Run

#: Stands for the logarithm of zero, finite so that what comes after it can still be told apart.
_CERTAIN = -1e6


class Survival:
    """The estimate for one kind of runs."""

    def __init__(self, runs: Iterable[Run]) -> None:
        listed = list(runs)
        durations = np.array([run.duration_us for run in listed], np.int64)
        entered = np.sort(np.array([run.entered_us for run in listed], np.int64))
        ended = np.array([run.ended for run in listed], np.bool_)
        #: Lengths at which runs ended, in order.
        self._ends = np.sort(durations[ended])
        self._times, ends = np.unique(self._ends, return_counts=True)
        lasted = len(listed) - np.searchsorted(np.sort(durations), self._times, side="left")
        not_entered = len(listed) - np.searchsorted(entered, self._times, side="left")
        at_risk = np.maximum(lasted - not_entered, ends)
        share = ends / at_risk
        certain = share >= 1
        logarithms = np.where(certain, _CERTAIN, np.log1p(-np.where(certain, 0, share)))
        #: Logarithm of the share that goes on beyond each of the times.
        self._log_beyond = np.cumsum(logarithms)

    def longer_than(self, ages_us: np.ndarray) -> np.ndarray:
        """Return how many runs ended after each of some ages, microseconds."""
        longer: np.ndarray = len(self._ends) - np.searchsorted(self._ends, ages_us, side="right")
        return longer

    def remaining(self, ages_us: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Return after how much longer such shares of the runs that reached some ages have ended.

        Args:
            ages_us: microseconds.
            shares: of those that get so old, between 0 and 1; of the same shape.

        Returns:
            microseconds, at least 1; -1 where fewer than that share are known to end.
        """
        first = np.searchsorted(self._times, ages_us, side="right")
        padded = np.concatenate(([0.0], self._log_beyond))
        wanted = padded[first] + np.log1p(-np.minimum(shares, 1 - 1e-12))
        place = np.maximum(np.searchsorted(-self._log_beyond, -wanted, side="left"), first)
        there = place < len(self._times)
        times = np.concatenate((self._times, [0]))
        return np.where(there, np.maximum(times[np.where(there, place, -1)] - ages_us, 1), -1)
