"""Watches: the events of a collection from one resourceVersion on, as a client sees them."""

import asyncio
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field

from kai_apiserver.errors import FieldError, StatusError, bad_request, expired_watch, invalid
from kai_apiserver.http.faults import Fault, Faults, Subject
from kai_apiserver.objects import encode_json, is_true
from kai_apiserver.rest.backend import Backend, Target
from kai_apiserver.rest.listing import LIST_OPTIONS, ListSelection
from kai_apiserver.rest.tables import View
from kai_apiserver.store import Collection, Event, EventType, Watcher

_FOREVER_S = 1800
_LAST_BOOKMARK_S = 2.0


class ConnectionDropped(Exception):
    """A fault rule wants the connection cut without a word."""


@dataclass(slots=True, eq=False)
class OpenWatch:
    """A watch in progress, as fault rules reach it."""

    subject: Subject
    watcher: Watcher
    strike: Fault | None = None

    def hit(self, fault: Fault) -> None:
        """Have a fault strike at once."""
        self.strike = fault
        self.watcher.wake()


@dataclass(slots=True)
class Watches:
    """All watches in progress, and how they behave.

    Attributes:
        faults: the rules that may strike them.
        bookmark_s: seconds between bookmarks, for clients that want them.
        closing: set when the server stops.
    """

    faults: Faults
    bookmark_s: float = 60.0
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    open: set[OpenWatch] = field(default_factory=set)

    def strike_now(self, fault: Fault, match: Subject) -> int:
        """Have a fault strike every open watch that matches; return how many."""
        struck = [watch for watch in self.open if match.covers(watch.subject)]
        for watch in struck:
            watch.hit(fault)
        return len(struck)

    def close(self) -> None:
        """End all watches."""
        self.closing.set()
        for watch in self.open:
            watch.watcher.wake()

    @staticmethod
    def check(backend: Backend, target: Target, *, query: dict[str, str]) -> None:
        """Find what is wrong with a watch's query, before the answer begins.

        Raises StatusError: 400 or 422, the query makes no sense.
        """
        ListSelection.read(backend.collection(target.resource), target, query=query)
        _check_options(query)

    async def stream(
        self, backend: Backend, view: View, *, target: Target, query: dict[str, str], subject: Subject
    ) -> AsyncGenerator[bytes]:
        """Yield encoded events until the client's time is up.

        Raises:
            StatusError: 400 or 422, the query makes no sense.
            ConnectionDropped: a fault rule cuts the connection.
        """
        collection = backend.collection(view.resource)
        selection = ListSelection.read(collection, target, query=query)
        bookmarks = is_true(query.get("allowWatchBookmarks"))
        first, watcher = _begin(collection, selection, view, query, rv=backend.store.rv, bookmarks=bookmarks)
        if watcher is None:
            yield first
            return
        watch = OpenWatch(subject, watcher)
        collection.watchers.add(watcher)
        self.open.add(watch)
        try:
            for fault in self.faults.on_watch(subject, "open"):
                watch.strike = fault
            if first:
                yield first
            async for lines in self._follow(backend, view, watch, _seconds(query), bookmarks=bookmarks):
                yield lines
        finally:
            self.open.discard(watch)
            collection.watchers.remove(watcher)

    async def _follow(
        self, backend: Backend, view: View, watch: OpenWatch, seconds: float, *, bookmarks: bool
    ) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        bookmark_at = _bookmark_time(loop.time(), end, self.bookmark_s, seconds) if bookmarks else end
        headings = True
        while not self.closing.is_set():
            struck = watch.strike
            if struck is not None:
                watch.strike = None
                last_words = _last_words(struck, backend)
                if last_words:
                    yield last_words
                    return
            taken = watch.watcher.take()
            if taken:
                if self.faults.rules:
                    async for lines in self._with_faults(view, watch, taken):
                        yield lines
                else:
                    yield b"".join([view.line(seen, event, headings=headings) for seen, event in taken])
                headings = False
                continue
            if watch.watcher.overflowed or not backend.registry.serves(view.resource):
                return
            now = loop.time()
            if now >= end:
                return
            if bookmarks and now >= bookmark_at:
                yield view.bookmark(backend.store.rv)
                bookmark_at = _bookmark_time(now, end, self.bookmark_s, seconds)
            await watch.watcher.wait(max(0.0, min(end, bookmark_at) - now))

    async def _with_faults(
        self, view: View, watch: OpenWatch, taken: list[tuple[EventType, Event]]
    ) -> AsyncIterator[bytes]:
        """Events one by one, each asked of the fault rules; stops at one that ends the watch."""
        for seen, event in taken:
            faults = self.faults.on_watch(watch.subject, "event")
            for fault in faults:
                if fault.kind == "delay-event":
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self.closing.wait(), fault.seconds)
                elif fault.kind in ("drop-watch", "gone"):
                    watch.strike = fault
                    return
                elif fault.kind == "half-event":
                    line = view.line(seen, event)
                    yield line[: len(line) // 2]
                    raise ConnectionDropped
            copies = 1 + sum(fault.kind == "duplicate-event" for fault in faults)
            yield view.line(seen, event) * copies


def _last_words(fault: Fault, backend: Backend) -> bytes:
    """The last events of a watch before a fault ends it; empty if it just goes on.

    Raises ConnectionDropped: it ends without a word.
    """
    if fault.kind == "drop-watch":
        raise ConnectionDropped
    return _error(expired_watch(0, backend.store.rv)) if fault.kind == "gone" else b""


def _bookmark_time(now: float, end: float, interval: float, seconds: float) -> float:
    """The next bookmark: after the interval, or shortly before the end."""
    last = end - _LAST_BOOKMARK_S
    if now < last and seconds > _LAST_BOOKMARK_S:
        return min(now + interval, last)
    return min(now + interval, end + 1)


def _seconds(query: dict[str, str]) -> float:
    asked = query.get("timeoutSeconds", "")
    return float(asked) if asked.isdecimal() and asked != "0" else _FOREVER_S * (1 + random.random())


def _error(error: StatusError) -> bytes:
    return b'{"type":"ERROR","object":%s}\n' % encode_json(error.body)


def _begin(
    collection: Collection, selection: ListSelection, view: View, query: dict[str, str], *, rv: int, bookmarks: bool
) -> tuple[bytes, Watcher | None]:
    """The first events, and the watcher for the rest; None if there is no rest."""
    asked = query.get("resourceVersion", "")
    watcher = Watcher(
        namespace=selection.namespace,
        name=selection.name,
        matches=selection.predicate,
        bucket=selection.indexed,
        after=int(asked) if asked.isdecimal() else 0,
    )
    initial = query.get("sendInitialEvents")
    if is_true(initial) or (asked in ("", "0") and (initial is None or is_true(initial))):
        events = [Event(EventType.ADDED, stored.rv, stored, None) for stored in collection.scan(selection.prefix)]
    elif asked in ("", "0") or int(asked) >= rv:
        events = []
    else:
        missed = collection.events_after(int(asked))
        if missed is None:
            return _error(expired_watch(int(asked), collection.floor)), None
        events = missed
    lines: list[bytes] = []
    for event in events:
        seen = watcher.seen_as(event)
        if seen is not None:
            lines.append(view.line(seen, event, headings=not lines))
    if is_true(initial) and bookmarks:
        lines.append(view.bookmark(rv, initial_events_end=True))
    return b"".join(lines), watcher


def _check_options(query: dict[str, str]) -> None:
    asked, seconds = query.get("resourceVersion", ""), query.get("timeoutSeconds", "")
    if seconds and not re.fullmatch(r"[+-]?[0-9]+", seconds):
        raise bad_request(f'strconv.ParseInt: parsing "{seconds}": invalid syntax')
    if "sendInitialEvents" in query and query.get("resourceVersionMatch") != "NotOlderThan":
        error = FieldError.forbidden(
            "resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        )
        raise invalid(LIST_OPTIONS, "", errors=[error])
    if asked and not asked.isdecimal():
        why = f'strconv.ParseUint: parsing "{asked}": invalid syntax'
        error = FieldError.invalid("resourceVersion", asked, why)
        raise invalid(LIST_OPTIONS, "", errors=[error])
