"""`kai-ingest`: one cluster's ingest as a process, with its settings and its two routes for reports.

A request is checked from the outside in: sizes and characters by the server (400, 408, 413, 431), the cluster (404),
the token (401, 403, 429), the text (400), the format (422), then the log (503). Errors are `{"error": "…"}`. There are
no pages of documentation: FastAPI's would be loaded from elsewhere.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Self

import msgspec
from fastapi import FastAPI, Request, Response
from kaicore.errors import InvalidObject, KaiError, LogError
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.bus import NatsBus
from kaicore.ledger.feed import EventFeed, FeedMetrics
from kaicore.rules.objects.reports import ReportAnswer
from kaicore.runtime.access.node_tokens import EVERY_NODE, read_secret
from kaicore.runtime.service import Health, Service, ServiceContext
from kaicore.runtime.service.health import Asgi, Later, with_health
from kaicore.runtime.service.http_errors import add_error_handlers, error_response
from kaicore.runtime.service.http_limits import HttpLimits
from kaicore.runtime.service.log_access import LOG, open_log
from kaicore.runtime.service.logs import Logger
from kaicore.runtime.service.process import listen
from kaicore.runtime.service.settings import FeedSettings, TlsSettings
from prometheus_client import REGISTRY, CollectorRegistry
from pydantic import Field, model_validator
from starlette.requests import ClientDisconnect

from kai_ingest.authentication import (
    AuthenticationUnavailable,
    Authenticator,
    KubernetesTokens,
    NotAllowed,
    NotAuthenticated,
    SharedSecret,
    TooManyReviews,
    review_token,
)
from kai_ingest.ingest import Ingest, IngestMetrics
from kai_ingest.reports import Report, decode_report, decode_reports, read_report, shown

#: Seconds after which a client may try again.
_RETRY_AFTER = {"Retry-After": "1"}

_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: _RETRY_AFTER}

#: The condition that must be met before reports are taken.
PROJECTION = "projection"


class _Answers(msgspec.Struct, frozen=True):
    answers: Sequence[ReportAnswer]


class _WrongCluster(KaiError):
    """Another cluster's nodes report elsewhere."""


class _BadText(KaiError):
    """A body is no text."""


_STATUS: dict[type[KaiError], int] = {
    _BadText: 400,
    NotAuthenticated: 401,
    NotAllowed: 403,
    _WrongCluster: 404,
    InvalidObject: 422,
    TooManyReviews: 429,
}

_encoder = msgspec.json.Encoder()


@dataclass(eq=False)
class ReportRoutes:
    """The parts behind the two routes.

    Attributes:
        health: reports wait until its condition `PROJECTION` is met.
    """

    ingest: Ingest
    authenticator: Authenticator
    _: KW_ONLY
    cluster: str
    health: Health
    metrics: IngestMetrics
    logger: Logger

    async def one(self, cluster: str, node: str, request: Request) -> Response:
        """Take one node's report."""
        return await self._respond(cluster, node, request)

    async def several(self, cluster: str, request: Request) -> Response:
        """Take several nodes' reports, from one that may speak for every node."""
        return await self._respond(cluster, EVERY_NODE, request)

    async def _respond(self, cluster: str, node: str, request: Request) -> Response:
        try:
            response = await self._handle(cluster, node, request)
        except ClientDisconnect:
            response = Response(status_code=400)
        except tuple(_STATUS) as error:
            status = _STATUS.get(type(error), 422)
            self.metrics.refused.labels(f"http-{status}").inc()
            self.logger.warning(
                "report refused", node=shown(node), client=_client(request), status=status, error=str(error)
            )
            response = error_response(status, str(error), _HEADERS.get(status))
        except (LogError, AuthenticationUnavailable) as error:
            self.logger.warning("report not taken", node=shown(node), error=str(error))
            response = error_response(503, str(error), _RETRY_AFTER)
        self.metrics.requests.labels(str(response.status_code)).inc()
        return response

    async def _handle(self, cluster: str, node: str, request: Request) -> Response:
        if cluster != self.cluster:
            raise _WrongCluster(f"cluster: only {self.cluster!r} is served here: {shown(cluster)!r}")
        await self._authenticate(node, request)
        body = await request.body()
        _check_text(body)
        if why := self.health.conditions.get(PROJECTION):
            return error_response(503, f"the log is still being read: {why}", _RETRY_AFTER)

        async def still_waited_for() -> None:
            # An ingest that stood still finds reports of which another one has taken newer ones meanwhile.
            if await request.is_disconnected():
                raise ClientDisconnect

        if node == EVERY_NODE:
            return _json(_Answers(await self._take_several(body, still_waited_for)))
        (answer,) = await self.ingest.take([decode_report(body, node=node)], still_waited_for=still_waited_for)
        return _json(answer, status=409 if answer.status == "superseded" else 200)

    async def _authenticate(self, node: str, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise NotAuthenticated("header Authorization: no bearer token")
        speaks_for = await self.authenticator.node_of(token.strip(), client=_client(request))
        if speaks_for not in (node, EVERY_NODE):
            raise NotAllowed(f"node: the token of node {speaks_for!r} is not for node {shown(node)!r}")

    async def _take_several(self, body: bytes, still_waited_for: Callable[[], Awaitable[None]]) -> list[ReportAnswer]:
        answers: list[ReportAnswer | None] = []
        reports: dict[str, Report] = {}
        for value in decode_reports(body):
            try:
                report = read_report(value)
                if report.node in reports:
                    raise InvalidObject(f"report of Node {report.node}", "node", report.node, "reports twice")
            except InvalidObject as error:
                node = value.get("node") if isinstance(value, dict) else None
                self.metrics.refused.labels("report").inc()
                self.metrics.reports.labels("refused").inc()
                self.logger.warning("report refused", node=shown(node), error=str(error))
                answers.append(ReportAnswer(shown(node), "refused", str(error)))
                continue
            reports[report.node] = report
            answers.append(None)
        taken = iter(await self.ingest.take(list(reports.values()), still_waited_for=still_waited_for))
        return [next(taken) if answer is None else answer for answer in answers]


def create_app(routes: ReportRoutes, health: Health, *, registry: CollectorRegistry = REGISTRY) -> Asgi:
    """Return the ASGI application."""
    app = FastAPI(title="kai-ingest", docs_url=None, redoc_url=None, openapi_url=None)
    add_error_handlers(app)
    app.add_api_route(
        "/v1/clusters/{cluster}/nodes/{node}/placements", routes.one, methods=["POST"], response_class=Response
    )
    app.add_api_route("/v1/clusters/{cluster}/placements", routes.several, methods=["POST"], response_class=Response)

    return with_health(health, app=app, registry=registry)


def _client(request: Request) -> str:
    return request.client.host if request.client else "?"


def _json(value: object, *, status: int = 200) -> Response:
    return Response(_encoder.encode(value), status_code=status, media_type="application/json")


def _check_text(body: bytes) -> None:
    """Refuse what neither the log nor a log line can hold.

    Raises _BadText: the body is not UTF-8, or has a NUL in it, escaped or not.
    """
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise _BadText(f"body: is not UTF-8: byte {error.start}: {body[error.start]:#04x}") from None
    if b"\x00" in body or b"\\u0000" in body:
        raise _BadText("body: has a NUL in it")


class IngestSettings(FeedSettings, TlsSettings):
    """One ingest serves one cluster, and knows tokens from Kubernetes or from a shared secret, not both."""

    cluster: str = Field(min_length=1, description="the cluster of the nodes that report here")
    node_token_secret_file: Path | None = Field(None, description="secret that node tokens are made with")
    token_review: bool = Field(False, description="have Kubernetes review the tokens")
    kubeconfig: str = Field("", description="for token_review; default: the pod's own service account")
    kube_context: str = Field("", description="context of the kubeconfig; default: its current one")
    token_audience: str = Field("kai-ingest", description="for token_review: what the tokens must be made for")
    exporter_service_accounts: list[str] = Field(
        ["kai-system:kai-exporter"],
        description="for token_review: service accounts with tokens that count, as namespace:name",
    )
    max_body_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="size of a request's body at most")
    max_connections: int = Field(10_000, ge=1, description="connections at once; one for each node's exporter")
    snapshot_events: int = Field(50_000, ge=1, description="how many events between two snapshots of the projection")

    @model_validator(mode="after")
    def _one_way_to_authenticate(self) -> Self:
        if self.token_review == (self.node_token_secret_file is not None):
            raise ValueError("give either token_review or node_token_secret_file")
        return self


