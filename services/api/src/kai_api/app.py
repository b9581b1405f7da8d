"""Routes of the API. Every answer is a function of the log alone."""

import time
from collections.abc import Awaitable, Callable

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import Response
from kaicore.analysis.inquiry.queries import Inquiry
from kaicore.errors import EventsRetired, LogUnavailable, UnknownMoment
from kaicore.runtime.service import Health
from kaicore.runtime.service.health import Asgi, with_health
from kaicore.runtime.service.http_errors import add_error_handlers, error_response, only_known_parameters
from prometheus_client import Histogram

from kai_api.audits import audit_router
from kai_api.long_answers import Busy, ClientGone, LongAnswers, NoAnswer, Question, TookTooLong
from kai_api.questions import make_router

_SECONDS = Histogram("kai_api_request_seconds", "Duration of answering", ["route"])


#: Seconds after which a client may ask again what too many others are asking.
_RETRY_AFTER = {"Retry-After": "10"}


def make_app(inquiry: Inquiry, health: Health, long_answers: LongAnswers) -> Asgi:
    """Make the application that answers from a log, what takes long by way of `long_answers`."""
    log = inquiry.log
    # No interactive pages: they would load their scripts from a server elsewhere.
    app = FastAPI(title="kai-ledger", docs_url=None, redoc_url=None, dependencies=[Depends(only_known_parameters)])
    add_error_handlers(app)

    @app.middleware("http")
    async def timed(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        began = time.monotonic()
        try:
            return await call(request)
        except LogUnavailable as error:
            return error_response(503, str(error))
        except EventsRetired as error:
            return error_response(410, str(error))
        except UnknownMoment as error:
            return error_response(400, str(error))
        finally:
            route = request.scope.get("route")
            _SECONDS.labels(getattr(route, "path", "none")).observe(time.monotonic() - began)

    async def check_cluster(cluster: str) -> None:
        if cluster not in await log.clusters():
            raise HTTPException(404, f"no cluster {cluster!r} in the log")

    async def ask(question: Question, cluster: str, request: Request) -> Response:
        await check_cluster(cluster)
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

    app.include_router(audit_router(inquiry))
    app.include_router(make_router(inquiry))
    return with_health(health, app=app)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
