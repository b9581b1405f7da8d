"""`kai-hub`, which gives dispatches to clusters, as a process, with its settings and routes.

Two routes submit a dispatch and withdraw it. What became of it, the API answers. The keys are those of the API, and a
caller may submit what he may see: objects of his namespaces, to his clusters.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import Response
from kaicore.analysis.ask.hub_rows import dispatch_row
from kaicore.analysis.trial.dispatching import HubLog, named_dispatch, submit_dispatch, withdraw_dispatch
from kaicore.analysis.trial.simulation.manifest_text import Reading, read_text
from kaicore.errors import ConfigurationError, Conflict, InvalidObject, KaiError, LogUnavailable, UnknownSubject
from kaicore.ledger.bus import NatsBus
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.events.payloads import DispatchSubmitted
from kaicore.rules.hub.hub_state import DispatchEntry
from kaicore.rules.objects.dispatched import Manifest
from kaicore.runtime.access.access_file import AccessFile
from kaicore.runtime.access.callers import HttpAccess, RequestRefused
from kaicore.runtime.access.scopes import ANY, Caller
from kaicore.runtime.policies.guard import TimeAndMemory
from kaicore.runtime.service import Health, Service, ServiceContext
from kaicore.runtime.service.health import Asgi, Later, with_health
from kaicore.runtime.service.http_errors import add_error_handlers, error_response, only_known_parameters
from kaicore.runtime.service.http_limits import HttpLimits
from kaicore.runtime.service.log_access import LOG, open_log
from kaicore.runtime.service.process import listen
from kaicore.runtime.service.settings import FeedSettings, ProxySettings, TlsSettings
from kaicore.runtime.shard_settings import book_of
from pydantic import Field

from kai_hub.hub import STATE, Hub, HubMetrics, HubOptions

_STATUS: dict[type[KaiError], int] = {
    InvalidObject: 400,
    Conflict: 409,
    ConfigurationError: 400,
    UnknownSubject: 404,
    LogUnavailable: 503,
}

_manifests = msgspec.json.Decoder(list[Manifest])


def make_app(hub: HubLog, access: HttpAccess, health: Health) -> Asgi:
    """Make the application. `health`: answered without asking who asks."""
    app = FastAPI(title="kai-hub", docs_url=None, redoc_url=None, dependencies=[Depends(only_known_parameters)])
    add_error_handlers(app)
    folding = asyncio.Lock()

    async def answered(request: Request, work: Callable[[Caller], Awaitable[Response]]) -> Response:
        try:
            return await work((await access.identify(request)).caller)
        except RequestRefused as error:
            headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
            return error_response(error.status, str(error), headers | _retry(error.retry_s))
        except KaiError as error:
            status = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)
            return error_response(status, str(error), _retry(1 if status == 503 else 0))

    @app.post("/v1/dispatches")
    async def submit(request: Request, name: str = "", clusters: str = "", data: str = "") -> Response:
        """Submit the manifests of the body, JSON or YAML: 201, or 200 where the same was submitted before."""

        async def work(caller: Caller) -> Response:
            body = await request.body()
            submitted = await asyncio.to_thread(_read, body, name, clusters, data)
            if why := _why_not(caller, submitted):
                raise HTTPException(403, f"{caller.name} may not submit this: {why}")
            async with folding:
                before = (await hub.refresh()).dispatches.get(submitted.dispatch)
                if before is not None and not _may(caller, before.submitted):
                    raise Conflict(f"dispatch {submitted.dispatch}: the name is taken; name another")
                new = await submit_dispatch(hub, submitted, actor=_actor(caller))
                return _row(hub.state.dispatches[submitted.dispatch], 201 if new else 200)

        return await answered(request, work)

    @app.delete("/v1/dispatches/{name}")
    async def withdraw(request: Request, name: str) -> Response:
        """Withdraw a dispatch; once more changes nothing."""

        async def work(caller: Caller) -> Response:
            async with folding:
                entry = (await hub.refresh()).dispatches.get(name)
                if entry is None or not _may(caller, entry.submitted):
                    raise UnknownSubject(f"the hub knows of no dispatch {name}")
                return _row(await withdraw_dispatch(hub, name, actor=_actor(caller)), 200)

        return await answered(request, work)

    return with_health(health, app=app)


def _read(body: bytes, name: str, clusters: str, data: str) -> DispatchSubmitted:
    reading = Reading()
    read_text(reading, "request", body, is_json=None, named=True)
    if reading.problems:
        raise InvalidObject("manifests", "body", "", "; ".join(map(str, reading.problems)))
    return named_dispatch(reading.objects, name, clusters=_names(clusters), data=_names(data))


def _names(text: str) -> list[str]:
    return sorted({name for name in text.split(",") if name})


def _may(caller: Caller, submitted: DispatchSubmitted) -> bool:
    return not _why_not(caller, submitted)


def _why_not(caller: Caller, submitted: DispatchSubmitted) -> str:
    """Return why a caller may not have a dispatch's objects made in its clusters; empty where he may."""
    manifests = _manifests.decode(submitted.manifests)
    for cluster in submitted.clusters or (ANY,):
        view = caller.view(cluster)
        if view is None:
            return "name the clusters that you may see" if cluster == ANY else f"cluster {cluster!r} is not yours"
        if view.whole:
            continue
        for manifest in manifests:
            metadata = manifest["metadata"]
            namespace = metadata.get("namespace")
            # What is in no namespace would be everybody's, and which kinds are is the cluster's to say.
            if not isinstance(namespace, str) or not view.sees(namespace):
                what = f"{manifest['kind']} {metadata['name']}"
                return f"{what}: namespace {namespace!r} is not yours" if namespace else f"{what}: name its namespace"
    return ""


