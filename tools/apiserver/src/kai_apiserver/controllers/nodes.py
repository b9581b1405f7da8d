"""Node lifecycle: a node that gives no sign of life becomes unreachable, and conditions become taints.

A sign of life is a change of the node's Lease or a heartbeat in its status. Only nodes that have had a Lease are
judged: a node that was only written down, with no kubelet behind it, stays what it says it is. Pods are not
evicted from unreachable nodes.

Deletes pods that use devices with a taint `NoExecute` which their claims do not tolerate.

As kube-controller-manager does (`pkg/controller/devicetainteviction`): only pods with a node, only claims that are
reserved for them, and only tolerations with the effect `NoExecute`; one with `tolerationSeconds` puts it off. Statuses
of DeviceTaintRules are not written.
"""

import asyncio
from collections.abc import Iterator
from datetime import datetime

from kai_apiserver.controllers.reconciling import Controller
from kai_apiserver.objects import Object, find_condition, replace_condition
from kai_apiserver.rest.backend import Backend
from kai_apiserver.store import Event, EventType, Stored

PODS, CLAIMS = "pods", "resourceclaims.resource.k8s.io"
SLICES, RULES = "resourceslices.resource.k8s.io", "devicetaintrules.resource.k8s.io"
_NO_EXECUTE = "NoExecute"


class DeviceTaintEviction(Controller[str]):
    """Looks at claims, by key."""

    name = "device-taint-eviction-controller"

    def begin(self) -> None:
        """Look at every claim."""
        self._queue_all()
        self.backend.store.follow(CLAIMS, lambda event: self.queue(event.stored.key))
        for kind in (SLICES, RULES):
            self.backend.store.follow(kind, lambda _: self._queue_all())
        self.backend.store.follow(PODS, self._pod_changed)

    def _queue_all(self) -> None:
        for stored in self.backend.store.collection(CLAIMS):
            self.queue(stored.key)

    def _pod_changed(self, event: Event) -> None:
        if b"laimName" in event.stored.body and (event.previous is None or b'"nodeName"' not in event.previous.body):
            for name in claim_names(event.stored.decode()):
                self.queue(f"{event.stored.namespace}/{name}")

    def reconcile(self, key: str) -> float | None:
        """Delete the pods that use one claim, if it is time."""
        claim = self.backend.find(CLAIMS, key)
        status = (claim or {}).get("status") or {}
        waits = [
            wait
            for device in ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
            for taint in self._taints(device)
            if (wait := self._wait_s(taint, device)) is not None
        ]
        if not waits:
            return None
        if min(waits) > 0:
            return min(waits)
        for consumer in status.get("reservedFor") or ():
            stored = self.backend.store.collection(PODS).get(f"{key.partition('/')[0]}/{consumer.get('name', '')}")
            if stored is not None and stored.uid == consumer.get("uid"):
                self._evict(stored)
        return None

    def _evict(self, stored: Stored) -> None:
        pod = stored.decode()
        if not pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            return
        collection = self.backend.store.collection(PODS)
        message = "Device Taint manager: deleting due to NoExecute taint"
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByDeviceTaintManager"}
        conditions = pod.setdefault("status", {}).setdefault("conditions", [])
        if replace_condition(conditions, {**condition, "message": message}, self.backend.timestamp()):
            stored = self.backend.store.update(collection, pod, stored)
        self.delete(stored, collection.resource, "")

    def _taints(self, device: Object) -> Iterator[Object]:
        """Yield the evicting taints of a device, by its slice and by rules."""
        for stored in self.backend.all_of(SLICES):
            spec = stored.decode()["spec"]
            if spec["driver"] != device["driver"] or spec["pool"]["name"] != device["pool"]:
                continue
            for one in spec.get("devices") or ():
                if one["name"] == device["device"]:
                    yield from (taint for taint in one.get("taints") or () if taint["effect"] == _NO_EXECUTE)
        for stored in self.backend.all_of(RULES):
            spec = stored.decode()["spec"]
            selector = spec.get("deviceSelector")
            if selector is None or spec["taint"]["effect"] != _NO_EXECUTE:
                continue
            if all(selector.get(part, device[part]) == device[part] for part in ("driver", "pool", "device")):
                yield spec["taint"]

    def _wait_s(self, taint: Object, device: Object) -> float | None:
        """Return for how long a taint of a device is still tolerated; None for ever."""
        tolerating = [one for one in device.get("tolerations") or () if _tolerates(one, taint)]
        if not tolerating:
            return 0.0
        if any(one.get("tolerationSeconds") is None for one in tolerating):
            return None
        added = taint.get("timeAdded")
        since = 0.0 if added is None else (self.backend.now() - datetime.fromisoformat(added)).total_seconds()
        return max(float(min(one["tolerationSeconds"] for one in tolerating)) - since, 0.0)


def claim_names(pod: Object) -> Iterator[str]:
    """Yield the names of a pod's claims that are made."""
    for reference in pod["spec"].get("resourceClaims") or ():
        if reference.get("resourceClaimName"):
            yield reference["resourceClaimName"]
    status = pod.get("status") or {}
    for made in (*(status.get("resourceClaimStatuses") or ()), status.get("extendedResourceClaimStatus") or {}):
        if made.get("resourceClaimName"):
            yield made["resourceClaimName"]


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") != _NO_EXECUTE or toleration.get("key", taint["key"]) != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


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
        self.backend.store.follow("nodes", self._node_changed)
        self.backend.store.follow(LEASES, self._lease_changed)

    def _lives(self, name: str) -> None:
        self._alive[name] = asyncio.get_running_loop().time()
        self.queue_after(name, self._grace)

    def _lease_changed(self, event: Event) -> None:
        if event.stored.key.startswith(_LEASE_PREFIX) and event.type is not EventType.DELETED:
            self._lives(event.stored.name)

    def _node_changed(self, event: Event) -> None:
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
