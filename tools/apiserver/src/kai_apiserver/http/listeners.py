"""The two listeners: plain HTTP for our own services, HTTPS for `kubectl`, which sends tokens over nothing else."""

import asyncio
import ssl
from dataclasses import dataclass

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.web_log import AccessLogger
from kaicore.runtime.service.http_server import listening_socket

from kai_apiserver.http.handler import Handler
from kai_apiserver.http.request_path import MAX_BODY_BYTES

_SHUTDOWN_S = 1.0


@dataclass(slots=True)
class Listeners:
    """What is listening.

    Attributes:
        http_url: base URL of the plain listener, for clients.
        https_url: base URL of the TLS listener, for clients; empty without one.
    """

    http_url: str
    https_url: str
    _runner: web.ServerRunner

    @classmethod
    async def start(
        cls,
        handler: Handler,
        *,
        host: str,
        advertise_host: str,
        http_port: int,
        http_fd: int | None,
        https_port: int | None,
        tls: ssl.SSLContext | None,
    ) -> "Listeners":
        """Begin to listen at `host`, for clients that know it as `advertise_host`; port 0 takes a free one."""
        server = web.Server(
            handler.handle,
            request_factory=_request,
            access_log=None,
            access_log_class=AccessLogger,
            keepalive_timeout=120,
        )
        runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        shown = f"[{advertise_host}]" if ":" in advertise_host else advertise_host
        http_url = f"http://{shown}:{await _listen(runner, host, http_port, fd=http_fd)}"
        https_url = ""
        if tls is not None and https_port is not None:
            https_url = f"https://{shown}:{await _listen(runner, host, https_port, tls=tls)}"
        return cls(http_url, https_url, runner)

    async def stop(self) -> None:
        """Stop listening, and end what is going on."""
        await self._runner.cleanup()


async def _listen(
    runner: web.ServerRunner, host: str, port: int, *, fd: int | None = None, tls: ssl.SSLContext | None = None
) -> int:
    """Listen; return the port."""
    site: web.BaseSite = (
        web.TCPSite(runner, host, port, ssl_context=tls, backlog=4096)
        if fd is None
        else web.SockSite(runner, listening_socket(host, port, fd), backlog=4096)
    )
    await site.start()
    return int(runner.addresses[-1][1])


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES)
