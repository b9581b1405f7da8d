"""Health and metrics of an agent over HTTP: `/healthz`, `/readyz` and `/metrics`, as services answer them."""

import asyncio
import socket
from contextlib import suppress

import h11

from kaicore.errors import ConfigurationError
from kaicore.runtime.agent.metrics import CONTENT_TYPE, Registry
from kaicore.runtime.process_context import Health

#: Connections at once, seconds that one may be idle, and bytes of a request.
_MOST, _IDLE_S, _REQUEST = 32, 30.0, 16 * 1024

_TEXT = "text/plain; charset=utf-8"


class HealthServer:
    """Answers probes and scrapes; one more than `_MOST` connections is closed at once."""

    def __init__(self, health: Health, registry: Registry) -> None:
        """Args:
        health: is answered at `/readyz`.
        registry: is answered at `/metrics`.
        """
        self._health, self._registry = health, registry
        self._connections = 0
        self._server: asyncio.Server | None = None

    async def start(self, *, host: str, port: int, fd: int | None = None) -> str:
        """Listen; return the address.

        Raises:
            ConfigurationError: it cannot listen there.
        """
        try:
            listening = (
                socket.socket(fileno=fd) if fd is not None else socket.create_server((host, port), reuse_port=False)
            )
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"http_host, http_port: cannot listen on {host}:{port}: {error}") from error
        self._server = await asyncio.start_server(self._serve, sock=listening, limit=_REQUEST)
        address, number = listening.getsockname()[:2]
        return f"http://{f'[{address}]' if ':' in address else address}:{number}"

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= _MOST:
                with suppress(TimeoutError, OSError, h11.RemoteProtocolError):
                    await self._converse(reader, writer)
        finally:
            self._connections -= 1
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_REQUEST)
        request: h11.Request | None = None
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                async with asyncio.timeout(_IDLE_S):
                    connection.receive_data(await reader.read(_REQUEST))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                for part in self._answer(request):
                    writer.write(connection.send(part) or b"")
                await writer.drain()
                if connection.our_state is h11.MUST_CLOSE:
                    return
                connection.start_next_cycle()
            elif isinstance(event, h11.ConnectionClosed):
                return

    def _answer(self, request: h11.Request) -> tuple[h11.Response, h11.Data, h11.EndOfMessage]:
        path = request.target.decode("ascii", "replace").partition("?")[0]
        status, body, kind = self._page(path)
        if status == 200 and request.method not in (b"GET", b"HEAD"):
            status, body, kind = 405, '{"error": "only GET"}\n', "application/json"
        content = body.encode()
        headers = [("Content-Type", kind), ("Content-Length", str(len(content)))]
        shown = b"" if request.method == b"HEAD" else content
        return h11.Response(status_code=status, headers=headers), h11.Data(data=shown), h11.EndOfMessage()

    def _page(self, path: str) -> tuple[int, str, str]:
        match path:
            case "/healthz":
                return 200, "ok\n", _TEXT
            case "/readyz":
                return (200 if self._health.ready else 503), self._health.report(), _TEXT
            case "/metrics":
                return 200, self._registry.text(), CONTENT_TYPE
            case _:
                return 404, '{"error": "nothing is at this path"}\n', "application/json"
