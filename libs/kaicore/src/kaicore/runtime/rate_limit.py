"""A rate limit: a burst, and then so many times a second. Time is an argument."""

import math
from collections import OrderedDict


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
        self._keys = keys
        self._limits: OrderedDict[str, RateLimit] = OrderedDict()

    def of(self, key: str, now: float) -> RateLimit:
        """Return the limit of a key."""
        limit = self._limits.get(key)
        if limit is None:
            limit = self._limits[key] = RateLimit(per_s=self._per_s, burst=self._burst, now=now)
            if len(self._limits) > self._keys:
                self._limits.popitem(last=False)
        else:
            self._limits.move_to_end(key)
        return limit
