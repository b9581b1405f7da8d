"""Discovery: the resources that an API server serves, and where their objects are."""

import asyncio
import math
from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from kaicore.errors import ApiStatus, ClusterError, ClusterUnavailable, InvalidObject
from kaicore.kube.api.client import JSON, KubeClient
from kaicore.kube.wire import objects
from kaicore.kube.wire.resources import ObjectT, OptionalResource
from kaicore.rules.objects.dispatched import Manifest

_T = TypeVar("_T")

_NOT_FOUND = 404

#: Asks for groups, versions and resources at once; a server before Kubernetes 1.30 answers with groups and versions.
_AGGREGATED = f"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,{JSON}"


async def served_version(client: KubeClient, resource: OptionalResource[ObjectT]) -> str | None:
    """Return the best version in which a resource is served; None when it is not.

    Raises ClusterError: the API server does not say.
    """
    group = await _discovered(client, f"/apis/{resource.group}", objects.ApiGroup)
    return None if group is None else await _best_version(client, resource, _names(group))


class ServedResources:
    """The resources that an API server serves; all who ask at about the same time share one answer."""

    def __init__(self, client: KubeClient, *, fresh_s: float) -> None:
        """Args: fresh_s: seconds for which an answer, or a failure, is shared."""
        self._client, self._fresh_s = client, fresh_s
        self._asking = asyncio.Lock()
        self._asked_at = -math.inf
        self._failure: ClusterError | None = None
        self._groups: dict[str, Mapping[str, Collection[str] | None]] = {}

    async def version(self, resource: OptionalResource[ObjectT]) -> str | None:
        """Return and raise what `served_version` does."""
        async with self._asking:
            if asyncio.get_running_loop().time() >= self._asked_at + self._fresh_s:
                await self._ask()
        if self._failure is not None:
            raise self._failure
        return await _best_version(self._client, resource, self._groups.get(resource.group, {}))

    def other_versions(self, resource: OptionalResource[ObjectT]) -> list[str]:
        """Return the versions in which a resource is served by the last answer, though nobody here can read them."""
        versions = self._groups.get(resource.group, {})
        return [
            name
            for name, names in versions.items()
            if name not in resource.versions and resource.plural in (names or ())
        ]

    async def _ask(self) -> None:
        self._failure = None
        try:
            said = await _discovered(self._client, "/apis", objects.ApiGroups, accept=_AGGREGATED)
        except ClusterError as error:
            self._failure = error
        else:
            groups = said.items or said.groups or () if said is not None else ()
            self._groups = {group.metadata.name if group.metadata else group.name: _names(group) for group in groups}
        self._asked_at = asyncio.get_running_loop().time()


def _names(group: objects.ApiGroup) -> Mapping[str, Collection[str] | None]:
    """Return the resources of each version of a group; None where they are to be asked for."""
    return {
        one.version: None
        if one.resources is None or one.freshness == "Stale"
        else {entry.resource for entry in one.resources}
        for one in group.versions or ()
    }


async def _best_version(
    client: KubeClient, resource: OptionalResource[ObjectT], versions: Mapping[str, Collection[str] | None]
) -> str | None:
    for version in resource.versions:
        if version not in versions:
            continue
        # A group may have a version for the sake of another resource.
        names = versions[version]
        if names is None:
            served = await _discovered(client, f"/apis/{resource.group}/{version}", objects.ApiResources)
            names = {entry.name for entry in served.resources or ()} if served is not None else ()
        if resource.plural in names:
            return version
    return None


async def _discovered(client: KubeClient, path: str, type_: type[_T], *, accept: str = JSON) -> _T | None:
    data = await client.find(path, accept=accept)
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
        """Ask for the resources of an object's version of its API group, once.

        Raises:
            InvalidObject: the API server does not serve it.
            ApiStatus: it does not let us ask.
        """
        api_version = manifest["apiVersion"]
        if api_version in self._learned:
            return
        try:
            body = await self._client.get(_group_path(api_version))
        except ApiStatus as error:
            if error.code != _NOT_FOUND:
                raise
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
