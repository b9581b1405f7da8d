"""A scheduler announces itself and sees who else is live, in a thread of its own.

A cycle may take seconds, in which the event loop of the scheduler does nothing else: the others must not take it for
dead meanwhile. A scheduler that has not come back to its loop for much longer does not announce itself any more.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

from kaicore.ledger.bus.leases import LeaseStore, Members
from kaicore.ledger.bus.leases.clock import lease_clock

#: How long the scheduler's loop may be away until it counts as hung, seconds.
_HUNG_S = 60.0


class Announcer:
    """Keeps a member announced, and its view of the others fresh.

    Attributes:
        live: the members that count as live, sorted, this one among them.
        settled: whether the others are known.
        fresh: whether the bus has answered lately.
    """

    def __init__(
        self,
        open_store: Callable[[], Awaitable[LeaseStore]],
        members_of: Callable[[LeaseStore], Members],
        *,
        changed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        """Args:
        open_store: opens the store in the thread's own loop.
        members_of: makes the member on it.
        changed: is called, in that thread, when others are live than before, or they are known at last.
        clock: seconds.
        """
        self._open_store = open_store
        self._members_of = members_of
        self._changed = changed
        self._clock = clock
        self.live: tuple[str, ...] = ()
        self.settled = self.fresh = False
        self._pulse_s = clock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="announcer", daemon=True)

    def start(self) -> None:
        """Begin to announce."""
        self._thread.start()

    def pulse(self) -> None:
        """Tell that the scheduler's loop goes on."""
        self._pulse_s = self._clock()

    async def stop(self) -> None:
        """Withdraw the member, so that others take over at once; waits for seconds at most."""
        self._stop.set()
        if self._thread.ident is None:
            return
        await asyncio.to_thread(self._thread.join, 10.0)

    async def _run(self) -> None:
        store = await self._open_store()
        members = self._members_of(store)
        try:
            while not self._stop.is_set():
                if self._clock() - self._pulse_s < _HUNG_S:
                    await members.beat()
                before = self.live, self.settled, self.fresh
                self.live, self.settled, self.fresh = members.live(), members.settled, members.fresh
                if before != (self.live, self.settled, self.fresh):
                    self._changed()
                await asyncio.to_thread(self._stop.wait, members.renewal_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await members.leave()
        finally:
            await store.close()
