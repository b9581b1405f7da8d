"""The two listeners: plain HTTP for our own services, HTTPS for `kubectl`, which sends tokens over nothing else."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from kaicore.runtime.service.http_limits import HttpLimits
from kaicore.runtime.service.http_server import HttpServer

from kai_apiserver.http.handler import Handler
from kai_apiserver.http.request_path import MAX_BODY_BYTES

_SHUTDOWN_S = 1.0

#: A body beyond the real server's limit is read to its end, so that the client reads the Status that refuses it. Any
#: name of an object may come in a path. The times are long, as a test may hold up the server and its clients.
_LIMITS = HttpLimits(
    header_bytes=64 * 1024,
    body_bytes=16 * MAX_BODY_BYTES,
    header_s=60.0,
    body_s=120.0,
    send_s=300.0,
    any_target=True,
)


@dataclass(slots=True)
class Listeners:
    """What is listening.

    Attributes:
        http_url: base URL of the plain listener, for clients.
        https_url: base URL of the TLS listener, for clients; empty without one.
    """

    http_url: str
    https_url: str
    _serving: list["asyncio.Task[None]"] = field(default_factory=list)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def start(
        cls,
        handler: Handler,
        *,
        host: str,
        advertise_host: str,
        http_port: int,
        http_fd: int | None,
        https_port: int | None,
        certificate: tuple[Path, Path] | None,
    ) -> "Listeners":
        """Begin to listen at `host`, for clients that know it as `advertise_host`; port 0 takes a free one.

        Args:
            handler: what answers.
            host: address of both.
            advertise_host: how clients name it.
            http_port: of the plain listener.
            http_fd: descriptor of a socket that is the plain listener, instead of host and port.
            https_port: of the TLS listener; None: there is none.
            certificate: file of its certificate and file of the key.

        Raises:
            ConfigurationError: an address cannot be listened on.
        """
        servers = [HttpServer(handler, host=host, port=http_port, fd=http_fd, limits=_LIMITS, stop_s=_SHUTDOWN_S)]
        if certificate is not None and https_port is not None:
            cert_file, key_file = certificate
            servers.append(
                HttpServer(
                    handler,
                    host=host,
                    port=https_port,
                    cert_file=cert_file,
                    key_file=key_file,
                    limits=_LIMITS,
                    stop_s=_SHUTDOWN_S,
                )
            )
        shown = f"[{advertise_host}]" if ":" in advertise_host else advertise_host
        ports = [server.address.rpartition(":")[2] for server in servers]
        listeners = cls(f"http://{shown}:{ports[0]}", f"https://{shown}:{ports[1]}" if len(ports) > 1 else "")
        listeners._serving += [asyncio.create_task(server.run(listeners._stopping)) for server in servers]
        return listeners

    async def stop(self) -> None:
        """Stop listening, and end what is going on."""
        self._stopping.set()
        await asyncio.gather(*self._serving)
