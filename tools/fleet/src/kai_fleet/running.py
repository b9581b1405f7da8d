"""A fleet as a context: joined on entering, stopped on leaving. For `kai-fleet`, `kai up` and tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from kaicore.kube.api.access import AccessSource
from kaicore.kube.api.client import KubeClient

from kai_fleet.autoscaler import Autoscaler, nodes_that_joined
from kai_fleet.fleet import Fleet, connections
from kai_fleet.metrics import Metrics
from kai_fleet.nodes import NodeSpec
from kai_fleet.podresources_server import serve_podresources
from kai_fleet.profile import AutoscalerProfile
from kai_fleet.registration import ensure_requests


@asynccontextmanager
async def running_fleet(
    specs: list[NodeSpec],
    source: AccessSource,
    data_dir: Path,
    *,
    podresources_dir: Path | None = None,
    install_crds: bool = False,
    concurrency: int = 48,
    metrics: Metrics | None = None,
    on_checkpoints: Callable[[str], None] = lambda problem: None,
    reserve: Sequence[NodeSpec] = (),
    autoscaler: AutoscalerProfile | None = None,
) -> AsyncIterator[Fleet]:
    """Join a fleet to an API server; yields when all nodes are registered.

    Args:
        specs: the nodes, from `nodes.expand(profile.load_profile(...))`.
        source: where the API server is, from `kaicore.kube.api.access`.
        data_dir: where checkpoints are kept.
        podresources_dir: where every node's podresources socket goes; None: nowhere.
        install_crds: install the CRD of NodeResourceTopology where it is missing.
        concurrency: requests about pods that are under way at a time.
        metrics: where to count; a registry of its own by default.
        on_checkpoints: is called with the reason why checkpoints cannot be written, and "" when they can (again).
        reserve: nodes that are added for ProvisioningRequests, from `nodes.reserve_of`; without any, none is answered.
        autoscaler: how they are answered.

    Raises:
        ConfigurationError: a directory cannot be used, or the CRD is missing.
        ClusterUnavailable: the API server does not answer.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            KubeClient(source, connections=connections(concurrency), user_agent="kai-fleet")
        )
        if reserve:
            specs = [*specs, *await nodes_that_joined(client, reserve)]
        fleet = Fleet(specs, client, data_dir, metrics=metrics, concurrency=concurrency, on_checkpoints=on_checkpoints)
        stack.push_async_callback(fleet.stop)
        await fleet.start(install_crds=install_crds)
        await fleet.registered()
        if podresources_dir is not None:
            await stack.enter_async_context(serve_podresources(list(fleet.nodes.values()), podresources_dir))
        if reserve:
            await ensure_requests(client, install=install_crds)
            answering = asyncio.ensure_future(
                Autoscaler(client, fleet, reserve, autoscaler or AutoscalerProfile()).run()
            )
            stack.push_async_callback(_ended, answering)
        yield fleet


async def _ended(task: "asyncio.Future[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
