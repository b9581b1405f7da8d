"""Runs an ASGI application on uvicorn, inside a service that has its own signals and logs."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from kaicore.errors import ConfigurationError

#: Seconds that requests under way have when the server stops.
_STOP_S = 5


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # They are the service's.
        yield


class HttpServer:
    """An ASGI application on one address."""

    def __init__(
        self, app: Any, *, host: str, port: int, cert_file: Path | None = None, key_file: Path | None = None
    ) -> None:
        """Begin to listen, so that connections wait until `run`.

        Args:
            app: the application.
            host: address to listen on.
            port: port, 0 for any.
            cert_file: certificate and what it is signed with, for HTTPS; None for HTTP.
            key_file: the certificate's key; None if it is in the same file.

        Raises:
            ConfigurationError: the address cannot be listened on, or the certificate cannot be used.
        """
        try:
            self._socket = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
            )
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"http_host, http_port: cannot listen on {host}:{port}: {error}") from error
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=120,
            timeout_graceful_shutdown=_STOP_S,
            ssl_certfile=cert_file,
            ssl_keyfile=key_file,
        )
        try:
            config.load()
        except OSError as error:
            self._socket.close()
            raise ConfigurationError(f"tls_cert_file {cert_file}, tls_key_file {key_file}: {error}") from error
        self._server = _Server(config)

    @property
    def address(self) -> str:
        """`host:port` as it is listened on."""
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until `stopping` is set, and end when the requests under way have ended."""
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        stop = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            self._server.should_exit = True
            await serving
