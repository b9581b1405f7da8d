"""Logins of browsers: a token that is used once becomes a cookie.

Both are signed with a secret of the API's own. Only used tokens and logged out sessions are stored. A session of a key
ends with the key: each request looks it up. A session of an identity provider's token ends with the token, or when its
issuer is removed from the access file.
"""

import fcntl
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kaicore.errors import ConfigurationError
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


class EndedTokens:
    """Ids of login tokens that were used and of sessions that were logged out, until they would have ended anyway."""

    def __init__(self, file: Path | None = None) -> None:
        """Args: file: where they are kept for other processes, and the next ones; by default they end with this one.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        self._file = file
        self._stamp: tuple[int, ...] = ()
        self._until: dict[str, int] = {}
        if file is not None:
            try:
                file.touch(mode=0o600)
                self._read(file)
            except OSError as error:
                raise ConfigurationError(f"ended_sessions_file {file}: {error.strerror}") from error

    def has(self, token: str) -> bool:
        """Return whether a token has ended.

        Raises:
            OSError: the file cannot be read any more.
        """
        if self._file is not None:
            self._read(self._file)
        return token in self._until

    def end(self, token: str, until: int) -> bool:
        """End a token; return whether it had not ended yet. Of several processes only one is answered so.

        Args:
            token: its id.
            until: when it would end by itself, seconds since the epoch.

        Raises:
            OSError: the file cannot be written any more.
        """
        if self._file is None:
            fresh = token not in self._until
            self._until = _valid(self._until) | {token: until}
            return fresh
        with self._file.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            kept = _valid(_parsed(file.read()))
            fresh = token not in kept
            file.seek(0)
            file.write("".join(f"{one} {end}\n" for one, end in (kept | {token: until}).items()))
            file.truncate()
        return fresh

    def _read(self, path: Path) -> None:
        seen = path.stat()
        stamp = (seen.st_mtime_ns, seen.st_ino, seen.st_size)
        if stamp != self._stamp:
            with path.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                self._until = _parsed(file.read())
            self._stamp = stamp


def _parsed(text: str) -> dict[str, int]:
    """Return when each token would end by itself; lines that make no sense count for nothing."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _valid(until: dict[str, int]) -> dict[str, int]:
    now = time.time()
    return {one: end for one, end in until.items() if end > now}


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

    def of_login_token(self, token: str, rules: AccessRules | None) -> CallerIdentity | None:
        """Return who a login token was made for, and let it not be used again; None where it is none, or was used."""
        claims = self._claims(token, _LOGIN)
        if claims is None or not self._ended.end(claims["jti"], claims["exp"]):
            return None
        return self._identity(claims, rules)

    def of_cookie(self, value: str, rules: AccessRules | None) -> CallerIdentity | None:
        """Return whose session it is; None where it is none, or has ended."""
        claims = self._claims(value, _SESSION)
        return None if claims is None or self._ended.has(claims["jti"]) else self._identity(claims, rules)

    def end(self, value: str) -> None:
        """Log a session out: its cookie is worth nothing from now on, whoever has it."""
        if (claims := self._claims(value, _SESSION)) is not None:
            self._ended.end(claims["jti"], claims["exp"])

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