def _actor(caller: Caller) -> str:
    return f"caller/{caller.name}"


def _row(entry: DispatchEntry, status: int) -> Response:
    return Response(msgspec.json.encode(dispatch_row(entry)), status_code=status, media_type="application/json")


def _retry(seconds: int) -> dict[str, str]:
    return {"Retry-After": str(seconds)} if seconds else {}


class HubSettings(FeedSettings, TlsSettings, ProxySettings, HubOptions):
    """Settings of `kai-hub`."""

    access_file: Path | None = Field(
        None,
        description="YAML file of hashed keys with their scopes, who may submit over HTTP; without it nobody may",
    )
    policies: str = Field(
        "",
        description="the code of policies, as for kai-api; trials leave out those without",
    )


#: Manifests are larger than other requests.
_LIMITS = HttpLimits(body_bytes=4 << 20)


async def serve(context: ServiceContext, settings: HubSettings) -> None:
    """Decide, and take dispatches, until the process is to stop."""
    access = None
    if settings.access_file is not None:
        access = HttpAccess(anonymous="no", file=AccessFile(settings.access_file))
    policies = book_of(filter(None, settings.policies.split(",")), TimeAndMemory())
    app = Later(context.health)
    server = listen(context, settings, app, limits=_LIMITS, takes_dispatches=access is not None)
    await server.run_beside(context.stopping, _decide(context, settings, access, app, policies))


async def _decide(
    context: ServiceContext, settings: HubSettings, access: HttpAccess | None, app: Later, policies: PolicyBook
) -> None:
    async with (
        NatsBus.of_service(context.name, settings.nats_url) as bus,
        open_log(context, settings.database_url) as log,
    ):
        if log is None:
            return
        if access is None:
            app.give(with_health(context.health))
        else:
            app.give(make_app(HubLog(log), access, context.health))
        hub = Hub(
            log=log,
            bus=bus,
            context=context,
            metrics=HubMetrics(),
            instance=uuid4().hex[:8],
            clock=lambda: time.time_ns() // 1000,
            monotonic=lambda: time.monotonic_ns() // 1000,
            options=settings,
            policies=policies,
        )
        await hub.run()


SERVICE = Service("hub", HubSettings, serve, conditions=(LOG, STATE), serve_health=False)
main = SERVICE.main

if __name__ == "__main__":
    main()
