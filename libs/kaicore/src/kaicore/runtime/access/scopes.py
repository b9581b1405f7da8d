"""Scopes: the clusters, and the namespaces of them, that a caller may see, and for which clusters it records inputs.

And the keys that have scopes: 256 random bits each.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass

from kaicore.errors import InvalidObject

ANY = "*"

#: Begins scopes for recording.
_RECORDS = "inputs:"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

#: Begins every key, so that people and scanners of secrets see what it is.
KEY_PREFIX = "kai_"

#: Begins every hash of a key.
HASH_PREFIX = "sha256:"


def new_key() -> str:
    """Return a new key."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def key_hash(key: str) -> str:
    """Return a key's hash as an access file has it: `sha256:` and 64 hexadecimal digits."""
    return HASH_PREFIX + hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class AccessScope:
    """A part of all data.

    Attributes:
        cluster: its name, or `*` for all.
        namespace: the only one of the cluster, or `*` for the whole cluster, nodes and queues included.
        records: its holder records policy inputs for the cluster, and sees nothing by this scope.
    """

    cluster: str
    namespace: str
    records: bool = False

    def __str__(self) -> str:
        if self.records:
            return f"{_RECORDS}{self.cluster}"
        return self.cluster if self.namespace == ANY else f"{self.cluster}/{self.namespace}"


def parse_scope(text: str, subject: str) -> AccessScope:
    """Read `*`, `CLUSTER`, `CLUSTER/NAMESPACE`, `*/NAMESPACE`, `inputs:CLUSTER` or `inputs:*`.

    Raises InvalidObject: it is none of these.

    Args:
        subject: the owner's name, for the error.
    """
    cluster, slash, namespace = text.removeprefix(_RECORDS).partition("/")
    records = text.startswith(_RECORDS)
    named = cluster == ANY or _NAME.fullmatch(cluster)
    right = named and (not slash or (_NAME.fullmatch(namespace) and not records))
    if not right:
        kinds = "CLUSTER, CLUSTER/NAMESPACE, */NAMESPACE, *, inputs:CLUSTER or inputs:*"
        raise InvalidObject(subject, "scopes", text, f"is none of {kinds}")
    return AccessScope(cluster, namespace or ANY, records)


@dataclass(frozen=True, slots=True)
class View:
    """A caller's view of one cluster."""

    whole: bool
    namespaces: frozenset[str] = frozenset()

    def sees(self, namespace: str) -> bool:
        """Tell whether what is in a namespace may be seen."""
        return self.whole or namespace in self.namespaces


EVERYTHING = View(whole=True)


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller.

    Attributes:
        name: of the key, or what the identity provider calls it.
        scopes: what it may see, and where it records policy inputs.
    """

    name: str
    scopes: tuple[AccessScope, ...]

    def records(self, cluster: str) -> bool:
        """Tell whether the caller may record policy inputs for a cluster."""
        return any(scope.records and scope.cluster in (ANY, cluster) for scope in self.scopes)

    def view(self, cluster: str) -> View | None:
        """Return what the caller may see of a cluster; None where it may not know the cluster."""
        matching = [one.namespace for one in self.scopes if not one.records and one.cluster in (ANY, cluster)]
        if not matching:
            return None
        return EVERYTHING if ANY in matching else View(whole=False, namespaces=frozenset(matching))

    def visible(self, clusters: Iterable[str]) -> list[str]:
        """Return those of some clusters that the caller may learn of."""
        return [cluster for cluster in clusters if self.view(cluster) is not None]

    def entirely_visible(self, clusters: Iterable[str]) -> list[str]:
        """Return those of some clusters of which the caller may see everything."""
        return [cluster for cluster in clusters if (view := self.view(cluster)) is not None and view.whole]


#: Who asks where nobody has to say who he is.
ANONYMOUS = Caller("anonymous", (AccessScope(ANY, ANY),))

_caller: ContextVar[Caller] = ContextVar("caller", default=ANONYMOUS)
_view: ContextVar[View] = ContextVar("view", default=EVERYTHING)


def current_caller() -> Caller:
    """Return who asks the question that is being answered."""
    return _caller.get()


def current_view() -> View:
    """Return what the caller may see of the cluster that the question names."""
    return _view.get()


def answering(caller: Caller) -> None:
    """From here on a request of `caller` is answered."""
    _caller.set(caller)
    _view.set(EVERYTHING)


def looking(view: View) -> None:
    """From here on the request is about a cluster of which the caller has `view`."""
    _view.set(view)
