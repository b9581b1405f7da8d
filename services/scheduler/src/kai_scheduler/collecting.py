"""Settings of Python's garbage collector for a scheduler, which holds millions of objects and makes no cycles.

The objects that remain after a cycle are the state: they are set aside (`gc.freeze`), which takes no time, and not
looked at again. So the collector sees only what one cycle makes. An error, or a task that was given up, may leave
objects that only the collector finds: once an hour, in an idle moment, it looks at all.
"""

import gc
import time
from collections.abc import Callable

#: After so many new containers those that are new are looked at: more than the cycles of a busy cluster make, so that
#: what they make is set aside, or gone, before it is looked at.
_THRESHOLDS = (200_000, 5, 100)
_ALL_EVERY_S = 3600.0


def look_at_new() -> None:
    """Set aside what there is, and have the collector look at new objects when there are many."""
    gc.set_threshold(*_THRESHOLDS)
    gc.collect()
    gc.freeze()


class Collecting:
    """The collector of a process that is a scheduler and nothing else."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Args:
        monotonic: seconds that never jump.
        """
        self._monotonic = monotonic
        look_at_new()
        self._looked_at_s = monotonic()

    def cycle_is_over(self) -> None:
        """Set aside what is there."""
        gc.freeze()

    def idle(self) -> None:
        """Look at all if that is due: some 15 us for each node and pod."""
        if self._monotonic() - self._looked_at_s >= _ALL_EVERY_S:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._looked_at_s = self._monotonic()
