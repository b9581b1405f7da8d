"""Bearer tokens: one for the administrator, and signed ones for service accounts.

A service account's token is a JWT, signed with the server's own secret, so nothing has to be stored to know it again.
It stops working when it expires, or when the account, pod or node that it was bound to is gone or was made anew.
"""

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import jwt
import msgspec
from jwt.types import Options
from kaicore.runtime.access.secret_files import kept_secret

from kai_apiserver.errors import (
    NamedResource,
    bad_request,
    conflict,
    not_found,
    unauthorized,
)
from kai_apiserver.objects import Object, timestamp
from kai_apiserver.rest.backend import Backend, Target, User
from kai_apiserver.store import Stored

ISSUER = "https://kubernetes.default.svc.cluster.local"
_DEFAULT_SECONDS = 3600
_LEAST_SECONDS = 600
_REMEMBERED = 16_384

ADMIN = User("admin", "admin", ("system:masters", "system:authenticated"))
ANONYMOUS = User("system:anonymous", groups=("system:unauthenticated",))


class _Reference(msgspec.Struct, omit_defaults=True):
    name: str
    uid: str = ""


class _Bound(msgspec.Struct, omit_defaults=True):
    namespace: str
    serviceaccount: _Reference
    pod: _Reference | None = None
    node: _Reference | None = None


class _Claims(msgspec.Struct, rename={"kubernetes": "kubernetes.io"}):
    aud: list[str]
    exp: int
    iat: int
    iss: str
    jti: str
    sub: str
    kubernetes: _Bound


_ALGORITHM = "HS256"
#: What of a token is looked at by `user_of`, which has the server's clock.
_UNCHECKED: Options = {"verify_exp": False, "verify_iat": False, "verify_aud": False}


@dataclass(frozen=True, slots=True)
class Secrets:
    """The part that must not change between two runs on the same data.

    Attributes:
        admin_token: the administrator's bearer token.
        signing_key: signs the tokens of service accounts.
    """

    admin_token: str
    signing_key: bytes

    @classmethod
    def fresh(cls) -> "Secrets":
        """New ones."""
        return cls(secrets.token_urlsafe(32), secrets.token_bytes(32))

    @classmethod
    def kept_in(cls, directory: Path) -> "Secrets":
        """Those kept in a directory, made on first use; readable by the owner only."""
        made = cls.fresh()
        directory.mkdir(parents=True, exist_ok=True)
        token = kept_secret(directory / "admin-token", made.admin_token.encode)
        return cls(token.decode(), kept_secret(directory / "signing-key", lambda: made.signing_key))


