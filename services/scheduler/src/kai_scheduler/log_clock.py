"""The time by the clock that the log is recorded with."""

from collections.abc import Callable


class LogClock:
    """What a cycle takes for now: the time when the log recorded this process' last event, and what has passed since.

    A cycle tells from recorded times how long a gang has been below its minimum, for how long room has been reserved,
    what may not be observed yet. By a clock that is ahead of the log's, all of that would be over at once. Where the
    process has appended nothing yet, its own clock is all there is.
    """

    def __init__(self, clock: Callable[[], int], monotonic: Callable[[], float]) -> None:
        """Args:
        clock: this machine's, microseconds since the epoch.
        monotonic: seconds that never jump.
        """
        self._clock = clock
        self._monotonic = monotonic
        self._recorded_at, self._heard_s = 0, 0.0

    def appended(self, recorded_at: int) -> None:
        """Take notice that an event of this process has just been recorded.

        Recorded times never fall: they stand still while the database's clock is behind what it once was. Time goes on.
        """
        if recorded_at > self._recorded_at:
            self._recorded_at, self._heard_s = recorded_at, self._monotonic()

    def __call__(self) -> int:
        """Return the time, microseconds since the epoch."""
        if not self._recorded_at:
            return self._clock()
        return self._recorded_at + int((self._monotonic() - self._heard_s) * 1_000_000)
