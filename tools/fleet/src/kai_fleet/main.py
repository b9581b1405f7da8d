"""`kai-fleet`: join a fleet of simulated kubelets to an API server."""

import asyncio
import gc
import sys
from pathlib import Path

from kaicore.kube.api.access import configured_access
from kaicore.runtime.service import ServiceContext, ServiceSettings, run_service
from kaicore.runtime.service.health import with_health
from kaicore.runtime.service.http_server import HttpServer
from prometheus_client import REGISTRY
from pydantic import Field

from kai_fleet.control import control_app
from kai_fleet.fleet import Fleet
from kai_fleet.metrics import Metrics
from kai_fleet.nodes import expand, reserve_of
from kai_fleet.profile import load_profile
from kai_fleet.running import running_fleet


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


def main() -> None:
    """Run the process."""
    sys.exit(run_service("fleet", FleetSettings, run_fleet, conditions=("nodes", "checkpoints"), serve_health=False))


if __name__ == "__main__":
    main()
