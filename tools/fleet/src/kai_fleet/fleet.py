"""The fleet: a thousand kubelets in one process, on one event loop.

    pod watch ─▶ node ─▶ agent ─▶ instructions ─▶ journal ─▶ writes
                  ▲                                │
      timers ─────┘                                └─▶ NodeResourceTopology, some time later

Everything that arrived together is decided, then written to the journal, and only then sent: what the API knows is
never ahead of the checkpoint.

Watches of the fleet in the API: pods that are bound to its nodes, and its nodes.

Devices of claims: a pod is not taken up before each of its resource claims is allocated and reserved for it.

As the kubelet's DRA manager (`pkg/kubelet/cm/dra`): a claim that is not there, not allocated or not reserved for the
pod cannot be prepared; the pod stays as it is, and it is tried again. A kubelet has given such a pod its CPUs by then;
here it is not taken up at all, which only matters where its claims are late.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kai_gpu_reservation.main import hold, own_gpu
from kaicore.errors import ApiStatus, ClusterError, ConfigurationError
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.reflector import Reflector
from kaicore.kube.api.reflector_core import Change, ObjectGone, ObjectRefused, Relist
from kaicore.kube.wire.resources import RESOURCE_CLAIMS, named_fields
from kaicore.rules.objects.gpu_sharing import GPU, RESERVATION_COMMAND
from kaicore.runtime.process_context import end_all
from kaicore.runtime.service import Health, ServiceContext, get_logger
from prometheus_client import CollectorRegistry

from kai_fleet.kubelet import Kubelet
from kai_fleet.node.agent import Complaint, Decided, DeletePod, Instruction, PatchStatus, RecordEvent, WakeAt
from kai_fleet.node.checkpoint import Journal, restore
from kai_fleet.node.pod_conversion import BOUND_PODS, NODES, NodeObject, PodObject
from kai_fleet.node.runtime import NodeRuntime, Timers
from kai_fleet.profiles.nodes import NodeSpec
from kai_fleet.registration import claim, deregistered, ensure_crd, ensure_lease_namespace, register, report_status
from kai_fleet.writer import STRATEGIC_PATCH, Metrics, Write, Writer


class GpuReservations:
    """The programs of reservation pods, by uid."""

    def __init__(self, client: KubeClient) -> None:
        """Args: client: to write as the programs do."""
        self._client = client
        self._running: dict[str, asyncio.Task[None]] = {}

    def seen(self, pod: PodObject, kubelet: Callable[[], Kubelet]) -> None:
        """Run the program of a reservation pod when its container has started; end it when the pod is deleted.

        Args:
            pod: as the API has it now.
            kubelet: returns its node's.
        """
        uid = pod.metadata.uid
        if pod.metadata.deletion_timestamp is not None:
            self.forget(uid)
        elif uid not in self._running and pod.status.phase == "Running" and _is_reservation(pod):
            self._running[uid] = asyncio.create_task(self._run(pod, kubelet), name=f"program of {pod}")

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        task = self._running.pop(uid, None)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        """End all programs."""
        await end_all(self._running.values())

    async def _run(self, pod: PodObject, kubelet: Callable[[], Kubelet]) -> None:
        meta = pod.metadata
        context = ServiceContext("gpu-reservation", Health(), get_logger(pod=str(pod)))
        try:
            gpu = own_gpu({}, driver=lambda: devices_of(kubelet(), meta.uid))
            await hold(context, self._client, namespace=meta.namespace, name=meta.name, gpu=gpu)
        except ConfigurationError as error:
            context.log.error("service failed", error=str(error))


def devices_of(kubelet: Kubelet, uid: str) -> list[str]:
    """Return the GPUs that a pod's containers hold, as the device plugin names them."""
    devices = kubelet.managers.devices
    return [
        name
        for held in devices.assigned.get(uid, {}).values()
        for name in devices.pools[GPU].ids(held.get(GPU, 0))
        if GPU in devices.pools
    ]


