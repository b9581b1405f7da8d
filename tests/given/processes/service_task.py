"""A service on a simulated API server, as a task of the test's process or as a process that is killed."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from kaicore.errors import KaiError
from kaicore.kube.api.client import KubeClient
from kaicore.runtime.service import Health, ServiceContext, get_logger
from prometheus_client import CollectorRegistry

from tests.given.processes.kai_commands import Spawned, spawned
from tests.given.servers.kube import Api

#: Seconds: long enough for any machine; only a test that fails takes as long.
PATIENCE_S = 60


class ServiceTask:
    """A service in this process; a subclass makes the service and sets `task` to its run.

    Attributes:
        registry: the service's metrics.
        context: its health, log and order to stop.
    """

    task: asyncio.Task[None]

    def __init__(self, name: str, cluster: str, client: KubeClient, health: Health) -> None:
        self.name = name
        self.cluster = cluster
        self.client = client
        self.registry = CollectorRegistry()
        self.context = ServiceContext(name=name, health=health, log=get_logger())

    async def stop(self) -> None:
        self.context.stopping.set()
        async with asyncio.timeout(PATIENCE_S):
            await self.task
        await self.client.close()

    async def kill(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError, KaiError):
            await self.task
        await self.client.close()

    def metric(self, metric: str, **labels: str) -> float:
        name = f"kai_{self.name}_{metric}"
        return self.registry.get_sample_value(name, {"cluster": self.cluster, **labels}) or 0.0


@asynccontextmanager
async def killed_process(
    service: str, api: Api, cluster: str, database_url: str, directory: Path, *flags: str
) -> AsyncIterator[Spawned]:
    """Run `kai-<service>` as a process on an API server; it is killed at the end."""
    kubeconfig = directory / "kubeconfig"
    api.server.write_http_kubeconfig(kubeconfig)
    process = await spawned(
        *(f"kai_{service}.main", "--cluster", cluster, "--database-url", database_url),
        *("--kubeconfig", str(kubeconfig), *flags),
        environment=os.environ | {"KAI_LOG_LEVEL": "error"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()
