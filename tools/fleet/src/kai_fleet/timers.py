"""Everything that is to happen later, in one heap with one timer of the event loop: no node has a task of its own."""

import asyncio
import heapq
import time
from collections.abc import Callable
from itertools import count

from kaicore.runtime.service import get_logger


class Timers:
    """Callbacks by time of day, in seconds of Unix time.

    What is still to come is kept by the loop's clock, which never jumps: when the time of day is set, an hour back say,
    nothing waits for an hour more, and nothing that has time yet comes at once.
    """

    def __init__(self, *, after: Callable[[], None], clock: Callable[[], float] = time.time) -> None:
        """Make an empty heap; `after` is called once after each round of callbacks."""
        self.clock = clock
        self._after = after
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = float("inf")
        self._stopped = False

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Call `callback` at `when` by the present time of day, or as soon as possible."""
        due = asyncio.get_running_loop().time() + max(0.0, when - self.clock())
        heapq.heappush(self._heap, (due, next(self._numbers), callback))
        if due < self._armed_for:
            self._arm()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed_for = float("inf")
        if self._heap and not self._stopped:
            self._armed_for = self._heap[0][0]
            # A loop's timers count whole milliseconds: one too late, or it fires early and over and over.
            self._handle = asyncio.get_running_loop().call_at(self._armed_for + 0.001, self._fire)

    def _fire(self) -> None:
        now = asyncio.get_running_loop().time()
        self._armed_for = float("-inf")
        while self._heap and self._heap[0][0] <= now:
            callback = heapq.heappop(self._heap)[2]
            try:
                callback()
            except Exception as error:
                get_logger().exception("a timer failed", error=repr(error))
        self._after()
        self._arm()

    def stop(self) -> None:
        """Call nothing any more."""
        self._stopped = True
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
