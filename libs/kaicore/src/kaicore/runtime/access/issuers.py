"""Issuers of tokens that an access file names, and the rights that a token's claims give.

They are kept apart from the check of tokens (`kaicore.runtime.access.oidc`), because a process without issuers need not
import its libraries.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kaicore.errors import KaiError
from kaicore.runtime.access.scopes import AccessScope, parse_scope


class Strict(BaseModel):
    """A part of an access file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TokenRefused(KaiError):
    """A token of an identity provider is worth nothing here."""


class NoScope(TokenRefused):
    """A token is valid, and its claims give no scope."""


class Grant(Strict):
    """Scopes for whoever has a value in a claim.

    Attributes:
        claim: its name; of an object in the token with dots, such as `realm_access.roles`.
        value: which the claim has, or has among others.
    """

    claim: str = Field(min_length=1)
    value: str = Field(min_length=1)
    scopes: list[str] = Field(min_length=1)


class IssuerEntry(Strict):
    """An issuer of tokens.

    Attributes:
        issuer: as tokens name it.
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
    grants: list[Grant] = []

    @field_validator("issuer", "jwks_url")
    @classmethod
    def _secure(cls, url: str) -> str:
        parts = urlsplit(url)
        local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
        if url and not (parts.hostname and (parts.scheme == "https" or local)):
            raise ValueError(f"{url!r} is no https:// address")
        return url

    def scopes_of(self, claims: Mapping[str, Any]) -> tuple[AccessScope, ...]:
        """Return what a token's claims give.

        Raises:
            InvalidObject: a scope in the token is none.
        """
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
