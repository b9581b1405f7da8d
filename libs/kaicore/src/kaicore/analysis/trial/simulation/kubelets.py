"""The interface between a simulation and a model of kubelets, which another package implements.

Objects are passed as their JSON, and plain data comes back. So the model neither knows nor shares kaicore's rules.

A state keeps only the fields that scheduling needs, so the objects that are made of it contain no others. A pod's node
selector, affinity, ports and volumes are left out: its kubelet would judge them as the scheduler did.
"""

from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Protocol

import msgspec

from kaicore.errors import ConfigurationError
from kaicore.rules.events.observation import held
from kaicore.rules.model.node import Node, NodeTopology
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, SpanAmount, ZoneAmount
from kaicore.rules.model.pod import Container, ContainerKind, Pod
from kaicore.rules.model.quantity import canonical_quantity, quantities
from kaicore.rules.objects.mappings import Object
from kaicore.rules.state.views import FleetView

#: Where a model of kubelets makes itself known.
_ENTRY_POINTS = "kai_ledger.kubelets"


def topology_object(topology: NodeTopology, *, empty: bool = False) -> Object:
    """Return the NodeResourceTopology that says what is known of a node's (`empty`: all of it is available)."""
    attributes = {"topologyManagerPolicy": str(topology.policy), "topologyManagerScope": str(topology.scope)}
    for option, value in sorted(topology.options.items()):
        # As in `topologyManagerOptionPreferClosestNumaNodes`.
        attributes["topologyManagerOption" + "".join(word.capitalize() for word in option.split("-"))] = value
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": topology.node},
        "attributes": [{"name": name, "value": value} for name, value in attributes.items()],
        "zones": [
            {
                "name": zone.name,
                "type": "Node",
                "costs": [{"name": name, "value": cost} for name, cost in sorted(zone.costs.items())],
                "resources": [
                    {
                        "name": name,
                        "capacity": canonical_quantity(name, resource.capacity),
                        "allocatable": canonical_quantity(name, resource.allocatable),
                        "available": canonical_quantity(name, resource.allocatable if empty else resource.available),
                    }
                    for name, resource in sorted(zone.resources.items())
                ],
            }
            for zone in topology.zones
        ],
    }


class ContainerHeld(msgspec.Struct, frozen=True):
    """A container's exclusive holdings, by the zones' names in the NodeResourceTopology; millicores, bytes, counts."""

    name: str
    zones: tuple[ZoneAmount, ...] = ()
    spans: tuple[SpanAmount, ...] = ()


class KubeletRefusal(msgspec.Struct, frozen=True):
    """A kubelet's reason for refusing a pod, as the pod's status has it."""

    reason: str
    message: str


class KubeletAnswer(msgspec.Struct, frozen=True):
    """A kubelet's answer to a pod: a refusal, or what its containers hold."""

    refusal: KubeletRefusal | None = None
    containers: tuple[ContainerHeld, ...] = ()

    @property
    def placement(self) -> Placement:
        """The pod's holdings, as an exporter would report them."""
        return Placement(
            Provenance.OBSERVED,
            tuple(
                ContainerPlacement(
                    container=item.name,
                    zones=tuple(ZoneAmount(zone.zone, held(zone.amount)) for zone in item.zones),
                    spans=tuple(SpanAmount(span.zones, held(span.amount)) for span in item.spans),
                )
                for item in self.containers
            ),
        )


class Kubelets(Protocol):
    """Kubelets of the simulated nodes; each method's words are warnings for the simulation's caller."""

    def add_node(self, node: Object, topology: Object | None) -> list[str]:
        """Take up a node, with its NodeResourceTopology if it has one."""

    def add_running(self, pod: Object, zones: list[Object]) -> list[str]:
        """Take up a pod that runs already.

        Args:
            pod: with `spec.nodeName`.
            zones: `{"zone", "amount"}` of what is known of its placement; empty when nothing is.
        """

    def held(self, pod: Object) -> Object:
        """Return what a pod holds that runs on `spec.nodeName`, as a `KubeletAnswer` in plain data."""

    def admit(self, pod: Object) -> Object:
        """Decide on a pod that was bound to `spec.nodeName`, and return a `KubeletAnswer` as plain data."""

    def remove(self, pod: Object) -> None:
        """Take note that a pod on `spec.nodeName` is gone."""


class FleetKubelets(Kubelets, Protocol):
    """Kubelets that also know the objects of the nodes of a fleet."""

    def objects(self) -> list[Object]:
        """Return the fleet's Nodes and NodeResourceTopologies, and the namespaces of its cluster."""


def find_kubelets(profile: str | None) -> FleetKubelets:
    """Return the installed model of kubelets, with the nodes of a profile's fleet (docs/decisions/0050).

    Raises ConfigurationError: none is installed, or the profile makes no sense.
    """
    for entry in entry_points(group=_ENTRY_POINTS):
        model: FleetKubelets = entry.load()(profile)
        return model
    raise ConfigurationError(
        f"no model of kubelets is installed (entry point {_ENTRY_POINTS}): pip install 'kai-ledger[demo]'"
    )


def pod_object(pod: Pod, node: str) -> Object:
    """Return a pod that is bound to a node."""
    spec: Object = {
        "nodeName": node,
        "initContainers": [_container(one) for one in pod.containers if one.kind is not ContainerKind.APP],
        "containers": [_container(one) for one in pod.containers if one.kind is ContainerKind.APP],
    }
    if pod.overhead:
        spec["overhead"] = quantities(pod.overhead)
    if pod.pod_resources is not None:
        spec["resources"] = {"requests": quantities(pod.pod_resources), "limits": quantities(pod.pod_resources)}
    metadata = {"uid": pod.uid, "namespace": pod.namespace, "name": pod.name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(container: Container) -> Object:
    resources = {"requests": quantities(container.requests), "limits": quantities(container.limits)}
    sidecar = {"restartPolicy": "Always"} if container.kind is ContainerKind.SIDECAR else {}
    return {"name": container.name, "resources": resources, **sidecar}


def node_object(node: Node) -> Object:
    """Return a node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "uid": node.uid, "labels": dict(node.labels)},
        "status": {"capacity": quantities(node.capacity), "allocatable": quantities(node.allocatable)},
    }


def held_zones(placement: Placement | None) -> list[Object]:
    """Return what a placement is known to hold by zone."""
    if placement is None:
        return []
    return [{"zone": item.zone, "amount": dict(item.amount)} for item in placement.zone_amounts()]


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
        for one in () if before is None else before.pods.values():
            self.take_up(one.pod, node, one.placement)

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
