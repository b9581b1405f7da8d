"""Exporters of the nodes of a test, and what they log and count."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
from kai_exporter.exporter import Exporter, ExporterMetrics, PollPace
from kai_exporter.ingest_client import IngestClient
from kaicore.rules.events import payloads
from kaicore.runtime.access.node_tokens import EVERY_NODE, node_token
from kaicore.runtime.agent.metrics import Registry
from kaicore.runtime.service import Health

from tests.given.cluster.factory import pod as model_pod
from tests.given.processes.ingest_service import SECRET
from tests.given.processes.tasks import going

GI = 2**30


class Running:
    """A running exporter, and what it logs and counts."""

    def __init__(self, exporter: Exporter, health: Health, registry: Registry) -> None:
        self.exporter = exporter
        self.health = health
        self.logs: list[Mapping[str, Any]] = []
        self._registry = registry

    def counted(self, name: str, **labels: str) -> float:
        samples = (sample for family in self._registry.families for sample in family.samples())
        wanted = f"kai_exporter_{name}", labels
        return next((value for shown, has, value in samples if (shown, dict(has)) == wanted), 0.0)

    def lines(self, event: str) -> list[str]:
        return [str(line.get("error")) for line in self.logs if line["event"] == event]


class Exporting:
    """Starts exporters of the test's nodes."""

    def __init__(self, url: str, cluster: str, directory: Path) -> None:
        self.url, self.cluster, self.directory = url, cluster, directory

    @asynccontextmanager
    async def __call__(
        self,
        *nodes: str,
        token: Callable[[], str] | None = None,
        poll_s: float = 0.05,
        drift_s: float = 60.0,
        ca_file: Path | None = None,
    ) -> AsyncIterator[Running]:
        single = nodes[0] if len(nodes) == 1 else None
        registry, health = Registry(), Health("kubelet", "ingest")
        logs: list[Mapping[str, Any]] = []

        def keep(_: Any, method: str, line: Mapping[str, Any]) -> Mapping[str, Any]:
            logs.append({**line, "level": method})
            raise structlog.DropEvent

        own = node_token(SECRET, cluster=self.cluster, node=single or EVERY_NODE)
        client = IngestClient(
            self.url,
            cluster=self.cluster,
            token=token or (lambda: own),
            node=single,
            timeout_s=10,
            ca_file=ca_file,
        )
        exporter = Exporter(
            client,
            pace=PollPace(poll_s=poll_s, quiet_s=60.0, drift_s=drift_s, linger_s=0.0 if single else 0.02),
            metrics=ExporterMetrics(registry=registry),
            health=health,
            log=structlog.wrap_logger(None, processors=[keep]),
        )
        running = Running(exporter, health, registry)
        running.logs = logs
        for name in nodes:
            self.add(running, name)
        try:
            async with going(exporter.run()):
                yield running
        finally:
            await exporter.close()
            await client.close()

    def add(self, running: Running, name: str) -> None:
        directory = self.directory / name
        running.exporter.add_node(
            name, socket=directory / "kubelet.sock", sysfs_root=directory / "sys", state_dir=directory
        )


def seen(name: str, node: str = "n1", uid: str = "", **fields: Any) -> tuple[str, payloads.Payload]:
    one = model_pod(name, cpu=8, memory=8, gpu=4, node_name=node, uid=uid or f"uid-{name}", **fields)
    return f"pod/{one.uid}", payloads.PodObserved(one)
