"""Authentication of every request, and access checks of every route.

The caller is known before anything else of a request is looked at. A route is closed to callers who may see a part of
a cluster only, unless it is marked as able to answer them.

A cluster of which a caller may see nothing does not exist for him: the answer is 404, in the words of a cluster that
does not exist. His scopes alone decide whether a namespace is open to him (403), so the answer does not show whether
the namespace exists.

A browser logs in at `/login`. `kai up` and `kai dashboard` print `http://…/login#TOKEN`. What is behind `#` is sent to
nobody; the page puts it into its form, and gets a cookie for it (HttpOnly, SameSite=Lax), once. A key can be pasted
into the same form.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote

import msgspec
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from kaicore.analysis.ask.answers import Why
from kaicore.analysis.json_spelling import Answer
from kaicore.ledger.log.port import EventLog
from kaicore.rules.hub.hub_state import HUB, without_hub
from kaicore.runtime.access.callers import HttpAccess, RequestRefused, check_same_site
from kaicore.runtime.access.scopes import answering, current_caller, current_view, looking
from kaicore.runtime.access.sessions import COOKIE, LOGIN_S, SESSION_S, CallerIdentity
from kaicore.runtime.service.health import Asgi
from kaicore.runtime.service.http_errors import error_response

from kai_api.answering import AnswerRouter

#: No page before or behind learns of a login, and no cache keeps it.
_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


class LoginToken(Answer, frozen=True, kw_only=True):
    """A token that logs a browser in, once.

    Attributes:
        path: what to open: the address of the API, and this.
        seconds: for which it can be used.
    """

    path: str
    seconds: int


class WhoAmI(Answer, frozen=True, kw_only=True):
    """The caller that the API recognizes, with his rights."""

    name: str
    scopes: list[str]


def make_login_router(access: HttpAccess, page: Callable[..., Response]) -> APIRouter:
    """Make the routes of logging in; only `/login` itself is for those who are not logged in.

    Args:
        page: renders a page of a template's name and model.
    """
    router = AnswerRouter()
    login_form = partial(_login_form, page)

    @router.get("/login", include_in_schema=False)
    async def login_page(request: Request, next: str = "/") -> Response:  # noqa: A002
        return login_form(request, next, "")

    @router.post("/login", include_in_schema=False)
    async def login(request: Request) -> Response:
        form = parse_qs((await request.body()).decode(errors="replace"))
        token, target = form.get("token", [""])[0].strip(), form.get("next", ["/"])[0]
        client = request.client.host if request.client else "?"
        try:
            # A page of another site could log a browser in as somebody who wants to see what it asks.
            check_same_site(request)
            identity = await access.prove(token, client, login=True)
        except RequestRefused as error:
            return login_form(request, target, f"{error}.", status=error.status)
        answer = RedirectResponse(_local(target), status_code=303, headers={"Cache-Control": "no-store"})
        answer.set_cookie(
            COOKIE,
            access.sessions.cookie(identity),
            max_age=SESSION_S,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
        )
        return answer

    @router.post("/logout", include_in_schema=False)
    async def logout(request: Request) -> Response:
        await access.sessions.end(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/login", status_code=303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="lax")
        return answer

    @router.post("/v1/login-tokens")
    async def login_token(request: Request) -> LoginToken:
        """Make a token with which a browser logs in as the caller, once."""
        identity: CallerIdentity = request.scope["kai.identity"]
        if not identity.proved:
            raise HTTPException(400, "nobody has to log in here: it answers without a key")
        return LoginToken(path=f"/login#{access.sessions.login_token(identity)}", seconds=LOGIN_S)

    @router.get("/v1/whoami")
    async def whoami(request: Request) -> WhoAmI:
        """Say who the API takes the caller for."""
        caller = request.scope["kai.identity"].caller
        return WhoAmI(name=caller.name, scopes=[str(scope) for scope in caller.scopes])

    return router


def _login_form(
    page: Callable[..., Response], request: Request, target: str, why: str, *, status: int = 200
) -> Response:
    answer = page(request, "login.html", status=status, next=_local(target), why=why)
    answer.headers.update(_HEADERS)
    return answer


def _local(target: str) -> str:
    """Return a path of this site: whoever made the address cannot send the browser elsewhere."""
    plain = target.startswith("/") and not target.startswith("//") and "\\" not in target and target.isprintable()
    return target if plain else "/"


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


def for_recorders(endpoint: _FunctionT) -> _FunctionT:
    """Mark a route as one that records facts in a cluster's log: for callers with a scope `inputs:CLUSTER` only."""
    endpoint.__dict__["for_recorders"] = True
    return endpoint


def seen_namespaces() -> frozenset[str] | None:
    """Return the namespaces that the caller may see of the cluster; None for all of it."""
    view = current_view()
    return None if view.whole else view.namespaces


def check_kind(kind: str, namespace: str) -> None:
    """Refuse to tell of what is in no namespace, or tells of others' work, unless the caller may see the whole cluster.

    Raises:
        HTTPException: 403.
    """
    if not current_view().whole and (not namespace or kind in _CLUSTER_WIDE):
        raise HTTPException(403, f"{kind} without a namespace is for callers who may see all of the cluster")


def sees_hub() -> bool:
    """Tell whether the caller may see the hub whole: a dispatch tells of all clusters."""
    view = current_caller().view(HUB)
    return view is not None and view.whole


def check_sees_hub() -> None:
    """Refuse callers who may not see the hub whole. Raises HTTPException: 403."""
    if not sees_hub():
        raise HTTPException(403, "this is for callers who may see all of cluster hub")


def seen_of_hub(why: Why) -> Why:
    """Return an answer without its dispatch, unless the caller sees the hub: a pod's owner may name any on the pod."""
    return why if why.dispatch is None or sees_hub() else msgspec.structs.replace(why, dispatch=None)


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
        recording = getattr(request.scope["route"].endpoint, "for_recorders", False)
        records = recording and caller.records(cluster)
        if (view is None and not records) or cluster not in without_hub(await log.clusters()):
            raise HTTPException(404, f"no cluster {cluster!r} in the log")
        if records:
            return
        if recording:
            raise HTTPException(403, f"{caller.name} may not record here: this needs the scope inputs:{cluster}")
        assert view is not None, "refused above"
        if not view.whole:
            if not getattr(request.scope["route"].endpoint, "for_namespaces", False):
                raise HTTPException(403, f"this is for callers who may see all of cluster {cluster}")
            namespace = request.path_params.get("namespace") or request.query_params.get("namespace", "")
            if namespace and not view.sees(namespace):
                raise HTTPException(403, f"{caller.name} may not see namespace {namespace!r} of cluster {cluster}")
        looking(view)

    return authorize
