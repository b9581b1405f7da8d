"""Logins of browsers: a token that is used once becomes a cookie.

Both are signed with a secret of the API's own. Only used tokens and logged out sessions are stored. A session of a key
ends with the key: each request looks it up. A session of an identity provider's token ends with the token, or when its
issuer is removed from the access file.
"""

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kaicore.errors import LogUnavailable
from kaicore.runtime.access.access_file import AccessRules, wall_clock
from kaicore.runtime.access.scopes import ANONYMOUS, Caller, parse_scope

if TYPE_CHECKING:
    from kaicore.ledger.connections import Connection, Connections

#: Of the cookie.
COOKIE = "kai_session"

#: Seconds that a session lasts at most, and that a login token can be used.
SESSION_S, LOGIN_S = 7 * 86400, 86400

_ALGORITHM = "HS256"
_SESSION, _LOGIN = "session", "login"


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """A session of a caller who has proved his identity.

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
        """True if there was a key or a token."""
        return bool(self.key or self.issuer)


NOBODY = CallerIdentity(ANONYMOUS)


class EndedTokens:
    """Ids of login tokens that were used and of sessions that were logged out, until they would have ended anyway."""

    def __init__(self) -> None:
        self._until: dict[str, int] = {}

    async def has(self, token: str) -> bool:
        """Return whether a token has ended."""
        return token in self._until

    async def end(self, token: str, until: int) -> bool:
        """End a token; return whether it had not ended yet. Of several processes only one is answered so.

        Args:
            until: when it would end by itself, seconds since the epoch.
        """
        now, fresh = time.time(), token not in self._until
        self._until = {one: end for one, end in self._until.items() if end > now} | {token: until}
        return fresh


class SharedEndedTokens(EndedTokens):
    """Ended tokens in the log's database, for all replicas of an API and for the next ones.

    They are read when a session is used, once in `look_s` at most. A database that does not answer ends no session:
    what was read last counts.
    """

    def __init__(self, connections: "Connections", *, look_s: float = 1.0) -> None:
        """Args:
        connections: to the log's database; of `kai_read` or a role with more rights.
        look_s: seconds for which what was read counts.
        """
        super().__init__()
        self._connections = connections
        self._look_s, self._looked_at = look_s, -look_s

    async def has(self, token: str) -> bool:
        """See `EndedTokens.has`."""
        now = time.monotonic()
        if now - self._looked_at >= self._look_s:
            self._looked_at = now
            with suppress(LogUnavailable):
                self._until |= dict(await self._connections.run(_ended))
        return await super().has(token)

    async def end(self, token: str, until: int) -> bool:
        """See `EndedTokens.end`.

        Raises LogUnavailable: the database does not answer, so the token has ended here only.
        """
        await super().end(token, until)
        return await self._connections.run(lambda connection: _end(connection, token, until))


async def _ended(connection: "Connection") -> list[tuple[str, int]]:
    return await (await connection.execute("SELECT id, until FROM ended_token")).fetchall()


async def _end(connection: "Connection", token: str, until: int) -> bool:
    rows = await connection.execute("SELECT kai_end_token(%s, %s)", [token, until])
    (fresh,) = await rows.fetchone() or (False,)
    return bool(fresh)


class Sessions:
    """Makes and reads login tokens and cookies."""

    def __init__(self, secret: bytes | None = None, ended: EndedTokens | None = None) -> None:
        """Args:
        secret: that all replicas share; by default one that ends with the process, as do all sessions then.
        ended: tokens that were used, and sessions that were logged out; by default of this process only.
        """
        self._secret = secret or secrets.token_bytes(32)
        self._ended = ended or EndedTokens()

    def login_token(self, identity: CallerIdentity) -> str:
        """Return a token that a browser can make a session of, once."""
        return self._signed(identity, _LOGIN, LOGIN_S)

    def cookie(self, identity: CallerIdentity) -> str:
        """Return the value of a session's cookie."""
        return self._signed(identity, _SESSION, SESSION_S)

    async def of_login_token(self, token: str, rules: AccessRules | None) -> CallerIdentity | None:
        """Return who a login token was made for, and let it not be used again; None where it is none, or was used."""
        claims = self._claims(token, _LOGIN)
        if claims is None or not await self._ended.end(claims["jti"], claims["exp"]):
            return None
        return self._identity(claims, rules)

    async def of_cookie(self, value: str, rules: AccessRules | None) -> CallerIdentity | None:
        """Return the caller that the session is of; None where it is none, or has ended."""
        claims = self._claims(value, _SESSION)
        return None if claims is None or await self._ended.has(claims["jti"]) else self._identity(claims, rules)

    async def end(self, value: str) -> None:
        """Log a session out: its cookie is worth nothing from now on, whoever has it."""
        if (claims := self._claims(value, _SESSION)) is not None:
            await self._ended.end(claims["jti"], claims["exp"])

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
