"""The API server as an agent needs it: get, create and patch one object, on the connection that `HttpClient` keeps.

`kaicore.kube.api.client` does the same and more, with aiohttp, which is a quarter of what an agent may weigh
(decision 0500).
"""

from typing import Protocol, Self

import msgspec

from kaicore.errors import ClusterUnavailable, ConfigurationError
from kaicore.kube.api.failures import error_of
from kaicore.kube.api.service_account import ServiceAccount
from kaicore.runtime.agent.http_client import HttpClient, HttpFailure

MERGE_PATCH = "application/merge-patch+json"

#: How long an answer may take, seconds.
_TIMEOUT_S = 30.0
_UNAUTHORIZED = 401


class ApiServer(Protocol):
    """Requests to an API server; `kaicore.kube.api.client.KubeClient` is one, too."""

    async def get(self, path: str) -> bytes:
        """Get an object.

        Raises:
            ApiStatus: the server refuses.
            ClusterUnavailable: the server does not answer, or cannot now.
        """

    async def post(self, path: str, body: object) -> bytes:
        """Create something from a body that msgspec can encode; raises as `get` does."""

    async def patch(self, path: str, body: object, *, content_type: str = MERGE_PATCH) -> bytes:
        """Patch an object; raises as `get` does."""


class PodApiServer:
    """The API server of the cluster that this process is a pod of, by the pod's service account.

    Proxies of the environment are not used: the address is one of the cluster's own.
    """

    def __init__(self, *, user_agent: str) -> None:
        """Args:
        user_agent: how audit logs call us.

        Raises:
            ConfigurationError: the pod has no account.
        """
        self._user_agent = user_agent
        self._account = ServiceAccount()
        self._http = HttpClient(verify=self._account.tls, timeout_s=_TIMEOUT_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def get(self, path: str) -> bytes:
        """See `ApiServer.get`."""
        return await self._request("GET", path)

    async def post(self, path: str, body: object) -> bytes:
        """See `ApiServer.post`."""
        return await self._request("POST", path, body, "application/json")

    async def patch(self, path: str, body: object, *, content_type: str = MERGE_PATCH) -> bytes:
        """See `ApiServer.patch`."""
        return await self._request("PATCH", path, body, content_type)

    async def _request(self, method: str, path: str, body: object = None, content_type: str = "") -> bytes:
        data = b"" if body is None else msgspec.json.encode(body)
        for last in (False, True):
            headers = {
                "Accept": "application/json",
                "User-Agent": self._user_agent,
                "Authorization": f"Bearer {self._account.token()}",
            }
            if data:
                headers["Content-Type"] = content_type
            try:
                answer = await self._http.request(method, self._account.base_url + path, headers=headers, body=data)
            except HttpFailure as error:
                await self._renew()
                raise ClusterUnavailable(f"{method} {path}: {error}") from error
            if 200 <= answer.status < 300:
                return answer.body
            if answer.status != _UNAUTHORIZED or last:
                raise error_of(method, path, answer.status, answer.headers.get("retry-after", ""), answer.body)
            await self._renew()
        raise AssertionError("unreachable")

    async def _renew(self) -> None:
        """Read token and authority anew: one of both may have been replaced before its time."""
        try:
            self._account = ServiceAccount()
        except ConfigurationError:
            return
        await self._http.close()
        self._http = HttpClient(verify=self._account.tls, timeout_s=_TIMEOUT_S)
