"""Kept connections to one API server, for requests with answers that are read as a whole.

A request is one write, and its answer goes through httptools alone: a quarter of the CPU of aiohttp, which watches and
proxies still need.
"""

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from kaicore.kube.api.access import Access

#: A server that vanished without a word is noticed within half a minute, also by a watch on which nothing happens.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}

CONNECT_S = 5.0

#: Seconds after which an unused connection is closed: sooner than servers and what is before them close it.
_IDLE_S = 15.0

#: Seconds for which credentials are not asked for again.
_CREDENTIALS_S = 1.0

#: Methods that are sent again where a kept connection turns out to be closed.
_SENT_AGAIN = ("GET", "DELETE")

_BUFFER = 128 * 1024

_ENDED, _ENDED_WITHIN = "the connection ended without an answer", "the connection ended within the answer"


class ServerAnswer(NamedTuple):
    """Status, header `Retry-After` or nothing, and body."""

    status: int
    retry_after: str
    body: bytes


class _ClosedError(OSError):
    """The connection ended before the answer did; `begun` where a part of that had come."""

    def __init__(self, why: str, *, begun: bool) -> None:
        super().__init__(0, why)
        self.begun = begun


class _Connection(asyncio.BufferedProtocol):
    """A connection, for one request at a time."""

    def __init__(self, buffer: memoryview) -> None:
        """Args: buffer: for what is read; shared, for nothing stays in it."""
        self.transport: asyncio.Transport | None = None
        #: Since when it is unused, by the event loop's clock.
        self.since_s = 0.0
        self._buffer = buffer
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[ServerAnswer] | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._chunks: list[bytes] = []
        # Whether any of the answer has come, its headers have, and all has, so that another request may follow.
        self._begun = self._headed = self._whole = False

    @property
    def usable(self) -> bool:
        """True if another request may be sent."""
        return self.transport is not None and not self.transport.is_closing()

    async def ask(self, request: bytes, *, timeout_s: float) -> ServerAnswer:
        """Send a request; return the answer. Raises OSError, TimeoutError: there is none."""
        if self.transport is None:
            raise _ClosedError(_ENDED, begun=False)
        loop = asyncio.get_running_loop()
        self._headers, self._chunks = [], []
        self._begun = self._headed = self._whole = False
        self._answer = loop.create_future()
        self.transport.write(request)
        timer = loop.call_later(timeout_s, self._fail, TimeoutError())
        try:
            return await self._answer
        finally:
            timer.cancel()
            self._answer = None
            if not self._whole:
                self.abort()

    def abort(self) -> None:
        """Close at once: a farewell of TLS would keep the socket until the server answers that."""
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are not of that class.
        self.transport = cast("asyncio.Transport", transport)
        keep_alive(transport.get_extra_info("socket"))

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        if error is None and self._headed and not self._measured():
            self._succeed()
        else:
            self._fail(_ClosedError(_ENDED_WITHIN if self._begun else _ENDED, begun=self._begun))

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._begun = True
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._whole = False
            self._fail(OSError(f"the answer is no HTTP: {error!r}"))
        if self._answer is None:
            # Nothing was asked.
            self.abort()

    # The parser's callbacks.

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            # Another answer: none that was asked for.
            self._whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._headed = self._parser.get_status_code() >= 200
        if not self._headed:
            # An interim answer.
            self._headers = []

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        if self._headed and self._answer is not None and not self._answer.done():
            self._whole = self._parser.should_keep_alive()
            self._succeed()

    def _succeed(self) -> None:
        if self._answer is not None and not self._answer.done():
            status = self._parser.get_status_code()
            retry_after = "" if status < 300 else self._header(b"retry-after")
            self._answer.set_result(ServerAnswer(status, retry_after, b"".join(self._chunks)))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _measured(self) -> bool:
        """True if the headers say where the body ends; otherwise it ends with the connection."""
        return bool(self._header(b"content-length") or self._header(b"transfer-encoding"))

    def _header(self, wanted: bytes) -> str:
        return next((value.decode("latin-1") for name, value in self._headers if name.lower() == wanted), "")


