"""The objects of dispatches on a cluster's API server: made, looked at, and deleted, by the mark that they carry."""

import msgspec
from kaicore.errors import ApiStatus, InvalidObject, KaiError
from kaicore.kube.client import KubeClient
from kaicore.kube.dispatched_objects import Manifest, ending_of, mark_of, marked
from kaicore.kube.object_paths import ObjectPaths
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.hub.cluster_side import DISPATCH_MARK

_NOT_FOUND, _CONFLICT, _UNAUTHORIZED = 404, 409, 401


class Refusal(KaiError):
    """The API server will not take an object, as often as it is asked."""


class DispatchObjects:
    """The objects of all dispatches on one API server."""

    def __init__(self, client: KubeClient) -> None:
        """Args: client: of the API server."""
        self._client = client
        self._paths = ObjectPaths(client)

    async def make(self, manifest: Manifest, mark: str) -> None:
        """Create an object that carries a mark; one that is there with this mark stays as it is.

        Raises:
            Refusal: the API server refuses it, or has another object of the name.
            ClusterUnavailable: it does not answer.
        """
        subject = f"{manifest['kind']} {manifest['metadata']['name']}"
        try:
            made = marked(manifest, DISPATCH_MARK, mark, scheduler_name=EngineConfig().scheduler_name)
            await self._client.post(await self._paths.collection(manifest), made)
        except InvalidObject as error:
            raise Refusal(str(error)) from error
        except ApiStatus as error:
            if error.code == _UNAUTHORIZED:
                raise
            if error.code != _CONFLICT:
                raise Refusal(f"{subject}: {error.message}") from error
            there = await self._get(manifest)
            if there is not None and mark_of(there, DISPATCH_MARK) != mark:
                raise Refusal(f"{subject}: is in the cluster already, and is none of this dispatch's") from error

    async def clear(self, manifests: list[Manifest], mark: str) -> None:
        """Delete objects that carry a mark, what they own included.

        Raises:
            ClusterUnavailable: the API server does not answer.
        """
        for manifest in manifests:
            try:
                there = await self._get(manifest)
            except InvalidObject:
                continue
            if there is None or mark_of(there, DISPATCH_MARK) != mark:
                continue
            options = {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "propagationPolicy": "Background",
                "preconditions": {"uid": there["metadata"]["uid"]},
            }
            try:
                await self._client.delete(await self._paths.object(manifest), options)
            except ApiStatus as error:
                if error.code not in (_NOT_FOUND, _CONFLICT):
                    raise

    async def ending(self, manifests: list[Manifest], mark: str) -> str:
        """Return how objects ended; empty while they go on.

        Raises:
            ApiStatus: the API server does not let us look.
            ClusterUnavailable: it does not answer.
        """
        documents = [await self._get(manifest) for manifest in manifests]
        return ending_of(
            [one if one is not None and mark_of(one, DISPATCH_MARK) == mark else None for one in documents]
        )

    async def _get(self, manifest: Manifest) -> Manifest | None:
        try:
            document: Manifest = msgspec.json.decode(await self._client.get(await self._paths.object(manifest)))
        except ApiStatus as error:
            if error.code == _NOT_FOUND:
                return None
            raise
        return document
