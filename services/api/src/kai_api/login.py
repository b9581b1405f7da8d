"""Logging in with a browser: `/login`, `/logout`, and tokens for addresses that log in by themselves.

`kai up` and `kai dashboard` print `http://…/login#TOKEN`. What is behind `#` is sent to nobody; the page puts it into
its form, and gets a cookie for it (HttpOnly, SameSite=Lax), once. A key can be pasted into the same form.
"""

import html
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from string import Template
from urllib.parse import parse_qs

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from kaicore.analysis.inquiry.answers import Answer
from kaicore.runtime.access.callers import HttpAccess, RequestRefused, check_same_site
from kaicore.runtime.access.sessions import COOKIE, LOGIN_S, SESSION_S, CallerIdentity

from kai_api.answering import AnswerRouter

_PAGE = (files(__package__) / "login.html").read_text()
_SCRIPT = _PAGE.partition("<script>")[2].partition("</script>")[0]
_STYLE = _PAGE.partition("<style>")[2].partition("</style>")[0]


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
}


class LoginToken(Answer, frozen=True, kw_only=True):
    """A token that logs a browser in, once.

    Attributes:
        path: what to open: the address of the API, and this.
        seconds: for which it can be used.
    """

    path: str
    seconds: int


class WhoAmI(Answer, frozen=True, kw_only=True):
    """Who the API takes the caller for, and what he may see."""

    name: str
    scopes: list[str]


def make_login_router(access: HttpAccess) -> APIRouter:
    """Make the routes of logging in; only `/login` itself is for those who are not logged in."""
    router = AnswerRouter()

    @router.get("/login", include_in_schema=False)
    async def login_page(next: str = "/") -> Response:  # noqa: A002
        return _page(next, "")

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
            return _page(target, f"{error}.", status=error.status)
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


def _page(target: str, why: str, *, status: int = 200) -> Response:
    page = Template(_PAGE).substitute(next=html.escape(_local(target)), why=html.escape(why))
    return HTMLResponse(page, status_code=status, headers=_HEADERS)


def _local(target: str) -> str:
    """Return a path of this site: whoever made the address cannot send the browser elsewhere."""
    plain = target.startswith("/") and not target.startswith("//") and "\\" not in target and target.isprintable()
    return target if plain else "/"
