"""List, then watch, and never lose track: the reflector of one resource.

A list is read page by page and handed over whole; then events follow from where it ended. A broken watch is resumed
at the last version that was seen, bookmarks included; when that version is no longer known (410, as an answer or as
an event in the stream), the list is read anew. Objects are handed over as bytes.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
from kaicore.errors import ApiStatus, ClusterError, ClusterUnavailable
from kaicore.service import get_logger

from kai_simulator.fleet.api_client import ApiClient
from kai_simulator.fleet.wire import ObjectList, PartialObject, Status, WatchEvent

PAGE: Final = 500
#: The server is asked to end a watch after this many seconds, and a random part more.
WATCH_S: Final = 240
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 10.0

_decode_list = msgspec.json.Decoder(ObjectList).decode
_decode_event = msgspec.json.Decoder(WatchEvent).decode
_decode_partial = msgspec.json.Decoder(PartialObject).decode
_decode_status = msgspec.json.Decoder(Status).decode


class Handler(Protocol):
    """Who wants to know."""

    def on_list(self, items: list[msgspec.Raw]) -> None:
        """Take a complete list."""

    def on_event(self, kind: str, item: msgspec.Raw) -> str:
        """Take one event (ADDED, MODIFIED or DELETED) and its object; return the object's resourceVersion."""

    def on_pause(self) -> None:
        """Called when everything that has arrived was taken."""


class _Expired(Exception):
    """The version to resume from is not known any more."""


@dataclass(slots=True)
class Reflector:
    """Keeps a handler up to date with one resource."""

    client: ApiClient
    #: Path of the collection.
    path: str
    handler: Handler
    #: Sleeps; a test may make it short.
    sleep: Callable[[float], Awaitable[object]]
    field_selector: str = ""
    _version: str = ""
    _retry_s: float = _FIRST_RETRY_S

    async def run(self) -> None:
        """List and watch until cancelled."""
        log = get_logger(path=self.path)
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except _Expired:
                log.info("the version to resume from is gone, listing anew", version=self._version)
                self._version = ""
            except ClusterError as error:
                pause = self._retry_s * (0.5 + random.random())
                if isinstance(error, ClusterUnavailable) and error.retry_after_s:
                    pause = max(pause, error.retry_after_s)
                self._retry_s = min(_LAST_RETRY_S, self._retry_s * 2)
                log.warning("watch broke", error=str(error), retry_s=round(pause, 2))
                await self.sleep(pause)
            except Exception as error:
                log.exception("watch broke for no reason that was foreseen, listing anew", error=repr(error))
                self._version = ""
                await self.sleep(_LAST_RETRY_S)

    async def _list(self) -> None:
        items: list[msgspec.Raw] = []
        token = ""
        while True:
            query = self._query(f"limit={PAGE}" + (f"&continue={token}" if token else ""))
            try:
                page = _decode_list(await self.client.send("GET", f"{self.path}?{query}"))
            except ApiStatus as error:
                if error.code == 410:
                    raise _Expired from error
                raise
            except msgspec.MsgspecError as error:
                raise ClusterUnavailable(f"GET {self.path}: not a list: {error}") from error
            items += page.items or []
            token = page.metadata.continue_
            if not token:
                break
        self.handler.on_list(items)
        self.handler.on_pause()
        self._version = page.metadata.resource_version

    async def _watch(self) -> None:
        seconds = int(WATCH_S * (1 + random.random()))
        query = self._query(
            f"watch=true&allowWatchBookmarks=true&resourceVersion={self._version}&timeoutSeconds={seconds}"
        )
        try:
            async with self.client.stream(f"{self.path}?{query}", silence_s=seconds + 30) as lines:
                async for some in lines:
                    try:
                        for line in some:
                            self._take(line)
                    finally:
                        self.handler.on_pause()
                    self._retry_s = _FIRST_RETRY_S
        except ApiStatus as error:
            if error.code == 410:
                raise _Expired from error
            self._version = ""
            raise
        if self._retry_s > _FIRST_RETRY_S:
            raise ClusterUnavailable(f"GET {self.path}: the watch ended without an event")
        self._retry_s *= 2

    def _take(self, line: bytes) -> None:
        try:
            event = _decode_event(line)
            if event.type == "ERROR":
                status = _decode_status(event.object)
                if status.code == 410:
                    raise _Expired
                raise ApiStatus(status.code, status.reason, status.message)
            if event.type == "BOOKMARK":
                version = _decode_partial(event.object).metadata.resource_version
            else:
                version = self.handler.on_event(event.type, event.object)
        except msgspec.MsgspecError as error:
            get_logger(path=self.path).error("undecodable watch event, ignored", error=str(error), line=line[:500])
            return
        self._version = version or self._version

    def _query(self, query: str) -> str:
        return f"{query}&fieldSelector={self.field_selector}" if self.field_selector else query
