"""Routes of the API. Every answer is a function of the log alone."""

import time
from collections.abc import Awaitable, Callable

import msgspec
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse, Response
from kaicore.errors import EventsRetired, LogUnavailable
from kaicore.inquiry.asking import Inquiry
from kaicore.inquiry.replaying import replay_log
from kaicore.inquiry.reports import audit_answer, replay_answer
from kaicore.log.audit import verify
from kaicore.service import Health
from prometheus_client import REGISTRY, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from kai_api.questions import make_router

_SECONDS = Histogram("kai_api_request_seconds", "Duration of answering", ["route"])


def make_app(inquiry: Inquiry, health: Health) -> FastAPI:
    """Make the application that answers from a log."""
    log = inquiry.log
    # No interactive pages: they would load their scripts from somebody else's server.
    app = FastAPI(title="kai-ledger", docs_url=None, redoc_url=None)

    @app.middleware("http")
    async def timed(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        began = time.monotonic()
        try:
            return await call(request)
        except LogUnavailable as error:
            return PlainTextResponse(f"{error}\n", status_code=503)
        except EventsRetired as error:
            return PlainTextResponse(f"{error}\n", status_code=410)
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

    @app.get("/v1/clusters/{cluster}/replay")
    async def replay(cluster: str) -> Response:
        await known(cluster)
        return _json(replay_answer(await replay_log(log, cluster)))

    @app.get("/v1/clusters/{cluster}/audit")
    async def audit(cluster: str) -> Response:
        await known(cluster)
        return _json(audit_answer(await verify(log, cluster)))

    app.include_router(make_router(inquiry))
    return app


def _json(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
