"""Remaining run times of pods, from the most similar runs that are numerous enough.

The estimate for a run of a given age is Kaplan and Meier's (1958). At each length at which runs ended, it takes the
share of the runs going on at that length that ended then. Runs that were cut short or go on count among the ones going
on for as long as they lasted. Runs that the log first saw at some age count from that age on.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from kaicore.rules.deciding.forecast.runs import Run, RunHistory
from kaicore.rules.state.indexes.past_runs import LEAST_RUNS, Basis, RunKeys

#: Stands for the logarithm of zero, finite so that what comes after it can still be distinguished.
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


#: Bits of a digest that make up where between two shares one lies.
_FRACTION_BITS = 16


class ScenarioEnds(NamedTuple):
    """The ends of pods, in each scenario.

    Attributes:
        after_us: a row for each scenario and a column for each pod, microseconds from now; -1 where none is known.
        bases: for each pod, which runs tell that; None where none do.
    """

    after_us: np.ndarray
    bases: list[Basis | None]


class PodRun(NamedTuple):
    """A pod that runs, or would.

    Attributes:
        keys: see `run_keys`.
        age_us: how long it has run.
        together: pods for which this is equal end together; their scenarios are the same.
    """

    keys: RunKeys
    age_us: int
    together: str


class Lifetimes:
    """Looks up kinds of runs, each estimated once."""

    def __init__(self, history: RunHistory, going_on: Iterable[PodRun] = ()) -> None:
        """Args:
        history: of the log, up to now; not to be changed while this is asked.
        going_on: the pods that run now: they too tell how long pods last.
        """
        self._history = history
        self._going_on: dict[tuple[Basis, str], dict[str, Run]] = {}
        self._by_kind: dict[tuple[Basis, str], Survival] = {}
        for pod_run in going_on:
            run = Run(pod_run.age_us, 0, ended=False)
            for basis, key in pod_run.keys.items():
                self._going_on.setdefault((basis, key), {}).setdefault(pod_run.together, run)

    @property
    def ended(self) -> int:
        """The number of runs in the log that have ended."""
        return self._history.ended

    @property
    def suffices(self) -> bool:
        """True if enough runs have ended for a forecast."""
        return self.ended >= LEAST_RUNS[Basis.CLUSTER]

    def ends(self, pods: Sequence[PodRun], *, scenarios: int, seed: str) -> ScenarioEnds:
        """Return when pods end.

        Args:
            scenarios: how many; a prime number.
            seed: the same seed gives the same ends.
        """
        after = np.full((scenarios, len(pods)), -1, np.int64)
        bases = [self.basis_of(pod) for pod in pods]
        by_kind: dict[tuple[Basis, str], list[int]] = {}
        for place, (pod, basis) in enumerate(zip(pods, bases, strict=True)):
            if basis is not None:
                by_kind.setdefault((basis, pod.keys[basis]), []).append(place)
        for (basis, key), places in by_kind.items():
            ages = np.array([pods[place].age_us for place in places], np.int64)
            shares = np.array([shares_of(f"{seed}/{pods[place].together}", scenarios) for place in places]).T
            after[:, places] = self._survival(basis, key).remaining(np.broadcast_to(ages, shares.shape), shares)
        return ScenarioEnds(after, bases)

    def basis_of(self, pod: PodRun) -> Basis | None:
        """Return which runs tell how long a pod goes on: the closest ones of which there are enough; None for none."""
        age = np.array([pod.age_us])
        for basis, least in LEAST_RUNS.items():
            if int(self._survival(basis, pod.keys[basis]).longer_than(age)[0]) >= least:
                return basis
        return None

    def _survival(self, basis: Basis, key: str) -> Survival:
        survival = self._by_kind.get((basis, key))
        if survival is None:
            runs = [*self._history.runs(basis, key), *self._going_on.get((basis, key), {}).values()]
            survival = self._by_kind[basis, key] = Survival(runs)
        return survival


def shares_of(run: str, scenarios: int) -> np.ndarray:
    """Return for each scenario which share of the runs of its kind ends before a run does, between 0 and 1.

    Over the scenarios each part of the range comes once (a Latin hypercube); which comes when is by the run's digest.

    Args:
        run: what tells it from other runs.
        scenarios: how many; a prime number.
    """
    digest = int.from_bytes(blake2b(run.encode(), digest_size=12).digest(), "big")
    fraction, digest = digest % (1 << _FRACTION_BITS), digest >> _FRACTION_BITS
    first, digest = digest % scenarios, digest // scenarios
    stride = 1 + digest % (scenarios - 1)
    parts = (first + stride * np.arange(scenarios)) % scenarios
    return (parts + fraction / (1 << _FRACTION_BITS)) / scenarios
