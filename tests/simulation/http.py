"""HTTP without sockets: requests that an application answers in the server's process, and streams."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import aiohttp
from kaicore.runtime.service.health import Asgi

from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.network import Network, Server

#: Seconds after which a connection that is silent because the network is cut in two is given up (`_KEEPALIVE`).
_KEEPALIVE_S = 25.0


def scope_of(  # noqa: PLR0917  # as a request has them
    method: str,
    path: str,
    params: Mapping[str, str] | None = None,
    content_type: str = "",
    agent: str = "simulation",
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> dict[str, Any]:
    """A request for a server, as ASGI has it."""
    raw, _, query = path.partition("?")
    more = "&".join(f"{name}={value}" for name, value in (params or {}).items())
    given = [
        *headers,
        (b"accept", b"application/json"),
        (b"user-agent", agent.encode()),
    ]
    if content_type:
        given.append((b"content-type", content_type.encode()))
    return {
        "type": "http",
        "method": method,
        "path": raw,
        "raw_path": raw.encode(),
        "query_string": "&".join(part for part in (query, more) if part).encode(),
        "headers": given,
    }


class Response:
    """An answer, as far as `KubeClient` looks at it."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


class Stream:
    """A watch's answer: pieces that arrive in order, and at last an end."""

    def __init__(
        self, loop: SimulatedLoop, process: Process, network: Network, server: Server, silent_s: float
    ) -> None:
        self._loop, self._process, self._server = loop, process, server
        self._link = network.link(process.role, server.name)
        self._silent_s = silent_s
        self._pieces: deque[bytes | Exception | None] = deque()
        self._grown = asyncio.Event()
        self._last_at = 0.0
        #: Whether somebody answers: a request that comes twice is answered on one connection.
        self.served = False
        self._gone: asyncio.Future[None] = loop.create_future()
        self.opened: asyncio.Future[tuple[int, bytes]] = loop.create_future()
        self._body = b""
        server.on_break.append(self.cut)

    @property
    def content(self) -> "Stream":
        return self

    async def readany(self) -> bytes:
        while not self._pieces:
            self._grown.clear()
            silent_s = self._silent_s if self._link.whole else _KEEPALIVE_S
            try:
                async with asyncio.timeout(silent_s):
                    await self._grown.wait()
            except TimeoutError:
                if silent_s == self._silent_s or not self._link.whole:
                    raise aiohttp.ServerTimeoutError("silent for too long") from None
        piece = self._pieces[0]
        if piece is None:
            return b""
        if isinstance(piece, Exception):
            raise piece
        self._pieces.popleft()
        return piece

    def release(self) -> None:
        """See `close`."""

    def close(self) -> None:
        """The client goes; the server hears of it a little later."""
        if self.cut in self._server.on_break:
            self._server.on_break.remove(self.cut)
        self._loop.call_later(self._link.delay(), self._leave, context=self._server.process.context)

    def _leave(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)

    def cut(self) -> None:
        """Break the connection, from the server's side."""
        self._leave()
        self._deliver(aiohttp.ClientOSError("connection reset"))

    def _deliver(self, piece: bytes | Exception | None) -> None:
        self._last_at = max(self._loop.time() + self._link.delay(), self._last_at + 1e-6)
        self._loop.call_at(self._last_at, self._arrive, piece, context=self._process.context)

    def _arrive(self, piece: bytes | Exception | None) -> None:
        self._pieces.append(piece)
        self._grown.set()

    async def receive(self) -> dict[str, Any]:
        """ASGI: the request has no body; then the client goes."""
        await self._gone
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            if self._status < 300 and not self.opened.done():
                self.opened.set_result((self._status, b""))
        elif self._status >= 300:
            self._body += message["body"]
            if not message.get("more_body"):
                self.opened.set_result((self._status, self._body))
                self._leave()
        else:
            if message["body"]:
                self._deliver(message["body"])
            if not message.get("more_body"):
                self._deliver(None)
                self._leave()


async def answered(app: Asgi, scope: dict[str, Any], data: bytes) -> Response:
    """Have an application answer a request that is no stream."""
    answer = SimpleNamespace(status=500, headers={}, body=b"")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message.get("body", b"")

    await app(scope, receive, send)
    return Response(answer.status, answer.headers, answer.body)


class NoAnswer(ConnectionError):
    """A request was not answered; it may have been carried out."""


#: Takes note of a request, and returns what looks at its answer.
Asked = Callable[[dict[str, Any], bytes], Callable[[Response], None]]


class AppServer(Server):
    """A service that answers HTTP: whichever process of it was started last has the address."""

    def __init__(self, name: str, process: Process) -> None:
        super().__init__(name, process)
        self.up = False
        self._app: Asgi | None = None
        self._asked: Asked = lambda scope, data: lambda response: None

    def begin(self, process: Process, app: Asgi, asked: Asked | None = None) -> None:
        """Have a process answer from now on; `asked` takes note of a request, and returns what looks at its answer."""
        self.break_connections()
        self.process, self._app, self.up = process, app, True
        if asked is not None:
            self._asked = asked
        process.on_death = self.break_connections

    async def answer(self, scope: dict[str, Any], data: bytes) -> Response:
        """Answer a request; in the server's process."""
        assert self._app is not None
        look = self._asked(scope, data)
        response = await answered(self._app, scope, data)
        look(response)
        return response

    async def serve(self, scope: dict[str, Any], stream: Stream) -> tuple[int, bytes]:
        """Begin to answer with a stream; in the server's process."""
        assert self._app is not None
        if not stream.served:
            stream.served = True
            self.process.start(self._app(scope, stream.receive, stream.send))
        return await stream.opened


class HttpClient:
    """A process's client of a service."""

    def __init__(self, loop: SimulatedLoop, process: Process, network: Network, server: AppServer) -> None:
        self._loop, self._process, self._network, self._server = loop, process, network, server

    async def ask(self, method: str, path: str, data: bytes = b"", *, patience_s: float = 10.0) -> Response:
        """Send a request and return the answer.

        Raises:
            NoAnswer: there was none.
        """
        scope = scope_of(method, path, content_type="application/json" if data else "")
        return await self._network.ask(
            self._process,
            self._server,
            f"{method} {path}",
            lambda: self._server.answer(dict(scope), data),
            error=NoAnswer,
            patience_s=patience_s,
            waits=True,
        )

    async def open(self, path: str, *, headers: Sequence[tuple[bytes, bytes]] = (), silent_s: float = 20.0) -> Stream:
        """Open a stream.

        Raises:
            NoAnswer: it was not opened.
        """
        stream = Stream(self._loop, self._process, self._network, self._server, silent_s)
        scope = scope_of("GET", path, headers=headers)
        try:
            status, body = await self._network.ask(
                self._process,
                self._server,
                f"STREAM {path}",
                lambda: self._server.serve(dict(scope), stream),
                error=NoAnswer,
                patience_s=10.0,
                waits=True,
            )
        except BaseException:
            stream.close()
            raise
        if status >= 300:
            stream.close()
            raise NoAnswer(f"{status}: {body.decode()}")
        return stream