def _is_reservation(pod: PodObject) -> bool:
    return any(container.command == [RESERVATION_COMMAND] for container in pod.spec.containers)


#: Seconds between two tries; the kubelet's back-off begins with as much.
RETRY_S = 1.0


class PreparedClaims:
    """Holds pods with claims back until these can be prepared."""

    def __init__(self, client: KubeClient, *, hand_over: Callable[[PodObject], None], retry_s: float = RETRY_S) -> None:
        """Args:
        hand_over: is given each pod with ready claims.
        retry_s: seconds between two tries.
        """
        self._client = client
        self._hand_over = hand_over
        self._retry_s = retry_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._latest: dict[str, PodObject] = {}
        self._ready: set[str] = set()

    def holds(self, pod: PodObject) -> bool:
        """Tell whether a pod has to wait for its claims; it is handed over as it is then."""
        uid = pod.metadata.uid
        uses = pod.spec.resource_claims or pod.status.extended_resource_claim_status is not None
        if not uses or uid in self._ready or pod.status.phase != "Pending":
            return False
        if pod.metadata.deletion_timestamp is not None:
            self.forget(uid)
            return False
        self._latest[uid] = pod
        if uid not in self._tasks:
            self._tasks[uid] = asyncio.create_task(self._wait(uid), name=f"claims of {pod}")
        return True

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        self._ready.discard(uid)
        self._latest.pop(uid, None)
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()

    async def _wait(self, uid: str) -> None:
        said = ""
        while problem := await self.problem(self._latest[uid]):
            if problem != said:
                get_logger().warning("FailedPrepareDynamicResources", pod=str(self._latest[uid]), why=problem)
                said = problem
            await asyncio.sleep(self._retry_s)
        self._ready.add(uid)
        del self._tasks[uid]
        self._hand_over(self._latest.pop(uid))

    async def problem(self, pod: PodObject) -> str:
        """Return why a pod's claims cannot be prepared; empty when they can."""
        for name, claim_name in _claims(pod):
            if not claim_name:
                return f"claim {name} is not made yet"
            path = f"/apis/resource.k8s.io/v1/namespaces/{pod.metadata.namespace}/resourceclaims/{claim_name}"
            try:
                claim = RESOURCE_CLAIMS.at("v1").decode(await self._client.get(path))
            except ApiStatus as error:
                return f"claim {claim_name}: {error.message}"
            except ClusterError as error:
                return f"claim {claim_name}: {error}"
            status = named_fields("ResourceClaim", claim).inside("status")
            if status.value.get("allocation") is None:
                return f"claim {claim_name} is not allocated"
            if all(one.text("uid") != pod.metadata.uid for one in status.items("reservedFor")):
                return f"claim {claim_name} is not reserved for the pod"
        return ""


def _claims(pod: PodObject) -> Iterator[tuple[str, str]]:
    """Yield by which names a pod calls its claims, and their names; empty for those that are not made."""
    made = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses or ()}
    for reference in pod.spec.resource_claims or ():
        if reference.resource_claim_name:
            yield reference.name, reference.resource_claim_name
        elif reference.name not in made or made[reference.name]:
            yield reference.name, made.get(reference.name) or ""
    extended = pod.status.extended_resource_claim_status
    if extended is not None:
        yield "for extended resources", extended.resource_claim_name or ""


class ReflectorLog:
    """Logs what goes wrong."""

    def listed(self, kind: str, why: Relist, objects: int) -> None:
        """See `ReflectorObserver.listed`."""
        get_logger().info("listed", kind=kind, why=why.value, objects=objects)

    def watching(self, kind: str) -> None:
        """Nothing to tell."""

    def answered(self, kind: str) -> None:
        """Nothing to tell."""

    def failed(self, kind: str, error: ClusterError) -> None:
        """See `ReflectorObserver.failed`."""
        get_logger().warning("list or watch failed, trying again", kind=kind, error=str(error))


