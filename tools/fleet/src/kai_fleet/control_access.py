"""Access to the fleet's control endpoints: for clients that the API server admits, as with a kubelet's own server.

The API server reviews the caller's bearer token (`TokenReview`) and the rights of its user (`SubjectAccessReview` of
the path, verbs `get` and `post`). This is Kubernetes' delegated authentication and authorization. An administrator may
do all; a role with `nonResourceURLs: ["/simulator/*"]` suffices.
"""

from http import HTTPStatus
from typing import Any

import msgspec
from kaicore.errors import ClusterError, KaiError
from kaicore.kube.client import KubeClient

_AUTHENTICATION = "/apis/authentication.k8s.io/v1/tokenreviews"
_AUTHORIZATION = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _Status(msgspec.Struct, frozen=True):
    authenticated: bool = False
    allowed: bool = False
    user: _User = _User()


class _Review(msgspec.Struct, frozen=True):
    status: _Status = _Status()


class ControlRefused(KaiError):
    """A caller may not use the control endpoints; `status` is the HTTP status that says so."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


async def check_access(client: KubeClient, authorization: str, *, method: str, path: str) -> None:
    """Ask the API server whether a caller may send a request.

    Args:
        client: of the fleet's API server; it needs `create` of tokenreviews and subjectaccessreviews.
        authorization: the header of this name; empty for none.
        method: of HTTP.
        path: what is asked for.

    Raises:
        ControlRefused: 401 without a token that the server knows, 403 where its user may not, 503 where the server
            does not answer.
    """
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise ControlRefused(
            HTTPStatus.UNAUTHORIZED, "header Authorization: no bearer token (the API server's administrator has one)"
        )
    try:
        review = await _review(
            client, _AUTHENTICATION, "authentication.k8s.io/v1", "TokenReview", {"token": token.strip()}
        )
        if not review.authenticated:
            raise ControlRefused(HTTPStatus.UNAUTHORIZED, "the API server does not know this token")
        user = review.user
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "extra": user.extra or {},
            "nonResourceAttributes": {"path": path, "verb": method.lower()},
        }
        access = await _review(client, _AUTHORIZATION, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
    except (ClusterError, msgspec.DecodeError) as error:
        raise ControlRefused(HTTPStatus.SERVICE_UNAVAILABLE, f"the API server reviews no tokens: {error}") from error
    if not access.allowed:
        raise ControlRefused(HTTPStatus.FORBIDDEN, f"{user.username} may not {method.lower()} {path}")


async def _review(client: KubeClient, path: str, version: str, kind: str, spec: dict[str, Any]) -> _Status:
    answer = await client.post(path, {"apiVersion": version, "kind": kind, "spec": spec})
    return msgspec.json.decode(answer, type=_Review).status
