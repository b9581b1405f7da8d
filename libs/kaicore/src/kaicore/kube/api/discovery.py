"""Discovery: the resources that an API server serves, and where their objects are."""

from typing import TypeVar

import msgspec

from kaicore.errors import ApiStatus, ClusterUnavailable, InvalidObject
from kaicore.kube.api.client import KubeClient
from kaicore.kube.wire import objects
from kaicore.kube.wire.resources import ObjectT, OptionalResource
from kaicore.rules.objects.dispatched import Manifest

_T = TypeVar("_T")


async def served_version(client: KubeClient, resource: OptionalResource[ObjectT]) -> str | None:
    """Return the best version in which a resource is served; None when it is not.

    Raises ClusterError: the API server does not say.
    """
    group = await _discovered(client, f"/apis/{resource.group}", objects.ApiGroup)
    versions = {entry.version for entry in group.versions or ()} if group is not None else set()
    for version in resource.versions:
        if version not in versions:
            continue
        # A group may have a version for the sake of another resource.
        served = await _discovered(client, f"/apis/{resource.group}/{version}", objects.ApiResources)
        if served is not None and any(entry.name == resource.plural for entry in served.resources or ()):
            return version
    return None


async def _discovered(client: KubeClient, path: str, type_: type[_T]) -> _T | None:
    data = await client.find(path)
    try:
        return None if data is None else msgspec.json.decode(data, type=type_)
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(f"{path}: not what discovery says: {error}") from error


class ObjectPaths:
    """The paths of one API server."""

    def __init__(self, client: KubeClient) -> None:
        """Args: client: of the API server."""
        self._client = client
        self._resources: dict[tuple[str, str], objects.ApiResource] = {}
        self._learned: set[str] = set()

    async def collection(self, manifest: Manifest) -> str:
        """Return where an object is created. Raises InvalidObject: the API server does not serve its kind."""
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

        Raises InvalidObject: the API server does not serve it.
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
        for resource in msgspec.json.decode(body, type=objects.ApiResources).resources or ():
            if "/" not in resource.name:
                self._resources[api_version, resource.kind] = resource


def _subject(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return f"{manifest['kind']} {metadata.get('name') or metadata.get('generateName')}"


def _group_path(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
