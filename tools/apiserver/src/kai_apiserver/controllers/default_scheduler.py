"""The built-in scheduler for pods of `default-scheduler`: simple, so that pods of other schedulers run too.

A pod goes to the node with the most room of those that accept it: resources as a whole (no NUMA), node selector and
required node affinity, taints. It ignores volumes, affinity to other pods, spread, host ports, and preemption. The
reason of a waiting pod is written as kube-scheduler does: the condition PodScheduled and an event FailedScheduling.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from kai_fleet.kubelet.quantity import parse_amount
from kai_fleet.node.pod_conversion import PodObject, convert_pod, tolerates
from kaicore.errors import InvalidObject

from kai_apiserver.controllers.reconciling import Controller
from kai_apiserver.objects import Object, find_condition, replace_condition
from kai_apiserver.rest.backend import Backend, Operation, Target
from kai_apiserver.rest.pod_actions import bind
from kai_apiserver.store import Event, EventType, Stored

NAME = "default-scheduler"
_PODS, _NODES = "pods", "nodes"
_BLOCKING = ("NoSchedule", "NoExecute")
_ENDED = ("Succeeded", "Failed")
#: Seconds in which changes of the cluster gather before waiting pods are looked at again.
_GATHERING_S = 0.2

_decode_pod = msgspec.json.Decoder(PodObject).decode


@dataclass(slots=True)
class _Node:
    """A node as far as it matters here; amounts as the kubelet counts them (CPU in millicores)."""

    name: str
    allocatable: dict[str, int]
    labels: Mapping[str, str]
    taints: list[Object]
    used: Counter[str] = field(default_factory=Counter)


class DefaultScheduler(Controller[str]):
    """Schedules pods, by key."""

    name = NAME

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._pending: dict[str, None] = {}
        self._pods = backend.registry.find("", "v1", plural="pods")
        self._events = backend.registry.find("", "v1", plural="events")
        labels = [selectable.label for selectable in self._pods.selectable]
        self._at = {name: labels.index(name) for name in ("spec.nodeName", "spec.schedulerName", "status.phase")}
        #: By key of a pod on a node: the node, and what it takes there. None until a pod is to be scheduled.
        self._held: dict[str, tuple[str, dict[str, int]]] | None = None

    def begin(self) -> None:
        """Look at every pod that is ours."""
        for stored in self.backend.store.collection(_PODS):
            if self._is_ours(stored):
                self.queue(stored.key)
        self.backend.store.follow(_PODS, self._pod_changed)
        self.backend.store.follow(_NODES, lambda _: self._look_again())

    def _is_ours(self, stored: Stored) -> bool:
        fields = stored.fields
        return fields[self._at["spec.schedulerName"]] == NAME and not fields[self._at["spec.nodeName"]]

    def _holds(self, stored: Stored) -> bool:
        """True if a pod takes room on a node."""
        return bool(stored.fields[self._at["spec.nodeName"]]) and stored.fields[self._at["status.phase"]] not in _ENDED

    def _pod_changed(self, event: Event) -> None:
        stored = event.stored
        gone = event.type is EventType.DELETED
        if gone:
            self._pending.pop(stored.key, None)
        elif self._is_ours(stored) and (event.previous is None or stored.key in self._pending):
            self.queue_after(stored.key, 0 if event.previous is None else _GATHERING_S)
        if self._held is None:
            return
        if gone or not self._holds(stored):
            if self._held.pop(stored.key, None) is not None:
                self._look_again()
        elif stored.key not in self._held:
            self._held[stored.key] = self._taken_by(stored)

    def _look_again(self) -> None:
        for key in self._pending:
            self.queue_after(key, _GATHERING_S)

    def _taken_by(self, stored: Stored) -> tuple[str, dict[str, int]]:
        node = stored.fields[self._at["spec.nodeName"]]
        try:
            return node, convert_pod(_decode_pod(stored.body)).node_requests()
        except (InvalidObject, msgspec.ValidationError):
            return node, {}  # the kubelet refuses such a pod

    def reconcile(self, key: str) -> float | None:
        """Put one pod on a node, or say why not."""
        stored = self.backend.store.collection(_PODS).get(key)
        if stored is None or not self._is_ours(stored):
            self._pending.pop(key, None)
            return None
        pod = stored.decode()
        if pod["metadata"].get("deletionTimestamp") or pod["spec"].get("schedulingGates"):
            self._pending[key] = None
            return None
        try:
            wanted = convert_pod(_decode_pod(stored.body))
        except (InvalidObject, msgspec.ValidationError) as error:
            self._fail(stored, pod, str(error))
            return None
        nodes = self._nodes()
        requests = {**{name: size for name, size in wanted.node_requests().items() if size}, "pods": 1}
        tolerations = pod["spec"].get("tolerations") or []
        fitting: list[_Node] = []
        reasons: Counter[str] = Counter()
        for node in nodes:
            reason = _why_not(node, requests, tolerations, wanted.node_affinity)
            if reason:
                reasons.update(reason)
            else:
                fitting.append(node)
        if fitting:
            self._bind(stored, pod, min(fitting, key=lambda node: (_fullness(node, requests), node.name)))
        else:
            self._fail(stored, pod, _message(len(nodes), reasons))
        return None

    def _nodes(self) -> list[_Node]:
        if self._held is None:
            stored_pods = self.backend.store.collection(_PODS)
            self._held = {stored.key: self._taken_by(stored) for stored in stored_pods if self._holds(stored)}
        nodes = {stored.name: _read_node(stored.decode()) for stored in self.backend.store.collection(_NODES)}
        for name, requests in self._held.values():
            if name in nodes:
                nodes[name].used.update(requests)
                nodes[name].used["pods"] += 1
        return list(nodes.values())

    def _bind(self, stored: Stored, pod: Object, node: _Node) -> None:
        target = Target(self._pods, stored.namespace, stored.name)
        binding = {"metadata": {"name": stored.name, "uid": stored.uid}, "target": {"kind": "Node", "name": node.name}}
        self._pending.pop(stored.key, None)
        bind(self.backend, target, binding=binding, operation=Operation())
        self._report(pod, "Normal", "Scheduled", f"Successfully assigned {stored.key} to {node.name}")

    def _fail(self, stored: Stored, pod: Object, message: str) -> None:
        self._pending[stored.key] = None
        if find_condition(pod, "PodScheduled").get("message") == message:
            return
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        conditions = pod["status"].setdefault("conditions", [])
        replace_condition(conditions, {**condition, "lastProbeTime": None}, self.backend.timestamp())
        self.backend.write_status(self._pods, pod, stored)
        self._report(pod, "Warning", "FailedScheduling", message)

    def _report(self, pod: Object, kind: str, reason: str, message: str) -> None:
        metadata, now = pod["metadata"], self.backend.timestamp()
        event = {
            "metadata": {"generateName": f"{metadata['name'][:50]}."},
            "involvedObject": {
                "kind": "Pod",
                "apiVersion": "v1",
                **{part: metadata[part] for part in ("namespace", "name", "uid", "resourceVersion")},
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": NAME},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        self.create(self._events, event, namespace=metadata["namespace"])


def _read_node(node: Object) -> _Node:
    status, spec, metadata = node.get("status") or {}, node.get("spec") or {}, node["metadata"]
    allocatable: dict[str, int] = {}
    for name, quantity in (status.get("allocatable") or {}).items():
        with suppress(InvalidObject):  # what cannot be read is not there
            allocatable[name] = parse_amount(name, str(quantity), subject=metadata["name"], field="status.allocatable")
    labels = {**(metadata.get("labels") or {}), "metadata.name": metadata["name"]}
    return _Node(metadata["name"], allocatable, labels, list(spec.get("taints") or ()))


def _why_not(
    node: _Node,
    requests: Mapping[str, int],
    tolerations: list[Object],
    affinity: Callable[[Mapping[str, str]], bool] | None,
) -> list[str]:
    """The objections to a node, in kube-scheduler's words and its order; nothing if the pod may go there."""
    for taint in node.taints:
        if taint.get("effect") in _BLOCKING and not any(tolerates(item, taint) for item in tolerations):
            return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    if affinity is not None and not affinity(node.labels):
        return ["node(s) didn't match Pod's node affinity/selector"]
    lacking = [name for name, size in requests.items() if node.used[name] + size > node.allocatable.get(name, 0)]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in lacking]


def _fullness(node: _Node, requests: Mapping[str, int]) -> float:
    """A node's use of CPU and memory with the pod; the emptiest is best."""
    parts = [
        (node.used[name] + requests.get(name, 0)) / node.allocatable[name]
        for name in ("cpu", "memory")
        if node.allocatable.get(name)
    ]
    return sum(parts) / len(parts) if parts else 0.0


def _message(nodes: int, reasons: Mapping[str, int]) -> str:
    if not nodes:
        return "no nodes available to schedule pods"
    counts: Iterable[str] = sorted(f"{count} {reason}" for reason, count in reasons.items())
    return f"0/{nodes} nodes are available: {', '.join(counts)}."
