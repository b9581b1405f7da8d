"""The API paths of objects of any kind. The API server is asked once for each version of an API group."""

import msgspec

from kaicore.errors import ApiStatus, InvalidObject
from kaicore.kube.api.client import KubeClient
from kaicore.rules.objects.dispatched import Manifest


class _Resource(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool


class _ResourceList(msgspec.Struct):
    resources: list[_Resource]


class ObjectPaths:
    """The paths of one API server."""

    def __init__(self, client: KubeClient) -> None:
        """Args: client: of the API server."""
        self._client = client
        self._resources: dict[tuple[str, str], _Resource] = {}
        self._learned: set[str] = set()

    async def collection(self, manifest: Manifest) -> str:
        """Return where an object is created.

        Raises:
            InvalidObject: the API server does not serve its kind.
        """
        api_version, kind = manifest["apiVersion"], manifest["kind"]
        metadata = manifest["metadata"]
        await self.learn(manifest)
        resource = self._resources.get((api_version, kind))
        if resource is None:
            raise InvalidObject(_subject(manifest), "kind", kind, f"the API server knows none in {api_version}")
        path = _group_path(api_version)
        if resource.namespaced:
            path += f"/namespaces/{metadata.get('namespace') or 'default'}"
        return f"{path}/{resource.name}"

    async def object(self, manifest: Manifest) -> str:
        """Return where an object with a name is; raises as `collection` does."""
        return f"{await self.collection(manifest)}/{manifest['metadata']['name']}"

    async def learn(self, manifest: Manifest) -> None:
        """Ask for what there is in an object's version of its API group, where that was not asked yet.

        Raises:
            InvalidObject: the API server does not serve it.
        """
        api_version = manifest["apiVersion"]
        if api_version in self._learned:
            return
        try:
            body = await self._client.get(_group_path(api_version))
        except ApiStatus as error:
            raise InvalidObject(
                _subject(manifest), "apiVersion", api_version, f"is not served by the API server: {error}"
            ) from error
        self._learned.add(api_version)
        for resource in msgspec.json.decode(body, type=_ResourceList).resources:
            if "/" not in resource.name:
                self._resources[api_version, resource.kind] = resource


def _subject(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return f"{manifest['kind']} {metadata.get('name') or metadata.get('generateName')}"


def _group_path(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
