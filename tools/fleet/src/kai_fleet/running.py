"""A fleet as a context: joined on entering, stopped on leaving. For `kai-fleet`, `kai up` and tests."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from kaicore.kube.access import AccessSource
from kaicore.kube.client import KubeClient

from kai_fleet.fleet import Fleet, connections
from kai_fleet.metrics import Metrics
from kai_fleet.nodes import NodeSpec
from kai_fleet.podresources_server import serve_podresources


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
) -> AsyncIterator[Fleet]:
    """Join a fleet to an API server; yields when all nodes are registered.

    Args:
        specs: the nodes, from `nodes.expand(profile.load_profile(...))`.
        source: where the API server is, from `kaicore.kube.access`.
        data_dir: where checkpoints are kept.
        podresources_dir: where every node's podresources socket goes; None: nowhere.
        install_crds: install the CRD of NodeResourceTopology where it is missing.
        concurrency: requests about pods that are under way at a time.
        metrics: where to count; a registry of its own by default.
        on_checkpoints: is told why checkpoints cannot be written, and "" when they can (again).

    Raises:
        ConfigurationError: a directory cannot be used, or the CRD is missing.
        ClusterUnavailable: the API server does not answer.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            KubeClient(source, connections=connections(concurrency), user_agent="kai-fleet")
        )
        fleet = Fleet(specs, client, data_dir, metrics=metrics, concurrency=concurrency, on_checkpoints=on_checkpoints)
        stack.push_async_callback(fleet.stop)
        await fleet.start(install_crds=install_crds)
        await fleet.registered()
        if podresources_dir is not None:
            await stack.enter_async_context(serve_podresources(list(fleet.nodes.values()), podresources_dir))
        yield fleet
