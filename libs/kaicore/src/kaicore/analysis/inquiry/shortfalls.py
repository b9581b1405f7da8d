"""Shortfalls of a waiting pod: on the nodes that are closest to taking it, in its queues, in domains."""

from collections.abc import Mapping

from kaicore.analysis.counterfactuals.asked import Asked, NodeObstacles
from kaicore.analysis.inquiry.answers import QueueRow, RowSelection
from kaicore.analysis.inquiry.kubelet_models import kubelet_text
from kaicore.analysis.inquiry.listing import list_rows
from kaicore.analysis.inquiry.why_answers import DomainShortfall, NodeShortfall, ZoneShortfall
from kaicore.rules.model.quantity import PODS, exact_amount
from kaicore.rules.reasons.topology_room import TopologyHasNoRoom

#: Nodes that are told, the closest first.
MOST_NODES = 5


def node_shortfalls(asked: Asked) -> list[NodeShortfall]:
    """Return what the closest nodes lack: those with the fewest obstacles, of these those that lack the least.

    A node that has nothing at all of a resource that is asked for is close to nothing.
    """
    few = len(asked.obstacles[0].reasons) if asked.obstacles else 0
    closest = sorted(
        (one for one in asked.obstacles if one.reasons and asked.has_some(one.row)),
        key=lambda one: (len(one.reasons) - few, _lack(asked, one), asked.columns.names[one.row]),
    )
    return [_node(asked, one) for one in closest[:MOST_NODES]]


def _lack(asked: Asked, obstacles: NodeObstacles) -> int:
    """Return the largest share of a request that a node lacks, per mille."""
    missing = asked.missing(obstacles.row)
    return max((amount * 1000 // asked.requests[name] for name, amount in missing.items()), default=0)


def _node(asked: Asked, obstacles: NodeObstacles) -> NodeShortfall:
    return NodeShortfall(
        node=asked.columns.names[obstacles.row],
        reasons=list(dict.fromkeys(reason.code for reason in obstacles.reasons)),
        messages=list(dict.fromkeys(map(str, obstacles.reasons))),
        missing=_texts(asked.missing(obstacles.row)),
        zones=_zones(asked, obstacles.row),
        kubelet=kubelet_text(asked.state, asked.columns.names[obstacles.row]),
    )


def _zones(asked: Asked, row: int) -> list[ZoneShortfall]:
    topology, zones = asked.columns.topologies[row], asked.columns.zones
    aligned = [name for name in asked.pod_class.aligned.on(zones.kubelet_of(row)).resources if name in zones.resources]
    if topology is None or not aligned:
        return []
    shortfalls = []
    for index, zone in enumerate(topology.zones):
        free = {
            name: zone.resources[name].allocatable - int(zones.used[row, index, zones.resources[name]])
            for name in aligned
            if name in zone.resources
        }
        missing = {
            name: asked.requests[name] - max(have, 0)
            for name, have in free.items()
            if have < asked.requests.get(name, 0)
        }
        shortfalls.append(ZoneShortfall(zone=zone.name, free=_texts(free), missing=_texts(missing)))
    return shortfalls


def _texts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: exact_amount(name, max(amount, 0)) for name, amount in sorted(amounts.items()) if name != PODS}


def queue_rows(asked: Asked) -> list[QueueRow]:
    """Return the accounts of the pod's queue and of those above it, those of what it asks for only."""
    registry = asked.state.queue_registry
    name, namespace = asked.state.queue_of(asked.entry)
    number = registry.tree.find(name, namespace=namespace or asked.pod.namespace)
    if number is None:
        return []
    rows = []
    for above in registry.tree.paths[number]:
        listed = list_rows(asked.state, "queues", RowSelection(name=registry.tree.queues[above].name))
        rows += [row for row in listed if isinstance(row, QueueRow)]
    return rows


def domain_shortfalls(asked: Asked) -> list[DomainShortfall]:
    """Return what the best domains lack."""
    return [
        DomainShortfall(
            topology=reason.topology,
            level=reason.level,
            domain=reason.domain,
            needed=reason.wanted,
            has=reason.fitting,
            unit=f"slices of {reason.slice_size}" if reason.slice_size else "pods",
        )
        for reason in asked.reasons
        if isinstance(reason, TopologyHasNoRoom)
    ]
