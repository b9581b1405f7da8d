"""Resources that a cluster may have in one version or another, not at all, or only from tomorrow on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import msgspec
from kaicore.backoff import backoff
from kaicore.errors import ApiStatus, ClusterError, ClusterUnavailable
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.reflector import ReflectorObserver
from kaicore.kube.wire.objects import ApiGroup, ApiResources
from kaicore.kube.wire.resources import ObjectT, OptionalResource, Resource

_NOT_FOUND = 404
_FIRST_DELAY_S = 0.25

_group_decoder = msgspec.json.Decoder(ApiGroup)
_resources_decoder = msgspec.json.Decoder(ApiResources)

_T = TypeVar("_T")


class WhenAbsent(Protocol):
    """Is called when the cluster has no such resource; `sure` once it was so twice in a row."""

    async def __call__(self, *, sure: bool) -> None:
        """See the class."""
        ...


async def follow_optional(
    client: KubeClient,
    resource: OptionalResource[ObjectT],
    follow: Callable[[Resource[ObjectT]], Awaitable[None]],
    absent: WhenAbsent,
    *,
    observer: ReflectorObserver,
    recheck_s: float,
) -> None:
    """Follow a resource whenever the cluster has it, until cancelled.

    Args:
        client: of the cluster's API server.
        resource: to follow.
        follow: follows it in a served version; raises `ApiStatus` 404 when it is no longer served.
        absent: is called each time that it is not.
        observer: is called with failures.
        recheck_s: how long to wait before asking again.
    """
    missing = failures = 0
    while True:
        wait_s = recheck_s
        try:
            version = await served_version(client, resource)
            observer.answered(resource.kind)
            failures = 0
            if version is not None:
                missing = 0
                await follow(resource.at(version))
            missing += 1
            await absent(sure=missing > 1)
        except ClusterError as error:
            if not (isinstance(error, ApiStatus) and error.code == _NOT_FOUND):
                observer.failed(resource.kind, error)
                failures += 1
                wait_s = backoff(failures, first=_FIRST_DELAY_S, most=recheck_s)
        await asyncio.sleep(wait_s)


async def served_version(client: KubeClient, resource: OptionalResource[ObjectT]) -> str | None:
    """Return the best version in which a resource is served; None when it is not.

    Raises:
        ClusterError: the API server does not say.
    """
    group = await _discovered(client, f"/apis/{resource.group}", _group_decoder)
    versions = {entry.version for entry in group.versions or ()} if group is not None else set()
    for version in resource.versions:
        if version not in versions:
            continue
        # A group may have a version for the sake of another resource.
        served = await _discovered(client, f"/apis/{resource.group}/{version}", _resources_decoder)
        if served is not None and any(entry.name == resource.plural for entry in served.resources or ()):
            return version
    return None


async def _discovered(client: KubeClient, path: str, decoder: msgspec.json.Decoder[_T]) -> _T | None:
    try:
        data = await client.get(path)
    except ApiStatus as error:
        if error.code == _NOT_FOUND:
            return None
        raise
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(f"{path}: not what discovery says: {error}") from error
