"""A client of an API server: bytes in, bytes out, and every failure as one of two errors.

`ApiStatus` is an answer that will stay the same; after `ClusterUnavailable` the request can be repeated. Credentials
that the server no longer accepts are read anew, once per request. That renews tokens of exec plugins, of files and of
OIDC alike.
"""

import asyncio
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from kaicore.errors import ApiStatus, ClusterUnavailable, ConfigurationError
from kaicore.kube.api.access import Access, AccessSource
from kaicore.kube.api.failures import error_of
from kaicore.kube.api.kept_connections import CONNECT_S, KeptConnections, ServerAnswer, keep_alive

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

#: Longest line of a watch, bytes: etcd takes objects of some 1.5 MiB, and clusters raise that.
MAX_LINE = 32 * 1024 * 1024

#: Bytes read ahead per connection.
_READ_AHEAD = 1024 * 1024
_UNTIMED = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)

#: What a path may have in it, besides letters and digits.
_IN_PATHS = "/:@!$&'()*+,;=-._~%"
_PLAIN = re.compile("[/A-Za-z0-9._-]*")

_UNAUTHORIZED, _NOT_FOUND, _CONFLICT = 401, 404, 409


class KubeClient:
    """A connection pool to one API server; use as an asynchronous context manager, or close it."""

    def __init__(
        self,
        source: AccessSource,
        *,
        connections: int = 32,
        timeout_s: float = 30.0,
        watch_grace_s: float = 30.0,
        user_agent: str = "kai-ledger",
    ) -> None:
        """Args:
        source: see `kaicore.kube.api.access`.
        connections: most requests at once, watches among them; others wait.
        timeout_s: how long a request may take in all; watches aside.
        watch_grace_s: how long a watch may be silent after the time at which the server was to end it.
        """
        self._source = source
        self._connections = connections
        self._timeout_s = timeout_s
        self._watch_grace_s = watch_grace_s
        self._user_agent = user_agent
        self._access: Access | None = None
        self._reading = asyncio.Lock()
        #: For watches, and where there is a proxy.
        self._session: aiohttp.ClientSession | None = None
        #: For everything else, with what it is asked by.
        self._kept: tuple[Access, KeptConnections] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._kept is not None:
            await self._kept[1].end()
            self._kept = None

    async def get(self, path: str, params: Mapping[str, str] | None = None, *, accept: str = JSON) -> bytes:
        """Get an object, or a list.

        Args:
            accept: the forms that it may have.

        Raises:
            ApiStatus: the server refuses.
            ClusterUnavailable: the server does not answer, or cannot now.
        """
        return await self._request("GET", path, params=params, accept=accept)

    async def find(self, path: str, *, accept: str = JSON) -> bytes | None:
        """Get an object, or None where there is none; takes and raises what `get` does otherwise."""
        try:
            return await self.get(path, accept=accept)
        except ApiStatus as error:
            if error.code != _NOT_FOUND:
                raise
            return None

    async def list_page(self, path: str, *, limit: int, continue_token: str = "") -> bytes:
        """Get a page of a list, as of now; raises as `get` does, `ApiStatus` 410 for a token that is too old."""
        params = {"limit": str(limit)}
        if continue_token:
            params["continue"] = continue_token
        return await self._request("GET", path, params=params)

    async def post(self, path: str, body: object) -> bytes:
        """Create something from a body that msgspec can encode; raises as `get` does."""
        return await self._request("POST", path, body=body, content_type=JSON)

    async def ensure(self, path: str, body: object) -> bool:
        """Create something unless it is there; return whether it was not. Raises as `get` does otherwise."""
        try:
            await self.post(path, body)
        except ApiStatus as error:
            if error.code != _CONFLICT:
                raise
            return False
        return True

    async def patch(self, path: str, body: object, *, content_type: str = MERGE_PATCH) -> bytes:
        """Patch an object; raises as `get` does."""
        return await self._request("PATCH", path, body=body, content_type=content_type)

    async def delete(self, path: str, body: object | None = None) -> bytes:
        """Delete an object; `body` are DeleteOptions. Raises as `get` does."""
        return await self._request("DELETE", path, body=body, content_type=JSON)

    @asynccontextmanager
    async def watch(self, path: str, *, resource_version: str, timeout_s: int) -> AsyncIterator["WatchLines"]:
        """Watch a collection from a version on, bookmarks included; raises as `get` does, also from the lines.

        Silence is no error until the server should have ended the watch: kube-apiserver 1.36 sends no bookmarks of a
        kind that has no objects. A connection that is dead is noticed by TCP keepalive.

        Args:
            timeout_s: after which the server is to end the watch.
        """
        params = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_s),
        }
        response = await self._open_watch(path, params, silent_s=timeout_s + self._watch_grace_s)
        try:
            yield WatchLines(path, response)
        finally:
            response.close()

    async def _open_watch(self, path: str, params: Mapping[str, str], *, silent_s: float) -> aiohttp.ClientResponse:
        target = _target(path, params)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silent_s)
        responses: list[aiohttp.ClientResponse] = []

        async def begin(access: Access) -> ServerAnswer:
            response = await self._send(access, "GET", target, timeout=timeout)
            responses.append(response)
            if response.status < 300:
                return ServerAnswer(response.status, "", b"")
            async with response:
                return await _read(response)

        await self._answer("GET", path, begin)
        return responses[-1]

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object | None = None,
        content_type: str = "",
        accept: str = JSON,
    ) -> bytes:
        data = msgspec.json.encode(body) if body is not None else None
        target = _target(path, params)

        async def ask(access: Access) -> ServerAnswer:
            if not access.proxy:
                kept = self._connections_to(access)
                return await kept.ask(method, target, body=data, content_type=content_type, accept=accept)
            headers = {"Accept": accept} | ({"Content-Type": content_type} if data is not None else {})
            async with asyncio.timeout(self._timeout_s):
                response = await self._send(access, method, target, headers=headers, data=data, timeout=_UNTIMED)
                async with response:
                    return await _read(response)

        return (await self._answer(method, path, ask)).body

    async def _answer(self, method: str, path: str, ask: Callable[[Access], Awaitable[ServerAnswer]]) -> ServerAnswer:
        """Ask, once more with new credentials where these are refused; return the answer if it is a good one."""
        access = await self._get_access(None)
        for last_attempt in (False, True):
            try:
                answer = await ask(access)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise _unavailable(method, path, error) from error
            if 200 <= answer.status < 300:
                return answer
            if answer.status != _UNAUTHORIZED or last_attempt:
                raise error_of(method, path, answer.status, answer.retry_after, answer.body)
            access = await self._get_access(access)
        raise AssertionError("unreachable")

    def _connections_to(self, access: Access) -> KeptConnections:
        """Return the connections with these credentials: they may be those of a certificate."""
        if self._kept is None or self._kept[0] is not access:
            if self._kept is not None:
                self._kept[1].close()
            self._kept = (
                access,
                KeptConnections(access, most=self._connections, user_agent=self._user_agent, timeout_s=self._timeout_s),
            )
        return self._kept[1]

    async def _send(self, access: Access, method: str, target: str, **options: Any) -> aiohttp.ClientResponse:
        """Send a request by aiohttp; return the response, its body not yet read."""
        headers = {"Accept": JSON} | await access.headers() | options.pop("headers", {})
        return await self._open_session().request(
            method,
            URL(access.base_url + target, encoded=True),
            headers=headers,
            ssl=access.tls if access.tls is not None else True,
            server_hostname=access.server_hostname or None,
            proxy=access.proxy or None,
            allow_redirects=False,
            **options,
        )

    async def _get_access(self, refused: Access | None) -> Access:
        """Return access, read anew if it is still the one that was refused."""
        if self._access is None or self._access is refused:
            async with self._reading:
                if self._access is None:
                    self._access = await self._source()
                elif self._access is refused:
                    self._access = await self._renew()
        return self._access

    async def _renew(self) -> Access:
        try:
            return await self._source()
        except ConfigurationError as error:
            # It worked before: an exec plugin that fails now may work again.
            raise ClusterUnavailable(f"cannot renew the credentials: {error}", code=_UNAUTHORIZED) from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections, socket_factory=_lively_socket),
                read_bufsize=_READ_AHEAD,
                # Compressing costs both sides more than a cluster's network does.
                headers={"User-Agent": self._user_agent, "Accept-Encoding": "identity"},
            )
        return self._session


