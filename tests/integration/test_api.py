"""The API answers from the log, and says clearly what it cannot."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from kai_api.app import make_app
from kai_api.long_answers import LongAnswers
from kaicore.log.port import EventLog
from kaicore.service import Health
from kaicore.service.http_server import HttpServer

from tests.integration.scheduling import Facts, placed, scheduling


class Api:
    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url, self._session = url, session

    async def get(self, path: str, *, status: int = 200) -> Any:
        async with self._session.get(self._url + path) as response:
            assert response.status == status, await response.text()
            return await (response.json() if "json" in response.content_type else response.text())


@pytest.fixture
async def api(postgres_log: EventLog, database_url: str, cluster_name: str) -> AsyncIterator[Api]:
    facts = Facts(postgres_log, cluster_name)
    await facts.add_nodes(1)
    async with scheduling(postgres_log, cluster_name):
        await facts.add_pods("a", cpu=2, gpu=1)
        await placed(postgres_log, cluster_name, 1)
        await facts.add_pods("never", cpu=1, gpu=5)
        await facts.add_pods("b", cpu=2, gpu=1)
        await placed(postgres_log, cluster_name, 2)
    health = Health("log")
    health.met("log")
    app = make_app(postgres_log, health, LongAnswers(database_url, at_once=1, most_s=300))
    server = HttpServer(app, host="127.0.0.1", port=0)
    stopping = asyncio.Event()
    serving = asyncio.create_task(server.run(stopping))
    async with aiohttp.ClientSession() as session:
        yield Api(f"http://{server.address}", session)
    stopping.set()
    await serving


async def test_answers(api: Api, cluster_name: str) -> None:
    (cluster,) = await api.get("/v1/clusters")
    assert cluster["name"] == cluster_name
    summary = await api.get(f"/v1/clusters/{cluster_name}")
    assert summary["pods"] == {"waiting": 1, "placed": 2, "bound": 0, "finished": 0}
    why = await api.get(f"/v1/clusters/{cluster_name}/pods/default/never/why")
    assert why["verdict"] == "pending"
    assert "5 needed, 4 in the largest zone" in why["reasons"][0]["message"]
    assert [(remedy["code"], remedy["resource"], remedy["message"]) for remedy in why["wouldHelp"]] == [
        ("FitsIf", "nvidia.com/gpu", "fits if nvidia.com/gpu ≤ 4 (such as n0)")
    ]
    assert (await api.get(f"/v1/clusters/{cluster_name}/replay"))["differences"] == []
    assert (await api.get(f"/v1/clusters/{cluster_name}/audit"))["ok"]
    page = await api.get(f"/v1/clusters/{cluster_name}/events?after=1&limit=2")
    assert [event["position"] for event in page] == [2, 3]
    placed_events = await api.get(f"/v1/clusters/{cluster_name}/events?type=PodPlaced&subject=default/a")
    assert [event["body"]["node"] for event in placed_events] == ["n0"]
    assert "ready" in await api.get("/readyz")
    assert 'kai_api_request_seconds_count{route="/v1/clusters"}' in await api.get("/metrics")


async def test_says_what_it_does_not_know(api: Api, cluster_name: str) -> None:
    assert "no cluster 'other'" in (await api.get("/v1/clusters/other", status=404))["detail"]
    gone = await api.get(f"/v1/clusters/{cluster_name}/pods/default/none/why", status=404)
    assert "never heard of" in gone["detail"]
    await api.get(f"/v1/clusters/{cluster_name}/events?limit=0", status=422)
