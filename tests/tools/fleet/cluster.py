"""A client of the API server for tests: it waits for what it wants to see by watching, never by sleeping."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Self

from kaicore.errors import ApiStatus
from kaicore.kube.api.access import plain_access
from kaicore.kube.api.client import KubeClient

from tests.tools.fleet.objects import pod_json

Json = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
NRT = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"

#: Long enough for any machine; only a test that fails takes as long.
PATIENCE_S = 60


class Cluster:
    def __init__(self, url: str, token: str) -> None:
        self.client = KubeClient(plain_access(url, token=token))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def get(self, collection: str, name: str) -> Json | None:
        try:
            return json.loads(await self.client.get(f"{collection}/{name}"))  # type: ignore[no-any-return]
        except ApiStatus as error:
            if error.code == 404:
                return None
            raise

    async def list(self, collection: str) -> list[Json]:
        return json.loads(await self.client.get(collection))["items"]  # type: ignore[no-any-return]

    async def until(self, collection: str, name: str, holds: Callable[[Json | None], object]) -> Json:
        """Wait until something holds for an object, or for None once it is gone; return the object, empty when gone."""
        async with asyncio.timeout(PATIENCE_S):
            selector = f"fieldSelector=metadata.name%3D{name}"
            page = json.loads(await self.client.get(f"{collection}?{selector}"))
            shown = page["items"][0] if page["items"] else None
            version = page["metadata"]["resourceVersion"]
            while not holds(shown):
                async with self.client.watch(
                    f"{collection}?{selector}", resource_version=version, timeout_s=PATIENCE_S
                ) as chunks:
                    async for lines in chunks:
                        for line in lines:
                            event = json.loads(line)
                            if event["type"] == "BOOKMARK":
                                continue
                            shown = None if event["type"] == "DELETED" else event["object"]
                            version = event["object"]["metadata"]["resourceVersion"]
                            if holds(shown):
                                return shown or {}
            return shown or {}

    async def create_pod(self, name: str, *, node: str = "node-0", **more: Any) -> Json:
        pod = pod_json(name, node=node, **more)
        del pod["status"], pod["metadata"]["uid"]
        return json.loads(await self.client.post(PODS, pod))  # type: ignore[no-any-return]

    async def pod_in(self, phase: str, name: str) -> Json:
        return await self.until(PODS, name, lambda pod: pod and pod["status"]["phase"] == phase)

    async def run_pod(self, name: str, *, node: str = "node-0", **more: Any) -> Json:
        await self.create_pod(name, node=node, **more)
        return await self.pod_in("Running", name)

    async def delete_pod(self, name: str, *, grace: int | None = None) -> None:
        await self.client.delete(f"{PODS}/{name}", {} if grace is None else {"gracePeriodSeconds": grace})

    async def event_of(self, pod: Json) -> Json:
        uid = pod["metadata"]["uid"]
        async with asyncio.timeout(PATIENCE_S):
            while True:
                page = json.loads(await self.client.get(EVENTS))
                for event in page["items"]:
                    if event["involvedObject"]["uid"] == uid:
                        return event  # type: ignore[no-any-return]
                version = page["metadata"]["resourceVersion"]
                async with self.client.watch(EVENTS, resource_version=version, timeout_s=PATIENCE_S) as chunks:
                    async for _ in chunks:
                        break


def fingerprint(topology: Json | None) -> str:
    attributes = {a["name"]: a["value"] for a in (topology or {}).get("attributes", [])}
    return str(attributes.get("nodeTopologyPodsFingerprint", ""))


def free(topology: Json | None, resource: str) -> list[int]:
    return [
        int(amounts["available"])
        for zone in (topology or {}).get("zones", [])
        for amounts in zone["resources"]
        if amounts["name"] == resource
    ]


async def eventually(holds: Callable[[], object]) -> None:
    """Wait until something holds inside the fleet, where nothing tells when it does."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