class PodFollower:
    """Hands every pod to its node: at first all together, so that they come oldest first."""

    def __init__(
        self,
        client: KubeClient,
        nodes: Mapping[str, NodeRuntime],
        *,
        metrics: Metrics,
        settle: Callable[[], None],
    ) -> None:
        """Make a follower; `settle` is called when everything that has arrived was handed over."""
        self._nodes = nodes
        self._metrics = metrics
        self._settle = settle
        #: uid of a bound pod → its node.
        self._node_of: dict[str, NodeRuntime] = {}
        #: Pods by node until the first list is complete.
        self._first: dict[str, list[PodObject]] | None = {name: [] for name in nodes}
        self._claims = PreparedClaims(client, hand_over=self._prepared)
        self._reservations = GpuReservations(client)
        self._reflector = Reflector(client, BOUND_PODS, self._take, observer=ReflectorLog())

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            await self._reflector.run()
        finally:
            await self._reservations.stop()

    async def _take(self, changes: list[Change[PodObject]]) -> None:
        for change in changes:
            if isinstance(change, ObjectRefused):
                self._metrics.ignored.inc()
                get_logger().warning("malformed pod ignored", error=str(change.error))
            elif isinstance(change, ObjectGone):
                self._claims.forget(change.uid)
                self._reservations.forget(change.uid)
                node = self._node_of.pop(change.uid, None)
                if node is not None:
                    with _contained(node):
                        node.pod_gone(change.uid)
            else:
                self._seen(change.object)
        if self._first is not None and self._reflector.core.synced:
            first, self._first = self._first, None
            for name, pods in first.items():
                with _contained(self._nodes[name]):
                    self._nodes[name].synced(pods)
        self._settle()

    def _seen(self, pod: PodObject) -> None:
        node = self._nodes.get(pod.spec.node_name)
        if node is None:
            return
        self._node_of[pod.metadata.uid] = node
        self._reservations.seen(pod, lambda: node.agent.kubelet)
        if self._first is not None:
            self._first[pod.spec.node_name].append(pod)
            return
        if self._claims.holds(pod):
            return
        with _contained(node):
            node.pod_seen(pod)

    def _prepared(self, pod: PodObject) -> None:
        with _contained(self._nodes[pod.spec.node_name]):
            self._nodes[pod.spec.node_name].pod_seen(pod)
        self._settle()


class NodeFollower:
    """Notices when a node of the fleet is deleted, created or labelled."""

    def __init__(self, client: KubeClient, nodes: Mapping[str, NodeRuntime]) -> None:
        """Make a follower."""
        self._nodes = nodes
        self._reflector = Reflector(client, NODES, self._take, observer=ReflectorLog())

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._reflector.run()

    async def _take(self, changes: list[Change[NodeObject]]) -> None:
        for change in changes:
            if isinstance(change, ObjectGone):
                node = self._nodes.get(change.key.name)
                if node is None:
                    continue
                node.api_node = None
                if node.uid == change.uid:
                    get_logger(node=change.key.name).warning("the node was deleted; heartbeats and publisher stop")
                    deregistered(node)
            elif not isinstance(change, ObjectRefused):
                self._seen(change.object)

    def _seen(self, api_node: NodeObject) -> None:
        meta = api_node.metadata
        node = self._nodes.get(meta.name)
        if node is None:
            return
        node.api_node = api_node
        node.agent.kubelet.labels = {**(meta.labels or {}), "metadata.name": meta.name}
        if not node.background.is_busy(f"node/{meta.name}"):
            claim(node)
            if _taken_for_dead(api_node):
                report_status(node)


def _taken_for_dead(node: NodeObject) -> bool:
    """True if the control plane gave a node up, which its kubelet sees when it next looks at its own Node."""
    return any(
        condition.type == "Ready" and condition.status == "Unknown" for condition in node.status.conditions or ()
    )


@contextmanager
def _contained(node: NodeRuntime) -> Iterator[None]:
    """Keep a defect that shows on one node from the others."""
    try:
        yield
    except Exception as error:
        get_logger(node=node.spec.name).exception("a node stumbled over a pod", error=repr(error))


