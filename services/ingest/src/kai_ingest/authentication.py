"""Authentication of reports: the bearer token says for which node its owner may report.

Either Kubernetes vouches for it: a TokenReview of a token that the kubelet projected into the exporter's pod names the
pod's service account and, since Kubernetes 1.30, its node. Or the token is made from a secret that ingest shares with
the program that issues tokens; that is for stacks without Kubernetes.

Reviews cost the API server something, and any client can cause them with invented tokens. So two numbers are limited:
the refused reviews of each client, so that no client uses up the others' share, and all reviews together.

Has an API server review tokens (`authentication.k8s.io/v1`); the service account needs `create tokenreviews`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Protocol

import msgspec
from kaicore.errors import ClusterUnavailable, KaiError
from kaicore.kube.api.client import KubeClient
from kaicore.runtime.access.node_tokens import node_of_token
from kaicore.runtime.rate_limit import Latest, RateLimit, RateLimits

#: The key under which a TokenReview's `extra` names the node of a pod's token.
NODE_NAME = "authentication.kubernetes.io/node-name"

#: How long a review is believed, seconds.
ACCEPTED_S = 60.0
REFUSED_S = 10.0

#: Accepted and refused tokens that are remembered at most; apart, so that made-up tokens do not push out genuine ones.
_KEPT_ACCEPTED = 20_000
_KEPT_REFUSED = 2_000

#: Refused reviews of one client: at once, and in a second.
_REFUSALS, _REFUSALS_PER_S = 20, 1.0
#: Reviews of all clients: at once, and in a second. All exporters of a large cluster may come together.
_REVIEWS, _REVIEWS_PER_S = 1000, 200.0
#: Clients with remembered refusals.
_CLIENTS = 10_000


class NotAuthenticated(KaiError):
    """The token is missing or worth nothing."""


class NotAllowed(KaiError):
    """The token is genuine, but lets its holder not report for this node."""


class TooManyReviews(KaiError):
    """The token is unknown, and as many have been reviewed lately as may be."""


class AuthenticationUnavailable(KaiError):
    """The API server cannot say at the moment what the token is worth."""


class Authenticator(Protocol):
    """Finds the node that a token is of."""

    async def node_of(self, token: str, *, client: str) -> str:
        """Return the name of the node that the token speaks for, or `EVERY_NODE`.

        Raises:
            NotAuthenticated: the token is worth nothing.
            NotAllowed: it is genuine, but no exporter's.
            TooManyReviews: it is unknown, and the client or all together have had too many reviewed.
            AuthenticationUnavailable: it cannot be checked now.
        """


class SharedSecret:
    """Tokens made with `kaicore.runtime.access.node_tokens`."""

    def __init__(self, secret: bytes, *, cluster: str) -> None:
        self._secret = secret
        self._cluster = cluster

    async def node_of(self, token: str, *, client: str) -> str:
        """See `Authenticator.node_of`."""
        del client
        node = node_of_token(token, secret=self._secret, cluster=self._cluster)
        if node is None:
            raise NotAuthenticated("the bearer token is no node token of this cluster")
        return node


class ReviewedUser(msgspec.Struct, frozen=True):
    """The user that a token is of (`authentication.k8s.io/v1` UserInfo)."""

    username: str = ""
    extra: dict[str, list[str]] | None = None


class ReviewedToken(msgspec.Struct, frozen=True):
    """The status of a TokenReview (`authentication.k8s.io/v1` TokenReviewStatus)."""

    authenticated: bool = False
    error: str = ""
    user: ReviewedUser = ReviewedUser()
    audiences: list[str] | None = None


#: Has a token reviewed for audiences. Raises ClusterError: the API server does not answer, or does not let us ask.
Review = Callable[[str, Sequence[str]], Awaitable[ReviewedToken]]


class KubernetesTokens:
    """Tokens that Kubernetes vouches for; reviews are believed for a while."""

    def __init__(
        self,
        review: Review,
        *,
        audience: str,
        service_accounts: frozenset[str],
        clock: Callable[[], float],
    ) -> None:
        """Args:
        review: has the API server review a token.
        audience: which the token must have been made for; empty for the API server's own.
        service_accounts: their tokens count, as `namespace:name`.
        clock: seconds, of a clock that does not jump.
        """
        self._have_reviewed = review
        self._audiences = (audience,) if audience else ()
        self._usernames = frozenset(f"system:serviceaccount:{account}" for account in service_accounts)
        self._clock = clock
        self._accepted = Latest[bytes, tuple[float, str]](_KEPT_ACCEPTED)
        self._refused = Latest[bytes, tuple[float, KaiError]](_KEPT_REFUSED)
        self._reviewing: dict[bytes, asyncio.Future[str | KaiError]] = {}
        self._refusals = RateLimits(per_s=_REFUSALS_PER_S, burst=_REFUSALS, keys=_CLIENTS)
        self._all = RateLimit(per_s=_REVIEWS_PER_S, burst=_REVIEWS, now=clock())

    async def node_of(self, token: str, *, client: str) -> str:
        """See `Authenticator.node_of`."""
        key = sha256(token.encode()).digest()
        verdict = self._remembered(key)
        if verdict is None:
            # Requests that come together with the same token are one question.
            reviewing = self._reviewing.get(key)
            if reviewing is None:
                reviewing = asyncio.ensure_future(self._ask(key, token, client))
                self._reviewing[key] = reviewing
                reviewing.add_done_callback(lambda _: self._reviewing.pop(key))
            verdict = await asyncio.shield(reviewing)
        if isinstance(verdict, KaiError):
            raise type(verdict)(str(verdict))
        return verdict

    def _remembered(self, key: bytes) -> str | KaiError | None:
        now = self._clock()
        for kept in (self._accepted, self._refused):
            until, verdict = kept.get(key, (0.0, None))
            if verdict is not None and until > now:
                return verdict
        return None

    async def _ask(self, key: bytes, token: str, client: str) -> str | KaiError:
        now = self._clock()
        refusals = self._refusals.of(client, now)
        if not refusals.take(now):
            return TooManyReviews(f"TokenReview: too many tokens of {client} have been refused")
        if not self._all.take(now):
            refusals.give_back()
            return TooManyReviews("TokenReview: too many tokens are being reviewed")
        try:
            verdict = await self._review(token)
        except AuthenticationUnavailable as error:
            verdict = error
        if isinstance(verdict, (str, AuthenticationUnavailable)):
            refusals.give_back()
        if isinstance(verdict, str):
            self._accepted.put(key, (self._clock() + ACCEPTED_S, verdict))
        elif not isinstance(verdict, AuthenticationUnavailable):
            self._refused.put(key, (self._clock() + REFUSED_S, verdict))
        return verdict

    async def _review(self, token: str) -> str | KaiError:
        try:
            reviewed = await self._have_reviewed(token, self._audiences)
        except KaiError as error:
            raise AuthenticationUnavailable(f"TokenReview: {error}") from error
        if not reviewed.authenticated:
            return NotAuthenticated(f"TokenReview: {reviewed.error or 'not authenticated'}")
        if self._audiences and not set(self._audiences) & set(reviewed.audiences or ()):
            return NotAuthenticated(f"TokenReview: status.audiences: is for others: {reviewed.audiences}")
        user = reviewed.user
        if user.username not in self._usernames:
            return NotAllowed(f"TokenReview: status.user.username: is no exporter: {user.username!r}")
        nodes = (user.extra or {}).get(NODE_NAME, [])
        if len(nodes) != 1 or not nodes[0]:
            return NotAllowed(
                f"TokenReview: status.user.extra[{NODE_NAME}]: must name one node, as it does for a token that a "
                f"kubelet of Kubernetes 1.30 or later has projected into a pod: {nodes!r}"
            )
        return nodes[0]


_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"


class _TokenReview(msgspec.Struct, frozen=True):
    status: ReviewedToken = ReviewedToken()


_decoder = msgspec.json.Decoder(_TokenReview)


async def review_token(client: KubeClient, token: str, audiences: Sequence[str]) -> ReviewedToken:
    """Have an API server review a token (`Review`)."""
    spec: dict[str, object] = {"token": token}
    if audiences:
        spec["audiences"] = list(audiences)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    answer = await client.post(_PATH, body)
    try:
        return _decoder.decode(answer).status
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(f"POST {_PATH}: not a TokenReview: {error}") from error
