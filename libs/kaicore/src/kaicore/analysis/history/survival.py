"""How long pods run that nobody saw end: the Kaplan-Meier estimate of those that were seen.

Source: E. L. Kaplan, P. Meier, "Nonparametric Estimation from Incomplete Observations", JASA 53 (1958).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Survival:
    """The share of pods that run for longer than a time: a step after each end that was seen.

    Attributes:
        steps: times in microseconds, ascending, each with the share that runs for longer.
    """

    steps: tuple[tuple[int, float], ...] = field(default=())

    def share(self, time: int) -> float:
        """Return the share that runs for longer than a time, microseconds."""
        share = 1.0
        for at, left in self.steps:
            if at > time:
                break
            share = left
        return share

    def median_beyond(self, time: int) -> int | None:
        """Return how long half of those run in all that have run for a time already; None where that is not known."""
        half = self.share(time) / 2
        return next((at for at, left in self.steps if at > time and left <= half), None)


def survival(ended: Iterable[int], going: Iterable[int]) -> Survival:
    """Estimate.

    Args:
        ended: how long pods ran that were seen to end, microseconds.
        going: how long pods have run that were not.
    """
    ends: dict[int, int] = {}
    leaves: dict[int, int] = {}
    for times, counts in ((ended, ends), (going, leaves)):
        for time in times:
            counts[time] = counts.get(time, 0) + 1
    at_risk, share, steps = sum(ends.values()) + sum(leaves.values()), 1.0, []
    for time in sorted(ends.keys() | leaves.keys()):
        if time in ends:
            share *= 1 - ends[time] / at_risk
            steps.append((time, share))
        at_risk -= ends.get(time, 0) + leaves.get(time, 0)
    return Survival(tuple(steps))
