"""The nodes of reservations, as a state has them, and the pods there that a reservation is not for."""

from collections.abc import Iterator

import numpy as np

from kaicore.rules.deciding.decided_classes import queue_names
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.class_filters import ReservedNodes
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.victims.ending_groups import stays
from kaicore.rules.model.node import Node
from kaicore.rules.model.reservation import NodeReservation, reservation_terms
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.views import CycleView, FleetView


def nodes_of(state: FleetView, one: NodeReservation) -> list[Node]:
    """Return the nodes of a reservation that the cluster has, by name."""
    columns = state.columns
    # Labels can be those of any node; names are looked up.
    names = columns.rows.keys() if one.node_labels is not None else columns.rows.keys() & set(one.nodes)
    nodes = (columns.facts[columns.rows[name]] for name in sorted(names))
    return [node for node in nodes if node is not None and one.has(node.name, node.labels)]


def strangers(state: CycleView, one: NodeReservation, node: Node) -> Iterator[PodEntry]:
    """Yield pods on a node that a reservation is not for, by uid; what stays on each node for ever does not count."""
    for uid in sorted(state.charges.on_node.get(node.name, ())):
        entry = state.pods[uid]
        queues = queue_names(state, entry)
        if not (stays(entry.pod) or one.admits(queues=queues, namespace=entry.pod.namespace, group=entry.group)):
            yield entry


def reserved(state: FleetView, *, now: int) -> dict[str, ReservedNodes]:
    """Return the nodes of each reservation that has a window now or later, by the reservation's name."""
    found = {}
    for name, one in sorted(state.reservations.items()):
        window = one.window(now)
        if window is not None:
            rows = np.zeros(len(state.columns.present), np.bool_)
            rows[[state.columns.rows[node.name] for node in nodes_of(state, one)]] = True
            found[name] = ReservedNodes(rows, name, reservation_terms(one, window))
    return found


def to_drain(state: CycleView, config: EngineConfig, *, now: int) -> list[tuple[PodEntry, int]]:
    """Return the scheduler's pods that are to leave their nodes, with the time by which they must.

    Until that time none leaves while others are leaving: their successors come first.
    """
    pods: list[tuple[PodEntry, int]] = []
    for _, one in sorted(state.reservations.items()):
        if not one.drain_by or not one.start <= now < one.end:
            continue
        all_there = (entry for node in nodes_of(state, one) for entry in strangers(state, one, node))
        there = [entry for entry in all_there if entry.pod.scheduler_name == config.scheduler_name]
        leaving = any(entry.eviction is not None and entry.eviction.reason == EvictionReason.DRAINED for entry in there)
        if not leaving or now >= one.drain_by:
            staying = (entry for entry in there if entry.eviction is None and entry.pod.deletion_at is None)
            pods += [(entry, one.drain_by) for entry in staying]
    return pods


def drains(state: FleetView) -> bool:
    """Tell whether nodes with pods are to be drained, now or later."""
    drained = (one for one in state.reservations.values() if one.drain_by and one.end > state.recorded_at)
    return any(state.charges.on_node.get(node.name) for one in drained for node in nodes_of(state, one))
