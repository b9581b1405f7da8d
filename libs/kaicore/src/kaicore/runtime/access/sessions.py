"""Logins of browsers: a token that is used once becomes a cookie.

Both are signed with a secret of the API's own, and nothing is kept of them but which tokens were used. A session of a
key ends with the key: each request looks it up. One of an identity provider's token ends with the token, or when its
issuer is taken out of the access file.
"""

import secrets
import time
from dataclasses import dataclass
from typing import Any

from kaicore.runtime.access.access_file import AccessRules, wall_clock
from kaicore.runtime.access.scopes import ANONYMOUS, Caller, parse_scope

#: Of the cookie.
COOKIE = "kai_session"

#: Seconds that a session lasts at most, and that a login token can be used.
SESSION_S, LOGIN_S = 7 * 86400, 86400

_ALGORITHM = "HS256"
_SESSION, _LOGIN = "session", "login"


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """Who has proved who he is, and by what.

    Attributes:
        caller: with what may be seen.
        key: hash of the key; empty where there was none.
        issuer: of the token that an identity provider made; empty where there was none.
        until: when that token ends, seconds since the epoch.
    """

    caller: Caller
    key: str = ""
    issuer: str = ""
    until: int = 0

    @property
    def proved(self) -> bool:
        """Whether there was a key or a token."""
        return bool(self.key or self.issuer)


NOBODY = CallerIdentity(ANONYMOUS)


class Sessions:
    """Makes and reads login tokens and cookies."""

    def __init__(self, secret: bytes | None = None) -> None:
        """Args: secret: that all replicas share; by default one that ends with the process, as do all sessions then."""
        self._secret = secret or secrets.token_bytes(32)
        self._used: dict[str, float] = {}

    def login_token(self, identity: CallerIdentity) -> str:
        """Return a token that a browser can make a session of, once."""
        return self._signed(identity, _LOGIN, LOGIN_S)

    def cookie(self, identity: CallerIdentity) -> str:
        """Return the value of a session's cookie."""
        return self._signed(identity, _SESSION, SESSION_S)

    def of_login_token(self, token: str, rules: AccessRules | None) -> CallerIdentity | None:
        """Return who a login token was made for, and let it not be used again; None where it is none, or was used."""
        claims = self._claims(token, _LOGIN)
        if claims is None or claims["jti"] in self._used:
            return None
        now = time.time()
        self._used = {one: until for one, until in self._used.items() if until > now}
        self._used[claims["jti"]] = claims["exp"]
        return self._identity(claims, rules)

    def of_cookie(self, value: str, rules: AccessRules | None) -> CallerIdentity | None:
        """Return whose session it is; None where it is none, or has ended."""
        claims = self._claims(value, _SESSION)
        return None if claims is None else self._identity(claims, rules)

    def _signed(self, identity: CallerIdentity, use: str, most_s: float) -> str:
        claims: dict[str, Any] = {
            "use": use,
            "sub": identity.caller.name,
            "key": identity.key,
            "exp": int(time.time() + most_s),
            "jti": secrets.token_urlsafe(12),
        }
        if identity.issuer:
            claims |= {
                "by": identity.issuer,
                "scopes": [str(scope) for scope in identity.caller.scopes],
                "until": identity.until,
                "exp": min(int(time.time() + most_s), identity.until),
            }
        # It takes 0.1 s to import, and most processes have no browser.
        import jwt  # noqa: PLC0415

        return jwt.encode(claims, self._secret, _ALGORITHM)

    def _claims(self, token: str, use: str) -> dict[str, Any] | None:
        import jwt  # noqa: PLC0415

        try:
            claims: dict[str, Any] = jwt.decode(
                token, self._secret, [_ALGORITHM], options={"require": ["exp", "sub", "jti"]}
            )
        except jwt.InvalidTokenError:
            return None
        return claims if claims.get("use") == use else None

    def _identity(self, claims: dict[str, Any], rules: AccessRules | None) -> CallerIdentity | None:
        name, key = claims["sub"], claims["key"]
        if issuer := claims.get("by"):
            if rules is None or issuer not in rules.issuers:
                return None
            scopes = tuple(parse_scope(text, f"session of {name}") for text in claims["scopes"])
            return CallerIdentity(Caller(name, scopes), issuer=issuer, until=claims["until"])
        caller = None if rules is None else rules.named(name, hash=key, now=wall_clock())
        return None if caller is None else CallerIdentity(caller, key)
