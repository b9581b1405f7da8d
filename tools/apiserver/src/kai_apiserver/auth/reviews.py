"""The reviews: resources that are created only, and have the answer in their status."""

from typing import Any

from kai_apiserver.auth.rbac import Attributes, Authorizer
from kai_apiserver.auth.tokens import ISSUER, Tokens
from kai_apiserver.errors import StatusError
from kai_apiserver.objects import Object
from kai_apiserver.rest.backend import Backend, Operation, Target, User, read_object


class Reviews:
    """Answers reviews."""

    def __init__(self, backend: Backend, *, tokens: Tokens, authorizer: Authorizer) -> None:
        self._backend = backend
        self._tokens = tokens
        self._authorizer = authorizer

    def review(self, target: Target, *, given: Any, operation: Operation) -> Object:
        """Answer a review.

        Raises:
            StatusError: 400, it cannot be read.
        """
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
