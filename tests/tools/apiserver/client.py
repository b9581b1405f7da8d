"""A bare HTTP client: what goes over the wire is what the test says."""

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import aiohttp


class Answer:
    """One answer, read to the end."""

    def __init__(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        self.status = response.status
        self.headers = response.headers
        self.text = body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def items(self) -> list[str]:
        """Names of a list's objects."""
        return [item["metadata"]["name"] for item in self.json["items"]]

    def __repr__(self) -> str:
        return f"<{self.status} {self.text[:500]}>"


class Watch:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> dict[str, Any]:
        """The next event; an assertion fails if there is none."""
        line = await self._response.content.readline()
        assert line, "the watch has ended"
        event: dict[str, Any] = json.loads(line)
        return event

    async def until(self, kind: str, name: str = "") -> dict[str, Any]:
        """Skip to the next event of a type (and of one object)."""
        while True:
            event = await self.next()
            if event["type"] == kind and (not name or event["object"]["metadata"].get("name") == name):
                return event

    async def rest(self) -> list[dict[str, Any]]:
        """All events until the server ends the watch."""
        return [json.loads(line) async for line in self._response.content]


class Client:
    """Requests against one server with one token."""

    def __init__(self, url: str, token: str | None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self._url = url
        self._session = aiohttp.ClientSession(
            headers=headers, read_bufsize=2**22, timeout=aiohttp.ClientTimeout(total=60)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        sent = dict(headers or {})
        data = None
        if body is not None:
            sent.setdefault("Content-Type", content_type)
            data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        async with self._session.request(method, f"{self._url}{path}", data=data, headers=sent) as response:
            return Answer(response, await response.read())

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.request("GET", path, **options)

    async def post(self, path: str, body: Any, **options: Any) -> Answer:
        return await self.request("POST", path, body, **options)

    async def put(self, path: str, body: Any, **options: Any) -> Answer:
        return await self.request("PUT", path, body, **options)

    async def delete(self, path: str, body: Any = None, **options: Any) -> Answer:
        return await self.request("DELETE", path, body, **options)

    async def merge(self, path: str, body: Any, **options: Any) -> Answer:
        return await self.request("PATCH", path, body, content_type="application/merge-patch+json", **options)

    async def strategic(self, path: str, body: Any, **options: Any) -> Answer:
        return await self.request("PATCH", path, body, content_type="application/strategic-merge-patch+json", **options)

    async def apply(self, path: str, body: Any, *, manager: str, force: bool = False) -> Answer:
        query = f"?fieldManager={manager}" + ("&force=true" if force else "")
        return await self.request("PATCH", path + query, body, content_type="application/apply-patch+yaml")

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncIterator[Watch]:
        """Open a watch; `path` has a query already or gets one."""
        joined = f"{path}{'&' if '?' in path else '?'}watch=1"
        async with self._session.get(
            f"{self._url}{joined}", timeout=aiohttp.ClientTimeout(total=None, sock_read=30)
        ) as response:
            assert response.status == 200, await response.text()
            yield Watch(response)


def pod(name: str = "", **spec: Any) -> dict[str, Any]:
    """A pod of one container; `generateName` where there is no name."""
    metadata = {"name": name} if name else {"generateName": "pod-"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10"}], **spec},
    }


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def binding(pod_name: str, node_name: str, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod_name, **metadata},
        "target": {"kind": "Node", "name": node_name},
    }


PODS = "/api/v1/namespaces/default/pods"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
NODES = "/api/v1/nodes"
