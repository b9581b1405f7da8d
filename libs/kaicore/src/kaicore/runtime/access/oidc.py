"""Tokens of identity providers: JWTs, checked by the keys that an issuer publishes (OpenID Connect Discovery 1.0).

The access file names issuers, and the claim that gives each scope. Keys are fetched when a token comes with an unknown
key, and anew each hour. Tokens with a key that nobody has make an issuer be asked at most every ten seconds.
"""

import asyncio
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import jwt
import msgspec

from kaicore.errors import KaiError
from kaicore.runtime.access.access_file import IssuerEntry, NoScope, TokenRefused, claim_values
from kaicore.runtime.access.scopes import AccessScope
from kaicore.runtime.service.logs import get_logger

_logger = get_logger()

#: Signatures that nobody can make who only checks them.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
#: Seconds by which clocks may differ, for which keys are taken as they were, and between two attempts to fetch them.
_LEEWAY_S, _KEYS_S, _ATTEMPT_S = 30, 3600.0, 10.0
#: Seconds and bytes that an issuer's answer may take.
_ANSWER_S, _ANSWER_BYTES = 5.0, 1 << 20


@dataclass(slots=True)
class _Keys:
    """An issuer's keys, by id (`fetched_s`: when they came; `tried_s` when they were asked for last)."""

    by_id: dict[str | None, jwt.PyJWK] = field(default_factory=dict)
    fetched_s: float = float("-inf")
    tried_s: float = float("-inf")
    problem: str = ""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """The caller that a token is of.

    Attributes:
        name: the issuer's host, and what the token calls him.
        until: when the token ends, seconds since the epoch.
    """

    name: str
    scopes: tuple[AccessScope, ...]
    issuer: str
    until: int


class TokenChecker:
    """Checks tokens; it keeps issuers' keys."""

    def __init__(self) -> None:
        self._keys: dict[str, _Keys] = {}

    async def prepare(self, token: str, issuers: Iterable[IssuerEntry]) -> None:
        """Fetch the keys of a token's issuer if they are needed to check it; does nothing for what is no token."""
        try:
            kid = jwt.get_unverified_header(token).get("kid")
        except jwt.InvalidTokenError:
            return
        issuer = _issuer_of(token, issuers)
        if issuer is None:
            return
        keys = self._keys.setdefault(issuer.issuer, _Keys())
        if kid in keys.by_id and time.monotonic() - keys.fetched_s < _KEYS_S:
            # No waiting for a fetch that a token with a made-up key has begun.
            return
        async with keys.turn:
            now = time.monotonic()
            known = kid in keys.by_id and now - keys.fetched_s < _KEYS_S
            if not known and now - keys.tried_s >= _ATTEMPT_S:
                keys.tried_s = now
                try:
                    keys.by_id, keys.fetched_s, keys.problem = await _fetch(issuer), now, ""
                except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KaiError, jwt.PyJWTError) as error:
                    # Keys that are known go on counting: an issuer may be away for a while.
                    keys.problem = f"{type(error).__name__}: {error}"
                    _logger.warning("keys of an issuer cannot be fetched", issuer=issuer.issuer, error=keys.problem)

    def holder(self, token: str, issuers: Iterable[IssuerEntry]) -> TokenHolder:
        """Return the caller that the token is of. Raises TokenRefused: it is worth nothing here."""
        issuer = _issuer_of(token, issuers)
        if issuer is None:
            raise TokenRefused("this token is of no issuer that the access file names")
        keys = self._keys.get(issuer.issuer, _Keys())
        key = keys.by_id.get(jwt.get_unverified_header(token).get("kid"))
        if key is None:
            why = f"its keys cannot be fetched: {keys.problem}" if keys.problem else "it has no such key"
            raise TokenRefused(f"this token's signature cannot be checked by {issuer.issuer}: {why}")
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
            name = claim_values(claims, issuer.name_claim)
            scopes = issuer.scopes_of(claims)
        except (jwt.PyJWTError, KaiError) as error:
            raise TokenRefused(f"this token is not valid: {error}") from error
        if not name:
            raise TokenRefused(f"this token has no claim {issuer.name_claim!r}, by which callers are called")
        if not scopes:
            raise NoScope("this token is valid, and gives no scope here: see issuers in the access file")
        host = urlsplit(issuer.issuer).hostname
        return TokenHolder(f"{host}:{' '.join(name)}", scopes, issuer.issuer, int(claims["exp"]))


def _issuer_of(token: str, issuers: Iterable[IssuerEntry]) -> IssuerEntry | None:
    try:
        named = jwt.decode(token, options={"verify_signature": False}).get("iss")
    except jwt.InvalidTokenError:
        return None
    return next((one for one in issuers if one.issuer == named), None)


async def _fetch(issuer: IssuerEntry) -> dict[str | None, jwt.PyJWK]:
    trusted = ssl.create_default_context(cafile=issuer.ca_file) if issuer.ca_file else True
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=trusted)) as session:
        url = issuer.jwks_url
        if not url:
            found = await _get(session, f"{issuer.issuer.rstrip('/')}/.well-known/openid-configuration")
            if found.get("issuer") != issuer.issuer:
                raise ValueError(f"its discovery document is of issuer {found.get('issuer')!r}")
            url = str(found.get("jwks_uri", ""))
        document = await _get(session, url)
    for one in document.get("keys", ()):
        # Keys for encryption sign nothing.
        if one.get("use", "sig") != "sig":
            one["kty"] = ""
    return {key.key_id: key for key in jwt.PyJWKSet.from_dict(document).keys}


async def _get(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(url, allow_redirects=False, raise_for_status=True) as response:
        body = b""
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > _ANSWER_BYTES:
                raise ValueError(f"{url}: answers more than {_ANSWER_BYTES} bytes")
        return msgspec.json.decode(body, type=dict[str, Any])
