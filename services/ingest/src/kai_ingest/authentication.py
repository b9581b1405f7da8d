"""Who may report for which node: the bearer token tells.

Either Kubernetes vouches for it: a TokenReview of a token that the kubelet projected into the exporter's pod names the
pod's service account and, since Kubernetes 1.30, its node. Or the token is made from a secret that ingest shares with
whoever hands out tokens; that is for stacks without Kubernetes.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol

from kaicore.errors import KaiError
from kaicore.service.node_tokens import node_of_token

#: The key under which a TokenReview's `extra` names the node of a pod's token.
NODE_NAME = "authentication.kubernetes.io/node-name"

#: How long a review is believed, seconds.
ACCEPTED_S = 60.0
REFUSED_S = 10.0

#: Reviews kept at most.
_KEPT = 20_000


class NotAuthenticated(KaiError):
    """The token is missing or worth nothing."""


class NotAllowed(KaiError):
    """The token is genuine, but lets nobody report for this node."""


class AuthenticationUnavailable(KaiError):
    """Nobody can say at the moment what the token is worth."""


class Authenticator(Protocol):
    """Tells whose token it is."""

    async def node_of(self, token: str) -> str:
        """Return the name of the node that the token speaks for, or `EVERY_NODE`.

        Raises:
            NotAuthenticated: the token is worth nothing.
            NotAllowed: it is genuine, but no exporter's.
            AuthenticationUnavailable: it cannot be checked now.
        """
        ...


class SharedSecret:
    """Tokens made with `kaicore.service.node_tokens`."""

    def __init__(self, secret: bytes, *, cluster: str) -> None:
        self._secret = secret
        self._cluster = cluster

    async def node_of(self, token: str) -> str:
        """See `Authenticator.node_of`."""
        node = node_of_token(token, secret=self._secret, cluster=self._cluster)
        if node is None:
            raise NotAuthenticated("the bearer token is no node token of this cluster")
        return node


@dataclass(frozen=True, slots=True)
class ReviewedToken:
    """What a TokenReview says (`authentication.k8s.io/v1` TokenReviewStatus)."""

    authenticated: bool
    error: str = ""
    username: str = ""
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)
    audiences: tuple[str, ...] = ()


class TokenReviewer(Protocol):
    """An API server that reviews tokens."""

    async def review(self, token: str, *, audiences: Sequence[str]) -> ReviewedToken:
        """Review a token.

        Raises:
            ClusterError: the API server does not answer, or does not let us ask.
        """
        ...


class KubernetesTokens:
    """Tokens that Kubernetes vouches for; reviews are believed for a while."""

    def __init__(
        self,
        reviewer: TokenReviewer,
        *,
        audience: str,
        service_accounts: frozenset[str],
        clock: Callable[[], float],
    ) -> None:
        """Args:
        reviewer: the API server.
        audience: which the token must have been made for; empty for the API server's own.
        service_accounts: whose tokens count, as `namespace:name`.
        clock: seconds, of a clock that does not jump.
        """
        self._reviewer = reviewer
        self._audiences = (audience,) if audience else ()
        self._usernames = frozenset(f"system:serviceaccount:{account}" for account in service_accounts)
        self._clock = clock
        self._reviews: OrderedDict[bytes, tuple[float, str | KaiError]] = OrderedDict()

    async def node_of(self, token: str) -> str:
        """See `Authenticator.node_of`."""
        key = sha256(token.encode()).digest()
        until, known = self._reviews.get(key, (0.0, ""))
        if until <= self._clock():
            known = await self._review(token)
            self._keep(key, known)
        if isinstance(known, KaiError):
            raise type(known)(str(known))
        return known

    async def _review(self, token: str) -> str | KaiError:
        try:
            reviewed = await self._reviewer.review(token, audiences=self._audiences)
        except KaiError as error:
            raise AuthenticationUnavailable(f"TokenReview: {error}") from error
        if not reviewed.authenticated:
            return NotAuthenticated(f"TokenReview: {reviewed.error or 'not authenticated'}")
        if self._audiences and not set(self._audiences) & set(reviewed.audiences):
            return NotAuthenticated(f"TokenReview: status.audiences: is for others: {list(reviewed.audiences)}")
        if reviewed.username not in self._usernames:
            return NotAllowed(f"TokenReview: status.user.username: is no exporter: {reviewed.username!r}")
        nodes = list(reviewed.extra.get(NODE_NAME, ()))
        if len(nodes) != 1 or not nodes[0]:
            return NotAllowed(
                f"TokenReview: status.user.extra[{NODE_NAME}]: must name one node, as it does for a token that a "
                f"kubelet of Kubernetes 1.30 or later has projected into a pod: {nodes!r}"
            )
        return nodes[0]

    def _keep(self, key: bytes, known: str | KaiError) -> None:
        self._reviews[key] = (self._clock() + (REFUSED_S if isinstance(known, KaiError) else ACCEPTED_S), known)
        self._reviews.move_to_end(key)
        while len(self._reviews) > _KEPT:
            self._reviews.popitem(last=False)
