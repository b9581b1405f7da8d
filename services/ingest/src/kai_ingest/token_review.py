"""Has an API server review tokens (`authentication.k8s.io/v1`); the service account needs `create tokenreviews`."""

from collections.abc import Sequence

import msgspec
from kaicore.errors import ClusterUnavailable
from kaicore.kube.client import KubeClient

from kai_ingest.authentication import ReviewedToken

_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    extra: dict[str, list[str]] | None = None


class _Status(msgspec.Struct, frozen=True):
    authenticated: bool = False
    error: str = ""
    user: _User = _User()
    audiences: list[str] | None = None


class _TokenReview(msgspec.Struct, frozen=True):
    status: _Status = _Status()


_decoder = msgspec.json.Decoder(_TokenReview)


class KubernetesReviewer:
    """See `kai_ingest.authentication.TokenReviewer`."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def review(self, token: str, *, audiences: Sequence[str]) -> ReviewedToken:
        """See `TokenReviewer.review`."""
        spec: dict[str, object] = {"token": token}
        if audiences:
            spec["audiences"] = list(audiences)
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        answer = await self._client.post(_PATH, body)
        try:
            status = _decoder.decode(answer).status
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"POST {_PATH}: not a TokenReview: {error}") from error
        return ReviewedToken(
            authenticated=status.authenticated,
            error=status.error,
            username=status.user.username,
            extra=status.user.extra or {},
            audiences=tuple(status.audiences or ()),
        )
