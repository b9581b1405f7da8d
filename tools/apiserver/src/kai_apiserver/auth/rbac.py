"""RBAC over the stored roles and bindings, so that a service's manifests can be tried for what they forget.

Reviews are resources that are created only, and have the answer in their status. `RightsUse` notes the rule that
allowed each request, and the refused ones: it shows missing and unneeded rights.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kai_apiserver.auth.tokens import ISSUER, Tokens
from kai_apiserver.errors import NamedResource, StatusError, forbidden
from kai_apiserver.objects import Object
from kai_apiserver.rest.backend import Backend, Operation, Target, User, read_object
from kai_apiserver.store import Stored

_REMEMBERED = 4096
_GROUP = "rbac.authorization.k8s.io"
_ANONYMOUS_USERS_READ = ("/healthz", "/livez", "/readyz", "/version")
_KNOWN_USERS_READ = ("/api", "/apis", "/openapi", "/discovery")
_KNOWN_USERS_ASK = frozenset({"selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"})


@dataclass(frozen=True, slots=True)
class Attributes:
    """A client's intended action: on a resource, or on a path that is none."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def path_part(self) -> str:
        """The resource as rules name it: with its subresource."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def refusal(user: User, wanted: Attributes) -> StatusError:
    """The answer to a user who may not do something with a resource."""
    where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    why = f'User "{user.name}" cannot {wanted.verb} resource "{wanted.path_part}" in API group "{wanted.group}" {where}'
    return forbidden(NamedResource(wanted.resource, wanted.group), wanted.name, why=why)


@dataclass(frozen=True, slots=True)
class HeldRule:
    """A rule that holds for a user.

    Attributes:
        name: the role and the rule's number in it, such as `ClusterRole kai-watcher, rule 0`.
        rule: the rule, as the role has it.
    """

    name: str
    rule: Object


class Authorizer:
    """Decides who may do what."""

    def __init__(self, backend: Backend, *, observer: "RightsUse") -> None:
        self._backend = backend
        self._observer = observer
        self._decoded: dict[tuple[str, str, int], Object] = {}

    def allows(self, user: User, wanted: Attributes, *, counted: bool = False) -> bool:
        """True if the user may do it; `counted` where the action is real, not only asked about."""
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
    """The paths that need no role: health for all, discovery and one's own reviews for all who are authenticated."""
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
    resource = wanted.path_part
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


class Reviews:
    """Answers reviews."""

    def __init__(self, backend: Backend, *, tokens: Tokens, authorizer: Authorizer) -> None:
        self._backend = backend
        self._tokens = tokens
        self._authorizer = authorizer

    def review(self, target: Target, *, given: Any, operation: Operation) -> Object:
        """Answer a review. Raises StatusError: 400, it cannot be read."""
        resource = target.resource
        obj = read_object(resource, given, operation=operation)
        spec: Object = obj.get("spec") or {}
        match resource.kind:
            case "SelfSubjectReview":
                obj["metadata"] = {"creationTimestamp": self._backend.timestamp()}
                obj["status"] = {"userInfo": _user_info(operation.user)}
            case "TokenReview":
                obj["status"] = self._token_status(spec)
            case "SelfSubjectRulesReview":
                obj["status"] = self._rules(operation.user, spec.get("namespace", ""))
            case _:
                user = operation.user if resource.kind == "SelfSubjectAccessReview" else _user_of(spec)
                obj["status"] = self._access(user, spec, namespace=target.namespace)
        return {"kind": resource.kind, "apiVersion": resource.api_version, **obj}

    def _token_status(self, spec: Object) -> Object:
        audiences = tuple(spec.get("audiences") or ())
        try:
            user = self._tokens.user_of(spec.get("token", ""), audiences)
        except StatusError:
            return {"user": {}, "error": "[invalid bearer token, token lookup failed]"}
        return {"authenticated": True, "user": _user_info(user), "audiences": list(audiences or (ISSUER,))}

    def _access(self, user: User, spec: Object, *, namespace: str) -> Object:
        path = spec.get("nonResourceAttributes")
        if path is not None:
            wanted = Attributes(path.get("verb", ""), path=path.get("path", ""))
        else:
            given = spec.get("resourceAttributes") or {}
            wanted = Attributes(
                given.get("verb", ""),
                group=given.get("group", ""),
                resource=given.get("resource", ""),
                subresource=given.get("subresource", ""),
                namespace=given.get("namespace", "") or namespace,
                name=given.get("name", ""),
            )
        return {"allowed": self._authorizer.allows(user, wanted)}

    def _rules(self, user: User, namespace: str) -> Object:
        rules = [held.rule for held in self._authorizer.rules(user, namespace)]
        if "system:masters" in user.groups:
            rules = [
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
                {"verbs": ["*"], "nonResourceURLs": ["*"]},
            ]
        return {
            "resourceRules": [rule for rule in rules if "nonResourceURLs" not in rule],
            "nonResourceRules": [rule for rule in rules if "nonResourceURLs" in rule],
            "incomplete": False,
        }


def _user_info(user: User) -> Object:
    info: Object = {"username": user.name}
    if user.uid:
        info["uid"] = user.uid
    if user.groups:
        info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = user.extra
    return info


def _user_of(spec: Object) -> User:
    return User(spec.get("user", ""), spec.get("uid", ""), tuple(spec.get("groups") or ()), spec.get("extra") or {})


_MOST = 100_000


class RightsUse:
    """Counts requests by user, by what they were for, and by the rule that allowed them.

    Only RBAC's rules count: what the administrator does, and what every user may (discovery, asking for their own
    rights), needs none. Objects' names are left out, namespaces are kept.
    """

    def __init__(self) -> None:
        self._allowed: Counter[tuple[str, str, Attributes]] = Counter()
        self._refused: Counter[tuple[str, Attributes]] = Counter()

    def allowed(self, user: User, wanted: Attributes, rule: str) -> None:
        """A request was allowed by a rule."""
        if len(self._allowed) < _MOST:
            self._allowed[user.name, rule, replace(wanted, name="")] += 1

    def refused(self, user: User, wanted: Attributes) -> None:
        """A request was refused."""
        if len(self._refused) < _MOST:
            self._refused[user.name, replace(wanted, name="")] += 1

    def clear(self) -> None:
        """Count from nothing again."""
        self._allowed.clear()
        self._refused.clear()

    def report(self) -> Object:
        """All of it as JSON: `allowed` and `refused`, each a list of requests that are alike, with how many."""
        return {
            "allowed": [
                {"user": user, "rule": rule, **_shown(wanted), "requests": count}
                for (user, rule, wanted), count in sorted(self._allowed.items(), key=repr)
            ],
            "refused": [
                {"user": user, **_shown(wanted), "requests": count}
                for (user, wanted), count in sorted(self._refused.items(), key=repr)
            ],
        }


def _shown(wanted: Attributes) -> Object:
    if wanted.path:
        return {"verb": wanted.verb, "path": wanted.path}
    return {
        "verb": wanted.verb,
        "group": wanted.group,
        "resource": wanted.path_part,
        "namespace": wanted.namespace,
    }
