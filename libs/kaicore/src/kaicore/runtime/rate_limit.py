"""A rate limit: a burst, and then so many times a second; log lines of all libraries are bounded by one.

Time is an argument.
"""

import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TypeVar


class RateLimit:
    """A bucket of permissions that fills up again by and by."""

    __slots__ = ("_at", "_burst", "_left", "_per_s")

    def __init__(self, *, per_s: float, burst: int, now: float) -> None:
        """Args:
        per_s: permissions that come back in a second.
        burst: permissions at most, and at first.
        now: seconds, of a clock that does not jump.
        """
        self._per_s = per_s
        self._burst = burst
        self._left = float(burst)
        self._at = now

    def take(self, now: float) -> bool:
        """Use up a permission; return whether there was one."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def wait_s(self, now: float) -> int:
        """Return after how many whole seconds, one at least, there is a permission again."""
        left = min(self._burst, self._left + (now - self._at) * self._per_s)
        return max(1, math.ceil((1 - left) / self._per_s))

    def give_back(self) -> None:
        """Return a permission that was not needed."""
        self._left = min(self._burst, self._left + 1)


_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Latest(OrderedDict[_Key, _Value]):
    """Entries of which only so many are kept: those that were put in last."""

    def __init__(self, most: int) -> None:
        """Args: most: entries that are kept."""
        super().__init__()
        self._most = most

    def put(self, key: _Key, value: _Value) -> None:
        """Put an entry in, as the last one."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)


class RateLimits:
    """One limit for each key, such as a client's address; those not used for longest are forgotten."""

    def __init__(self, *, per_s: float, burst: int, keys: int) -> None:
        """Args:
        per_s: see `RateLimit`.
        burst: see `RateLimit`.
        keys: how many are kept; a forgotten key begins anew.
        """
        self._per_s = per_s
        self._burst = burst
        self._limits = Latest[str, RateLimit](keys)

    def of(self, key: str, now: float) -> RateLimit:
        """Return the limit of a key."""
        limit = self._limits.get(key) or RateLimit(per_s=self._per_s, burst=self._burst, now=now)
        self._limits.put(key, limit)
        return limit


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
