"""A lean HTTP client for writes: some four a pod, and a thousand heartbeats besides.

A request costs a tenth of what it costs in `kaicore.k8s.client`, which is made for reading: at 200 pods a second that
is the difference between a fiftieth and a fifth of a core. HTTP/1.1 on connections that are kept, parsed by
httptools; credentials, TLS and errors are those of `kaicore.k8s`. It knows no proxies: with one, `KubeClient` writes.
"""

import asyncio
from typing import Final, Literal, Self, cast
from urllib.parse import urlsplit

import httptools
import msgspec
from kaicore.errors import ClusterUnavailable
from kaicore.k8s.access import Access, AccessSource
from kaicore.k8s.client import KubeClient, error_of

Method = Literal["POST", "PATCH", "DELETE"]

_TIMEOUT_S: Final = 30.0
_CONNECT_S: Final = 5.0
_UNAUTHORIZED: Final = 401


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self.open = True
        self.status = 0
        self.retry_after = ""
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not say that they are one.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self._fail(ConnectionError("the server answered nothing that was asked"))
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)

    def eof_received(self) -> None:
        self._fail(ConnectionResetError("the server closed the connection"))

    # Called by the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self.retry_after = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        parser, answer = self._parser, self._answer
        assert parser is not None
        self.status = parser.get_status_code()
        self._parser = self._answer = None
        if not parser.should_keep_alive():
            self.close()
        if answer is not None and not answer.done():
            answer.set_result(b"".join(self._body))

    async def request(self, data: bytes) -> bytes:
        """Send a request and return the answer's body; raises OSError when there is none."""
        loop = asyncio.get_running_loop()
        if self._transport is None or not self.open:
            raise ConnectionResetError("the connection is closed")
        self._parser = httptools.HttpResponseParser(self)
        answer: asyncio.Future[bytes] = loop.create_future()
        self._answer = answer
        self._body, self.retry_after = [], ""
        limit = loop.call_later(_TIMEOUT_S, self._fail, TimeoutError(f"no answer in {_TIMEOUT_S:.0f} s"))
        self._transport.write(data)
        try:
            return await answer
        except BaseException:
            self.close()
            raise
        finally:
            limit.cancel()

    def close(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.close()

    def _fail(self, error: Exception) -> None:
        self.close()
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(error)


class WriteClient:
    """Writes to one API server; as many connections as there are writes at a time."""

    def __init__(self, source: AccessSource, fallback: KubeClient) -> None:
        """Make a client; `fallback` writes where there is a proxy in between."""
        self._source = source
        self._fallback = fallback
        self._access: Access | None = None
        self._host, self._port, self._prefix = "", 0, ""
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._all:
            connection.close()
        # Transports close when the loop comes round.
        await asyncio.sleep(0)

    async def send(self, method: Method, path: str, body: bytes, *, content_type: str) -> bytes:
        """Send one write and return the body of the answer.

        Raises:
            ApiStatus: the server refused.
            ClusterUnavailable: the server does not answer, or says that it cannot at the moment.
        """
        access = self._access or await self._renew()
        if access.proxy:
            return await self._through_proxy(method, path, body, content_type)
        for attempt in (1, 2):
            try:
                connection = await self._connection(access)
                answer = await connection.request(await self._request(access, method, path, body, content_type))
            except (OSError, httptools.HttpParserError) as error:
                raise ClusterUnavailable(f"{method} {path}: {type(error).__name__}: {error}".rstrip(": ")) from error
            if connection.open:
                self._idle.append(connection)
            else:
                self._all.discard(connection)
            if connection.status < 300:
                return answer
            if connection.status == _UNAUTHORIZED and attempt == 1:
                access = await self._renew()
                continue
            raise error_of(method, path, connection.status, connection.retry_after, answer)
        raise AssertionError("unreachable")

    async def _renew(self) -> Access:
        self._access = access = await self._source()
        parts = urlsplit(access.base_url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        return access

    async def _connection(self, access: Access) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
            self._all.discard(connection)
        async with asyncio.timeout(_CONNECT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection,
                self._host,
                self._port,
                ssl=access.tls,
                server_hostname=(access.server_hostname or self._host) if access.tls is not None else None,
            )
        self._all.add(connection)
        return connection

    async def _request(self, access: Access, method: Method, path: str, body: bytes, content_type: str) -> bytes:
        headers = await access.headers()
        lines = [
            f"{method} {self._prefix}{path} HTTP/1.1",
            f"Host: {self._host}:{self._port}",
            "User-Agent: kai-fleet",
            "Accept: application/json",
            f"Content-Type: {content_type}",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    async def _through_proxy(self, method: Method, path: str, body: bytes, content_type: str) -> bytes:
        raw = msgspec.Raw(body)
        match method:
            case "POST":
                return await self._fallback.post(path, raw)
            case "PATCH":
                return await self._fallback.patch(path, raw, content_type=content_type)
            case "DELETE":
                return await self._fallback.delete(path, raw)
