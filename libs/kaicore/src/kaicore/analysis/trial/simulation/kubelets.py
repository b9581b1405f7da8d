"""The interface between a simulation and a model of kubelets, which another package implements.

Objects are passed as their JSON, and plain data comes back. So the model neither knows nor shares kaicore's rules.
"""

from importlib.metadata import entry_points
from typing import Protocol

import msgspec

from kaicore.errors import ConfigurationError
from kaicore.rules.events.observation import held
from kaicore.rules.model.node import NodeTopology
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, SpanAmount, ZoneAmount
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import canonical_quantity
from kaicore.rules.objects.mappings import Object

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


class ZoneHeld(msgspec.Struct, frozen=True):
    """A container's amount in a zone, by the zone's name in the NodeResourceTopology; millicores, bytes, counts."""

    zone: str
    amount: Amounts


class SpanHeld(msgspec.Struct, frozen=True):
    """A container's amount that lies somewhere in several zones."""

    zones: tuple[str, ...]
    amount: Amounts


class ContainerHeld(msgspec.Struct, frozen=True):
    """A container's exclusive holdings."""

    name: str
    zones: tuple[ZoneHeld, ...] = ()
    spans: tuple[SpanHeld, ...] = ()


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
