"""Ingest: observations a second, by reports in one request. One exporter of one node is in `exporter_node`."""

import asyncio
import time
from contextlib import AsyncExitStack

import aiohttp
import msgspec
import uvloop
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.payloads import PodObserved
from kaicore.runtime.access.node_tokens import EVERY_NODE, node_token
from kaicore.runtime.embedded import EmbeddedPostgres

from tests.given.cluster.factory import pod as model_pod
from tests.given.processes.ingest_service import SECRET, Facts, running_ingest
from tests.given.servers.servers import scratch_directory
from tests.given.work.reports import GPU, pod_report, report
from tests.measured.bench.figures import Figure, figure

CLUSTER = "bench"
RUNS = 3


async def observation_rate(url: str, facts: Facts, *, first: int, pods: int, batch: int) -> float:
    """Send reports of `batch` nodes at once, one pod each; return observations per second."""
    names = [f"o{first + number}" for number in range(pods)]
    for start in range(0, pods, 1000):
        await facts.append(
            *(
                (f"pod/uid-{name}", PodObserved(model_pod(name, cpu=8, memory=16, gpu=1, node_name=f"m-{name}")))
                for name in names[start : start + 1000]
            )
        )
    bodies = []
    for start in range(0, pods, batch):
        reports = [
            report(pod_report(name, node_0={"cpu": 8000, "memory": 2**34, GPU: 1}), node=f"m-{name}")
            for name in names[start : start + batch]
        ]
        bodies.append(msgspec.json.encode({"reports": reports}))
    headers = {"Authorization": f"Bearer {node_token(SECRET, cluster=CLUSTER, node=EVERY_NODE)}"}
    path = f"{url}/v1/clusters/{CLUSTER}/placements"
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.post(path, json={"reports": []}) as response:
            response.raise_for_status()
        began = time.perf_counter()
        for body in bodies:
            async with session.post(path, data=body) as response:
                response.raise_for_status()
        return pods / (time.perf_counter() - began)


async def measure(database_url: str) -> list[Figure]:
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(await PostgresLog.open(database_url))
        facts = Facts(log, CLUSTER)
        ingest = await stack.enter_async_context(running_ingest(log, CLUSTER, max_body=4 << 20))
        rates: dict[int, list[float]] = {1: [], 40: [], 500: []}
        first = 0
        for batch, runs in rates.items():
            pods = 1000 if batch == 1 else 4000
            for _ in range(RUNS):
                runs.append(await observation_rate(ingest.url, facts, first=first, pods=pods, batch=batch))
                first += pods
    return [figure(f"ingest_observations_{batch}_a_request", runs, "1/s") for batch, runs in rates.items()]


def figures() -> list[Figure]:
    with scratch_directory() as data:
        server = EmbeddedPostgres(data)
        asyncio.run(server.start())
        try:
            upgrade(server.url)
            return uvloop.run(measure(server.url))
        finally:
            asyncio.run(server.kill())