class Tokens:
    """Tells who a bearer token belongs to, and makes tokens for service accounts."""

    def __init__(self, backend: Backend, kept: Secrets) -> None:
        self._backend = backend
        self._secrets = kept
        self._verified: OrderedDict[str, _Claims] = OrderedDict()

    @property
    def admin_token(self) -> str:
        """The administrator's token."""
        return self._secrets.admin_token

    def authenticate(self, header: str | None) -> User:
        """The user of an `Authorization` header; the anonymous user without one.

        Raises StatusError: 401, the token is none of ours.
        """
        if not header:
            return ANONYMOUS
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer":
            raise unauthorized()
        return self.user_of(token.strip(), ())

    def user_of(self, token: str, audiences: tuple[str, ...]) -> User:
        """The user of a token.

        Raises StatusError: 401, the token is none of ours, not for these audiences, or what it is bound to is gone.
        """
        if hmac.compare_digest(token.encode(), self._secrets.admin_token.encode()):
            return ADMIN
        claims = self._claims(token)
        bound = claims.kubernetes
        if claims.exp <= self._backend.now().timestamp() or (audiences and not {*audiences} & {*claims.aud}):
            raise unauthorized()
        account = bound.serviceaccount
        self._must_be(self._stored("serviceaccounts", f"{bound.namespace}/{account.name}"), account)
        extra: dict[str, list[str]] = {"authentication.kubernetes.io/credential-id": [f"JTI={claims.jti}"]}
        if bound.pod is not None:
            self._must_be(self._stored("pods", f"{bound.namespace}/{bound.pod.name}"), bound.pod)
            extra["authentication.kubernetes.io/pod-name"] = [bound.pod.name]
            extra["authentication.kubernetes.io/pod-uid"] = [bound.pod.uid]
        if bound.node is not None:
            if bound.pod is None:
                self._must_be(self._stored("nodes", bound.node.name), bound.node)
            extra["authentication.kubernetes.io/node-name"] = [bound.node.name]
            if bound.node.uid:
                extra["authentication.kubernetes.io/node-uid"] = [bound.node.uid]
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{bound.namespace}", "system:authenticated")
        return User(claims.sub, account.uid, groups, extra)

    def _stored(self, storage: str, key: str) -> Stored | None:
        return self._backend.store.collection(storage).get(key)

    @staticmethod
    def _must_be(stored: Stored | None, reference: _Reference) -> None:
        if stored is None or stored.uid != reference.uid:
            raise unauthorized()

    def _claims(self, token: str) -> _Claims:
        verified = self._verified.get(token)
        if verified is not None:
            return verified
        try:
            read = jwt.decode(token, self._secrets.signing_key, algorithms=[_ALGORITHM], options=_UNCHECKED)
            claims = msgspec.convert(read, _Claims)
        except (jwt.InvalidTokenError, msgspec.ValidationError) as error:
            raise unauthorized() from error
        self._verified[token] = claims
        if len(self._verified) > _REMEMBERED:
            self._verified.popitem(last=False)
        return claims

    def issue(self, target: Target, request: Object) -> Object:
        """Answer a `TokenRequest` for a service account.

        Raises StatusError: 400, 404 or 409: the account or what the token is to be bound to is not there.
        """
        namespace, name = target.namespace, target.name
        account = self._stored("serviceaccounts", target.key)
        if account is None:
            raise not_found(NamedResource("serviceaccounts"), name)
        spec = request.get("spec") or {}
        seconds = int(spec.get("expirationSeconds") or _DEFAULT_SECONDS)
        if seconds < _LEAST_SECONDS:
            raise bad_request(f"spec.expirationSeconds: may not specify a duration less than {_LEAST_SECONDS} seconds")
        audiences = list(spec.get("audiences") or [ISSUER])
        now = self._backend.now()
        ends = now + timedelta(seconds=seconds)
        bound = _Bound(namespace, _Reference(name, account.uid))
        self._bind(bound, spec.get("boundObjectRef") or {})
        claims = _Claims(
            aud=audiences,
            exp=int(ends.timestamp()),
            iat=int(now.timestamp()),
            iss=ISSUER,
            jti=secrets.token_hex(16),
            sub=f"system:serviceaccount:{namespace}:{name}",
            kubernetes=bound,
        )
        token = jwt.encode(msgspec.to_builtins(claims), self._secrets.signing_key, _ALGORITHM)
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace, "creationTimestamp": timestamp(now)},
            "spec": {
                "audiences": audiences,
                "expirationSeconds": seconds,
                "boundObjectRef": spec.get("boundObjectRef"),
            },
            "status": {"token": token, "expirationTimestamp": timestamp(ends)},
        }

    def _bind(self, bound: _Bound, reference: Object) -> None:
        """Tie a token to the life of a pod or a node, and so to the node's name."""
        kind = reference.get("kind", "")
        if not kind:
            return
        name, uid = reference.get("name", ""), reference.get("uid", "")
        if kind == "Node":
            bound.node = self._found("nodes", name, uid)
        elif kind == "Pod":
            bound.pod = self._found("pods", f"{bound.namespace}/{name}", uid)
            pod = self._backend.find("pods", f"{bound.namespace}/{name}") or {}
            node_name = pod.get("spec", {}).get("nodeName", "")
            if node_name:
                stored = self._stored("nodes", node_name)
                bound.node = _Reference(node_name, stored.uid if stored is not None else "")
        else:
            raise bad_request(f"cannot bind token to object of type {reference.get('apiVersion', '')}, Kind={kind}")

    def _found(self, storage: str, key: str, uid: str) -> _Reference:
        stored = self._stored(storage, key)
        if stored is None:
            raise not_found(NamedResource(storage), key.rpartition("/")[2])
        if uid and uid != stored.uid:
            raise conflict(
                NamedResource(storage),
                stored.name,
                why=f"the UID in the bound object reference ({uid}) does not match the UID in record. The object might "
                "have been deleted and then recreated",
            )
        return _Reference(stored.name, stored.uid)
