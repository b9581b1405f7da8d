"""Node lifecycle: a node that gives no sign of life becomes unreachable, and conditions become taints.

A sign of life is a change of the node's Lease or a heartbeat in its status. Only nodes that have had a Lease are
judged: a node that was only written down, with no kubelet behind it, stays what it says it is. Pods are not
evicted from unreachable nodes.
"""

import asyncio
from collections.abc import Iterator

from kai_apiserver.controllers.reconciling import Controller
from kai_apiserver.objects import Object, find_condition, replace_condition
from kai_apiserver.rest.backend import Backend
from kai_apiserver.store import Collection, Event, EventType, Stored

LEASES = "leases.coordination.k8s.io"
_LEASE_PREFIX = "kube-node-lease/"
_PREFIX = "node.kubernetes.io/"
_KUBELET_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")

#: Condition and status to the taint's key and whether it also evicts.
_TAINTS: dict[tuple[str, str], tuple[str, bool]] = {
    ("Ready", "False"): (f"{_PREFIX}not-ready", True),
    ("Ready", "Unknown"): (f"{_PREFIX}unreachable", True),
    ("MemoryPressure", "True"): (f"{_PREFIX}memory-pressure", False),
    ("DiskPressure", "True"): (f"{_PREFIX}disk-pressure", False),
    ("PIDPressure", "True"): (f"{_PREFIX}pid-pressure", False),
    ("NetworkUnavailable", "True"): (f"{_PREFIX}network-unavailable", False),
}
_UNSCHEDULABLE = f"{_PREFIX}unschedulable"
_OURS = frozenset({key for key, _ in _TAINTS.values()} | {_UNSCHEDULABLE})


def wanted_taints(node: Object) -> Iterator[tuple[str, str]]:
    """The taints (key and effect) that a node's conditions come to."""
    if node["spec"].get("unschedulable"):
        yield _UNSCHEDULABLE, "NoSchedule"
    for condition in node["status"].get("conditions") or ():
        taint = _TAINTS.get((condition.get("type", ""), condition.get("status", "")))
        if taint is not None:
            yield taint[0], "NoSchedule"
            if taint[1]:
                yield taint[0], "NoExecute"


class NodeLifecycleController(Controller[str]):
    """Judges nodes by their signs of life, and taints them by their conditions."""

    name = "node-lifecycle-controller"

    def __init__(self, backend: Backend, *, grace_s: float) -> None:
        super().__init__(backend)
        self._grace = grace_s
        self._alive: dict[str, float] = {}  # node to when it last gave a sign of life, on the loop's clock

    def begin(self) -> None:
        """Look at every node; one with a new Lease has just given a sign of life."""
        for stored in self.backend.store.collection("nodes"):
            self.queue(stored.name)
        for lease in self.backend.store.collection(LEASES).scan(_LEASE_PREFIX):
            self._lives(lease.name)
        self.backend.store.subscribe(self._node_changed, "nodes")
        self.backend.store.subscribe(self._lease_changed, LEASES)

    def _lives(self, name: str) -> None:
        self._alive[name] = asyncio.get_running_loop().time()
        self.queue_after(name, self._grace)

    def _lease_changed(self, collection: Collection, event: Event) -> None:
        del collection
        if event.stored.key.startswith(_LEASE_PREFIX) and event.type is not EventType.DELETED:
            self._lives(event.stored.name)

    def _node_changed(self, collection: Collection, event: Event) -> None:
        del collection
        name = event.stored.name
        if event.type is EventType.DELETED:
            self._alive.pop(name, None)
            return
        if name in self._alive and _heartbeat(event.stored) != _heartbeat(event.previous):
            self._lives(name)
        self.queue(name)

    def reconcile(self, key: str) -> float | None:
        """Judge and taint one node."""
        collection = self.backend.store.collection("nodes")
        stored = collection.get(key)
        if stored is None:
            return None
        node = stored.decode()
        again = self._judge(key, node)
        self._taint(node)
        self.backend.write_status(collection.resource, node, stored)
        return again

    def _judge(self, name: str, node: Object) -> float | None:
        """Mark a silent node's conditions as unknown; return seconds until it would be silent for too long."""
        seen = self._alive.get(name)
        if seen is None:
            return None
        left = seen + self._grace - asyncio.get_running_loop().time()
        if left > 0:
            return left
        now = self.backend.timestamp()
        conditions = node["status"].setdefault("conditions", [])
        for kind in _KUBELET_CONDITIONS:
            present = find_condition(node, kind)
            if (not present and kind != "Ready") or present.get("status") == "Unknown":
                continue
            unknown = {
                "type": kind,
                "status": "Unknown",
                "lastHeartbeatTime": present.get("lastHeartbeatTime"),
                "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
            }
            replace_condition(conditions, unknown, now)
        return None

    def _taint(self, node: Object) -> None:
        wanted = list(wanted_taints(node))
        taints: list[Object] = []
        for taint in node["spec"].get("taints") or ():
            identity = (taint["key"], taint["effect"])
            if taint["key"] not in _OURS or identity in wanted:
                taints.append(taint)
                wanted = [other for other in wanted if other != identity]
        now = self.backend.timestamp()
        for key, effect in wanted:
            taint = {"key": key, "effect": effect}
            taints.append(taint | {"timeAdded": now} if effect == "NoExecute" or key == _UNSCHEDULABLE else taint)
        if taints:
            node["spec"]["taints"] = taints
        else:
            node["spec"].pop("taints", None)


def _heartbeat(stored: Stored | None) -> object:
    return find_condition(stored.decode(), "Ready").get("lastHeartbeatTime") if stored is not None else None
