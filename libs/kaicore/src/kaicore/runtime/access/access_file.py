"""The access file: hashes of keys, each with scopes, and issuers of tokens. It is read again when it changes.

A key is 256 random bits, so its SHA-256 need not be salted or slow: nobody can try them all. The API has hashes only
(`docs/how-to/api.md`), so a reader of its file learns no key.

An issuer gives rights by a token's claims. The check of tokens is apart (`kaicore.runtime.access.oidc`), because a
process without issuers need not import its libraries.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import AwareDatetime, Field, field_validator

from kaicore.errors import ConfigurationError, InvalidObject, KaiError
from kaicore.runtime.access.scopes import HASH_PREFIX, AccessScope, Caller, key_hash, parse_scope
from kaicore.runtime.service.logs import get_logger
from kaicore.runtime.service.settings import StrictPart


class TokenRefused(KaiError):
    """A token of an identity provider is worth nothing here."""


class NoScope(TokenRefused):
    """A token is valid, and its claims give no scope."""


class Grant(StrictPart):
    """Scopes for whoever has a value in a claim.

    Attributes:
        claim: its name; of an object in the token with dots, such as `realm_access.roles`.
        value: which the claim has, or has among others.
    """

    claim: str = Field(min_length=1)
    value: str = Field(min_length=1)
    scopes: list[str] = Field(min_length=1)


class IssuerEntry(StrictPart):
    """An issuer of tokens.

    Attributes:
        audience: for whom a token must be made.
        jwks_url: where its keys are; by default what its discovery document says.
        ca_file: certificates by which it is trusted; by default the system's.
        name_claim: how callers are called.
        scopes_claim: a claim that lists scopes themselves; empty for none.
        grants: scopes by other claims.
    """

    issuer: str
    audience: str = Field(min_length=1)
    jwks_url: str = ""
    ca_file: str = ""
    name_claim: str = "sub"
    scopes_claim: str = ""
    grants: list[Grant] = Field([])

    @field_validator("issuer", "jwks_url")
    @classmethod
    def _secure(cls, url: str) -> str:
        parts = urlsplit(url)
        local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
        if url and not (parts.hostname and (parts.scheme == "https" or local)):
            raise ValueError(f"{url!r} is no https:// address")
        return url

    def scopes_of(self, claims: Mapping[str, Any]) -> tuple[AccessScope, ...]:
        """Return what a token's claims give. Raises InvalidObject: a scope in the token is none."""
        texts = [
            text for grant in self.grants if grant.value in claim_values(claims, grant.claim) for text in grant.scopes
        ]
        if self.scopes_claim:
            texts += claim_values(claims, self.scopes_claim)
        return tuple(parse_scope(text, f"token of {self.issuer}") for text in dict.fromkeys(texts))


def claim_values(claims: Mapping[str, Any], name: str) -> list[str]:
    """Return what a claim has: a list, or words with spaces between them as the claim `scope` has."""
    value: Any = claims.get(name)
    if value is None:
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        return value.split()
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


_logger = get_logger()


class KeyEntry(StrictPart):
    """A key's hash, and what its holder may see."""

    name: str = Field(min_length=1, max_length=100)
    hash: str = Field(pattern=f"^{HASH_PREFIX}[0-9a-f]{{64}}$")
    scopes: list[str] = Field(min_length=1)
    expires: AwareDatetime | None = None


class _Document(StrictPart):
    keys: list[KeyEntry] = Field([])
    issuers: list[IssuerEntry] = Field([])


class AccessRules:
    """The contents of an access file."""

    def __init__(self, keys: list[KeyEntry], issuers: list[IssuerEntry], *, source: str) -> None:
        """Args:
        keys: in any order.

        Raises:
            InvalidObject: a scope is none, or two keys have one name, or two issuers.
        """
        #: By their name.
        self.issuers = {entry.issuer: entry for entry in issuers}
        for entry in issuers:
            for grant in entry.grants:
                for text in grant.scopes:
                    parse_scope(text, f"access file {source}: issuer {entry.issuer}: {grant.claim}={grant.value}")
        if len(self.issuers) < len(issuers):
            raise InvalidObject(f"access file {source}", "issuers", issuers[-1].issuer, "two issuers have one name")
        self._by_name = {entry.name: entry for entry in keys}
        self._by_hash = {entry.hash: entry for entry in keys}
        if len(self._by_name) < len(keys):
            names = [entry.name for entry in keys]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidObject(f"access file {source}", "keys", twice, "two keys have this name")
        self._scopes = {
            entry.name: tuple(parse_scope(text, f"access file {source}: key {entry.name}") for text in entry.scopes)
            for entry in keys
        }

    def of_key(self, key: str, *, now: datetime) -> Caller | None:
        """Return the caller that the key is of; None where it is nobody's, or has expired."""
        entry = self._by_hash.get(key_hash(key))
        return None if entry is None else self._valid(entry, now)

    def named(self, name: str, *, hash: str, now: datetime) -> Caller | None:  # noqa: A002
        """Return the holder of a key that was shown before; None where that key is not valid any more."""
        entry = self._by_name.get(name)
        return None if entry is None or entry.hash != hash else self._valid(entry, now)

    def _valid(self, entry: KeyEntry, now: datetime) -> Caller | None:
        if entry.expires is not None and entry.expires <= now:
            return None
        return Caller(entry.name, self._scopes[entry.name])


class AccessFile:
    """An access file that is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        """Args: path: of the file. Raises ConfigurationError: it cannot be read, or makes no sense."""
        self._path = path
        self._stamp = self._look()
        self._rules = read_access_file(path)

    @property
    def rules(self) -> AccessRules:
        """The file's present contents; the earlier ones when the present ones make no sense."""
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._rules = read_access_file(self._path)
            except ConfigurationError as error:
                _logger.error("access file cannot be used, its last contents hold", error=str(error))
            else:
                _logger.info("access file read anew", path=str(self._path))
        return self._rules

    def _look(self) -> tuple[int, ...]:
        try:
            seen = self._path.stat()
        except OSError:
            return ()
        # A Secret that Kubernetes mounts is replaced by turning a link.
        return seen.st_mtime_ns, seen.st_ino, seen.st_size


def read_access_file(path: Path) -> AccessRules:
    """Read an access file. Raises ConfigurationError: it cannot be read, or makes no sense."""
    document = _Document.read(path, what="access file")
    try:
        return AccessRules(document.keys, document.issuers, source=str(path))
    except InvalidObject as error:
        raise ConfigurationError(str(error)) from error


def wall_clock() -> datetime:
    """Return the time by which keys expire."""
    return datetime.now(tz=UTC)
