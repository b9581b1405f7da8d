"""RBAC over the stored roles and bindings, so that a service's manifests can be tried for what they forget."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from kai_apiserver.objects import Object
from kai_apiserver.rest.backend import Backend, User
from kai_apiserver.store import Stored

_REMEMBERED = 4096
_GROUP = "rbac.authorization.k8s.io"
_ANONYMOUS_USERS_READ = ("/healthz", "/livez", "/readyz", "/version")
_KNOWN_USERS_READ = ("/api", "/apis", "/openapi", "/discovery")
_KNOWN_USERS_ASK = frozenset({"selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"})


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a client wants to do: with a resource, or with a path that is none."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class HeldRule:
    """A rule that holds for a user.

    Attributes:
        name: the role and the rule's number in it, such as `ClusterRole kai-watcher, rule 0`.
        rule: the rule, as the role has it.
    """

    name: str
    rule: Object


class UseObserver(Protocol):
    """Records the rules that requests need."""

    def allowed(self, user: User, wanted: Attributes, rule: str) -> None:
        """A request was allowed by the rule of that name."""
        ...

    def refused(self, user: User, wanted: Attributes) -> None:
        """A request was refused."""
        ...


class Authorizer:
    """Decides who may do what."""

    def __init__(self, backend: Backend, *, observer: UseObserver) -> None:
        self._backend = backend
        self._observer = observer
        self._decoded: dict[tuple[str, str, int], Object] = {}

    def allows(self, user: User, wanted: Attributes, *, counted: bool = False) -> bool:
        """Whether the user may; `counted` where it is wanted now, and not only asked about."""
        if "system:masters" in user.groups or _every_such_user_may(user, wanted):
            return True
        permits = _permits_path if wanted.path else _permits
        rules = self.rules(user, wanted.namespace)
        name = next((held.name for held in rules if permits(held.rule, wanted)), None)
        if counted and name is not None:
            self._observer.allowed(user, wanted, name)
        elif counted:
            self._observer.refused(user, wanted)
        return name is not None

    def rules(self, user: User, namespace: str) -> Iterator[HeldRule]:
        """Every rule that holds for the user in a namespace (and, without one, in the whole cluster)."""
        for binding in self._all("clusterrolebindings"):
            if _binds(binding, user, ""):
                yield from self._role_rules(binding, "")
        if namespace:
            for binding in self._all("rolebindings"):
                if binding["metadata"]["namespace"] == namespace and _binds(binding, user, namespace):
                    yield from self._role_rules(binding, namespace)

    def _all(self, plural: str) -> Iterator[Object]:
        for stored in self._backend.all_of(f"{plural}.{_GROUP}"):
            yield self._decode(plural, stored)

    def _decode(self, plural: str, stored: Stored) -> Object:
        """An object, decoded once per version; not to be changed."""
        cached = (plural, stored.key, stored.rv)
        if cached not in self._decoded:
            if len(self._decoded) > _REMEMBERED:
                self._decoded.clear()
            self._decoded[cached] = stored.decode()
        return self._decoded[cached]

    def _role_rules(self, binding: Object, namespace: str) -> Iterator[HeldRule]:
        reference = binding["roleRef"]
        kind, name = reference["kind"], reference["name"]
        plural, key = ("clusterroles", name) if kind == "ClusterRole" else ("roles", f"{namespace}/{name}")
        stored = self._backend.store.collection(f"{plural}.{_GROUP}").get(key)
        if stored is not None:
            for number, rule in enumerate(self._decode(plural, stored).get("rules") or ()):
                yield HeldRule(f"{kind} {key}, rule {number}", rule)


def _every_such_user_may(user: User, wanted: Attributes) -> bool:
    """What needs no role: health for all, discovery and one's own reviews for all who are authenticated."""
    authenticated = "system:authenticated" in user.groups
    if wanted.path:
        return wanted.verb == "get" and wanted.path.startswith(
            _ANONYMOUS_USERS_READ + (_KNOWN_USERS_READ if authenticated else ())
        )
    return authenticated and wanted.verb == "create" and wanted.resource in _KNOWN_USERS_ASK


def _permits_path(rule: Object, wanted: Attributes) -> bool:
    verbs = rule.get("verbs") or ()
    return (wanted.verb in verbs or "*" in verbs) and any(
        wanted.path == url or (url.endswith("*") and wanted.path.startswith(url[:-1]))
        for url in rule.get("nonResourceURLs") or ()
    )


def _binds(binding: Object, user: User, namespace: str) -> bool:
    for subject in binding.get("subjects") or ():
        match subject.get("kind"):
            case "User" if subject["name"] == user.name:
                return True
            case "Group" if subject["name"] in user.groups:
                return True
            case "ServiceAccount":
                where = subject.get("namespace") or namespace
                if user.name == f"system:serviceaccount:{where}:{subject['name']}":
                    return True
    return False


def _permits(rule: Object, wanted: Attributes) -> bool:
    resource = f"{wanted.resource}/{wanted.subresource}" if wanted.subresource else wanted.resource
    resources = rule.get("resources") or ()
    names = rule.get("resourceNames")
    return (
        any(verb in ("*", wanted.verb) for verb in rule.get("verbs") or ())
        and any(group in ("*", wanted.group) for group in rule.get("apiGroups") or ())
        and any(
            item in ("*", resource) or (wanted.subresource and item == f"*/{wanted.subresource}") for item in resources
        )
        and (not names or wanted.name in names)
    )
