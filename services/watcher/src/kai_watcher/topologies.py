"""NodeResourceTopologies, which a cluster may have in one version or another, not at all, or only from tomorrow on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from kaicore.errors import ApiStatus, ClusterError, ClusterUnavailable
from kaicore.k8s.client import KubeClient
from kaicore.k8s.objects import ApiGroup, TopologyObject
from kaicore.k8s.reflector import ReflectorObserver
from kaicore.k8s.resources import TOPOLOGY_GROUP, TOPOLOGY_VERSIONS, Resource, topologies

_KIND = "NodeResourceTopology"
_NOT_FOUND = 404
_FIRST_DELAY_S = 0.25

_group_decoder = msgspec.json.Decoder(ApiGroup)


class WhenAbsent(Protocol):
    """Is told that the cluster has no such resource; `sure` once it was so twice in a row."""

    async def __call__(self, *, sure: bool) -> None:
        """See the class."""
        ...


async def follow_topologies(
    client: KubeClient,
    follow: Callable[[Resource[TopologyObject]], Awaitable[None]],
    absent: WhenAbsent,
    *,
    observer: ReflectorObserver,
    recheck_s: float,
) -> None:
    """Follow NodeResourceTopologies whenever the cluster has them, until cancelled.

    Args:
        client: of the cluster's API server.
        follow: follows them in a served version; raises `ApiStatus` 404 when they are no longer served.
        absent: is told each time that they are not.
        observer: gets told of failures.
        recheck_s: how long to wait before asking again.
    """
    missing = failures = 0
    while True:
        wait_s = recheck_s
        try:
            version = await served_version(client)
            observer.answered(_KIND)
            failures = 0
            if version is not None:
                missing = 0
                await follow(topologies(version))
            missing += 1
            await absent(sure=missing > 1)
        except ClusterError as error:
            if not (isinstance(error, ApiStatus) and error.code == _NOT_FOUND):
                observer.failed(_KIND, error)
                wait_s = min(recheck_s, _FIRST_DELAY_S * (1 << min(failures, 20)))
                failures += 1
        await asyncio.sleep(wait_s)


async def served_version(client: KubeClient) -> str | None:
    """Return the best version in which NodeResourceTopologies are served; None when they are not.

    Raises:
        ClusterError: the API server does not say.
    """
    try:
        data = await client.get(f"/apis/{TOPOLOGY_GROUP}")
    except ApiStatus as error:
        if error.code == _NOT_FOUND:
            return None
        raise
    try:
        served = {entry.version for entry in _group_decoder.decode(data).versions or ()}
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(f"/apis/{TOPOLOGY_GROUP}: not an API group: {error}") from error
    return next((version for version in TOPOLOGY_VERSIONS if version in served), None)
