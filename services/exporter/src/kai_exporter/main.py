"""`kai-exporter`: the exporter of one node, or of a simulated fleet, as a process."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kaicore.errors import ConfigurationError
from kaicore.kube.api.service_account import in_a_pod
from kaicore.runtime.access.node_tokens import EVERY_NODE, node_token, read_secret
from kaicore.runtime.agent.process import AgentContext, run_agent

from kai_exporter.exporter import Exporter, PollPace
from kai_exporter.ingest_client import FixedToken, IngestClient, TokenFile, Tokens
from kai_exporter.kubelet import PodResourcesClient
from kai_exporter.metrics import ExporterMetrics
from kai_exporter.settings import ExporterSettings

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from kaicore.runtime.agent.api_server import ApiServer

#: Seconds between two looks for nodes that have come or gone.
DISCOVERY_S = 2.0

#: Seconds that the reports of a fleet's nodes wait for each other.
FLEET_LINGER_S = 0.2


async def export(context: AgentContext, settings: ExporterSettings) -> None:
    """Serve the nodes that the settings name until the process is to stop."""
    ingest = IngestClient(
        settings.ingest_url,
        cluster=settings.cluster,
        tokens=_tokens(settings),
        node=settings.node_name or None,
        timeout_s=settings.report_timeout_s,
        ca_file=settings.ingest_ca_file,
    )
    pace = PollPace(
        poll_s=settings.poll_interval_s,
        quiet_s=max(settings.quiet_interval_s, settings.poll_interval_s),
        drift_s=settings.drift_interval_s,
        linger_s=0.0 if settings.node_name else FLEET_LINGER_S,
    )
    metrics = ExporterMetrics(registry=context.registry)
    exporter = Exporter(ingest, pace=pace, metrics=metrics, health=context.health, log=context.log)
    tasks = {
        asyncio.ensure_future(_serve_nodes(context, settings, exporter)),
        asyncio.ensure_future(exporter.run()),
    }
    if settings.publish_nrt:
        tasks.add(asyncio.ensure_future(publish(context, settings, metrics)))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await exporter.close()
        await ingest.close()


async def publish(context: AgentContext, settings: ExporterSettings, metrics: ExporterMetrics) -> None:
    """Publish the node's NodeResourceTopology until the process is to stop."""
    if settings.config_file is None:
        raise ConfigurationError("publish_nrt needs kubelet_config or kubelet_state_dir")
    # Only where it is asked for: what reads YAML takes memory, too.
    from kai_exporter.publishing.publisher import TopologyPublisher, TopologyPublishing  # noqa: PLC0415

    kubelet = PodResourcesClient(str(settings.podresources_socket))
    async with _api_server(settings) as client:
        publishing = TopologyPublishing(
            TopologyPublisher(client, settings.node_name),
            kubelet,
            sysfs_root=settings.sysfs_root,
            config_file=settings.config_file,
            metrics=metrics,
            log=context.log,
        )
        try:
            await publishing.run(
                every_s=settings.publish_interval_s, sleep=context.sleep, stopped=context.stopping.is_set
            )
        finally:
            await kubelet.close()


def _api_server(settings: ExporterSettings) -> "AbstractAsyncContextManager[ApiServer]":
    from kaicore.runtime.agent.api_server import PodApiServer  # noqa: PLC0415

    if not settings.kubeconfig and in_a_pod():
        return PodApiServer(user_agent="kai-exporter")
    # A kubeconfig may ask for anything, an exec plugin for instance: that is not for the small client.
    from kaicore.kube.api.access import configured_access  # noqa: PLC0415
    from kaicore.kube.api.client import KubeClient  # noqa: PLC0415

    access = configured_access(settings.kubeconfig, context=settings.kube_context)
    return KubeClient(access, connections=2, user_agent="kai-exporter")


async def _serve_nodes(context: AgentContext, settings: ExporterSettings, exporter: Exporter) -> None:
    if settings.podresources_dir is None:
        exporter.add_node(
            settings.node_name,
            socket=settings.podresources_socket,
            sysfs_root=settings.sysfs_root,
            state_dir=settings.kubelet_state_dir,
        )
        await context.stopping.wait()
        return
    while not context.stopping.is_set():
        there = sockets_below(settings.podresources_dir)
        for name in sorted(exporter.nodes - there.keys()):
            await exporter.remove_node(name)
        for name in sorted(there.keys() - exporter.nodes):
            directory = there[name].parent
            exporter.add_node(name, socket=there[name], sysfs_root=directory / "sys", state_dir=directory)
        await context.sleep(DISCOVERY_S)


def sockets_below(directory: Path) -> dict[str, Path]:
    """Return the kubelets' sockets of a fleet, `<directory>/<node>/kubelet.sock`, by node."""
    return {path.parent.name: path for path in directory.glob("*/kubelet.sock")}


def _tokens(settings: ExporterSettings) -> Tokens:
    if settings.node_token_secret_file is not None:
        secret = read_secret(settings.node_token_secret_file)
        return FixedToken(node_token(secret, cluster=settings.cluster, node=settings.node_name or EVERY_NODE))
    return TokenFile(settings.token_file) if settings.token_file is not None else FixedToken(settings.token)


def main() -> None:
    """Entry point of `kai-exporter`."""
    sys.exit(run_agent("exporter", ExporterSettings, export, conditions=("kubelet", "ingest")))


if __name__ == "__main__":
    main()
