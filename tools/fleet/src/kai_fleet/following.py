"""Watches of the fleet in the API: pods that are bound to its nodes, and its nodes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from kaicore.errors import ClusterError
from kaicore.kube.client import KubeClient
from kaicore.kube.reflector import Reflector
from kaicore.kube.reflector_core import Change, ObjectGone, ObjectRefused, Relist
from kaicore.runtime.service import get_logger

from kai_fleet.metrics import Metrics
from kai_fleet.node_runtime import NodeRuntime
from kai_fleet.prepared_claims import PreparedClaims
from kai_fleet.registration import claim, deregistered, report_status
from kai_fleet.wire import BOUND_PODS, NODES, NodeObject, PodObject


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
