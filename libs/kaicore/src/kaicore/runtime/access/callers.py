"""The caller of a request: a key, a browser's session, or nobody where that is allowed.

Every program of the machine can reach an API with an address that is printed for a browser. So can web pages that have
their name point to it. So even on one machine a caller must authenticate, unless the operator sets `anonymous`. An
anonymous API of one machine answers only callers that use a loopback name.
"""

import asyncio
import ipaddress
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from starlette.requests import Request

from kaicore.errors import KaiError
from kaicore.runtime.access import access_file
from kaicore.runtime.access.scopes import KEY_PREFIX, Caller, key_hash
from kaicore.runtime.access.sessions import COOKIE, NOBODY, CallerIdentity, Sessions
from kaicore.runtime.rate_limit import RateLimits

if TYPE_CHECKING:
    from kaicore.runtime.access.oidc import TokenChecker

#: Who may ask without proving who he is.
Anonymous = Literal["no", "loopback", "anywhere"]

#: RequestRefused proofs of one address: at once, and in a second; and addresses that are remembered.
_REFUSALS, _REFUSALS_PER_S, _ADDRESSES = 20, 1.0, 10_000
#: Callers with remembered limits.
_CALLERS = 10_000


class RequestRefused(KaiError):
    """A request is not answered.

    Attributes:
        status: the HTTP status that says so.
        retry_s: seconds after which it makes sense to ask again; 0 where it does not.
    """

    def __init__(self, status: int, why: str, *, retry_s: int = 0) -> None:
        super().__init__(why)
        self.status = status
        self.retry_s = retry_s


#: Has a key or token where something in between takes `Authorization` for itself, as the proxy of an API server does.
_KEY_HEADER = "x-kai-key"


class HttpAccess:
    """Decides who a request comes from, and whether he asks too often."""

    def __init__(
        self,
        *,
        anonymous: Anonymous,
        file: access_file.AccessFile | None = None,
        sessions: Sessions | None = None,
        per_s: float = 50,
        burst: int = 500,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Args:
        anonymous: who may ask without proving who he is.
        file: keys and scopes; None where there are none.
        per_s: requests that one caller may make in a second.
        clock: seconds, of a clock that does not jump; by default the event loop's.
        """
        self.sessions = sessions or Sessions()
        self._checker: TokenChecker | None = None
        self._anonymous = anonymous
        self._file = file
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._callers = RateLimits(per_s=per_s, burst=burst, keys=_CALLERS)
        self._refusals = RateLimits(per_s=_REFUSALS_PER_S, burst=_REFUSALS, keys=_ADDRESSES)

    @property
    def rules(self) -> access_file.AccessRules | None:
        """The access file's present contents."""
        return None if self._file is None else self._file.rules

    async def identify(self, request: Request) -> CallerIdentity:
        """Return who a request comes from.

        Raises RequestRefused: 401 for nobody, 403 for a place that may not be called so, 429 for too often.
        """
        identity = await self._identify(request)
        now = self._clock()
        limit = self._callers.of(identity.caller.name if identity is not NOBODY else _address(request), now)
        if not limit.take(now):
            raise RequestRefused(429, f"{identity.caller.name} asks too often", retry_s=limit.wait_s(now))
        return identity

    async def _identify(self, request: Request) -> CallerIdentity:
        if key := request.headers.get(_KEY_HEADER, "").strip():
            return await self.prove(key, _address(request))
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme:
            if scheme.lower() != "bearer" or not token.strip():
                raise RequestRefused(401, "header Authorization: no bearer token")
            return await self.prove(token.strip(), _address(request))
        if (cookie := request.cookies.get(COOKIE)) is not None:
            identity = await self.sessions.of_cookie(cookie, self.rules)
            if identity is not None:
                check_same_site(request)
                return identity
        if self._anonymous == "no":
            raise RequestRefused(401, "who are you? A key or a token goes into the header Authorization: Bearer …")
        if self._anonymous == "loopback":
            _check_loopback(request)
        return NOBODY

    async def prove(self, token: str, address: str, *, login: bool = False) -> CallerIdentity:
        """Return the caller that the key or token is of.

        Raises RequestRefused: it is worth nothing; 429 where too many from this address were. What is worth something
        is never refused.

        Args:
            token: a key, an identity provider's token or, where `login` is true, a login token.
            login: whether a login token counts.
        """
        if (rules := self.rules) is not None and rules.issuers:
            await self._tokens().prepare(token, rules.issuers.values())
        try:
            return await self._proved(token, login=login)
        except RequestRefused as error:
            # Counted afterwards: callers share addresses, and wrong keys of one must not keep the others out. A look
            # at a key costs a hash, or the check of a signature.
            now = self._clock()
            refusals = self._refusals.of(address, now)
            if refusals.take(now):
                raise
            why = f"too many tokens of {address} were refused"
            raise RequestRefused(429, why, retry_s=refusals.wait_s(now)) from error

    def _tokens(self) -> "TokenChecker":
        if self._checker is None:
            # Its libraries take 0.2 s to import, and most processes have no issuers.
            from kaicore.runtime.access.oidc import TokenChecker  # noqa: PLC0415

            self._checker = TokenChecker()
        return self._checker

    async def _proved(self, token: str, *, login: bool) -> CallerIdentity:
        rules = self.rules
        if token.startswith(KEY_PREFIX):
            caller = None if rules is None else rules.of_key(token, now=access_file.wall_clock())
            if caller is None:
                raise RequestRefused(401, "this key is not known, or has expired")
            return CallerIdentity(caller, key_hash(token))
        if login and (identity := await self.sessions.of_login_token(token, rules)) is not None:
            return identity
        if rules is not None and rules.issuers:
            try:
                holder = self._tokens().holder(token, rules.issuers.values())
            except access_file.TokenRefused as error:
                raise RequestRefused(403 if isinstance(error, access_file.NoScope) else 401, str(error)) from error
            return CallerIdentity(Caller(holder.name, holder.scopes), issuer=holder.issuer, until=holder.until)
        raise RequestRefused(401, "this token is worth nothing here" + (", or was used before" if login else ""))


def _address(request: Request) -> str:
    return request.client.host if request.client else "?"


def check_same_site(request: Request) -> None:
    """Refuse what another site's page has a browser send; the cookie's SameSite does so, too.

    Browsers send `Sec-Fetch-Site` to addresses with TLS and to this machine only, and `Origin` with every POST (Fetch
    standard, 3.2). Neither is sent by programs that are no browsers. Raises RequestRefused: it is such a request.
    """
    if request.method in ("GET", "HEAD"):
        return
    site = request.headers.get("sec-fetch-site")
    if site is None:
        origin = request.headers.get("origin")
        own = origin is None or urlsplit(origin).netloc.lower() == request.headers.get("host", "").strip().lower()
    else:
        own = site in ("none", "same-origin")
    if not own:
        raise RequestRefused(403, "a page of another site may not ask in your name")


def _check_loopback(request: Request) -> None:
    """Refuse whoever is not on this machine, and pages of a site that points its name to it (DNS rebinding).

    Raises RequestRefused: it is such a request.
    """
    if not _loopback(_address(request)):
        raise RequestRefused(401, "without a key or token only this machine is answered")
    host = request.headers.get("host", "").strip()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name != "localhost" and not _loopback(name):
        raise RequestRefused(
            403, f"without a key or token only localhost and 127.0.0.1 are answered, not {name[:100]!r}"
        )


def _loopback(address: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False