class KeptConnections:
    """KeptConnections to one address with one set of credentials; unused ones are kept for a while."""

    def __init__(self, access: Access, *, most: int, user_agent: str, timeout_s: float) -> None:
        """Args:
        access: without a proxy.
        most: of them at the same time; further requests wait.
        timeout_s: how long an answer may take, and how long a request may wait for a connection.
        """
        self._access = access
        self._timeout_s = timeout_s
        self._url = urlsplit(access.base_url)
        self._buffer = memoryview(bytearray(_BUFFER))
        self._free: list[_Connection] = []
        self._slots = asyncio.Semaphore(most)
        self._sweeping: asyncio.TimerHandle | None = None
        host = self._url.netloc.rpartition("@")[2]
        self._always = f"Host: {host}\r\nUser-Agent: {user_agent}\r\n"
        # Compressing costs both sides more than a cluster's network does.
        self._always += "Accept-Encoding: identity\r\n"
        self._head, self._head_until_s = b"", 0.0
        self._closed = False

    async def ask(
        self, method: str, target: str, *, body: bytes | None, content_type: str, accept: str
    ) -> ServerAnswer:
        """Return the answer to a request. Raises OSError, TimeoutError: there is none.

        Args:
            target: path and query, encoded.
        """
        loop = asyncio.get_running_loop()
        if loop.time() > self._head_until_s:
            self._head = await self._headers()
            self._head_until_s = loop.time() + _CREDENTIALS_S
        request = self._request(method, target, body, content_type, accept)
        if self._slots.locked():
            async with asyncio.timeout(self._timeout_s):
                await self._slots.acquire()
        else:
            await self._slots.acquire()
        try:
            kept = self._take()
            if kept is not None:
                try:
                    return await self._converse(kept, request)
                except _ClosedError as error:
                    if error.begun or method not in _SENT_AGAIN:
                        raise
            return await self._converse(await self._connect(), request)
        finally:
            self._slots.release()

    def close(self) -> list[_Connection]:
        """Close the connections that are not in use and return these; those that are end with their request."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        closed, self._free = self._free, []
        for one in closed:
            one.abort()
        return closed

    async def end(self) -> None:
        """Close, and wait until the event loop has let go of the sockets: it may end then."""
        closed = self.close()
        while any(one.transport is not None for one in closed):  # noqa: ASYNC110  # a few turns of the loop
            await asyncio.sleep(0)

    async def _headers(self) -> bytes:
        headers = await self._access.headers()
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if lines.count("\n") != len(headers):
            raise OSError("a header has a line break in it")
        return (self._always + lines).encode("latin-1")

    def _request(self, method: str, target: str, body: bytes | None, content_type: str, accept: str) -> bytes:
        line = f"{method} {self._url.path}{target} HTTP/1.1\r\nAccept: {accept}\r\n".encode("ascii")
        if body is None:
            return b"%b%b\r\n" % (line, self._head)
        about = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode("ascii")
        return b"".join((line, self._head, about, body))

    def _take(self) -> _Connection | None:
        """Take the connection that was used last, if that is not long ago."""
        while self._free:
            connection = self._free.pop()
            if connection.usable and asyncio.get_running_loop().time() - connection.since_s < _IDLE_S:
                return connection
            connection.abort()
        return None

    async def _converse(self, connection: _Connection, request: bytes) -> ServerAnswer:
        answer = await connection.ask(request, timeout_s=self._timeout_s)
        if self._closed:
            connection.abort()
        elif connection.usable:
            loop = asyncio.get_running_loop()
            connection.since_s = loop.time()
            self._free.append(connection)
            if self._sweeping is None:
                self._sweeping = loop.call_later(_IDLE_S, self._sweep)
        return answer

    async def _connect(self) -> _Connection:
        """Connect to the first of the server's addresses that answers."""
        tls: Any = None
        if self._url.scheme == "https":
            tls = self._access.tls if self._access.tls is not None else True
        host, loop = self._url.hostname or "", asyncio.get_running_loop()
        name = (self._access.server_hostname or host) if tls else None
        port = self._url.port or (443 if tls else 80)
        failed: OSError | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise OSError(0, f"cannot connect to {host}:{port}: {_why(error)}") from error
        for *_, address in found:
            try:
                async with asyncio.timeout(CONNECT_S / len(found)):
                    _, connection = await loop.create_connection(
                        lambda: _Connection(self._buffer), *address[:2], ssl=tls, server_hostname=name
                    )
                return connection
            except ssl.SSLCertVerificationError as error:
                raise OSError(0, f"{host}:{port} does not prove who it is: {error}") from error
            except OSError as error:
                failed = error
        raise OSError(0, f"cannot connect to {host}:{port}: {_why(failed)}") from failed

    def _sweep(self) -> None:
        """Close what was not used for long."""
        long_ago_s = asyncio.get_running_loop().time() - _IDLE_S
        used = [one for one in self._free if one.usable and one.since_s > long_ago_s]
        for one in self._free:
            if one not in used:
                one.abort()
        self._free = used
        self._sweeping = asyncio.get_running_loop().call_later(_IDLE_S, self._sweep) if used else None


def _why(error: OSError | None) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    number = 0 if error is None or isinstance(error, ssl.SSLError) else error.errno or 0
    return os.strerror(number) if number > 0 else (error and error.strerror) or str(error) or type(error).__name__


def keep_alive(connected: socket.socket) -> None:
    """Have a dead peer noticed."""
    with suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
