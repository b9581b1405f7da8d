"""Services of a cluster with processes of this machine as pods: a port of the loopback for each port of a Service."""

import asyncio
import itertools
from contextlib import suppress
from typing import Any

import msgspec
from kaicore.kube.api.client import KubeClient

Json = dict[str, Any]


class ServiceNames:
    """Listens for Services, and gives each connection to a pod that is ready."""

    def __init__(self, client: KubeClient) -> None:
        """Args: client: an administrator's."""
        self._client = client
        self._servers: dict[tuple[str, str, int], asyncio.Server] = {}
        self._making = asyncio.Lock()
        self._numbers = itertools.count(1)

    def new_address(self) -> str:
        """An address of the loopback that no pod had yet."""
        number = next(self._numbers)
        return f"127.77.{number // 250}.{number % 250 + 1}"

    async def names(self, namespace: str) -> dict[str, str]:
        """The address on this machine of each `SERVICE.NAMESPACE:PORT` of a namespace."""
        services = await self._items(f"/api/v1/namespaces/{namespace}/services")
        found = {}
        for service in services:
            name = service["metadata"]["name"]
            for port in service["spec"].get("ports", ()):
                server = await self._listening(namespace, service, port["port"])
                found[f"{name}.{namespace}:{port['port']}"] = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return found

    async def _listening(self, namespace: str, service: Json, port: int) -> asyncio.Server:
        key = (namespace, service["metadata"]["name"], port)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._carry(namespace, service["spec"].get("selector") or {}, reader, writer)

        async with self._making:
            if key not in self._servers:
                self._servers[key] = await asyncio.start_server(connected, "127.0.0.1", 0)
        return self._servers[key]

    async def _carry(
        self, namespace: str, selector: Json, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        pods = await self._items(f"/api/v1/namespaces/{namespace}/pods")
        ready = [pod for pod in pods if selector.items() <= pod["metadata"].get("labels", {}).items() and _ready(pod)]
        if not ready:
            writer.close()
            return
        try:
            there, back = await asyncio.open_connection(ready[0]["status"]["podIP"], 8080)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, back), _copy(there, writer), return_exceptions=True)

    async def _items(self, path: str) -> list[Json]:
        items: list[Json] = msgspec.json.decode(await self._client.get(path))["items"]
        return items

    async def close(self) -> None:
        for server in self._servers.values():
            server.close()


def _ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    gone = "deletionTimestamp" in pod["metadata"]
    return not gone and any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