class WatchLines:
    """Lines of a watch, as many at a time as have arrived; a line that is cut off at the end is not among them."""

    def __init__(self, path: str, response: aiohttp.ClientResponse) -> None:
        self._path = path
        self._chunks = response.content
        self._rest: list[bytes] = []
        self._size = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[bytes]:
        while True:
            try:
                chunk = await self._chunks.readany()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise _unavailable("WATCH", self._path, error) from error
            if not chunk:
                raise StopAsyncIteration
            *lines, rest = chunk.split(b"\n")
            if lines:
                lines[0] = b"".join([*self._rest, lines[0]])
                self._rest, self._size = [], 0
            self._rest.append(rest)
            self._size += len(rest)
            if self._size > MAX_LINE:
                raise ClusterUnavailable(f"WATCH {self._path}: a line of more than {MAX_LINE} bytes")
            if complete := [line for line in lines if line.strip()]:
                return complete


def _unavailable(method: str, path: str, error: BaseException) -> ClusterUnavailable:
    return ClusterUnavailable(f"{method} {path}: {_in_words(error)}")


def _in_words(error: BaseException) -> str:
    """Say what happened to a request, without the names that libraries have for it."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"{error.host}:{error.port} does not prove who it is: {error.certificate_error}"
        case aiohttp.ClientConnectorError(os_error=cause):
            number = 0 if isinstance(cause, ssl.SSLError) else cause.errno or 0
            why = os.strerror(number) if number > 0 else cause.strerror or str(cause) or type(cause).__name__
            return f"cannot connect to {error.host}:{error.port}: {why}"
        case aiohttp.ServerDisconnectedError():
            return "the connection ended without an answer"
        case aiohttp.ClientPayloadError():
            return "the connection ended within the answer"
        case TimeoutError():
            return "no answer in time"
        case OSError(strerror=why) if why:
            return why
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _lively_socket(info: Any) -> socket.socket:
    family, kind, protocol, *_ = info
    made = socket.socket(family=family, type=kind, proto=protocol)
    keep_alive(made)
    return made


async def _read(response: aiohttp.ClientResponse) -> ServerAnswer:
    return ServerAnswer(response.status, response.headers.get("Retry-After", ""), await response.read())


def _target(path: str, params: Mapping[str, str] | None) -> str:
    """Return a path, which may have a query, and parameters as a request has them."""
    if not params and _PLAIN.fullmatch(path):
        return path
    path, mark, query = path.partition("?")
    more = "&".join(filter(None, (query, urlencode(params or {}))))
    return quote(path, safe=_IN_PATHS) + ("?" + more if mark or more else "")
