"""Remembers what was said in the log lines, so that a report that is wrong every minute is one line and not a flood."""

from collections import OrderedDict
from collections.abc import Hashable

#: How long nothing is said again, microseconds.
_SILENT_US = 600_000_000

#: How many things are remembered.
_KEPT = 10_000


class RecentLines:
    """What was said in the last ten minutes."""

    def __init__(self) -> None:
        self._said: OrderedDict[Hashable, int] = OrderedDict()

    def first_time(self, thing: Hashable, *, now: int) -> bool:
        """Tell whether a thing was not said of late, and note that it is said now.

        Args:
            thing: what identifies it.
            now: microseconds since the epoch.
        """
        said_at = self._said.get(thing)
        if said_at is not None and now - said_at < _SILENT_US:
            return False
        self._said[thing] = now
        self._said.move_to_end(thing)
        if len(self._said) > _KEPT:
            self._said.popitem(last=False)
        return True
