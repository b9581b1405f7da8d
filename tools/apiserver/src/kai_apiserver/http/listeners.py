"""The two listeners: plain HTTP for our own services, HTTPS for `kubectl`, which sends tokens over nothing else.

Kubeconfigs for those who may do everything.

A certificate authority of the server's own, and a certificate from it, made once per data directory and name.
"""

import asyncio
import base64
import ipaddress
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from kaicore.runtime.access.certificates import make_server_certificate
from kaicore.runtime.service.http_limits import HttpLimits
from kaicore.runtime.service.http_server import HttpServer

from kai_apiserver.http.handler import Handler
from kai_apiserver.http.request import MAX_BODY_BYTES

_LIFE = timedelta(days=3650)
_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_ADDRESSES = ("127.0.0.1", "::1")


def certificate_files(directory: Path, host: str) -> tuple[Path, Path, Path]:
    """Paths of the CA's certificate, the server's and its key; made if they are not there, or not for that host."""
    authority, certificate, key = (directory / name for name in ("ca.crt", "server.crt", "server.key"))
    if not (authority.exists() and certificate.exists() and key.exists() and _is_for(certificate, host)):
        _make(authority, certificate, key, host)
    return authority, certificate, key


def _is_for(certificate: Path, host: str) -> bool:
    try:
        parsed = x509.load_pem_x509_certificate(certificate.read_bytes())
    except ValueError:
        # A full disk took it in part.
        return False
    return set(_alternatives(host)) <= set(parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def _make(authority: Path, certificate: Path, key: Path, host: str) -> None:
    authority.parent.mkdir(parents=True, exist_ok=True)
    made = make_server_certificate(
        _alternatives(host),
        authority_name="kai-simulator-ca",
        server_name="kai-apiserver",
        now=datetime.now(UTC),
        life=_LIFE,
    )
    key.touch(mode=0o600)
    key.write_bytes(made.key)
    authority.write_bytes(made.authority)
    certificate.write_bytes(made.certificate)


def _alternatives(host: str) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in _NAMES]
    addresses = [ipaddress.ip_address(address) for address in _ADDRESSES]
    try:
        given = ipaddress.ip_address(host)
        if given not in addresses:
            addresses.append(given)
    except ValueError:
        if host not in _NAMES:
            names.append(x509.DNSName(host))
    return names + [x509.IPAddress(address) for address in addresses]


_NAME = "kai-simulator"


def write_kubeconfig(path: Path, *, server: str, token: str, authority: bytes | None = None) -> None:
    """Write a kubeconfig, readable by the owner only; a program that waits for the file sees it whole."""
    cluster: dict[str, str] = {"server": server}
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": "admin", "namespace": "default"}}],
        "current-context": _NAME,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.touch(mode=0o600)
    temporary.write_text(yaml.safe_dump(config, sort_keys=False))
    temporary.rename(path)


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
    """The listening sockets.

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

        Raises ConfigurationError: an address cannot be listened on.

        Args:
            http_fd: descriptor of a socket that is the plain listener, instead of host and port.
            https_port: of the TLS listener; None: there is none.
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
