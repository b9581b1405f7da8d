"""The kubelets of a simulated history: their nodes, and the pods on each, as facts come and go.

A model of kubelets (`kaicore.analysis.trial.simulation`) gets pods, nodes and zones as Kubernetes objects. The log
keeps only the fields that scheduling needs, so these objects contain no others. A pod's node selector, affinity, ports
and volumes are left out: its kubelet would judge them as the scheduler did.
"""

from dataclasses import dataclass, field

import msgspec

from kaicore.analysis.trial.simulation.kubelets import KubeletAnswer, Kubelets, topology_object
from kaicore.rules.model.node import Node
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Amounts, Container, ContainerKind, Pod
from kaicore.rules.model.quantity import canonical_quantity
from kaicore.rules.objects.mappings import Object
from kaicore.rules.state.views import FleetView


def pod_object(pod: Pod, node: str) -> Object:
    """Return a pod that is bound to a node."""
    spec: Object = {
        "nodeName": node,
        "initContainers": [_container(one) for one in pod.containers if one.kind is not ContainerKind.APP],
        "containers": [_container(one) for one in pod.containers if one.kind is ContainerKind.APP],
    }
    if pod.overhead:
        spec["overhead"] = _quantities(pod.overhead)
    if pod.pod_resources is not None:
        spec["resources"] = {"requests": _quantities(pod.pod_resources), "limits": _quantities(pod.pod_resources)}
    metadata = {"uid": pod.uid, "namespace": pod.namespace, "name": pod.name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(container: Container) -> Object:
    resources = {"requests": _quantities(container.requests), "limits": _quantities(container.limits)}
    sidecar = {"restartPolicy": "Always"} if container.kind is ContainerKind.SIDECAR else {}
    return {"name": container.name, "resources": resources, **sidecar}


def node_object(node: Node) -> Object:
    """Return a node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "uid": node.uid, "labels": dict(node.labels)},
        "status": {"capacity": _quantities(node.capacity), "allocatable": _quantities(node.allocatable)},
    }


def held_zones(placement: Placement | None) -> list[Object]:
    """Return what a placement is known to hold by zone."""
    if placement is None:
        return []
    return [{"zone": item.zone, "amount": dict(item.amount)} for item in placement.zone_amounts()]


def _quantities(amounts: Amounts) -> dict[str, str]:
    return {name: canonical_quantity(name, amounts[name]) for name in sorted(amounts)}


@dataclass(slots=True)
class _Held:
    pod: Pod
    placement: Placement | None


@dataclass(slots=True)
class _NodeKubelet:
    """A kubelet: what it was made of, and its pods in the order in which they came."""

    made_of: bytes
    pods: dict[str, _Held] = field(default_factory=dict)


class SimulatedKubelets:
    """Answers what a node's kubelet would, with the nodes as a state has them."""

    def __init__(self, state: FleetView, model: Kubelets) -> None:
        """Take up all nodes, and what runs on them.

        Args:
            state: folded on by the caller; a node that changes is to be looked at again.
        """
        self.warnings: list[str] = []
        self._state = state
        self._model = model
        self._nodes: dict[str, _NodeKubelet] = {}
        for name in sorted(state.columns.rows):
            self.look_at(name)
        charged = [entry for entry in state.pods.values() if entry.charged and entry.pod.node_name]
        for entry in sorted(charged, key=lambda entry: (entry.charged_at, entry.pod.uid)):
            self.take_up(entry.pod, entry.node, entry.observed or entry.predicted)

    def has(self, node: str) -> bool:
        """True if there is such a node."""
        return node in self._nodes

    def look_at(self, node: str) -> None:
        """A node may be new, gone, or changed: one that has changed in what a kubelet starts with is started anew."""
        columns = self._state.columns
        row = columns.rows.get(node)
        fact = None if row is None else columns.facts[row]
        if fact is None or row is None:
            self._nodes.pop(node, None)
            return
        topology = columns.topologies[row]
        objects = node_object(fact), None if topology is None else topology_object(topology, empty=True)
        made_of = msgspec.json.encode(objects)
        before = self._nodes.get(node)
        if before is not None and before.made_of == made_of:
            return
        # Guesses about what nothing publishes are the same in every run.
        self._model.add_node(*objects)
        self._nodes[node] = _NodeKubelet(made_of)
        for held in () if before is None else before.pods.values():
            self.take_up(held.pod, node, held.placement)

    def take_up(self, pod: Pod, node: str, placement: Placement | None) -> None:
        """Take up a pod that runs already."""
        kubelet = self._nodes.get(node)
        if kubelet is not None:
            self.warnings += self._model.add_running(pod_object(pod, node), held_zones(placement))
            kubelet.pods[pod.uid] = _Held(pod, placement)

    def admit(self, pod: Pod, node: str) -> KubeletAnswer:
        """Return what the node's kubelet answers to a pod that was bound to it; the node is there."""
        answer = msgspec.convert(self._model.admit(pod_object(pod, node)), KubeletAnswer)
        if answer.refusal is None:
            self._nodes[node].pods[pod.uid] = _Held(pod, answer.placement)
        return answer

    def remove(self, pod: Pod, node: str) -> None:
        """Take note that a pod holds nothing any more; one that is not there is no error."""
        kubelet = self._nodes.get(node)
        if kubelet is not None and kubelet.pods.pop(pod.uid, None) is not None:
            self._model.remove(pod_object(pod, node))
