"""The discovery of an API server, asked for by many at once: the answers as Kubernetes 1.36 gives them, prepared."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from kaicore.errors import ApiStatus, ClusterUnavailable, InvalidObject
from kaicore.kube.api.discovery import ObjectPaths, ServedResources
from kaicore.kube.wire.resources import PROVISIONING_REQUESTS, TOPOLOGIES

from tests.unit.kube.test_client import client_of

GROUP, VERSION = "topology.node.k8s.io", "v1alpha2"
LISTED = [{"resource": "noderesourcetopologies", "scope": "Cluster"}]


def aggregated(*resources: Any, freshness: str = "Current") -> Any:
    versions = [{"version": VERSION, "resources": list(resources), "freshness": freshness}]
    return {"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": GROUP}, "versions": versions}]}


def by_name() -> Any:
    versions = [{"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}]
    return {"kind": "APIGroupList", "groups": [{"name": GROUP, "versions": versions}]}


@pytest.mark.parametrize(
    ("groups", "also_asked"),
    [
        (aggregated(*LISTED), []),
        (aggregated(freshness="Stale"), [f"/apis/{GROUP}/{VERSION}"]),
        (by_name(), [f"/apis/{GROUP}/{VERSION}"]),
    ],
)
async def test_served_and_absent_resources_are_known_from_one_answer(groups: Any, also_asked: list[str]) -> None:
    asked = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path == "/apis":
            assert "as=APIGroupDiscoveryList" in request.headers["Accept"]
            return web.json_response(groups)
        assert request.headers["Accept"] == "application/json"
        return web.json_response({"kind": "APIResourceList", "resources": [{"name": "noderesourcetopologies"}]})

    async with client_of(handler) as client:
        serving = ServedResources(client, fresh_s=60)
        kinds = (PROVISIONING_REQUESTS, TOPOLOGIES, PROVISIONING_REQUESTS)
        assert await asyncio.gather(*map(serving.version, kinds)) == [None, VERSION, None]
        assert asked == ["/apis", *also_asked]
        await asyncio.gather(*map(ServedResources(client, fresh_s=0).version, kinds))
        assert asked.count("/apis") == 4, "what is asked again later is asked of the server"


async def test_a_server_that_does_not_say_what_it_serves_is_asked_once_by_all() -> None:
    asked = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"kind": "Status", "code": 503}, status=503)

    async with client_of(handler) as client:
        serving = ServedResources(client, fresh_s=60)
        outcomes = await asyncio.gather(
            serving.version(PROVISIONING_REQUESTS), serving.version(TOPOLOGIES), return_exceptions=True
        )
        assert [isinstance(one, ClusterUnavailable | ApiStatus) for one in outcomes] == [True, True]
        assert asked == ["/apis"]


@pytest.mark.parametrize(("code", "raised"), [(404, InvalidObject), (401, ApiStatus)])
async def test_a_refusal_to_say_what_is_served_is_not_taken_for_absence(code: int, raised: type[Exception]) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "code": code}, status=code)

    async with client_of(handler) as client:
        with pytest.raises(raised):
            await ObjectPaths(client).learn({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}})
