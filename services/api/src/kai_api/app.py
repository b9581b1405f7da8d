"""Routes of the API. Every answer is a function of the log alone."""

import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import PlainTextResponse, Response
from kaicore.errors import EventsRetired, LogUnavailable
from kaicore.inquiry import document, explain, folded, replay_log, time_text
from kaicore.log.audit import verify
from kaicore.log.port import EventLog, Filter
from kaicore.service import Health
from kaicore.state.pod_entry import Stage
from prometheus_client import REGISTRY, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

_SECONDS = Histogram("kai_api_request_seconds", "Duration of answering", ["route"])

#: Most events in one answer.
_MOST_EVENTS = 1000


def make_app(log: EventLog, health: Health) -> FastAPI:
    """Make the application that answers from a log."""
    # No interactive pages: they would load their scripts from somebody else's server.
    app = FastAPI(title="kai-ledger", docs_url=None, redoc_url=None)

    @app.middleware("http")
    async def timed(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        began = time.monotonic()
        try:
            return await call(request)
        except LogUnavailable as error:
            return PlainTextResponse(f"{error}\n", status_code=503)
        finally:
            route = request.scope.get("route")
            _SECONDS.labels(getattr(route, "path", "none")).observe(time.monotonic() - began)

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        return "ok\n"

    @app.get("/readyz")
    async def readyz() -> Response:
        return PlainTextResponse(health.report(), status_code=200 if health.ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)

    async def known(cluster: str) -> None:
        if cluster not in await log.clusters():
            raise HTTPException(404, f"no cluster {cluster!r} in the log")

    @app.get("/v1/clusters")
    async def clusters() -> list[dict[str, Any]]:
        answer = []
        for name in await log.clusters():
            head = await log.head(name)
            answer.append({"name": name, "position": head.position, "recordedAt": time_text(head.recorded_at)})
        return answer

    @app.get("/v1/clusters/{cluster}")
    async def cluster_summary(cluster: str) -> dict[str, Any]:
        await known(cluster)
        state = await folded(log, cluster)
        stages = dict.fromkeys(Stage, 0)
        for entry in state.pods.values():
            stages[entry.stage] += 1
        nodes = sum(node is not None for node in state.columns.facts)
        return {
            "name": cluster,
            "position": state.position,
            "nodes": nodes,
            "pods": stages,
            "tally": msgspec.to_builtins(state.tally),
        }

    @app.get("/v1/clusters/{cluster}/events")
    async def events(
        cluster: str,
        *,
        after: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=_MOST_EVENTS)] = 100,
        stream: str | None = None,
        subject: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> Response:
        await known(cluster)
        where = Filter(
            streams=None if stream is None else (stream,), subject=subject, types=None if type is None else (type,)
        )
        try:
            page = await log.read(cluster, after=after, limit=limit, where=where)
        except EventsRetired as error:
            raise HTTPException(410, str(error)) from error
        return Response(msgspec.json.encode(page), media_type="application/json")

    @app.get("/v1/clusters/{cluster}/pods/{namespace}/{name}/why")
    async def why(cluster: str, namespace: str, name: str) -> dict[str, Any]:
        await known(cluster)
        found = await explain(log, cluster, namespace, name)
        if found is None:
            raise HTTPException(404, f"the log has never heard of a pod {namespace}/{name}")
        return document(found)

    @app.get("/v1/clusters/{cluster}/replay")
    async def replay(cluster: str) -> dict[str, Any]:
        await known(cluster)
        report: dict[str, Any] = msgspec.to_builtins(await replay_log(log, cluster))
        return report

    @app.get("/v1/clusters/{cluster}/audit")
    async def audit(cluster: str) -> Response:
        await known(cluster)
        report = await verify(log, cluster)
        body = {**msgspec.to_builtins(report), "ok": report.ok}
        return Response(msgspec.json.encode(body), media_type="application/json")

    return app
