"""Watchers of one collection: dispatch of an event to its watchers, without asking every watcher.

Five thousand kubelets each watch the pods of their own node. A watcher that pins an indexed field to one value
therefore lies in a bucket for that value, and an event only visits the buckets of its object's old and new value.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from kai_apiserver.store.records import Event, EventType, Stored

#: A watcher that lets this many events lie is cut off, as the real server does; it may come back and resume.
MAX_PENDING: Final = 50_000

Bucket = tuple[str, str]  # (field label, value)


class Watcher:
    """One client's view of a collection's changes.

    Attributes:
        namespace: only objects of this namespace; empty for all.
        name: only the object of this name; empty for all.
        matches: whether an object is selected; None if all are.
        bucket: the indexed field that must have one value, with that value; None if there is none.
        after: only events after this resourceVersion.
        overflowed: it was too slow, and gets no more events.
    """

    def __init__(
        self,
        *,
        namespace: str = "",
        name: str = "",
        matches: Callable[[Stored], bool] | None = None,
        bucket: Bucket | None = None,
        after: int = 0,
    ) -> None:
        self.namespace = namespace
        self.name = name
        self.matches = matches
        self.bucket = bucket
        self.after = after
        self.overflowed = False
        self._pending: deque[tuple[EventType, Event]] = deque()
        self._wakeup: asyncio.Future[None] | None = None

    def offer(self, event: Event) -> None:
        """Take note of an event, if it concerns this watcher."""
        seen = self.seen_as(event) if event.rv > self.after else None
        if seen is None:
            return
        if len(self._pending) >= MAX_PENDING:
            self.overflowed = True
        else:
            self._pending.append((seen, event))
        self.wake()

    def seen_as(self, event: Event) -> EventType | None:
        """This watcher's view: an object that comes to match is added, one that ceases to is deleted."""
        stored = event.stored
        if (self.namespace and stored.namespace != self.namespace) or (self.name and stored.name != self.name):
            return None
        if self.matches is None:
            return event.type
        before = event.previous is not None and self.matches(event.previous)
        after = event.type is not EventType.DELETED and self.matches(stored)
        if before and after:
            return EventType.MODIFIED
        if after:
            return EventType.ADDED
        return EventType.DELETED if before else None

    def take(self) -> list[tuple[EventType, Event]]:
        """All events since the last time."""
        taken = list(self._pending)
        self._pending.clear()
        return taken

    def wake(self) -> None:
        """Make `wait` return."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Wait for events; return whether it was woken before `seconds` were over."""
        if self._pending or self.overflowed:
            return True
        loop = asyncio.get_running_loop()
        self._wakeup = loop.create_future()
        timer = loop.call_later(seconds, self._time_out, self._wakeup)
        try:
            await self._wakeup
        finally:
            timer.cancel()
            self._wakeup = None
        return bool(self._pending) or self.overflowed

    @staticmethod
    def _time_out(wakeup: "asyncio.Future[None]") -> None:
        if not wakeup.done():
            wakeup.set_result(None)


class WatcherSet:
    """The watchers of one collection."""

    def __init__(self, indexed: dict[str, int]) -> None:
        """`indexed` are the labels of the fields with buckets, and their place in `Stored.fields`."""
        self._indexed = indexed
        self._everywhere: dict[Watcher, None] = {}
        self._buckets: dict[Bucket, dict[Watcher, None]] = {}

    def __len__(self) -> int:
        return len(self._everywhere) + sum(len(bucket) for bucket in self._buckets.values())

    def __iter__(self) -> Iterator[Watcher]:
        yield from self._everywhere
        for bucket in self._buckets.values():
            yield from bucket

    def add(self, watcher: Watcher) -> None:
        """Send events to a watcher from now on."""
        self._home(watcher)[watcher] = None

    def remove(self, watcher: Watcher) -> None:
        """Send it no more."""
        self._home(watcher).pop(watcher, None)
        if watcher.bucket is not None and not self._buckets.get(watcher.bucket, True):
            del self._buckets[watcher.bucket]

    def _home(self, watcher: Watcher) -> dict[Watcher, None]:
        if watcher.bucket is None or watcher.bucket[0] not in self._indexed:
            return self._everywhere
        return self._buckets.setdefault(watcher.bucket, {})

    def dispatch(self, event: Event) -> None:
        """Offer an event to every watcher that it may concern."""
        for watcher in self._everywhere:
            watcher.offer(event)
        if not self._buckets:
            return
        for label, place in self._indexed.items():
            values = {event.stored.fields[place]}
            if event.previous is not None:
                values.add(event.previous.fields[place])
            for value in values:
                for watcher in self._buckets.get((label, value), ()):
                    watcher.offer(event)
