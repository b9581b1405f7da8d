"""The API as an application: one router for each topic, included here in a line; every answer is of the log alone.

A topic's module has `make_…_router(inquiry)` that returns an `AnswerRouter` (`kai_api.answering`). All routes need a
caller who may see the whole cluster; `kai_api.auth.for_namespaces` opens one to callers with less.
"""

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import Depends, FastAPI
from kaicore.analysis.ask.projections.questions import ReadModels
from kaicore.analysis.ask.projections.store import ViewStore
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.trial.submission.submit import Submissions
from kaicore.runtime.access.callers import HttpAccess
from kaicore.runtime.service import Health
from kaicore.runtime.service.health import Asgi, with_health
from kaicore.runtime.service.http_errors import add_error_handlers, only_known_parameters
from prometheus_client import Histogram

from kai_api.answering import answer_errors, describe
from kai_api.auth import authenticated, authorization, make_login_router
from kai_api.events import make_events_router
from kai_api.live import LiveLog
from kai_api.long_answers import Calibrations, LongAnswers
from kai_api.pages.router import make_pages
from kai_api.routes import make_audit_router, make_history_router, make_long_router, make_router, make_submission_router

_SECONDS = Histogram("kai_api_request_seconds", "Duration of answering", ["route"])


def make_app(
    inquiry: Inquiry,
    health: Health,
    long_answers: LongAnswers,
    access: HttpAccess | None = None,
    *,
    live: LiveLog | None = None,
    views: ViewStore | None = None,
) -> Asgi:
    """Make the application that answers from a log.

    Args:
        inquiry: of the log.
        health: answered without asking who asks.
        long_answers: answers what takes long.
        access: decides who may ask; by default everybody may.
        live: for those who follow a log; by default one of its own.
        views: read models; without them what they tell is not answered.
    """
    access = access or HttpAccess(anonymous="anywhere")
    app = make_routes(inquiry, long_answers, access, live or LiveLog(inquiry.log), views)
    return with_health(health, app=_timed(authenticated(app, access)))


def make_routes(
    inquiry: Inquiry, long_answers: LongAnswers, access: HttpAccess, live: LiveLog, views: ViewStore | None
) -> FastAPI:
    """Make all routes, as yet without asking who asks."""
    # No interactive pages: they would load their scripts from a server elsewhere.
    app = FastAPI(
        title="kai-ledger",
        description="Answers from the log of a Kubernetes scheduler. It writes nothing to a cluster.",
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(authorization(inquiry.log)), Depends(only_known_parameters)],
    )
    add_error_handlers(app)
    answer_errors(app)
    describe(app)
    app.include_router(make_login_router(access))
    calibrations = Calibrations(inquiry.log, long_answers)
    app.include_router(make_long_router(inquiry.log, long_answers, calibrations))
    app.include_router(make_events_router(inquiry.log, live))
    app.include_router(make_audit_router(inquiry))
    models = None if views is None else ReadModels(inquiry.log, views)
    if models is not None:
        app.include_router(make_history_router(models))
    submissions = Submissions(inquiry, calibration=calibrations.current, lasting=True)
    app.include_router(make_router(inquiry, submissions))
    app.include_router(make_submission_router(submissions))
    app.include_router(make_pages(inquiry, submissions, live, models))
    return app


def _timed(app: Asgi) -> Asgi:
    """Measure the time until an answer begins, so that a stream counts for no more than anything else."""

    async def timed(
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        began = time.monotonic()

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                path = getattr(scope.get("route"), "path", "none")
                _SECONDS.labels(path).observe(time.monotonic() - began)
            await send(message)

        await app(scope, receive, sending)

    return timed
