"""Rows of NUMA zones: the amounts of each, the amounts that pods hold, and these pods."""

from collections import defaultdict
from collections.abc import Iterable

from kaicore.analysis.inquiry.answers import RowSelection, ZoneAmounts, ZoneHolder, ZoneRow
from kaicore.rules.model.node import Node, NodeTopology
from kaicore.rules.model.quantity import exact_amount
from kaicore.rules.state.cluster_state import ClusterState


def list_zones(state: ClusterState, wanted: RowSelection) -> Iterable[ZoneRow]:
    """Return the zones of the nodes that are wanted, by node and NUMA id; `name` is a zone's or a node's."""
    for name in sorted(state.columns.rows):
        row = state.columns.rows[name]
        node, topology = state.columns.facts[row], state.columns.topologies[row]
        if node is None or topology is None or wanted.node not in ("", name):
            continue
        for zone in _zones(state, node, topology):
            if wanted.name in ("", name, zone.name):
                yield zone


def _zones(state: ClusterState, node: Node, topology: NodeTopology) -> Iterable[ZoneRow]:
    zones, row = state.columns.zones, state.columns.rows[node.name]
    held: dict[int, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    pods = {entry.pod.uid: entry for entry in state.charges.held_on(node.name)}
    for uid, entry in pods.items():
        for index, resource, amount in entry.zone_charge.split:
            held[index][uid][resource] = amount
    for index, zone in enumerate(topology.zones):
        yield ZoneRow(
            name=f"{node.name}/{zone.name}",
            node=node.name,
            zone=zone.name,
            unknown=int(zones.unknown[row]),
            resources=[
                ZoneAmounts(
                    resource=resource,
                    allocatable=exact_amount(resource, item.allocatable),
                    held=exact_amount(resource, used),
                    releasing=exact_amount(resource, int(zones.releasing[row, index, column])),
                    free=exact_amount(resource, max(0, item.allocatable - used)),
                )
                for resource, item in sorted(zone.resources.items())
                if item.allocatable
                for column in (zones.resources[resource],)
                for used in (int(zones.used[row, index, column]),)
            ],
            pods=[
                ZoneHolder(
                    namespace=pods[uid].pod.namespace,
                    name=pods[uid].pod.name,
                    observed=pods[uid].observed is not None,
                    perhaps={
                        resource: exact_amount(resource, amount)
                        for place, resource, amount in pods[uid].zone_charge.repeated
                        if place == index and amount
                    },
                    releasing=pods[uid].releasing,
                    amounts={resource: exact_amount(resource, amount) for resource, amount in sorted(amounts.items())},
                )
                for uid, amounts in held[index].items()
            ],
        )
