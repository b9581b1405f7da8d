"""The Kubernetes API over HTTP: bytes in, bytes out.

Where the API server is and how to log in is read by `kubernetes_asyncio` (every kind of kubeconfig, exec plugins and
in-cluster credentials included), imported only when it is needed: it takes half a second and 40 MB. Requests go through
aiohttp directly: the library's models cost more per pod than admitting it does.
"""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from kaicore.errors import ApiStatus, ClusterUnavailable, ConfigurationError
from yarl import URL

from kai_simulator.fleet.wire import Status

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"

#: Statuses after which the same request may succeed.
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})

_decode_status = msgspec.json.Decoder(Status).decode


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is, and how to log in there."""

    server: str
    #: Value of the Authorization header.
    authorization: str | None = None
    tls: ssl.SSLContext | None = None
    #: Name in the server's certificate, where it is not the host's.
    tls_server_name: str | None = None
    proxy: str | None = None


async def load_access(kubeconfig: Path | None, *, context: str | None = None) -> Access:
    """Read a kubeconfig; without one, `KUBECONFIG`, the default file, or the credentials of the pod that this runs in.

    Raises:
        ConfigurationError: there is none, or it makes no sense.
    """
    from kubernetes_asyncio.client import Configuration  # noqa: PLC0415
    from kubernetes_asyncio.config import ConfigException, load_config  # noqa: PLC0415

    configuration = Configuration()
    try:
        await load_config(
            config_file=str(kubeconfig) if kubeconfig else None,
            context=context,
            client_configuration=configuration,
            **({"persist_config": False} if kubeconfig else {}),
        )
        host = configuration.host or ""
        return Access(
            server=host.rstrip("/"),
            authorization=await configuration.get_api_key_with_prefix("BearerToken"),
            tls=_tls(configuration) if host.startswith("https") else None,
            tls_server_name=configuration.tls_server_name,
            proxy=configuration.proxy,
        )
    except (ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError, ssl.SSLError) as error:
        raise ConfigurationError(f"kubeconfig {kubeconfig or '(default)'}: {error}") from error


def _tls(configuration: object) -> ssl.SSLContext:
    read: Callable[[str], str | None] = lambda name: getattr(configuration, name, None)  # noqa: E731
    context = ssl.create_default_context(cafile=read("ssl_ca_cert"))
    if certificate := read("cert_file"):
        context.load_cert_chain(certificate, keyfile=read("key_file"))
    if not read("verify_ssl"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    # Certificates of clusters are often made without the extensions that Python 3.13 demands.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class ApiClient:
    """One session with one API server."""

    def __init__(
        self, access: Access, *, connections: int = 64, renew: Callable[[], Awaitable[Access]] | None = None
    ) -> None:
        """Make a client; `renew` reads the credentials anew when the server no longer accepts them."""
        self._access = access
        self._renew = renew
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "ApiClient":
        connector = aiohttp.TCPConnector(limit=self._connections, keepalive_timeout=60)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=30, sock_connect=10),
            skip_auto_headers=("User-Agent",),
            headers={"User-Agent": "kai-fleet", "Accept": JSON},
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=2**20,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, method: str, path: str, body: bytes | None = None, *, content_type: str = JSON) -> bytes:
        """Send one request and return the body of the answer.

        Raises:
            ApiStatus: the server refused.
            ClusterUnavailable: the server does not answer, or says that it cannot at the moment.
        """
        for attempt in (1, 2):
            try:
                async with self._request(method, path, body, content_type) as response:
                    content = await response.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise ClusterUnavailable(f"{method} {path}: {_text(error)}") from error
            if response.status < 400:
                return content
            if response.status == 401 and attempt == 1 and self._renew is not None:
                self._access = await self._renew()
                continue
            raise _error(response, content)
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def stream(self, path: str, *, silence_s: float) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        """Open a watch and yield its lines, as many at a time as came; give up after `silence_s` of silence.

        Raises:
            ApiStatus: the server refused.
            ClusterUnavailable: the connection could not be made, or broke.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=silence_s)
        try:
            async with self._request("GET", path, None, None, timeout) as response:
                if response.status >= 400:
                    raise _error(response, await response.read())
                yield _lines(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ClusterUnavailable(f"GET {path}: {_text(error)}") from error

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        content_type: str | None,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> "aiohttp.client._RequestContextManager":
        if self._session is None:
            raise RuntimeError("the client is not open")
        access = self._access
        headers = {"Content-Type": content_type} if body is not None and content_type else {}
        if access.authorization:
            headers["Authorization"] = access.authorization
        more = {"timeout": timeout} if timeout is not None else {}
        return self._session.request(
            method,
            URL(access.server + path, encoded=True),
            data=body,
            headers=headers,
            ssl=access.tls if access.tls is not None else True,
            server_hostname=access.tls_server_name if access.tls is not None else None,
            proxy=access.proxy,
            **more,  # type: ignore[arg-type]
        )


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[list[bytes]]:
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n") if rest else chunk.split(b"\n")
        if lines:
            yield [line for line in lines if line]


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _error(response: aiohttp.ClientResponse, content: bytes) -> ApiStatus | ClusterUnavailable:
    try:
        status = _decode_status(content)
    except msgspec.MsgspecError:
        status = Status(message=content[:200].decode(errors="replace"))
    if response.status in _TRANSIENT:
        after = response.headers.get("Retry-After", "")
        return ClusterUnavailable(
            f"{response.method} {response.url.path}: {response.status} {status.message}",
            retry_after_s=int(after) if after.isdigit() else None,
        )
    return ApiStatus(response.status, status.reason or response.reason or "", status.message)
