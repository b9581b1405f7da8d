"""Bounds on the amount of log lines, for the lines of every library."""

import sys
from collections.abc import Callable
from contextlib import suppress

from kaicore.runtime.rate_limit import RateLimits

#: Lines that say the same: at once, and in a second.
_SAME, _SAME_PER_S = 100, 2.0
#: Different lines that are distinguished.
_DIFFERENT = 1000


class RepeatedLines:
    """Tells which lines are one too many of the same."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Args: clock: seconds, of a clock that does not jump."""
        self._clock = clock
        self._limits = RateLimits(per_s=_SAME_PER_S, burst=_SAME, keys=_DIFFERENT)
        self._dropped: dict[str, int] = {}

    def dropped_before(self, says: str) -> int | None:
        """Return None for a line to drop, else how many were dropped before it."""
        now = self._clock()
        if self._limits.of(says, now).take(now):
            return self._dropped.pop(says, 0)
        if len(self._dropped) < _DIFFERENT or says in self._dropped:
            self._dropped[says] = self._dropped.get(says, 0) + 1
        return None


class StandardError:
    """Standard error as a log needs it: a full disk or a reader that has gone costs lines, never the service."""

    def write(self, text: str) -> None:
        """Write what can be written."""
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Hand it on, if that can be done."""
        with suppress(OSError):
            sys.stderr.flush()
