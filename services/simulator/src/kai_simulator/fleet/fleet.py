"""The fleet: a thousand kubelets in one process, on one event loop.

    pod watch ─▶ node ─▶ agent ─▶ instructions ─▶ journal ─▶ writes
                  ▲                                │
      timers ─────┘                                └─▶ NodeResourceTopology, some time later

Everything that arrived together is decided, then written to the journal, and only then sent: what the API knows is
never ahead of the checkpoint.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from kaicore.errors import InvalidObject
from kaicore.service import get_logger
from prometheus_client import CollectorRegistry

from kai_simulator.fleet.agent import Complaint, Decided, DeletePod, Instruction, PatchStatus, RecordEvent, WakeAt
from kai_simulator.fleet.api_client import STRATEGIC_PATCH, ApiClient
from kai_simulator.fleet.checkpoint import Journal, restore
from kai_simulator.fleet.metrics import Metrics
from kai_simulator.fleet.node_runtime import NodeRuntime
from kai_simulator.fleet.nodes import NodeSpec
from kai_simulator.fleet.registration import (
    adopt,
    deregistered,
    ensure_crd,
    ensure_lease_namespace,
    register,
    report_status,
)
from kai_simulator.fleet.timers import Timers
from kai_simulator.fleet.watch import Reflector
from kai_simulator.fleet.wire import ObjectMeta, PartialObject, PodObject
from kai_simulator.fleet.writer import Write, Writer

_decode_pod = msgspec.json.Decoder(PodObject).decode
_decode_partial = msgspec.json.Decoder(PartialObject).decode

#: Immediate deletion of just this pod.
_DELETE = b'{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0,"preconditions":{"uid":"%b"}}'


class Fleet:
    """The nodes of a profile, joined to one API server."""

    def __init__(
        self,
        specs: Iterable[NodeSpec],
        client: ApiClient,
        data_dir: Path,
        *,
        metrics: Metrics | None = None,
        concurrency: int = 48,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make a fleet; nothing happens before `start`.

        Args:
            specs: its nodes.
            client: an open session with the API server.
            data_dir: where checkpoints are kept; created if need be.
            metrics: where to count; a registry of its own by default.
            concurrency: requests about pods that are under way at a time.
            clock: seconds of Unix time.

        Raises:
            ConfigurationError: the checkpoints cannot be read.
        """
        self.metrics = metrics or Metrics(CollectorRegistry())
        self.timers = Timers(after=self._settle, clock=clock)
        self.writer = Writer(client, self.metrics, limit=concurrency)
        #: What no pod waits for: nodes, leases, events, NodeResourceTopology.
        self.background = Writer(client, self.metrics, limit=max(4, concurrency // 4))
        self.nodes = {
            spec.name: NodeRuntime(
                spec,
                timers=self.timers,
                background=self.background,
                metrics=self.metrics,
                execute=self._execute,
                joined=self._joined,
            )
            for spec in specs
        }
        self._missing = set(self.nodes)
        self._all_joined = asyncio.Event()
        self._client = client
        self._journal = Journal(data_dir)
        self._outbox: list[Write] = []
        self._touched: dict[str, NodeRuntime] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.metrics.active_pods.set_function(lambda: sum(len(n.agent.kubelet.pods) for n in self.nodes.values()))
        self.metrics.nodes.set_function(lambda: sum(node.registered for node in self.nodes.values()))

    async def start(self, *, install_crds: bool = False) -> None:
        """Take up the checkpoints, register all nodes, and begin to watch.

        Raises:
            ClusterUnavailable: the API server does not answer.
            ConfigurationError: it does not know NodeResourceTopology, though a node of the profile publishes one.
        """
        for node in self.nodes.values():
            restore(node.agent, self._journal.state_of(node.spec.name))
        self._journal.start(node.agent for node in self.nodes.values())
        await ensure_lease_namespace(self._client)
        if any(node.publisher.enabled for node in self.nodes.values()):
            await ensure_crd(self._client, install=install_crds)
        for node in self.nodes.values():
            register(node)
        pods = Reflector(self._client, "/api/v1/pods", _PodHandler(self), asyncio.sleep, "spec.nodeName!=")
        nodes = Reflector(self._client, "/api/v1/nodes", _NodeHandler(self), asyncio.sleep)
        self._tasks = [asyncio.create_task(reflector.run()) for reflector in (pods, nodes)]

    async def registered(self) -> None:
        """Wait until the API server has all nodes and their first NodeResourceTopologies."""
        await self._all_joined.wait()

    def _joined(self, name: str) -> None:
        self._missing.discard(name)
        if not self._missing:
            self._all_joined.set()

    async def stop(self) -> None:
        """Stop everything; pods stay as they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.timers.stop()
        await self.writer.close()
        await self.background.close()
        self._journal.close()

    # --- from the agents to the API -------------------------------------------------------------------------------

    def _execute(self, node: NodeRuntime, instructions: list[Instruction]) -> None:
        """Take instructions; what is to be sent is sent in `settle`."""
        self._touched[node.spec.name] = node
        for instruction in instructions:
            match instruction:
                case PatchStatus(pod, body):
                    path = f"{_path(pod)}/status"
                    write = Write(pod.metadata.uid, "pod-status", "PATCH", path, body, STRATEGIC_PATCH)
                    self._outbox.append(write)
                case DeletePod(pod):
                    options = _DELETE % pod.metadata.uid.encode()
                    self._outbox.append(Write(pod.metadata.uid, "pod-delete", "DELETE", _path(pod), options))
                case WakeAt(when):
                    self.timers.at(when, node.wake)
                case Decided(pod, rejection) if rejection is not None:
                    self.metrics.rejections.labels(rejection.reason).inc()
                    get_logger(node=node.spec.name).info("pod rejected", pod=str(pod), reason=rejection.reason)
                case Decided():
                    self.metrics.admissions.inc()
                case RecordEvent(pod, body):
                    path = f"/api/v1/namespaces/{pod.metadata.namespace}/events"
                    self.background.submit(Write(f"event/{pod.metadata.uid}", "event", "POST", path, body))
                case Complaint(error):
                    self.metrics.ignored.inc()
                    get_logger(node=node.spec.name).warning("bad input", error=str(error))

    def _settle(self) -> None:
        """Write the journal, then send: called whenever a bout of work is over."""
        if not self._touched:
            return
        for node in self._touched.values():
            self._journal.note(node.agent)
            if node.agent.allocations_changed:
                node.agent.allocations_changed = False
                node.publisher.changed()
        self._touched.clear()
        self._journal.flush()
        for write in self._outbox:
            self.writer.submit(write)
        self._outbox.clear()
        if self._journal.wants_compaction:
            self._journal.start(node.agent for node in self.nodes.values())

    # --- faults ---------------------------------------------------------------------------------------------------

    def stop_kubelet(self, node: str) -> None:
        """End the kubelet process of a node: nothing is admitted, reported or renewed there until it starts again."""
        self.nodes[node].kubelet_stops()

    def start_kubelet(self, node: str) -> None:
        """Start the kubelet of a node, again: from its checkpoint."""
        self.nodes[node].kubelet_starts()
        self._settle()
        if not self.nodes[node].registered:
            register(self.nodes[node])

    def set_device_health(self, node: str, resource: str, device: str, *, healthy: bool) -> None:
        """Make a device unhealthy, or healthy again; the node's status and NodeResourceTopology follow.

        Raises:
            KeyError: there is no such node, resource or device.
        """
        runtime = self.nodes[node]
        runtime.set_device_health(resource, device, healthy=healthy)
        self._journal.note_unhealthy(runtime.agent)
        self._journal.flush()
        report_status(runtime, whole=True)


def _path(pod: PodObject) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


@contextmanager
def _contained(node: NodeRuntime) -> Iterator[None]:
    """Keep a defect that shows on one node from the others."""
    try:
        yield
    except Exception as error:
        get_logger(node=node.spec.name).exception("a node stumbled over a pod", error=repr(error))


class _PodHandler:
    """Pods that are bound to a node, wherever that is."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def on_list(self, items: list[msgspec.Raw]) -> None:
        by_node: dict[str, list[PodObject]] = {name: [] for name in self._fleet.nodes}
        for item in items:
            pod = self._decode(item)
            if pod is not None and pod.spec.node_name in by_node:
                by_node[pod.spec.node_name].append(pod)
        for name, pods in by_node.items():
            node = self._fleet.nodes[name]
            with _contained(node):
                node.synced(pods)

    def on_event(self, kind: str, item: msgspec.Raw) -> str:
        pod = self._decode(item)
        if pod is None:
            return _meta(item).resource_version
        node = self._fleet.nodes.get(pod.spec.node_name)
        if node is not None:
            with _contained(node):
                if kind == "DELETED":
                    node.pod_gone(pod.metadata.uid)
                else:
                    node.pod_seen(pod)
        return pod.metadata.resource_version

    def on_pause(self) -> None:
        self._fleet._settle()  # noqa: SLF001

    def _decode(self, item: msgspec.Raw) -> PodObject | None:
        try:
            return _decode_pod(item)
        except msgspec.ValidationError as error:
            meta = _meta(item)
            problem, _, field = str(error).partition(" - at ")
            complaint = InvalidObject(f"pod {meta.namespace}/{meta.name}", field.strip("`$."), "…", problem)
            self._fleet.metrics.ignored.inc()
            get_logger().warning("malformed pod ignored", error=str(complaint))
            return None


def _meta(item: msgspec.Raw) -> ObjectMeta:
    try:
        return _decode_partial(item).metadata
    except msgspec.ValidationError:
        return ObjectMeta("")


class _NodeHandler:
    """Nodes of the fleet that somebody deletes, creates or labels."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def on_list(self, items: list[msgspec.Raw]) -> None:
        present = [_meta(item) for item in items]
        names = {meta.name for meta in present}
        for meta in present:
            self._labelled(meta)
        for name, node in self._fleet.nodes.items():
            if name not in names and node.registered:
                self._deleted(node)

    def on_event(self, kind: str, item: msgspec.Raw) -> str:
        meta = _meta(item)
        node = self._fleet.nodes.get(meta.name)
        if node is None:
            return meta.resource_version
        if kind == "DELETED":
            if node.registered:
                self._deleted(node)
            return meta.resource_version
        if kind == "ADDED" and not node.registered and not node.background.is_busy(f"node/{meta.name}"):
            adopt(node)
        self._labelled(meta)
        return meta.resource_version

    def on_pause(self) -> None:
        """Nothing is held back."""

    def _labelled(self, meta: ObjectMeta) -> None:
        node = self._fleet.nodes.get(meta.name)
        if node is not None:
            node.agent.kubelet.labels = {**(meta.labels or {}), "metadata.name": meta.name}

    def _deleted(self, node: NodeRuntime) -> None:
        get_logger(node=node.spec.name).warning("the node was deleted; heartbeats and publisher stop")
        deregistered(node)
