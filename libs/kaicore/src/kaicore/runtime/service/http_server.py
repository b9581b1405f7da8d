"""Runs an ASGI application on uvicorn, inside a service that has its own signals and logs."""

import asyncio
import errno
import resource
import socket
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from email.utils import formatdate
from functools import partial
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

import uvicorn

from kaicore.errors import ConfigurationError
from kaicore.runtime.service.http_limits import HttpLimits, LimitedProtocol, Waiting

#: Seconds that requests under way have when the server stops.
_STOP_S = 5.0
#: Seconds that those have that are cancelled then.
_CANCEL_S = 1.0

#: Files that are left to everything but HTTP connections.
_OTHER_FILES = 256

#: Seconds between two looks for clients that are late: a fifth of what a header may take, within these bounds.
_LEAST_TICK_S, _MOST_TICK_S = 0.5, 2.0
#: Seconds between two looks whether the last request has ended.
_END_TICK_S = 0.01


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, limits: HttpLimits, stop_s: float) -> None:
        super().__init__(config)
        self._limits = limits
        self._stop_s = stop_s
        self._stopping = asyncio.Event()
        # Set when it stops, and with each connection that begins.
        self._woken = asyncio.Event()

    def stop(self) -> None:
        """Stop at once, not at the next tick."""
        self.should_exit = True
        self._stopping.set()
        self._woken.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # They are the service's.
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        protocol = partial(
            LimitedProtocol,
            limits=self._limits,
            waiting=Waiting(),
            begun=self._begun,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        handshake_s = self._limits.header_s if self.config.ssl is not None else None
        self.servers = [
            await loop.create_server(
                protocol,
                sock=listening,
                ssl=self.config.ssl,
                ssl_handshake_timeout=handshake_s,
                backlog=self.config.backlog,
            )
            for listening in sockets or []
        ]
        self.started = True

    def _begun(self) -> None:
        """Take note of a connection that begins."""
        if not self._woken.is_set():
            self._woken.set()
            # The date of answers is that of the last tick, which may be long ago.
            date = formatdate(usegmt=True).encode()
            self.server_state.default_headers = [(b"date", date), *self.config.encoded_headers]

    async def main_loop(self) -> None:
        # uvicorn's own wakes ten times a second. It has its answers' date made anew with a counter of 0.
        tick_s = min(max(_LEAST_TICK_S, self._limits.header_s / 5), _MOST_TICK_S)
        while not await self.on_tick(0):
            if not self.server_state.connections:
                # Nobody is late.
                self._woken.clear()
                await self._woken.wait()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(tick_s):
                    await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn's own takes 0.1 s at least, does not wait for what it cancels, and leaves connections open.
        for server in self.servers:
            server.close()
        for listening in sockets or []:
            listening.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._stop_s):
                while state.connections or state.tasks:  # noqa: ASYNC110  # uvicorn has no event for it
                    await asyncio.sleep(_END_TICK_S)
        for task in state.tasks:
            task.cancel()
        if state.tasks:
            await asyncio.wait(set(state.tasks), timeout=_CANCEL_S)
        for connection in list(state.connections):
            connection.transport.abort()

    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            if isinstance(connection, LimitedProtocol):
                connection.check_deadline(now)
        return await super().on_tick(counter)


class HttpServer:
    """An ASGI application on one address."""

    def __init__(
        self,
        app: Any,
        *,
        host: str,
        port: int,
        fd: int | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        limits: HttpLimits | None = None,
        trusted_proxies: Iterable[IPv4Network | IPv6Network] = (),
        stop_s: float = _STOP_S,
    ) -> None:
        """Begin to listen, so that connections wait until `run`.

        Raises ConfigurationError: the address cannot be listened on, or the certificate cannot be used.

        Args:
            fd: descriptor of a socket that listens already, instead of these two.
            cert_file: certificate and what it is signed with, for HTTPS; None for HTTP.
            key_file: the certificate's key; None if it is in the same file.
            limits: what a client may cost; fewer connections where the process may not open as many files.
            trusted_proxies: addresses of proxies with believed `X-Forwarded-For` and `X-Forwarded-Proto`; nobody's
                by default, not even this machine's own.
            stop_s: seconds that requests under way have when the server stops.
        """
        self._socket = listening_socket(host, port, fd)
        # Connections inherit it. asyncio sets it by itself only on sockets with a named protocol, which those of
        # `socket.create_server` are not; without it a kept connection's answers wait for the client's delayed ACK.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limits = _within_open_files(limits or HttpLimits())
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Connections inherit it: a client that does not read what it is sent is given up by the kernel.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limits.send_s * 1000))
        proxies = [str(network) for network in trusted_proxies]
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=proxies,
            timeout_keep_alive=120,
            ssl_certfile=cert_file,
            ssl_keyfile=key_file,
        )
        try:
            config.load()
        except OSError as error:
            self._socket.close()
            raise ConfigurationError(f"tls_cert_file {cert_file}, tls_key_file {key_file}: {error}") from error
        self._server = _Server(config, limits, stop_s)
        self._config, self._cert_file, self._key_file = config, cert_file, key_file

    @property
    def address(self) -> str:
        """`host:port` as it is listened on."""
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def reload_certificate(self) -> None:
        """Take the certificate and its key as their files are now, for connections from now on.

        Raises ConfigurationError: they cannot be used; the ones before are kept.
        """
        assert self._config.ssl is not None
        assert self._cert_file is not None
        try:
            self._config.ssl.load_cert_chain(self._cert_file, self._key_file)
        except OSError as error:
            raise ConfigurationError(f"certificate {self._cert_file}, key {self._key_file}: {error}") from error

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until `stopping` is set, and end when the requests under way have ended."""
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        stop = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            self._server.stop()
            await serving

    async def run_beside(self, stopping: asyncio.Event, body: Coroutine[Any, Any, None]) -> None:
        """Serve until `stopping` is set or `body` ends; requests under way are answered, then `body` is cancelled.

        Raises whatever `body` raised.
        """
        serving = asyncio.ensure_future(self.run(stopping))
        working = asyncio.ensure_future(body)
        try:
            await asyncio.wait({serving, working}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            await serving
        finally:
            working.cancel()
            stopping.set()
            await asyncio.wait({serving, working})


def listening_socket(host: str, port: int, fd: int | None) -> socket.socket:
    """Return a socket that listens on an address, or the one behind a descriptor that a supervisor has given us.

    Raises ConfigurationError: the address cannot be listened on, or the descriptor is no socket that listens.
    """
    if fd is not None:
        try:
            listening = socket.socket(fileno=fd)
            if not listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                raise OSError(errno.EINVAL, "does not listen")
        except OSError as error:
            raise ConfigurationError(f"http_fd {fd}: no socket that listens: {error}") from error
        # Whatever we start ourselves is not to keep it.
        listening.set_inheritable(False)
        return listening
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
        )
    except (OSError, OverflowError) as error:
        raise ConfigurationError(f"http_host, http_port: cannot listen on {host}:{port}: {error}") from error


def _within_open_files(limits: HttpLimits) -> HttpLimits:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits
    return replace(limits, connections=max(1, min(limits.connections, files - _OTHER_FILES)))
