"""An HTTP/1.1 client for few requests to few servers, on connections that are kept. h11 implements the protocol."""

import asyncio
import ssl
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

import h11

#: Bytes of an answer at most.
_MOST_ANSWER = 64 * 1024 * 1024
_CHUNK = 65_536


class HttpFailure(Exception):  # callers turn it into their own error
    """There was no answer; says why."""


class HttpAnswer(NamedTuple):
    """Status, headers in lower case, and body."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True, eq=False)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    protocol: h11.Connection


class HttpClient:
    """Sends one request after the other to a server; follows no redirects and reads no proxies from the environment."""

    def __init__(self, *, verify: ssl.SSLContext | None = None, timeout_s: float) -> None:
        """Args:
        verify: certificates to trust for https; None: the system's.
        timeout_s: how long an answer may take, seconds.
        """
        self._verify, self._timeout_s = verify, timeout_s
        self._kept: dict[tuple[str, str, int], _Connection] = {}

    async def request(self, method: str, url: str, *, headers: dict[str, str], body: bytes = b"") -> HttpAnswer:
        """Return the answer to a request.

        A kept connection that the server has closed meanwhile is opened anew, once, before anything was answered.
        Raises HttpFailure: there was none, in time.
        """
        parts = urlsplit(url)
        target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        where = (parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        every = [("Host", parts.netloc), ("Content-Length", str(len(body))), *headers.items()]
        request = h11.Request(method=method, target=target, headers=every)
        try:
            async with asyncio.timeout(self._timeout_s):
                kept = self._kept.pop(where, None)
                if kept is not None:
                    try:
                        return await self._converse(where, kept, request, body)
                    except (OSError, h11.ProtocolError, EOFError):
                        pass
                return await self._converse(where, await self._open(where), request, body)
        except TimeoutError as error:
            raise HttpFailure(f"no answer in {self._timeout_s:g} s") from error
        except (OSError, h11.ProtocolError, EOFError) as error:
            raise HttpFailure(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._kept.values():
            connection.writer.close()
        self._kept.clear()

    async def _open(self, where: tuple[str, str, int]) -> _Connection:
        scheme, host, port = where
        context = None
        if scheme == "https":
            self._verify = context = self._verify or ssl.create_default_context()
        reader, writer = await asyncio.open_connection(host, port, ssl=context, limit=_CHUNK)
        return _Connection(reader, writer, h11.Connection(h11.CLIENT))

    async def _converse(
        self, where: tuple[str, str, int], connection: _Connection, request: h11.Request, body: bytes
    ) -> HttpAnswer:
        keep = False
        try:
            protocol, writer = connection.protocol, connection.writer
            for part in (request, h11.Data(data=body), h11.EndOfMessage()):
                writer.write(protocol.send(part) or b"")
            await writer.drain()
            answer = await self._answer(connection)
            protocol.start_next_cycle() if protocol.our_state is h11.DONE and protocol.their_state is h11.DONE else None
            keep = protocol.our_state is h11.IDLE
            return answer
        finally:
            if keep:
                self._kept[where] = connection
            else:
                connection.writer.close()

    async def _answer(self, connection: _Connection) -> HttpAnswer:
        status, headers, body = 0, dict[str, str](), bytearray()
        while True:
            event = connection.protocol.next_event()
            if event is h11.NEED_DATA:
                connection.protocol.receive_data(await connection.reader.read(_CHUNK))
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > _MOST_ANSWER:
                    raise OSError(f"an answer of more than {_MOST_ANSWER} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return HttpAnswer(status, headers, bytes(body))
            elif isinstance(event, h11.ConnectionClosed):
                raise EOFError("the connection was closed without an answer")
