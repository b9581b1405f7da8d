"""Routes of the API. Every answer is a function of the log alone."""

import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import PlainTextResponse, Response
from kaicore.errors import EventsRetired, LogUnavailable
from kaicore.inquiry import document, explain, folded, time_text
from kaicore.log.port import EventLog, Filter
from kaicore.service import Health
from kaicore.service.health import Asgi, with_health
from kaicore.state.pod_entry import Stage
from prometheus_client import Histogram

from kai_api.long_answers import Busy, ClientGone, LongAnswers, NoAnswer, Question, TookTooLong

_SECONDS = Histogram("kai_api_request_seconds", "Duration of answering", ["route"])

#: Most events in one answer.
_MOST_EVENTS = 1000

#: Seconds after which a client may ask again what too many others are asking.
_RETRY_AFTER = {"Retry-After": "10"}

_LARGEST_POSITION = 2**63 - 1


def make_app(log: EventLog, health: Health, long_answers: LongAnswers) -> Asgi:
    """Make the application that answers from a log, what takes long by way of `long_answers`."""
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
        after: Annotated[int, Query(ge=0, le=_LARGEST_POSITION)] = 0,
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

    async def ask(question: Question, cluster: str, request: Request) -> Response:
        await known(cluster)
        try:
            body = await long_answers.ask(question, cluster, gone=_gone(request))
        except Busy as error:
            raise HTTPException(429, str(error), headers=_RETRY_AFTER) from error
        except TookTooLong as error:
            raise HTTPException(504, str(error)) from error
        except NoAnswer as error:
            raise HTTPException(error.status, str(error)) from error
        except ClientGone:
            return Response(status_code=499)
        return Response(body, media_type="application/json")

    @app.get("/v1/clusters/{cluster}/replay")
    async def replay(cluster: str, request: Request) -> Response:
        return await ask(Question.REPLAY, cluster, request)

    @app.get("/v1/clusters/{cluster}/audit")
    async def audit(cluster: str, request: Request) -> Response:
        return await ask(Question.AUDIT, cluster, request)

    return with_health(health, app=app)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
