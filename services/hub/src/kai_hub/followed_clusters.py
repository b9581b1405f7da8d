"""The states of the hub's clusters, each folded from its own log as events come."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from kaicore.analysis.inquiry.log_states import restored
from kaicore.errors import CorruptLog, LogUnavailable, UnknownEvent
from kaicore.ledger.bus.port import Bus
from kaicore.ledger.feed import EventFeed
from kaicore.ledger.log.port import EventLog
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.service import ServiceContext

#: Seconds after which a log that failed is read again.
_PAUSE_S = 2.0


class FollowedClusters:
    """The states; each is changed by a task of its own, between two awaits of its reader."""

    def __init__(self, log: EventLog, bus: Bus | None, *, context: ServiceContext, changed: Callable[[], None]) -> None:
        """Args:
        log: the clusters' logs.
        bus: brings events sooner; None to read from the log alone.
        context: of the service.
        changed: called when a state has changed in a way that matters to decisions.
        """
        self._log, self._bus, self._context, self._changed = log, bus, context, changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: States that are folded up to where their logs ended when they were opened.
        self.states: dict[str, ClusterState] = {}

    def follow(self, clusters: Iterable[str]) -> None:
        """Follow these clusters, and no others."""
        wanted = set(clusters)
        for name in wanted - self._tasks.keys():
            self._tasks[name] = asyncio.create_task(self._follow(name))
        for name in self._tasks.keys() - wanted:
            self._tasks.pop(name).cancel()
            self.states.pop(name, None)

    async def close(self) -> None:
        """Follow none."""
        tasks = list(self._tasks.values())
        self.follow(())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, name: str) -> None:
        while True:
            try:
                await self._fold(name)
            except LogUnavailable as error:
                self._context.log.warning("cluster is not followed now", cluster=name, error=str(error))
            except (CorruptLog, UnknownEvent) as error:
                self._context.log.error("cluster cannot be followed", cluster=name, error=str(error))
            await asyncio.sleep(_PAUSE_S)

    async def _fold(self, name: str) -> None:
        state = await restored(self._log, name)
        head = (await self._log.head(name)).position
        feed = EventFeed(self._log, self._bus, name, after=state.position)
        try:
            while True:
                revision = state.revision
                for event in await feed.next_batch(timeout_s=None if state.position >= head else 1.0):
                    state.fold(event)
                if state.position >= head:
                    fresh = self.states.get(name) is not state
                    self.states[name] = state
                    if fresh or state.revision != revision:
                        self._changed()
        finally:
            with suppress(LogUnavailable):
                await feed.close()
