"""An HTTP/1.1 client for small requests to one server, on connections that are kept. httptools reads the answers.

Two requests bind a pod. aiohttp takes 110 us of CPU for one of them, this 40; and an exporter, which may weigh 30 MB,
has no room for aiohttp.
"""

import asyncio
import re
import socket
import ssl
from functools import lru_cache
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlsplit

import httptools

#: Seconds that connecting may take.
_CONNECT_S = 5.0
#: Seconds after which a kept connection, which a balancer may have forgotten, is not trusted with what is sent once.
_TRUSTED_S = 15.0
#: A server that vanished without a word is noticed within half a minute, also where nothing is sent.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}

_plain = re.compile(r"[!-~]*")


class HttpFailure(Exception):  # callers turn it into their own error
    """There was no answer; says why."""


class HttpAnswer(NamedTuple):
    """Status, headers as they came, and body."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def header(self, name: str) -> str:
        """Return a header's value, however its name is written; empty without one."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for one, value in self.headers if one.lower() == wanted), "")


class _Origin(NamedTuple):
    host: str
    port: int
    secure: bool
    netloc: str


class HttpClient:
    """Sends requests to a server; follows no redirects and reads no proxies from the environment."""

    def __init__(
        self,
        *,
        verify: ssl.SSLContext | None = None,
        server_hostname: str = "",
        timeout_s: float,
        connections: int = 8,
        most_answer: int = 64 * 1024 * 1024,
    ) -> None:
        """Args:
        verify: certificates to trust for https; None: the system's.
        server_hostname: what the server's certificate says instead of the address; empty for the address.
        timeout_s: how long an answer may take, seconds, waiting for others included.
        connections: most requests at once; others wait.
        most_answer: bytes of an answer at most.
        """
        self._verify, self._server_hostname, self._timeout_s = verify, server_hostname, timeout_s
        self._most_answer = most_answer
        self._turns = asyncio.Semaphore(connections)
        self._kept: dict[_Origin, list[_Connection]] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def request(
        self, method: str, url: str, *, headers: dict[str, str], body: bytes = b"", again: bool = True
    ) -> HttpAnswer:
        """Return the answer to a request.

        Args:
            again: whether it may be sent once more, where a kept connection ends before anything was answered.

        Raises:
            HttpFailure: there was none, in time.
        """
        try:
            origin, request = _request(method, url, headers, body)
            async with asyncio.timeout(self._timeout_s), self._turns:
                while (kept := self._take(origin, any_age=again)) is not None:
                    try:
                        return await self._converse(origin, kept, request)
                    except ConnectionError:
                        if not again or kept.answered:
                            raise
                return await self._converse(origin, await self._open(origin), request)
        except TimeoutError as error:
            raise HttpFailure(str(error) or f"no answer in {self._timeout_s:g} s") from error
        except (OSError, ValueError, httptools.HttpParserError) as error:
            raise HttpFailure(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Close all connections; those in use when they have their answer."""
        self._closed = True
        for connections in self._kept.values():
            for connection in connections:
                connection.transport.close()
        self._kept.clear()

    def _take(self, origin: _Origin, *, any_age: bool) -> "_Connection | None":
        kept, now = self._kept.get(origin, []), asyncio.get_running_loop().time()
        while kept:
            connection = kept.pop()
            if not connection.transport.is_closing():
                if any_age or now - connection.kept_at < _TRUSTED_S:
                    return connection
                connection.transport.close()
        return None

    async def _open(self, origin: _Origin) -> "_Connection":
        context = None
        if origin.secure:
            self._verify = context = self._verify or ssl.create_default_context()
        hostname = self._server_hostname or None if origin.secure else None
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self._most_answer),
                    origin.host,
                    origin.port,
                    ssl=context,
                    server_hostname=hostname,
                )
        except TimeoutError as error:
            raise TimeoutError(f"no connection in {_CONNECT_S:g} s") from error
        return connection

    async def _converse(self, origin: _Origin, connection: "_Connection", request: bytes) -> HttpAnswer:
        keep = False
        try:
            answer = await connection.ask(request)
            keep = connection.keeps and not self._closed
            return answer
        finally:
            if keep:
                connection.kept_at = asyncio.get_running_loop().time()
                self._kept.setdefault(origin, []).append(connection)
            else:
                connection.transport.abort()


class _Connection(asyncio.Protocol):
    """One connection, and the answer that it waits for; httptools calls the methods without an underscore."""

    def __init__(self, most_answer: int) -> None:
        self.transport: Any = None
        self.answered = self.keeps = False
        self.kept_at = 0.0
        self._most_answer = most_answer
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[HttpAnswer] | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._size, self._begun = 0, False

    async def ask(self, request: bytes) -> HttpAnswer:
        self.answered = self._begun = False
        self._waiting = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        make_lively(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        self.answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        names = {name.lower() for name, _ in self._headers}
        if exc is None and self._begun and not names & {b"content-length", b"transfer-encoding"}:
            # An answer of no said length ends with its connection.
            self.on_message_complete()
        self.keeps = False
        self._fail(ConnectionResetError(f"the connection ended before the answer did: {exc or 'closed'}"))

    def on_message_begin(self) -> None:
        self._headers, self._body, self._size = [], [], 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._begun = self._parser.get_status_code() >= 200

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._size += len(body)
        if self._size > self._most_answer:
            self._fail(OSError(f"an answer of more than {self._most_answer} bytes"))

    def on_message_complete(self) -> None:
        if self._begun and self._waiting is not None and not self._waiting.done():
            self.keeps = self._parser.should_keep_alive()
            answer = HttpAnswer(self._parser.get_status_code(), tuple(self._headers), b"".join(self._body))
            self._waiting.set_result(answer)

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
        self.transport.abort()


def make_lively(connected: socket.socket) -> None:
    """Have the kernel notice when the other side is gone."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@lru_cache(maxsize=64)
def _origin(start: str) -> _Origin:
    parts = urlsplit(start)
    secure = parts.scheme == "https"
    return _Origin(parts.hostname or "", parts.port or (443 if secure else 80), secure, parts.netloc)


def _request(method: str, url: str, headers: dict[str, str], body: bytes) -> tuple[_Origin, bytes]:
    """Return whom a request is for, and its bytes.

    Raises:
        ValueError: a header has a line break, or another character that none can have.
    """
    start = url.find("/", len("https://"))
    start = len(url) if start < 0 else start
    origin, target = _origin(url[:start]), url[start:] or "/"
    if not _plain.fullmatch(target):
        target = quote(target, safe="!#$%&'()*+,/:;=?@[]~")
    lines = [f"{method} {target} HTTP/1.1", f"Host: {origin.netloc}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
        raise ValueError("a header with a line break")
    return origin, f"{head}\r\n\r\n".encode("latin-1") + body
