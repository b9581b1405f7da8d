"""`kai-api`: the API as an application and as a process; every answer is of the log alone.

The application includes one router for each topic. A topic's module has `make_…_router(inquiry)` that returns an
`AnswerRouter` (`kai_api.answering`). All routes need a caller who may see the whole cluster;
`kai_api.auth.for_namespaces` opens one to callers with less. A metric has the log position that each kept state has
reached.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI
from kaicore.analysis.ask.projections.questions import ReadModels
from kaicore.analysis.ask.projections.store import ViewStore
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.trial.submission.submit import Submissions
from kaicore.errors import ConfigurationError
from kaicore.ledger.connections import Connections
from kaicore.ledger.log.port import EventLog
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.runtime.access.access_file import AccessFile
from kaicore.runtime.access.callers import Anonymous, HttpAccess
from kaicore.runtime.access.node_tokens import read_secret
from kaicore.runtime.access.sessions import EndedTokens, Sessions, SharedEndedTokens
from kaicore.runtime.policies.guard import TimeAndMemory
from kaicore.runtime.process_context import end_all
from kaicore.runtime.service import Health, Service, ServiceContext
from kaicore.runtime.service.health import Asgi, Later, with_health
from kaicore.runtime.service.http_errors import add_error_handlers, only_known_parameters
from kaicore.runtime.service.http_limits import HttpLimits
from kaicore.runtime.service.log_access import LOG, open_log
from kaicore.runtime.service.process import listen
from kaicore.runtime.service.settings import LogSettings, ProxySettings
from kaicore.runtime.shard_settings import book_of
from prometheus_client import REGISTRY, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import Field

from kai_api.answering import answer_errors, describe
from kai_api.auth import authenticated, authorization, make_login_router
from kai_api.board import Board, ServicesWatch, parse_links
from kai_api.events import make_events_router
from kai_api.live import LiveLog
from kai_api.long_answers import ANSWERS, Calibrations, LongAnswers, keep_replaying
from kai_api.pages.frame import page
from kai_api.pages.router import make_pages
from kai_api.routes import (
    make_audit_router,
    make_history_router,
    make_long_router,
    make_policy_inputs_router,
    make_router,
    make_submission_router,
)

_SECONDS = Histogram("kai_api_request_seconds", "Duration of answering", ["route"])


def make_app(
    inquiry: Inquiry,
    health: Health,
    long_answers: LongAnswers,
    access: HttpAccess | None = None,
    *,
    live: LiveLog | None = None,
    views: ViewStore | None = None,
    recording: EventLog | None = None,
    board: Board | None = None,
) -> Asgi:
    """Make the application that answers from a log.

    Args:
        health: answered without asking who asks.
        access: decides who may ask; by default everybody may.
        live: for those who follow a log; by default one of its own.
        views: read models; without them what they tell is not answered.
        recording: the log as a role that records policy inputs; without it nobody records any here.
        board: what pages show besides the log.
    """
    access = access or HttpAccess(anonymous="anywhere")
    live, board = live or LiveLog(inquiry.log), board or Board()
    app = make_routes(inquiry, long_answers, access, live, views, recording=recording, board=board)
    return with_health(health, app=_timed(authenticated(app, access)))


def make_routes(
    inquiry: Inquiry,
    long_answers: LongAnswers,
    access: HttpAccess,
    live: LiveLog,
    views: ViewStore | None,
    *,
    recording: EventLog | None = None,
    board: Board,
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
    app.include_router(make_login_router(access, page))
    calibrations = Calibrations(inquiry.log, long_answers)
    app.include_router(make_long_router(inquiry.log, long_answers, calibrations))
    app.include_router(make_events_router(inquiry.log, live))
    app.include_router(make_audit_router(inquiry))
    models = None if views is None else ReadModels(inquiry.log, views)
    if models is not None:
        app.include_router(make_history_router(models))
    submissions = Submissions(inquiry, calibration=calibrations.current, lasting=True)
    app.include_router(make_policy_inputs_router(inquiry, recording))
    app.include_router(make_router(inquiry, submissions))
    app.include_router(make_submission_router(submissions))
    app.include_router(make_pages(inquiry, submissions, live, models, board, long_answers=long_answers))
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


class KeptStates(Collector):
    """`kai_api_position` by cluster, of those that were asked about of late."""

    def __init__(self, inquiry: Inquiry) -> None:
        self._inquiry = inquiry

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the metric as of now."""
        text = "Position that a kept state in use has reached"
        family = GaugeMetricFamily("kai_api_position", text, labels=["cluster"])
        for state in self._inquiry.states:
            if state.in_use:
                family.add_metric([state.cluster], state.position)
        yield family


#: The condition of readiness that the states of all clusters are there, so that questions do not wait for a fold; and
#: seconds that they are waited for at most: where all instances begin on long logs, a late answer is better than none.
STATES = "states"
_MOST_WAIT_S = 60.0

#: Seconds for which a request waits for the database to tell, or to keep, which sessions have ended.
_SESSIONS_S = 2.0

#: Manifests that are asked about are larger than other requests.
_LIMITS = HttpLimits(body_bytes=4 << 20)


