"""`--publish-nrt`: looks at a kubelet from time to time, and publishes what it has while no other publisher does."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from kaicore.backoff import backoff, jittered
from kaicore.errors import KaiError
from kaicore.runtime.agent.logs import Log
from kaicore.runtime.agent.process import jitter

from kai_exporter.kubelet import PodResourcesClient, decode_allocatable, decode_pod, pod_messages
from kai_exporter.metrics import ExporterMetrics
from kai_exporter.node_topology import Json, Machine, node_topology, read_kubelet_config, read_machine
from kai_exporter.topology_publisher import Published, TopologyPublisher

_MAX_BACKOFF_S = 300.0


class TopologyPublishing:
    """Publishes one node's topology until its process stops."""

    def __init__(
        self,
        publisher: TopologyPublisher,
        kubelet: PodResourcesClient,
        *,
        sysfs_root: Path,
        config_file: Path,
        metrics: ExporterMetrics,
        log: Log,
    ) -> None:
        """Args:
        publisher: writes the object.
        kubelet: is asked.
        sysfs_root: where the node's sysfs is.
        config_file: the kubelet's configuration.
        metrics: tells what became of it.
        log: says what changed.
        """
        self._publisher, self._kubelet = publisher, kubelet
        self._sysfs_root, self._config_file = sysfs_root, config_file
        self._metrics, self._log = metrics, log
        self._said = ""
        self._machine: Machine | None = None

    async def run(
        self, *, every_s: float, sleep: Callable[[float], Awaitable[object]], stopped: Callable[[], bool]
    ) -> None:
        """Publish again and again.

        Args:
            every_s: seconds between two looks; more after failures.
            sleep: waits, at most until the process is to stop.
            stopped: whether it is.
        """
        failures = 0
        while not stopped():
            try:
                outcome = await self._publisher.publish(await self._contents())
                failures = 0
                self._metrics.topologies.inc(1, outcome.value)
                self._say("" if outcome is not Published.OTHERS else "another publisher writes it; it is left alone")
            except KaiError as error:
                failures += 1
                self._metrics.topologies.inc(1, "failed")
                self._say(str(error))
            wait = backoff(failures, first=every_s, most=_MAX_BACKOFF_S) if failures else every_s
            await sleep(jittered(wait, jitter()) if failures else wait)

    async def _contents(self) -> Json:
        subject = f"Node {self._publisher.node}"
        if self._machine is None:
            self._machine = read_machine(self._sysfs_root, subject=subject)
        allocatable = decode_allocatable(await self._kubelet.allocatable(), subject=subject)
        pods = [
            decode_pod(message, subject=subject)
            for message in pod_messages(await self._kubelet.list(), subject=subject)
        ]
        # A kubelet that is set otherwise has been started anew, and so has its file perhaps.
        return node_topology(allocatable, pods, self._machine, read_kubelet_config(self._config_file))

    def _say(self, trouble: str) -> None:
        if trouble == self._said:
            return
        self._said = trouble
        if trouble:
            self._log.warning("NodeResourceTopology is not published", node=self._publisher.node, error=trouble)
        else:
            self._log.info("NodeResourceTopology is published", node=self._publisher.node)
