"""`kai-exporter`: the exporter of one node, or of a simulated fleet, as a process, with its settings."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kaicore.kube.api.service_account import in_a_pod
from kaicore.runtime.access.node_tokens import EVERY_NODE, node_token, read_secret
from kaicore.runtime.agent.process import AgentContext, run_agent
from kaicore.runtime.agent.settings import AgentSettings
from kaicore.runtime.process_context import run_together
from msgspec import Meta

from kai_exporter.exporter import Exporter, ExporterMetrics, PollPace
from kai_exporter.ingest_client import IngestClient, token_in
from kai_exporter.kubelet import PodResourcesClient

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from kaicore.runtime.agent.api_server import ApiServer

_URLS = r"^https?://[^\s/,]+[^\s,]*(\s*,\s*https?://[^\s/,]+[^\s,]*)*$"


class ExporterSettings(AgentSettings, frozen=True, kw_only=True):
    """One node by its name and socket, or, for simulated fleets, every node below a directory."""

    cluster: Annotated[str, Meta(min_length=1, description="the cluster's name, as ingest knows it")]
    ingest_url: Annotated[
        str,
        Meta(pattern=_URLS, description="of ingest, such as http://kai-ingest:8080; several with commas between them"),
    ]
    ingest_ca_file: Annotated[
        Path | None, Meta(description="certificates to trust for https; default: the system's")
    ] = None
    node_name: Annotated[str, Meta(description="the node's name; in a pod from spec.nodeName")] = ""
    podresources_socket: Annotated[Path, Meta(description="the kubelet's socket")] = Path(
        "/var/lib/kubelet/pod-resources/kubelet.sock"
    )
    sysfs_root: Annotated[Path, Meta(description="where sysfs is mounted")] = Path("/sys")
    podresources_dir: Annotated[
        Path | None,
        Meta(description="serve every <node>/kubelet.sock below this directory, with sys and state files beside it"),
    ] = None
    token_file: Annotated[
        Path | None, Meta(description="the node's token; read anew for each report, for tokens rotate")
    ] = None
    token: Annotated[str, Meta(description="the node's token, where there is no file")] = ""
    node_token_secret_file: Annotated[
        Path | None, Meta(description="derive tokens from this secret, shared with ingest")
    ] = None
    kubelet_state_dir: Annotated[
        Path | None,
        Meta(description="the kubelet's root directory: its state files tell pods' uids and what init containers keep"),
    ] = None
    publish_nrt: Annotated[
        bool, Meta(description="publish the node's NodeResourceTopology, as long as no other publisher does")
    ] = False
    kubelet_config: Annotated[
        Path | None, Meta(description="the kubelet's configuration; default: config.yaml of its root directory")
    ] = None
    kubeconfig: Annotated[str, Meta(description="to publish with; by default the pod's service account")] = ""
    kube_context: Annotated[str, Meta(description="context of the kubeconfig; by default its current one")] = ""
    poll_interval_s: Annotated[float, Meta(ge=0.05, le=300, description="how often a kubelet is asked")] = 1.0
    quiet_interval_s: Annotated[
        float, Meta(ge=0.05, le=3600, description="the same while state files do not change")
    ] = 10.0
    drift_interval_s: Annotated[float, Meta(ge=1, le=86_400, description="how often everything is reported again")] = (
        60.0
    )

    @property
    def config_file(self) -> Path | None:
        """The path of the kubelet's configuration; None where nothing names it."""
        if self.kubelet_config is not None or self.kubelet_state_dir is None:
            return self.kubelet_config
        return self.kubelet_state_dir / "config.yaml"

    def __post_init__(self) -> None:
        if (self.podresources_dir is None) == (not self.node_name):
            raise ValueError("give either node_name or podresources_dir")
        if self.publish_nrt and not self.node_name:
            raise ValueError("publish_nrt needs node_name")
        if self.publish_nrt and self.config_file is None:
            raise ValueError("publish_nrt needs kubelet_config or kubelet_state_dir")
        if self.podresources_dir is not None and self.node_token_secret_file is None:
            raise ValueError("podresources_dir needs node_token_secret_file")
        if [bool(self.token), self.token_file is not None, self.node_token_secret_file is not None].count(True) != 1:
            raise ValueError("give exactly one of token_file, token and node_token_secret_file")


#: Seconds between two looks at what to publish, and for an answer of ingest.
_PUBLISH_S, _REPORT_TIMEOUT_S = 10.0, 20.0

#: Seconds between two looks for nodes that have come or gone.
DISCOVERY_S = 2.0

#: Seconds that the reports of a fleet's nodes wait for each other.
FLEET_LINGER_S = 0.2


async def export(context: AgentContext, settings: ExporterSettings) -> None:
    """Serve the nodes that the settings name until the process is to stop."""
    ingest = IngestClient(
        settings.ingest_url,
        cluster=settings.cluster,
        token=_token(settings),
        node=settings.node_name or None,
        timeout_s=_REPORT_TIMEOUT_S,
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
    works = [_serve_nodes(context, settings, exporter), exporter.run()]
    if settings.publish_nrt and settings.config_file is not None:
        works.append(publish(context, settings, settings.config_file, metrics))
    try:
        await run_together(context.stopping, *works)
    finally:
        await exporter.close()
        await ingest.close()


async def publish(
    context: AgentContext, settings: ExporterSettings, config_file: Path, metrics: ExporterMetrics
) -> None:
    """Publish the node's NodeResourceTopology until the process is to stop."""
    # Only where it is asked for: what reads YAML takes memory, too.
    from kai_exporter.publishing import TopologyPublisher, TopologyPublishing  # noqa: PLC0415

    kubelet = PodResourcesClient(str(settings.podresources_socket))
    async with _api_server(settings) as client:
        publishing = TopologyPublishing(
            TopologyPublisher(client, settings.node_name),
            kubelet,
            sysfs_root=settings.sysfs_root,
            config_file=config_file,
            metrics=metrics,
            log=context.log,
        )
        try:
            await publishing.run(every_s=_PUBLISH_S, sleep=context.sleep, stopped=context.stopping.is_set)
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


def _token(settings: ExporterSettings) -> Callable[[], str]:
    """Return what gives the token to use now."""
    if settings.token_file is not None:
        return partial(token_in, settings.token_file)
    token = settings.token
    if settings.node_token_secret_file is not None:
        secret = read_secret(settings.node_token_secret_file)
        token = node_token(secret, cluster=settings.cluster, node=settings.node_name or EVERY_NODE)
    return lambda: token


def main() -> None:
    """Entry point of `kai-exporter`."""
    sys.exit(run_agent("exporter", ExporterSettings, export, conditions=("kubelet", "ingest")))


if __name__ == "__main__":
    main()
