"""One HTTP request, as ASGI hands it over."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from kaicore.runtime.service.http_limits import CONNECTION

from kai_apiserver.errors import request_too_large
from kai_apiserver.http.request_path import MAX_BODY_BYTES

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Request:
    """A request, its body, and the connection it came by.

    Attributes:
        method: as it came.
        target: path and query, not decoded.
        lost: a fault rule wants the client to get no answer, or not its end.
        half: a fault rule wants the client to get half of the answer's first piece, and no more.
    """

    __slots__ = ("_body", "_headers", "_receive", "_scope", "_send", "half", "lost", "method", "target")

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        target: bytes = scope["raw_path"]
        if scope["query_string"]:
            target = b"%b?%b" % (target, scope["query_string"])
        self.target = _text(target)
        self.lost = self.half = False
        self._scope, self._receive, self._send = scope, receive, send
        # Of a header that comes twice, the first counts.
        self._headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        self._body: bytes | None = None

    def header(self, name: bytes) -> str:
        """Return the value of a header, whose name is in lower case; empty if it is not there."""
        return _text(self._headers.get(name, b""))

    def headers_from(self, prefix: bytes) -> Iterator[tuple[str, str]]:
        """Yield name and value of all headers whose names, in lower case, begin with a prefix."""
        for name, value in self._scope["headers"]:
            if name.startswith(prefix):
                yield _text(name), _text(value)

    @property
    def content_type(self) -> str:
        """The body's media type, without parameters."""
        return self.header(b"content-type").partition(";")[0].strip().lower() or "application/octet-stream"

    async def read(self) -> bytes:
        """Return the body.

        Raises:
            StatusError: 413, it is too large.
            ConnectionError: the client has gone before its end.
        """
        if self._body is not None:
            return self._body
        parts: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ConnectionResetError
            parts.append(message["body"])
            size += len(parts[-1])
            if size > MAX_BODY_BYTES:
                raise request_too_large(MAX_BODY_BYTES)
            more = message["more_body"]
        self._body = parts[0] if len(parts) == 1 else b"".join(parts)
        return self._body

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the answer's status and headers."""
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, body: bytes, *, more: bool) -> None:
        """Send a part of the answer's body, the last one if there is no more."""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def until_gone(self) -> None:
        """Wait until the client has gone or has the whole answer."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def cut(self) -> None:
        """Cut the connection without a word; what was written may be lost."""
        self._transport.abort()
        await self.until_gone()

    async def close(self) -> None:
        """Close the connection: what was written still arrives, the end of the answer does not."""
        self._transport.close()
        await self.until_gone()

    @property
    def _transport(self) -> asyncio.Transport:
        transport: asyncio.Transport = self._scope["extensions"][CONNECTION]["transport"]
        return transport


def _text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")
