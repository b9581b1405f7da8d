"""Follows a resource on a live API server: the I/O around `kaicore.kube.api.reflector_core`.

The consumer of the changes sets the pace: nothing is read while it processes them. A slow consumer makes the server
wait and at last end the watch. That costs a new list, but no memory here.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, Protocol

from kaicore.errors import ApiStatus, ClusterError, ClusterUnavailable
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.reflector_core import WORKED_S, Backoff, Change, ListPage, ObjectKey, ReflectorCore, Relist
from kaicore.kube.wire.resources import ObjectT, Resource

_NOT_FOUND = 404
#: Seconds in which lines of a busy watch gather: those that come together are one batch of changes.
_GATHER_S = 0.1
#: Seconds after which the server is to end a watch, so that watches move to other servers; up to twice that.
_WATCH_S = 300


class ReflectorObserver(Protocol):
    """Is called with what happens; must be quick and must not raise."""

    def listed(self, kind: str, why: Relist, objects: int) -> None:
        """A list was taken to its end; that many objects are there."""

    def watching(self, kind: str) -> None:
        """A watch is begun."""

    def answered(self, kind: str) -> None:
        """The API server did what it was asked."""

    def failed(self, kind: str, error: ClusterError) -> None:
        """A request failed or a watch broke; it will be tried again."""


class Reflector(Generic[ObjectT]):
    """Hands on every change of a resource, from a first list on."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource[ObjectT],
        take: Callable[[list[Change[ObjectT]]], Awaitable[None]],
        *,
        observer: ReflectorObserver,
        known_uids: Mapping[ObjectKey, str] | None = None,
        page: int = 500,
        backoff: Backoff | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Args:
        take: gets changes in order, also an empty list at the end of a list.
        known_uids: see `ReflectorCore`.
        page: objects per page of a list.
        backoff: how long to leave a server alone that fails.
        jitter: random numbers of 0 to 1.
        """
        self._client = client
        self._take = take
        self._observer = observer
        self._page = page
        self.core = ReflectorCore(resource, known_uids=known_uids, backoff=backoff)
        self._jitter = jitter

    async def run(self) -> None:
        """Follow the resource until cancelled.

        Raises ApiStatus: 404, for an optional resource that the server does not have.
        """
        kind = self.core.resource.kind
        while True:
            await asyncio.sleep(self.core.delay_s(self._jitter()))
            self.core.begin_check()
            try:
                if isinstance(self.core.request, ListPage):
                    await self._list(self.core.request)
                else:
                    await self._watch(self.core.request.resource_version)
            except ClusterError as error:
                if self.core.resource.optional and isinstance(error, ApiStatus) and error.code == _NOT_FOUND:
                    raise
                self._observer.failed(kind, error)
                self.core.failed(error)

    async def _list(self, page: ListPage) -> None:
        core = self.core
        data = await self._client.list_page(core.resource.path, limit=self._page, continue_token=page.continue_token)
        changes = core.take_page(data)
        self._observer.answered(core.resource.kind)
        await self._take(changes)
        if not isinstance(core.request, ListPage):
            self._observer.listed(core.resource.kind, core.relisting, len(core.objects))

    async def _watch(self, resource_version: str) -> None:
        """Watch until the server ends it.

        A connection that is cut after the watch has worked is resumed like one that was ended in order: load balancers
        cut connections on which nothing happens. If the server is really away, the next request fails.
        """
        core, clock = self.core, asyncio.get_running_loop().time
        self._observer.watching(core.resource.kind)
        seconds = int(_WATCH_S * (1 + self._jitter()))
        begun = clock()
        async with self._client.watch(
            core.resource.path, resource_version=resource_version, timeout_s=seconds
        ) as chunks:
            self._observer.answered(core.resource.kind)
            while True:
                try:
                    lines = await anext(chunks)
                except StopAsyncIteration:
                    break
                except ClusterUnavailable:
                    if clock() - begun < WORKED_S:
                        raise
                    break
                changes = core.take_lines(lines)
                if changes:
                    await self._take(changes)
                    await asyncio.sleep(_GATHER_S)
                if not core.watching:
                    self._observer.failed(core.resource.kind, core.last_error)
                    return
        core.ended(clock() - begun)
