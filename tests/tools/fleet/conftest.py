"""A simulated API server in this process, with a fleet of small nodes joined to it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from kai_apiserver.server import ApiServer, ApiServerOptions
from kai_fleet.fleet import Fleet
from kai_fleet.main import running_fleet
from kai_fleet.profiles.nodes import NodeSpec
from kaicore.kube.api.access import plain_access

from tests.tools.fleet.cluster import Cluster
from tests.tools.fleet.objects import small_fleet

JoinFleet = Callable[..., AbstractAsyncContextManager[Fleet]]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """An API server in memory, without controllers."""
    async with ApiServer(ApiServerOptions(controllers=False)) as server:
        yield server


@pytest.fixture
async def cluster(server: ApiServer) -> AsyncIterator[Cluster]:
    """A client that can wait for what it wants to see."""
    async with Cluster(server.http_url, server.admin_token) as cluster:
        yield cluster


@pytest.fixture
def join(server: ApiServer, tmp_path: Path) -> JoinFleet:
    """Join a fleet; all fleets of a test share the data directory."""

    @asynccontextmanager
    async def joined(
        specs: list[NodeSpec] | None = None, *, podresources_dir: Path | None = None
    ) -> AsyncIterator[Fleet]:
        async with running_fleet(
            small_fleet() if specs is None else specs,
            plain_access(server.http_url, token=server.admin_token),
            tmp_path / "data",
            podresources_dir=podresources_dir,
            install_crds=True,
        ) as fleet:
            yield fleet

    return joined