#: Seconds between two tries to write a journal anew that could not be written.
_JOURNAL_RETRY_S = 1.0

#: Immediate deletion of just this pod.
_DELETE = b'{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0,"preconditions":{"uid":"%b"}}'


class Fleet:
    """The nodes of a profile, joined to one API server."""

    def __init__(
        self,
        specs: Iterable[NodeSpec],
        client: KubeClient,
        data_dir: Path,
        *,
        metrics: Metrics | None = None,
        concurrency: int = 48,
        on_checkpoints: Callable[[str], None] = lambda problem: None,
    ) -> None:
        """Make a fleet; nothing happens before `start`. Raises ConfigurationError: the checkpoints cannot be read.

        Args:
            client: of the API server; it must allow for `connections(concurrency)`.
            data_dir: where checkpoints are kept; created if need be.
            metrics: where to count; a registry of its own by default.
            on_checkpoints: is called with the reason why checkpoints cannot be written, and "" when they can (again).
        """
        self.metrics = metrics or Metrics(CollectorRegistry())
        self.timers = Timers(after=self._settle, clock=time.time)
        self.writer = Writer(client, self.metrics, limit=concurrency)
        #: What no pod waits for: nodes, leases, events, NodeResourceTopology.
        self.background = Writer(client, self.metrics, limit=_in_background(concurrency))
        self.nodes = {spec.name: self._runtime(spec) for spec in specs}
        self._missing = set(self.nodes)
        self._all_joined = asyncio.Event()
        self.client = client
        self._journal = Journal(data_dir)
        self._on_checkpoints = on_checkpoints
        self._told_problem: str | None = None
        self._retrying = False
        self._outbox: list[tuple[Writer, Write]] = []
        self._touched: dict[str, NodeRuntime] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.metrics.active_pods.set_function(lambda: sum(len(n.agent.kubelet.pods) for n in self.nodes.values()))
        self.metrics.nodes.set_function(lambda: sum(node.registered for node in self.nodes.values()))

    def _runtime(self, spec: NodeSpec) -> NodeRuntime:
        return NodeRuntime(
            spec,
            timers=self.timers,
            background=self.background,
            metrics=self.metrics,
            execute=self._execute,
            joined=self._joined,
        )

    async def start(self, *, install_crds: bool = False) -> None:
        """Take up the checkpoints, register all nodes, and begin to watch.

        Raises:
            ClusterUnavailable: the API server does not answer.
            ConfigurationError: it does not know NodeResourceTopology, though a node of the profile publishes one.
        """
        for node in self.nodes.values():
            restore(node.agent, self._journal.state_of(node.spec.name))
        self._write_journal_anew()
        await ensure_lease_namespace(self.client)
        if any(node.publisher.enabled for node in self.nodes.values()):
            await ensure_crd(self.client, install=install_crds)
        for node in self.nodes.values():
            register(node)
        pods = PodFollower(self.client, self.nodes, metrics=self.metrics, settle=self._settle)
        nodes = NodeFollower(self.client, self.nodes)
        self._tasks = [asyncio.create_task(follower.run()) for follower in (pods, nodes)]

    async def registered(self) -> None:
        """Wait until the API server has all nodes and their first NodeResourceTopologies.

        Raises ConfigurationError: it has nodes of these names that are not of a fleet.
        """
        await self._all_joined.wait()
        foreign = [name for name, node in self.nodes.items() if node.foreign]
        if foreign:
            some = ", ".join(foreign[:5])
            raise ConfigurationError(
                f"{len(foreign)} nodes exist and belong to another program: {some}; name the group anew"
            )

    def add(self, spec: NodeSpec) -> None:
        """Have one more node join; `registered` waits for it. No exporter sees what its pods hold."""
        node = self.nodes[spec.name] = self._runtime(spec)
        restore(node.agent, self._journal.state_of(spec.name))
        self._missing.add(spec.name)
        self._all_joined.clear()
        register(node)
        node.synced([])
        self._settle()

    def _joined(self, name: str) -> None:
        self._missing.discard(name)
        if not self._missing:
            self._all_joined.set()

    async def stop(self) -> None:
        """Stop everything; pods stay as they are."""
        await end_all(self._tasks)
        self.timers.stop()
        await self.writer.close()
        await self.background.close()
        self._journal.close()

    # --- from the agents to the API -------------------------------------------------------------------------------

    def _execute(self, node: NodeRuntime, instructions: list[Instruction], now: float) -> None:
        """Take what an agent wants at a time; what is to be sent is sent when the journal is written, in `_settle`."""
        self._touched[node.spec.name] = node
        for instruction in instructions:
            match instruction:
                case PatchStatus(pod, body):
                    path = f"{_path(pod)}/status"
                    write = Write(pod.metadata.uid, "pod-status", "PATCH", path, body, STRATEGIC_PATCH)
                    self._outbox.append((self.writer, write))
                case DeletePod(pod):
                    options = _DELETE % pod.metadata.uid.encode()
                    write = Write(pod.metadata.uid, "pod-delete", "DELETE", _path(pod), options)
                    self._outbox.append((self.writer, write))
                case WakeAt(when):
                    self.timers.at(when, partial(node.wake, when), now=now)
                case Decided(pod, rejection) if rejection is not None:
                    self.metrics.rejections.labels(rejection.reason).inc()
                    get_logger(node=node.spec.name).info("pod rejected", pod=str(pod), reason=rejection.reason)
                case Decided():
                    self.metrics.admissions.inc()
                case RecordEvent(pod, body):
                    path = f"/api/v1/namespaces/{pod.metadata.namespace}/events"
                    write = Write(f"event/{pod.metadata.uid}", "event", "POST", path, body)
                    self._outbox.append((self.background, write))
                case Complaint(error):
                    self.metrics.ignored.inc()
                    get_logger(node=node.spec.name).warning("bad input", error=str(error))

    def _settle(self) -> None:
        """Write the journal, then send: called whenever a bout of work is over."""
        if not self._touched:
            return
        for node in self._touched.values():
            # The kubelet's files come first: the journal frees at once what a kubelet frees at its next occasion.
            node.write_state_files()
            self._journal.note(node.agent)
            if node.agent.allocations_changed:
                node.agent.allocations_changed = False
                node.publisher.changed()
        self._touched.clear()
        self._journal.flush()
        for writer, write in self._outbox:
            writer.submit(write)
        self._outbox.clear()
        if self._journal.wants_compaction:
            self._write_journal_anew()
        self._look_at_journal()

    def _write_journal_anew(self) -> None:
        self._journal.start(node.agent for node in self.nodes.values())
        self._look_at_journal()

    def _look_at_journal(self) -> None:
        """Say what is wrong with the journal when that changes, and try to write it anew until nothing is."""
        problem = self._journal.problem
        if problem and not self._retrying:
            self._retrying = True
            self.timers.at(self.timers.clock() + _JOURNAL_RETRY_S, self._retry_journal)
        if problem == self._told_problem:
            return
        if problem:
            get_logger().error("checkpoints cannot be written; pods go on", error=problem)
        elif self._told_problem:
            get_logger().info("checkpoints are written again")
        self._told_problem = problem
        self._on_checkpoints(problem)

    def _retry_journal(self) -> None:
        self._retrying = False
        self._write_journal_anew()

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

        Raises KeyError: there is no such node, resource or device.
        """
        runtime = self.nodes[node]
        runtime.set_device_health(resource, device, healthy=healthy)
        self._journal.note_unhealthy(runtime.agent)
        self._journal.flush()
        self._look_at_journal()
        report_status(runtime, whole=True)


def connections(concurrency: int) -> int:
    """The limit of concurrent requests when so many are about pods: a few list and watch."""
    return concurrency + _in_background(concurrency) + 4


def _in_background(concurrency: int) -> int:
    return max(4, concurrency // 4)


def _path(pod: PodObject) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
