"""Scopes: the clusters, and the namespaces of them, that a caller may see."""

import re
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass

from kaicore.errors import InvalidObject

ANY = "*"

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class AccessScope:
    """A part of what there is.

    Attributes:
        cluster: its name, or `*` for all.
        namespace: the only one of the cluster, or `*` for the whole cluster, nodes and queues included.
    """

    cluster: str
    namespace: str

    def __str__(self) -> str:
        return self.cluster if self.namespace == ANY else f"{self.cluster}/{self.namespace}"


def parse_scope(text: str, subject: str) -> AccessScope:
    """Read `*`, `CLUSTER`, `CLUSTER/NAMESPACE` or `*/NAMESPACE`.

    Args:
        subject: the owner's name, for the error.

    Raises:
        InvalidObject: it is none of these.
    """
    cluster, slash, namespace = text.partition("/")
    right = (cluster == ANY or _NAME.fullmatch(cluster)) and (not slash or _NAME.fullmatch(namespace))
    if not right:
        raise InvalidObject(subject, "scopes", text, "is none of CLUSTER, CLUSTER/NAMESPACE, */NAMESPACE or *")
    return AccessScope(cluster, namespace or ANY)


@dataclass(frozen=True, slots=True)
class View:
    """A caller's view of one cluster.

    Attributes:
        whole: everything.
        namespaces: otherwise what is in these.
    """

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
        scopes: what it may see.
    """

    name: str
    scopes: tuple[AccessScope, ...]

    def view(self, cluster: str) -> View | None:
        """Return what the caller may see of a cluster; None where it may not learn that there is one."""
        matching = [scope.namespace for scope in self.scopes if scope.cluster in (ANY, cluster)]
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
