"""Watches of the fleet in the API: pods that are bound to its nodes, and its nodes.

Devices of claims: a pod is not taken up before each of its resource claims is allocated and reserved for it.

As the kubelet's DRA manager (`pkg/kubelet/cm/dra`): a claim that is not there, not allocated or not reserved for the
pod cannot be prepared; the pod stays as it is, and it is tried again. A kubelet has given such a pod its CPUs by then;
here it is not taken up at all, which only matters where its claims are late.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from kaicore.errors import ApiStatus, ClusterError
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.reflector import Reflector
from kaicore.kube.api.reflector_core import Change, ObjectGone, ObjectRefused, Relist
from kaicore.kube.wire.devices import RESOURCE_CLAIMS, ResourceClaimObject
from kaicore.runtime.service import get_logger

from kai_fleet.metrics import Metrics
from kai_fleet.node_runtime import NodeRuntime
from kai_fleet.registration import claim, deregistered, report_status
from kai_fleet.wire import BOUND_PODS, NODES, NodeObject, PodObject

#: Seconds between two tries; the kubelet's back-off begins with as much.
RETRY_S = 1.0


class PreparedClaims:
    """Holds pods with claims back until these can be prepared."""

    def __init__(self, client: KubeClient, *, hand_over: Callable[[PodObject], None], retry_s: float = RETRY_S) -> None:
        """Args:
        client: to read claims with.
        hand_over: is given each pod whose claims are ready.
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
                claim: ResourceClaimObject = RESOURCE_CLAIMS.at("v1").decode(await self._client.get(path))
            except ApiStatus as error:
                return f"claim {claim_name}: {error.message}"
            except ClusterError as error:
                return f"claim {claim_name}: {error}"
            if claim.status.allocation is None:
                return f"claim {claim_name} is not allocated"
            if all(consumer.uid != pod.metadata.uid for consumer in claim.status.reserved_for or ()):
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


class _Observer:
    """Logs what goes wrong."""

    def listed(self, kind: str, why: Relist, objects: int) -> None:
        get_logger().info("listed", kind=kind, why=why.value, objects=objects)

    def watching(self, kind: str) -> None:
        """Nothing to tell."""

    def answered(self, kind: str) -> None:
        """Nothing to tell."""

    def failed(self, kind: str, error: ClusterError) -> None:
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
        self._reflector = Reflector(client, BOUND_PODS, self._take, observer=_Observer())

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._reflector.run()

    async def _take(self, changes: list[Change[PodObject]]) -> None:
        for change in changes:
            if isinstance(change, ObjectRefused):
                self._metrics.ignored.inc()
                get_logger().warning("malformed pod ignored", error=str(change.error))
            elif isinstance(change, ObjectGone):
                self._claims.forget(change.uid)
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
        self._reflector = Reflector(client, NODES, self._take, observer=_Observer())

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
    """Whether the control plane gave a node up, which its kubelet sees when it next looks at its own Node."""
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
