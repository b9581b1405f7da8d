"""Times of repeated attempts after failures."""

import asyncio

from kaicore.backoff import backoff


class Retry:
    """The time of the next attempt: at once after the first failure, then later each time."""

    def __init__(self, *, first_s: float, most_s: float) -> None:
        """Args:
        first_s: seconds from the second failure to the next attempt; doubled with each failure.
        most_s: up to this.
        """
        self._first_s = first_s
        self._most_s = most_s
        self._failures = 0
        self._at = 0.0

    @property
    def remaining_s(self) -> float:
        """Seconds until the next attempt."""
        return max(0.0, self._at - asyncio.get_running_loop().time())

    @property
    def due(self) -> bool:
        """Whether it is time for an attempt."""
        return self.remaining_s == 0.0

    def failed(self) -> None:
        """Put the next attempt off."""
        self.postpone(backoff(self._failures, first=self._first_s, most=self._most_s))
        self._failures += 1

    def postpone(self, seconds: float) -> None:
        """Put the next attempt off by that much, and the ones after it no more than before."""
        self._at = asyncio.get_running_loop().time() + seconds

    def succeeded(self) -> None:
        """Begin anew."""
        self._at, self._failures = 0.0, 0
