"""Ingest for tests: the real application on a real HTTP server, and what it logs and counts."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import structlog
from kai_ingest.authentication import Authenticator, SharedSecret
from kai_ingest.ingest import Ingest, IngestMetrics
from kai_ingest.main import PROJECTION, ReportRoutes, create_app
from kaicore.ledger.feed import EventFeed
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.envelope import Event, NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import Payload, PlacementObserved
from kaicore.runtime.access.node_tokens import EVERY_NODE, node_token
from kaicore.runtime.service import Health
from kaicore.runtime.service.http_limits import HttpLimits
from kaicore.runtime.service.http_server import HttpServer
from prometheus_client import CollectorRegistry

from tests.given.processes.tasks import going
from tests.given.processes.waiting import until_payloads

SECRET = b"a secret of some length"


class Facts:
    """The appends of a watcher, a scheduler or a binder."""

    def __init__(self, log: EventLog, cluster: str) -> None:
        self._log, self._cluster, self._count = log, cluster, 0

    async def append(self, *items: tuple[str, Payload]) -> None:
        units = []
        for stream, payload in items:
            self._count += 1
            identity = derived_id(self._cluster, "fact", str(self._count))
            units.append(Unit((NewEvent(identity, stream, payload, "watcher", 0),)))
        await self._log.append(self._cluster, units)


class Observations:
    def __init__(self, log: EventLog, cluster: str) -> None:
        self._log, self.cluster = log, cluster

    async def events(self) -> list[Event]:
        return await self._log.read(self.cluster, limit=100_000, where=Filter(types=("PlacementObserved",)))

    async def payloads(self) -> list[PlacementObserved]:
        return await self.reach(0)

    async def summary(self) -> list[str]:
        """Each as `name zone:resource=amount …`, in order."""
        return [f"{payload.name} {_summary(payload)}".strip() for payload in await self.payloads()]

    async def reach(self, count: int) -> list[PlacementObserved]:
        return await until_payloads(
            self._log, self.cluster, "PlacementObserved", holds=lambda observed: len(observed) >= count
        )


def _summary(payload: PlacementObserved) -> str:
    return " ".join(
        f"{zone.zone}:{resource}={amount}"
        for zone in payload.placement.zone_amounts()
        for resource, amount in zone.amount.items()
    )


class RunningIngest:
    """A running ingest; `post` speaks to it as an exporter would."""

    def __init__(self, ingest: Ingest, cluster: str, address: str, registry: CollectorRegistry) -> None:
        self.ingest = ingest
        self.url = f"http://{address}"
        self.logs: list[Mapping[str, Any]] = []
        self._cluster = cluster
        self._registry = registry

    async def post(
        self,
        body: Any,
        *,
        node: str | None = "n1",
        token: str | None = None,
        cluster: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Post a report; return status and decoded answer. `node` None is the route for several."""
        if token is None:
            token = node_token(SECRET, cluster=self._cluster, node=node or EVERY_NODE)
        path = f"/v1/clusters/{cluster or self._cluster}" + (f"/nodes/{node}" if node else "") + "/placements"
        content = {"data": body} if isinstance(body, bytes) else {"json": body}
        authorization = {"Authorization": f"Bearer {token}"} if token else {}
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.url + path, headers={**authorization, **(headers or {})}, **content) as response,
        ):
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as response:
            return response.status, await response.text()

    def counted(self, name: str, **labels: str) -> float:
        """Value of a metric; 0 if it was never touched."""
        return self._registry.get_sample_value(f"kai_ingest_{name}", labels) or 0.0

    def lines(self, event: str | None = None) -> list[str]:
        """The errors that were logged, one for each line."""
        return [str(line.get("error")) for line in self.logs if event in (None, line["event"])]


@asynccontextmanager
async def running_ingest(  # long: a line for each part
    log: EventLog,
    cluster: str,
    *,
    authenticator: Authenticator | None = None,
    max_body: int = 1 << 20,
    port: int = 0,
    cert_file: Path | None = None,
    load: bool = True,
    snapshot_events: int = 50_000,
) -> AsyncIterator[RunningIngest]:
    registry, health = CollectorRegistry(), Health(PROJECTION)
    metrics = IngestMetrics(registry=registry)
    logs: list[Mapping[str, Any]] = []

    def keep(_: Any, method: str, line: Mapping[str, Any]) -> Mapping[str, Any]:
        logs.append({**line, "level": method})
        raise structlog.DropEvent

    logger: Any = structlog.wrap_logger(None, processors=[keep])
    ingest = Ingest(
        log=log,
        cluster=cluster,
        metrics=metrics,
        logger=logger,
        clock=lambda: time.time_ns() // 1000,
        snapshot_events=snapshot_events,
        health=health,
    )
    shared = authenticator or SharedSecret(SECRET, cluster=cluster)
    routes = ReportRoutes(ingest, shared, cluster=cluster, health=health, metrics=metrics, logger=logger)
    server = HttpServer(
        create_app(routes, health, registry=registry),
        host="127.0.0.1",
        port=port,
        cert_file=cert_file,
        limits=HttpLimits(body_bytes=max_body),
    )
    running = RunningIngest(ingest, cluster, server.address, registry)
    running.logs = logs
    stopping = asyncio.Event()
    serving = asyncio.ensure_future(server.run(stopping))
    async with AsyncExitStack() as stack:
        if load:
            await ingest.load()
            health.met(PROJECTION)
            await stack.enter_async_context(
                _following(ingest, EventFeed(log, None, cluster, after=ingest.projection.position))
            )
        try:
            yield running
        finally:
            stopping.set()
            await serving
    await ingest.save_snapshot()


@asynccontextmanager
async def _following(ingest: Ingest, feed: EventFeed) -> AsyncIterator[None]:
    async with going(ingest.follow(feed)):
        yield
    await feed.close()