#: Seconds that a log which does not answer is waited for; shorter than exporters wait for us.
_PATIENCE_S = 10.0


async def serve(context: ServiceContext, settings: IngestSettings) -> None:
    """Take reports until the process is to stop."""
    app = Later(context.health)
    limits = HttpLimits(connections=settings.max_connections, body_bytes=settings.max_body_bytes)
    server = listen(context, settings, app, limits=limits)
    async with _authenticator(settings) as authenticator:
        await server.run_beside(context.stopping, _take_reports(context, settings, authenticator, app))


async def _take_reports(
    context: ServiceContext, settings: IngestSettings, authenticator: Authenticator, app: Later
) -> None:
    async with open_log(context, settings.database_url, patience_s=_PATIENCE_S) as log:
        if log is None:
            return
        metrics = IngestMetrics(registry=context.registry)
        ingest = Ingest(
            log=log,
            cluster=settings.cluster,
            metrics=metrics,
            logger=context.log,
            clock=lambda: time.time_ns() // 1000,
            snapshot_events=settings.snapshot_events,
            health=context.health,
        )
        routes = ReportRoutes(
            ingest,
            authenticator,
            cluster=settings.cluster,
            health=context.health,
            metrics=metrics,
            logger=context.log,
        )
        app.give(create_app(routes, context.health, registry=context.registry))
        async with NatsBus.of_service(context.name, settings.nats_url) as bus:
            await ingest.load()
            observer = FeedMetrics(registry=context.registry).of(settings.cluster)
            feed = EventFeed(log, bus, settings.cluster, after=ingest.projection.position, observer=observer)
            context.health.met(PROJECTION)
            try:
                await ingest.follow(feed)
            finally:
                await feed.close()
                await ingest.save_snapshot()


@asynccontextmanager
async def _authenticator(settings: IngestSettings) -> AsyncIterator[Authenticator]:
    if settings.node_token_secret_file is not None:
        yield SharedSecret(read_secret(settings.node_token_secret_file), cluster=settings.cluster)
        return
    source = configured_access(settings.kubeconfig, context=settings.kube_context)
    async with KubeClient(source, timeout_s=_PATIENCE_S, user_agent="kai-ingest") as client:
        yield KubernetesTokens(
            partial(review_token, client),
            audience=settings.token_audience,
            service_accounts=frozenset(settings.exporter_service_accounts),
            clock=time.monotonic,
        )


SERVICE = Service("ingest", IngestSettings, serve, conditions=(LOG, PROJECTION), serve_health=False)
main = SERVICE.main

if __name__ == "__main__":
    main()
