"""Authentication of every request, and access checks of every route.

The caller is known before anything else of a request is looked at. A route is closed to callers who may see a part of
a cluster only, unless it is marked as able to answer them.

A cluster of which a caller may see nothing does not exist for him: the answer is 404, in the words of a cluster that
does not exist. His scopes alone decide whether a namespace is open to him (403), so the answer does not show whether
the namespace exists.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import HTTPException, Request
from fastapi.responses import RedirectResponse
from kaicore.ledger.log.port import EventLog
from kaicore.rules.hub.hub_state import without_hub
from kaicore.runtime.access.callers import HttpAccess, RequestRefused
from kaicore.runtime.access.scopes import answering, current_caller, current_view, looking
from kaicore.runtime.service.health import Asgi
from kaicore.runtime.service.http_errors import error_response

#: Paths that are for everybody: the way in, what pages look like, and what can be asked.
_PUBLIC = frozenset({"/login", "/openapi.json", "/favicon.ico"})
_PUBLIC_BELOW = "/static/"

#: Kinds that are in no namespace, or tell of others' work.
_CLUSTER_WIDE = frozenset({"Node", "Queue", "ClusterQueue", "Cohort", "LocalQueue"})

_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])


def for_namespaces(endpoint: _FunctionT) -> _FunctionT:
    """Mark a route as one that answers callers who may see some namespaces only.

    Its path or query has `namespace`, which is checked here. Where it can be left out, the route itself leaves out what
    `current_view()` does not see. Texts that name what is in other namespaces are seen to by `AnswerRouter`.
    """
    endpoint.__dict__["for_namespaces"] = True
    return endpoint


def check_kind(kind: str, namespace: str) -> None:
    """Refuse to tell of what is in no namespace, or tells of others' work, unless the caller may see the whole cluster.

    Raises:
        HTTPException: 403.
    """
    if not current_view().whole and (not namespace or kind in _CLUSTER_WIDE):
        raise HTTPException(403, f"{kind} without a namespace is for callers who may see all of the cluster")


def authenticated(app: Asgi, access: HttpAccess) -> Asgi:
    """Return an application that answers known callers only."""

    async def known(
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or path in _PUBLIC or path.startswith(_PUBLIC_BELOW):
            await app(scope, receive, send)
            return
        request = Request(scope)
        try:
            identity = await access.identify(request)
        except RequestRefused as error:
            await _refusal(request, error)(scope, receive, send)
            return
        scope["kai.identity"] = identity
        answering(identity.caller)
        await app(scope, receive, send)

    return known


def _refusal(request: Request, error: RequestRefused) -> Asgi:
    path = request.url.path
    wants_page = "text/html" in request.headers.get("accept", "")
    if error.status == 401 and wants_page and path == "/logout":
        return RedirectResponse("/login", status_code=303)
    if error.status == 401 and wants_page and request.method == "GET" and not path.startswith("/v1/"):
        where = quote(f"{path}?{request.url.query}" if request.url.query else path, safe="")
        return RedirectResponse(f"/login?next={where}", status_code=303)
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    if error.retry_s:
        headers["Retry-After"] = str(error.retry_s)
    return error_response(error.status, str(error), headers)


def authorization(log: EventLog) -> Callable[[Request], Awaitable[None]]:
    """Return the dependency of all routes that refuses what a caller may not see."""

    async def authorize(request: Request) -> None:
        cluster = request.path_params.get("cluster")
        if cluster is None:
            return
        caller = current_caller()
        view = caller.view(cluster)
        if view is None or cluster not in without_hub(await log.clusters()):
            raise HTTPException(404, f"no cluster {cluster!r} in the log")
        if not view.whole:
            if not getattr(request.scope["route"].endpoint, "for_namespaces", False):
                raise HTTPException(403, f"this is for callers who may see all of cluster {cluster}")
            namespace = request.path_params.get("namespace") or request.query_params.get("namespace", "")
            if namespace and not view.sees(namespace):
                raise HTTPException(403, f"{caller.name} may not see namespace {namespace!r} of cluster {cluster}")
        looking(view)

    return authorize
