"""`kai-fleet`: join a fleet of simulated kubelets to an API server.

A fleet as a context: joined on entering, stopped on leaving. For `kai-fleet`, `kai up` and tests.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from kaicore.kube.api.access import AccessSource, configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.runtime.process_context import beside
from kaicore.runtime.service import Service, ServiceContext, ServiceSettings
from kaicore.runtime.service.health import with_health
from kaicore.runtime.service.http_server import HttpServer
from prometheus_client import REGISTRY
from pydantic import Field

from kai_fleet.autoscaler import Autoscaler, nodes_that_joined
from kai_fleet.control import control_app
from kai_fleet.fleet import Fleet, connections
from kai_fleet.node.podresources_server import serve_podresources
from kai_fleet.profiles.nodes import NodeSpec, expand, reserve_of
from kai_fleet.profiles.profile import AutoscalerProfile, load_profile
from kai_fleet.registration import ensure_requests
from kai_fleet.writer import Metrics


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
        metrics: where to count; a registry of its own by default.
        on_checkpoints: is called with the reason why checkpoints cannot be written, and "" when they can (again).
        reserve: nodes that are added for ProvisioningRequests, from `nodes.reserve_of`; without any, none is answered.

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
            answering = Autoscaler(client, fleet, reserve, autoscaler or AutoscalerProfile())
            await stack.enter_async_context(beside(answering.run()))
        yield fleet


class FleetSettings(ServiceSettings):
    """Flags of kai-fleet."""

    kubeconfig: Path | None = Field(None, description="default: KUBECONFIG, ~/.kube/config, or the pod's own account")
    kube_context: str | None = Field(None, description="context of the kubeconfig; default: its current one")
    profile: str = Field("mini", description="name of a bundled profile, or a file")
    data_dir: Path = Field(description="where the kubelets' checkpoints are kept")
    podresources_dir: Path | None = Field(None, description="serve <dir>/<node>/kubelet.sock; default: do not")
    install_crds: bool = Field(False, description="install the CRDs that the fleet needs if the API server lacks them")
    concurrency: int = Field(48, ge=1, le=1024, description="requests about pods under way at a time")


async def run_fleet(context: ServiceContext, settings: FleetSettings) -> None:
    """Run the fleet until it is asked to stop.

    Raises:
        ConfigurationError: the profile, the kubeconfig or the checkpoints make no sense.
        ClusterUnavailable: the API server did not answer at the start.
    """
    profile = load_profile(settings.profile)
    specs = expand(profile, source=settings.profile)
    source = configured_access(str(settings.kubeconfig or ""), context=settings.kube_context or "")
    joined: Fleet | None = None

    def checkpoints(problem: str) -> None:
        if problem:
            context.health.unmet("checkpoints", problem)
        else:
            context.health.met("checkpoints")

    app = with_health(context.health, app=control_app(lambda: joined))
    server = HttpServer(app, host=settings.http_host, port=settings.http_port, fd=settings.http_fd)
    ended = asyncio.Event()
    serving = asyncio.ensure_future(server.run(ended))
    context.log.info("health server listening", address=server.address)
    try:
        async with running_fleet(
            specs,
            source,
            settings.data_dir,
            podresources_dir=settings.podresources_dir,
            install_crds=settings.install_crds,
            concurrency=settings.concurrency,
            metrics=Metrics(REGISTRY),
            on_checkpoints=checkpoints,
            reserve=reserve_of(profile, source=settings.profile),
            autoscaler=profile.autoscaler,
        ) as fleet:
            joined = fleet
            gc.collect()
            gc.freeze()
            context.health.met("nodes")
            context.log.info("all nodes have joined", nodes=len(fleet.nodes))
            await context.stopping.wait()
    finally:
        ended.set()
        await serving


SERVICE = Service("fleet", FleetSettings, run_fleet, conditions=("nodes", "checkpoints"), serve_health=False)
main = SERVICE.main

if __name__ == "__main__":
    main()
