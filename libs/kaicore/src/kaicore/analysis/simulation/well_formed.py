"""Objects without their invalid parts, for readers that take them as plain JSON."""

from kaicore.kube.workloads import Object
from kaicore.rules.model.node import NodeTopology
from kaicore.rules.model.quantity import canonical_quantity


def well_formed(topology: NodeTopology) -> Object:
    """Return a NodeResourceTopology that says what was understood of another one."""
    attributes = {"topologyManagerPolicy": str(topology.policy), "topologyManagerScope": str(topology.scope)}
    for option, value in topology.options.items():
        attributes["topologyManagerOption" + "".join(word.title() for word in option.split("-"))] = value
    return {
        "metadata": {"name": topology.node},
        "attributes": [{"name": name, "value": value} for name, value in attributes.items()],
        "zones": [
            {
                "name": zone.name,
                "type": "Node",
                "costs": [{"name": name, "value": cost} for name, cost in zone.costs.items()],
                "resources": [
                    {
                        "name": name,
                        "capacity": canonical_quantity(name, resource.capacity),
                        "allocatable": canonical_quantity(name, resource.allocatable),
                        "available": canonical_quantity(name, resource.available),
                    }
                    for name, resource in zone.resources.items()
                ],
            }
            for zone in topology.zones
        ],
    }
