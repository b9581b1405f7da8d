"""Lag of NodeResourceTopologies behind the pods of their nodes.

An object that does not change says nothing about its exporter: on an idle node there is nothing to publish, and an API
server reports no write that changes nothing. So the measured time is this: pods that must show in a node's zones have
come or gone, and no new version of its object has come.

An object may be seen before the end of the pods that it no longer counts: a kubelet frees what a pod held before the
API reports the pod's end. So an object is not late either where pods only have gone and its used amounts are those of
the remaining pods.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from kaicore.rules.model.pod import Pod, QosClass
from kaicore.rules.model.quantity import CPU

#: Millicores.
_WHOLE_CPU = 1000


class TopologyLag:
    """Follows pods and topologies of one cluster, as they are seen."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Args: clock: seconds since the epoch."""
        self._clock = clock
        #: What is used of the resources of each published node's zones; None where its object cannot be read.
        self._zones: dict[str, Mapping[str, int | None]] = {}
        self._node_of: dict[str, str] = {}
        #: What pods hold for themselves alone, by node and uid.
        self._holding: dict[str, dict[str, Mapping[str, int]]] = {}
        #: The pods that showed in a node's zones when its object was last written.
        self._published: dict[str, set[str]] = {}
        self._behind_since: dict[str, float] = {}

    def begin(self) -> None:
        """Everything has been listed: what is there now counts as published."""
        self._published = {node: self._showing(node) for node in self._zones}
        self._behind_since.clear()

    def written(self, node: str, used: Mapping[str, int | None]) -> None:
        """Take note of a version of a node's object, and of what is used of the resources that its zones report."""
        self._zones[node] = used
        self._published[node] = self._showing(node)
        self._behind_since.pop(node, None)

    def gone(self, node: str) -> None:
        """Forget a node's object."""
        for by_node in (self._zones, self._published, self._behind_since):
            by_node.pop(node, None)

    def pod(self, pod: Pod) -> None:
        """Take note of a pod as it is now."""
        held = {} if pod.finished or not pod.node_name else _exclusive(pod)
        if not held:
            self.pod_gone(pod.uid)
            return
        self._node_of[pod.uid] = pod.node_name
        self._holding.setdefault(pod.node_name, {})[pod.uid] = held
        self._compare(pod.node_name)

    def pod_gone(self, uid: str) -> None:
        """Take note of a pod that holds nothing any more."""
        node = self._node_of.pop(uid, None)
        if node is not None:
            del self._holding[node][uid]
            self._compare(node)

    def seconds(self) -> list[float]:
        """For how long each published node's object is behind, in ascending order; 0 where it is not."""
        now = self._clock()
        return sorted(max(0.0, now - self._behind_since.get(node, now)) for node in self._zones)

    def _showing(self, node: str) -> set[str]:
        zones = self._zones[node].keys()
        return {uid for uid, held in self._holding.get(node, {}).items() if held.keys() & zones}

    def _compare(self, node: str) -> None:
        if node not in self._zones:
            return
        showing, published = self._showing(node), self._published[node]
        if showing == published or (showing < published and self._is_all_that_is_used(node)):
            self._behind_since.pop(node, None)
        else:
            self._behind_since.setdefault(node, self._clock())

    def _is_all_that_is_used(self, node: str) -> bool:
        """Tell whether a node's object says that just what its pods hold is used."""
        held: Counter[str] = Counter()
        for one in self._holding.get(node, {}).values():
            held.update(one)
        return all(used == held[name] for name, used in self._zones[node].items() if _is_counted(name))


def _is_counted(resource: str) -> bool:
    return resource == CPU or "/" in resource


def _exclusive(pod: Pod) -> Mapping[str, int]:
    """A pod's exclusive amounts that every exporter counts: whole CPUs and devices of Guaranteed pods."""
    if pod.qos is not QosClass.GUARANTEED:
        return {}
    held: Counter[str] = Counter()
    for container in pod.containers:
        for resource, amount in container.requests.items():
            if amount and ("/" in resource or (resource == CPU and amount % _WHOLE_CPU == 0)):
                held[resource] += amount
    return held