class ApiSettings(LogSettings, ProxySettings):
    """Settings of `kai-api`; `http_host` and `http_port` are where it answers.

    It does not start before it is settled who may ask: by `access_file`, or by `anonymous`.
    """

    long_answers: int = Field(2, ge=1, description="replays and audits at a time, each in a process of its own")
    long_answer_s: float = Field(900, gt=0, description="seconds that a replay or an audit may take")
    replay_every_s: float = Field(
        0, ge=0, description="how often the cycles since then are run again and compared; 0: only when asked"
    )
    policies: str = Field(
        "",
        description="the code of policies: files, folders, entry points or shards' settings, with commas between them",
    )
    access_file: Path | None = Field(None, description="YAML file of hashed keys with their scopes")
    anonymous: Anonymous = Field("no", description="who may ask without a key: no (nobody), loopback or anywhere")
    session_secret_file: Path | None = Field(
        None, description="file with the secret that signs browsers' sessions; by default they end with the process"
    )
    inputs_database_url: str | None = Field(
        None,
        description="the log as kai_inputs, to record policy inputs",
    )
    services_file: Path | None = Field(None, description="JSON file with the addresses of services, for their health")
    services_host: str = Field(
        "",
        pattern=r"^([\w.-]+:\d{1,5})?$",
        description="NAME:PORT; the name's addresses are services, for their health",
    )
    links: str = Field(
        "",
        description="links of pods and groups: NAME=URL with {cluster}, {kind}, {namespace}, {name}, {node}",
    )
    caller_per_s: float = Field(50, gt=0, description="requests that one caller may make in a second")
    caller_burst: int = Field(500, ge=1, description="requests that one caller may make at once")


def open_access(settings: ApiSettings, ended: EndedTokens) -> HttpAccess:
    """Return who may ask. Raises ConfigurationError: nobody may, or a file cannot be used.

    Args:
        ended: where sessions end.
    """
    if settings.access_file is None and settings.anonymous == "no":
        raise ConfigurationError(
            "nobody may ask: name --access-file ($KAI_ACCESS_FILE; `kai keys new` writes one), or say --anonymous "
            "loopback where every program of this machine may"
        )
    secret = settings.session_secret_file
    return HttpAccess(
        anonymous=settings.anonymous,
        file=None if settings.access_file is None else AccessFile(settings.access_file),
        sessions=Sessions(None if secret is None else read_secret(secret), ended),
        per_s=settings.caller_per_s,
        burst=settings.caller_burst,
    )


async def serve(context: ServiceContext, settings: ApiSettings) -> None:
    """Answer until asked to stop."""
    policies = book_of(filter(None, settings.policies.split(",")), TimeAndMemory())
    board = Board(ServicesWatch(settings.services_file, settings.services_host), parse_links(settings.links))
    connections = Connections(settings.database_url, size=1, patience_s=_SESSIONS_S, application="kai-api sessions")
    access = open_access(settings, SharedEndedTokens(connections))
    app = Later(context.health)
    server = listen(context, settings, app, limits=_LIMITS)
    await server.run_beside(
        context.stopping, _answer(context, settings, access, app, connections, policies=policies, board=board)
    )


async def _answer(
    context: ServiceContext,
    settings: ApiSettings,
    access: HttpAccess,
    app: Later,
    connections: Connections,
    *,
    policies: PolicyBook,
    board: Board,
) -> None:
    async with open_log(context, settings.database_url) as log, _recording(context, settings) as recording:
        if log is None:
            return
        inquiry = Inquiry(log, policies=policies)
        REGISTRY.register(KeptStates(inquiry))
        long_answers = LongAnswers(
            settings.database_url,
            at_once=settings.long_answers,
            most_s=settings.long_answer_s,
            forks=context.forks,
            policies=settings.policies,
        )
        live = LiveLog(log)
        beside = [asyncio.create_task(_end_streams(context, live)), asyncio.create_task(board.services.follow())]
        late = asyncio.get_running_loop().call_later(_MOST_WAIT_S, context.health.met, STATES)
        if settings.replay_every_s:
            replaying = keep_replaying(log, long_answers, every_s=settings.replay_every_s)
            beside.append(asyncio.create_task(replaying))
        try:
            await connections.open()
            async with await ViewStore.open(settings.database_url, application="kai-api") as views:
                made = make_app(
                    inquiry,
                    context.health,
                    long_answers,
                    access,
                    live=live,
                    views=views,
                    recording=recording,
                    board=board,
                )
                app.give(made)
                await inquiry.follow(caught_up=lambda: context.health.met(STATES))
        finally:
            late.cancel()
            await end_all(beside)
            await connections.close()


@asynccontextmanager
async def _recording(context: ServiceContext, settings: ApiSettings) -> AsyncIterator[EventLog | None]:
    """Give the log as the role that records policy inputs; None where there is none, or the service is to stop."""
    if settings.inputs_database_url is None:
        yield None
        return
    async with open_log(context, settings.inputs_database_url) as log:
        yield log


async def _end_streams(context: ServiceContext, live: LiveLog) -> None:
    """End all streams as the service is to stop: they would last as long as requests under way may."""
    await context.stopping.wait()
    live.close()


SERVICE = Service("api", ApiSettings, serve, conditions=(LOG, STATES), serve_health=False, starts=(ANSWERS,))
main = SERVICE.main

if __name__ == "__main__":
    main()
