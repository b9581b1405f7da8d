"""A publisher of a node's NodeResourceTopology (`--publish-nrt`), where no other publisher does it.

From time to time it looks at the kubelet, and writes what has changed. An object is ours if it carries our annotation
and still has the contents that we wrote, by their digest. Any other one is another publisher's, and is left alone; so
is one of ours that somebody else has written to since. Writes name the resourceVersion that was read, so two of us
cannot undo each other. The object belongs to its Node and goes with it.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec
from kaicore.backoff import backoff, jittered
from kaicore.errors import ApiStatus, KaiError
from kaicore.runtime.agent.api_server import ApiServer
from kaicore.runtime.agent.logs import Log
from kaicore.runtime.agent.process import jitter

from kai_exporter.kubelet import PodResourcesClient, decode_allocatable, decode_pod, pod_messages
from kai_exporter.metrics import ExporterMetrics
from kai_exporter.publishing.node_topology import Json, Machine, node_topology, read_kubelet_config, read_machine

PATH = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
API_VERSION = "topology.node.k8s.io/v1alpha2"

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "kai-exporter"
DIGEST_ANNOTATION = "kai.scheduler/published-digest"

_NOT_FOUND, _CONFLICT = 404, 409


class Published(StrEnum):
    """The result for an object: written, unchanged, another's, or changed by others just now."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    OTHERS = "others"
    CONFLICT = "conflict"


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct, rename="camel"):
    metadata: _Metadata
    topology_policies: list[str] = []
    attributes: list[Json] = []
    zones: list[Json] = []


@dataclass(frozen=True, slots=True)
class TopologyPublisher:
    """Writes one node's object."""

    client: ApiServer
    node: str

    async def publish(self, contents: Json) -> Published:
        """Write an object's contents, unless it has them or is another's.

        Args:
            contents: see `kai_exporter.publishing.node_topology`.

        Raises:
            ApiStatus: the API server refuses: no CustomResourceDefinition, no right, no such node.
            ClusterUnavailable: it does not answer, or cannot now.
        """
        digest = _digest(contents)
        current = await self._read()
        if current is None:
            return await self._create(contents, digest)
        if not _is_ours(current):
            return Published.OTHERS
        annotations = current.metadata.annotations or {}
        if annotations[DIGEST_ANNOTATION] == digest:
            return Published.UNCHANGED
        metadata = {"resourceVersion": current.metadata.resource_version, "annotations": {DIGEST_ANNOTATION: digest}}
        try:
            await self.client.patch(f"{PATH}/{self.node}", {"metadata": metadata, **contents})
        except ApiStatus as error:
            if error.code in (_CONFLICT, _NOT_FOUND):
                return Published.CONFLICT
            raise
        return Published.WRITTEN

    async def _read(self) -> _Object | None:
        try:
            return msgspec.json.decode(await self.client.get(f"{PATH}/{self.node}"), type=_Object)
        except ApiStatus as error:
            if error.code == _NOT_FOUND and error.reason == "NotFound":
                return None
            raise

    async def _create(self, contents: Json, digest: str) -> Published:
        node = msgspec.json.decode(await self.client.get(f"/api/v1/nodes/{self.node}"), type=_Object)
        metadata = {
            "name": self.node,
            "labels": {MANAGED_BY_LABEL: MANAGER},
            "annotations": {DIGEST_ANNOTATION: digest},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": node.metadata.uid},
            ],
        }
        body = {"apiVersion": API_VERSION, "kind": "NodeResourceTopology", "metadata": metadata, **contents}
        try:
            await self.client.post(PATH, body)
        except ApiStatus as error:
            if error.code == _CONFLICT:
                return Published.CONFLICT
            raise
        return Published.WRITTEN


def _is_ours(current: _Object) -> bool:
    labels, annotations = current.metadata.labels or {}, current.metadata.annotations or {}
    contents = {"topologyPolicies": current.topology_policies, "attributes": current.attributes, "zones": current.zones}
    return labels.get(MANAGED_BY_LABEL) == MANAGER and annotations.get(DIGEST_ANNOTATION) == _digest(contents)


def _digest(contents: Json) -> str:
    return hashlib.sha256(msgspec.json.encode(contents, order="deterministic")).hexdigest()[:32]


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
