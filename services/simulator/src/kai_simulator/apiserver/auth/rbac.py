"""RBAC over the stored roles and bindings, so that a service's manifests can be tried for what they forget."""

from collections.abc import Iterator
from dataclasses import dataclass

from kai_simulator.apiserver.objects import Object
from kai_simulator.apiserver.rest.backend import Backend, User

_REMEMBERED = 4096
_GROUP = "rbac.authorization.k8s.io"
_ANYBODY_READS = ("/healthz", "/livez", "/readyz", "/version")
_KNOWN_USERS_READ = ("/api", "/apis", "/openapi", "/discovery")
_KNOWN_USERS_ASK = frozenset({"selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"})


@dataclass(frozen=True, slots=True)
class Attributes:
    """What somebody wants to do: with a resource, or with a path that is none."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


class Authorizer:
    """Decides who may do what."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._decoded: dict[tuple[str, str, int], Object] = {}

    def allows(self, user: User, wanted: Attributes) -> bool:
        """Whether the user may."""
        if "system:masters" in user.groups:
            return True
        if wanted.path:
            return self._allows_path(user, wanted)
        if wanted.resource in _KNOWN_USERS_ASK and wanted.verb == "create" and "system:authenticated" in user.groups:
            return True
        return any(_permits(rule, wanted) for rule in self.rules(user, wanted.namespace))

    def _allows_path(self, user: User, wanted: Attributes) -> bool:
        known = "system:authenticated" in user.groups
        if wanted.verb == "get" and wanted.path.startswith(_ANYBODY_READS + (_KNOWN_USERS_READ if known else ())):
            return True
        return any(
            wanted.verb in rule.get("verbs", ()) or "*" in rule.get("verbs", ())
            for rule in self.rules(user, "")
            if any(
                wanted.path == url or (url.endswith("*") and wanted.path.startswith(url[:-1]))
                for url in rule.get("nonResourceURLs") or ()
            )
        )

    def rules(self, user: User, namespace: str) -> Iterator[Object]:
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
            cached = (plural, stored.key, stored.rv)
            if cached not in self._decoded:
                if len(self._decoded) > _REMEMBERED:
                    self._decoded.clear()
                self._decoded[cached] = stored.decode()
            yield self._decoded[cached]

    def _role_rules(self, binding: Object, namespace: str) -> list[Object]:
        reference = binding["roleRef"]
        if reference["kind"] == "ClusterRole":
            role = self._backend.find(f"clusterroles.{_GROUP}", reference["name"])
        else:
            role = self._backend.find(f"roles.{_GROUP}", f"{namespace}/{reference['name']}")
        return list((role or {}).get("rules") or ())


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
