"""Limits on an HTTP client before it has authenticated: bytes, time and connections.

uvicorn's own protocol waits without limit for the end of a header and keeps all of it, so that one client without a
token can block a service. Here a connection has a deadline for each step of a request, and a request has a maximum
size. When there are too many connections, the one that has kept us waiting for longest is closed.
"""

import asyncio
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote_to_bytes

from prometheus_client import Counter
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from kaicore.runtime.service.health import error_body

_REFUSED = Counter("kai_http_refused", "Requests and connections refused before they were looked at", ["reason"])

#: Bytes that a refused client may still send before its connection is cut; it reads our answer only then.
_LINGER_BYTES = 1 << 20
#: Seconds that it may take for it.
_LINGER_S = 2.0

#: ASGI extension: `transport` is the connection's `asyncio.Transport`, for an application that has to cut it.
CONNECTION = "kai.connection"

#: Characters of a path or query that need no second look.
_plain = re.compile(rb"[!-$&-~]*")
_control = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits of the cost of a client.

    Attributes:
        connections: at once; one more takes the place of one that we wait for, or is refused.
        header_bytes: of request line and header fields, and of what else comes without being a body.
        header_fields: number of header fields.
        body_bytes: of a body; a larger one is refused before it is read.
        header_s: seconds from a connection's beginning, or a request's first byte, to the end of its header.
        body_s: seconds from there to the end of its body.
        send_s: seconds that a client may leave an answer unread.
        any_target: path and query may have control characters and bytes that are not UTF-8.
    """

    connections: int = 4096
    header_bytes: int = 32 * 1024
    header_fields: int = 100
    body_bytes: int = 64 * 1024
    header_s: float = 10.0
    body_s: float = 30.0
    send_s: float = 30.0
    any_target: bool = False


@dataclass(slots=True)
class Waiting:
    """The connections with clients that keep us waiting, the first of each kind for longest.

    Attributes:
        refused: those that only have to read why.
        new: those that have not brought a request yet.
        idle: those with an answer to their last request.
    """

    refused: dict["LimitedProtocol", None] = field(default_factory=dict)
    new: dict["LimitedProtocol", None] = field(default_factory=dict)
    idle: dict["LimitedProtocol", None] = field(default_factory=dict)

    def longest(self) -> Iterator["LimitedProtocol"]:
        """Yield them, those that are missed least first."""
        yield from self.refused
        yield from self.new
        yield from self.idle

    def discard(self, connection: "LimitedProtocol") -> None:
        """Wait for it no longer."""
        self.refused.pop(connection, None)
        self.new.pop(connection, None)
        self.idle.pop(connection, None)


class LimitedProtocol(HttpToolsProtocol):
    """One connection; see `HttpLimits`."""

    def __init__(self, *, limits: HttpLimits, waiting: Waiting, begun: Callable[[], None], **options: Any) -> None:
        """Args: begun: is called when the connection begins."""
        super().__init__(**options)
        self._begun = begun
        self._limits = limits
        self._waiting = waiting
        self._deadline = math.inf
        self._without_progress = 0
        self._body = 0
        self._refused = False
        self._extensions: dict[str, dict[object, object]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._begun()
        self._extensions = {CONNECTION: {"transport": transport}}
        self._deadline = self.loop.time() + self._limits.header_s
        if len(self.connections) > self._limits.connections:
            victim = next(self._waiting.longest(), None)
            if victim is None:
                self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "connections", "too many connections")
                self.transport.close()
                return
            _REFUSED.labels("connections").inc()
            victim.transport.abort()
            self.connections.discard(victim)
            self._waiting.discard(victim)
        self._waiting.new[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._waiting.discard(self)
        self._extensions = {}
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._without_progress += len(data)
        if self._refused:
            if self._without_progress > _LINGER_BYTES:
                self.transport.abort()
            return
        if self._deadline == math.inf:
            self._deadline = self.loop.time() + self._limits.header_s
        super().data_received(data)
        if self._without_progress > self._limits.header_bytes and not self.transport.is_closing():
            self._refuse_header()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._without_progress = 0
        if self._refused:
            return
        self._waiting.discard(self)
        self._body = 0
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self._limits.header_bytes or len(self.headers) > self._limits.header_fields:
            self._refuse_header()
        elif self._announced() > self._limits.body_bytes:
            self._refuse_body()
        elif not self._limits.any_target and not readable_target(self.url):
            self._refuse(HTTPStatus.BAD_REQUEST, "target", "path and query: only UTF-8 without control characters")
        else:
            self._deadline = self.loop.time() + self._limits.body_s
            self.scope["extensions"] = self._extensions
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._without_progress = 0
        if self._refused:
            return
        self._body += len(body)
        if self._body > self._limits.body_bytes:
            if self.cycle.response_complete:
                self.transport.abort()
            else:
                self._refuse_body()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._without_progress = 0
        if self._refused:
            return
        self._deadline = math.inf
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Called when an answer has been given."""
        super().on_response_complete()
        if not self._refused and not self.pipeline and not self.transport.is_closing():
            self._waiting.idle[self] = None

    def check_deadline(self, now: float) -> None:
        """End the connection if its client is late."""
        if now < self._deadline:
            return
        if self._refused or self.transport.is_closing():
            self.transport.abort()
            return
        cycle = self._cycle()
        if cycle is None or (cycle.response_complete and not self.pipeline):
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "slow", "the request did not come to its end in time")
        elif cycle.more_body:
            _REFUSED.labels("slow").inc()
            self.transport.abort()

    def _cycle(self) -> RequestResponseCycle | None:
        """Return the request that is being answered, or was last; None before the first."""
        return self.cycle

    def _announced(self) -> int:
        for name, value in self.headers:
            if name == b"content-length" and value.isdigit():
                return int(value)
        return 0

    def _refuse_header(self) -> None:
        limits = self._limits
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            "header",
            f"header: has more than {limits.header_bytes} bytes or {limits.header_fields} fields",
        )

    def _refuse_body(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body", f"body: has more than {self._limits.body_bytes} bytes"
        )

    def _refuse(self, status: HTTPStatus, reason: str, why: str) -> None:
        """Answer at once, unless an answer is under way, and end the connection when the client has read it."""
        _REFUSED.labels(reason).inc()
        self._refused = True
        self._waiting.discard(self)
        self._waiting.refused[self] = None
        self._unset_keepalive_if_required()
        self._without_progress = 0
        self._deadline = self.loop.time() + _LINGER_S
        cycle = self._cycle()
        if cycle is not None and not cycle.response_complete:
            # What works on the answer learns that no client waits for it any more.
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
                return
        body = error_body(why)
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (status, status.phrase.encode(), len(body), body)
        )
        # Closed at once, the connection would be reset while the client still sends, and the answer be lost.
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()


def readable_target(target: bytes) -> bool:
    """True if path and query are UTF-8 without control characters, once their escapes are read."""
    if _plain.fullmatch(target):
        return True
    try:
        return not _control.search(unquote_to_bytes(target).decode())
    except UnicodeDecodeError:
        return False
