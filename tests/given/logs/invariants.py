"""Invariants of a state after every event: all indexes equal those rebuilt from the pods' entries.

The indexes are built anew, from the same facts and the same entries, and compared with those that the fold keeps. The
property tests do this after each event, in the gate after each third one.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from copy import copy

import numpy as np
from kaicore.rules.events import payloads
from kaicore.rules.model.gpu_share import WHOLE, GpuPart
from kaicore.rules.model.quantity import is_memory
from kaicore.rules.numa.columns import Ints
from kaicore.rules.numa.kubelet.masks import zones_of
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.indexes.pod_indexes import PodIndexes, queue_amounts
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.pods.transitions import TRANSITIONS
from kaicore.rules.state.registries.queue_registry import QueueUsage, UsageKey

#: The stages that events lead to.
_STAGES = frozenset(transition.to for transition in TRANSITIONS.values()) - {Stage.ABSENT}

#: A name, what the fold has, and what the entries make of it.
Compared = tuple[str, object, object]


def differences(state: ClusterState) -> list[str]:
    """Return where the indexes of a state are not what its entries make of them; empty if all is right."""
    again = rebuilt(state)
    compared = [
        *_compared_entries(state),
        *_compared_sets(state, again),
        *_compared_nodes(state, again),
        *_compared_memory(state),
        *_compared_constraints(state, again),
        *_compared_groups(state, again),
        *_compared_gpus(state, again),
        *_compared_usage(state),
    ]
    return [f"{name}: {kept!r}, but by the entries {derived!r}" for name, kept, derived in compared if kept != derived]


def rebuilt(state: ClusterState) -> PodIndexes:
    """Return indexes that are built from a state's facts and from copies of its entries."""
    again = PodIndexes()
    again.context.position, again.context.recorded_at = state.position, state.recorded_at
    zones = state.columns.zones
    again.columns.zones.reserve(rows=len(state.columns.names), resources=zones.resources)
    for row, name in enumerate(state.columns.names):
        again.columns.row(name)
        again.columns.set_node(state.columns.facts[row], row)
        again.columns.set_topology(state.columns.topologies[row], row)
    constraints, volumes = state.constraints, state.constraints.volumes
    for fact in (
        *map(payloads.NamespaceObserved, constraints.namespaces.values()),
        *map(payloads.PersistentVolumeClaimObserved, volumes.claims.values()),
        *map(payloads.PersistentVolumeObserved, volumes.volumes.values()),
        *map(payloads.StorageClassObserved, volumes.storage_classes.values()),
        *map(payloads.PodDisruptionBudgetObserved, constraints.budgets.values()),
    ):
        again.constraints.take(fact)
    for source in state.group_table.sources.values():
        again.group_table.source_seen(source)
    for observed in state.priority_classes.values():
        again.group_table.priority_class(observed.priority_class.name, observed.priority_class.value)
    pods = Counter(entry.class_key for entry in state.pods.values())
    for key, pod_class in state.classes.items():
        identity, _ = state.class_registry.record(key)
        again.class_registry.restore(pod_class, identity, pods[key])
    for uid in sorted(state.pods):
        again.restore(copy(state.pods[uid]))
    again.shared_gpus.restore([copy(group) for group in state.shared_gpus.groups.values()])
    return again


def _compared_gpus(state: ClusterState, again: PodIndexes) -> Iterator[Compared]:
    parts: dict[str, dict[str, GpuPart]] = {name: {} for name in state.shared_gpus.groups}
    for uid, entry in state.pods.items():
        for part in entry.gpus if entry.charged else ():
            parts[part.group][uid] = part
    for name, group in state.shared_gpus.groups.items():
        used = sum(part.milli for part in group.parts.values())
        yield f"GPU group {name}: parts", group.parts, parts[name]
        yield f"GPU group {name}: promised no more than once", used <= WHOLE, True
        yield f"GPU group {name}: used", state.columns.gpus.used(name), used
    rows = len(state.columns.names)
    for row, node in enumerate(state.columns.names):
        yield f"{node}: free parts", state.columns.gpus.free(row), again.columns.gpus.free(row)
    exposed = [[group.opened.group for group in indexes.shared_gpus.exposed] for indexes in (state, again)]
    yield "exposed GPUs", *exposed
    yield "nodes with exposed GPUs", *(indexes.columns.gpus.exposed(rows).tolist() for indexes in (state, again))
    largest = [indexes.columns.gpus.largest(rows).tolist() for indexes in (state, again)]
    yield "largest free parts", *largest


def _compared_entries(state: ClusterState) -> Iterator[Compared]:
    groups = [group for group in state.shared_gpus.groups.values() if group.parts]
    ending = {group.uid for group in groups if all(state.pods[uid].leaving for uid in group.parts)}
    for uid, entry in state.pods.items():
        yield f"{uid}: stage", entry.stage in _STAGES, True
        yield f"{uid}: node", bool(entry.node) or not entry.charged, True
        yield f"{uid}: releasing", entry.releasing, entry.charged and (entry.leaving or uid in ending)
        yield f"{uid}: queue charge", entry.queue_charge, state.queue_charge_of(entry)
        yield f"{uid}: requests", entry.requests, state.classes[entry.class_key].requests
        if not entry.charged:
            yield f"{uid}: holds zones", _holds_zones(entry), False
        if not entry.waiting:
            yield f"{uid}: nomination and report", (entry.nomination, entry.reported), (None, None)


def _holds_zones(entry: PodEntry) -> bool:
    charge = entry.zone_charge
    return bool(charge.amounts or charge.blocks or entry.unrecorded or entry.alternatives or entry.misaligned)


def _compared_sets(state: ClusterState, again: PodIndexes) -> Iterator[Compared]:
    yield "waiting", state.waiting, again.waiting
    yield "nominated", state.nominated, again.nominated
    yield "misaligned", state.misaligned, again.misaligned
    yield (
        "pods on nodes",
        *({node: sorted(uids) for node, uids in one.charges.on_node.items()} for one in (state, again)),
    )
    pods = Counter(entry.class_key for entry in state.pods.values())
    for key in state.classes:
        yield f"pods of class {key}", state.class_registry.record(key)[1], pods[key]
        yield f"class {key} is remembered", bool(pods[key]) or state.rejections.has_class(key), True
    yield "classes", state.classes.keys() >= pods.keys(), True


def _compared_nodes(state: ClusterState, again: PodIndexes) -> Iterator[Compared]:
    columns, others = state.columns, again.columns
    yield "used", _by_node(columns.used, columns.resources), _by_node(others.used, others.resources)
    yield "releasing", _by_node(columns.releasing, columns.resources), _by_node(others.releasing, others.resources)
    zones, zones_again = columns.zones, others.zones
    plain = {resource: column for resource, column in zones.resources.items() if not is_memory(resource)}
    for name in ("used", "releasing", "repeated"):
        kept, derived = _by_zone(getattr(zones, name), plain), _by_zone(getattr(zones_again, name), plain)
        yield f"zones: {name}", kept, derived
    uncertain = _by_node(zones.uncertain, plain), _by_node(zones_again.uncertain, plain)
    yield "zones: uncertain", *uncertain
    yield "zones: unknown", _nonzero(zones.unknown), _nonzero(zones_again.unknown)
    yield "zones: unknown since", _nonzero(zones.unknown_since), _nonzero(zones_again.unknown_since)


def _compared_memory(state: ClusterState) -> Iterator[Compared]:
    """Memory is drawn in the order in which pods came, so the sums per node are compared, and the groups of zones."""
    columns, zones = state.columns, state.columns.zones
    drawn: Counter[tuple[int, str]] = Counter()
    assigned = np.zeros_like(zones.assignments)
    for entry in state.pods.values():
        for block in entry.zone_charge.blocks:
            row = columns.rows[entry.node]
            drawn[row, block.resource] += block.size
            assigned[row, list(zones_of(block.mask))] += 1
    kept = {
        (row, resource): int(total)
        for resource, column in zones.resources.items()
        if is_memory(resource)
        for row, total in enumerate(zones.used[:, :, column].sum(axis=1))
        if total
    }
    yield "memory of zones", kept, {key: amount for key, amount in drawn.items() if amount}
    yield "memory assignments", zones.assignments.tolist(), assigned.tolist()
    yield "memory groups", (zones.cells != 0).tolist(), (assigned > 0).tolist()


def _compared_constraints(state: ClusterState, again: PodIndexes) -> Iterator[Compared]:
    marks: set[str] = set()
    for uid in state.pods:
        kept, derived = state.constraints.marks_of(uid), again.constraints.marks_of(uid)
        yield f"{uid}: marks", sorted(kept), sorted(derived)
        marks.update(kept, derived)
    for mark in marks:
        yield f"mark {mark}", state.columns.marks.counts(mark), again.columns.marks.counts(mark)
    for key in state.constraints.volumes.claims:
        users = state.constraints.volumes.users.of(key), again.constraints.volumes.users.of(key)
        yield f"claim {key}: users", set(users[0]), set(users[1])


def _compared_groups(state: ClusterState, again: PodIndexes) -> Iterator[Compared]:
    yield "groups", state.group_table.groups, again.group_table.groups
    for uid, entry in state.pods.items():
        place = state.group_table.place_of(uid)
        yield f"{uid}: group", place, again.group_table.place_of(uid)
        if place is not None:
            derived = place.group, place.pod_set, place.problem
            yield f"{uid}: group in the entry", (entry.group, entry.pod_set, entry.group_problem), derived
    index, index_again = state.workload_index, again.workload_index
    yield "workloads", index.workloads.keys(), index_again.workloads.keys()
    yield "groups with waiting pods", index.pending, index_again.pending
    yield "leaving", index.leaving.keys(), index_again.leaving.keys()
    yield "groups that start together", index.needed_by, index_again.needed_by
    below = {key for key, workload in index.workloads.items() if workload.below_since}
    yield "groups below their minimum", index.below, below
    for key, workload in index.workloads.items():
        other = index_again.workloads.get(key)
        for name in ("waiting", "active", "leaving", "done", "counts"):
            kept, rebuilt_of = getattr(workload, name), getattr(other, name, {})
            if name == "counts":
                yield f"{key}: counts", dict(kept), dict(rebuilt_of)
            else:
                yield f"{key}: {name}", kept.keys(), rebuilt_of.keys()
                yield f"{key}: entries {name}", all(kept[uid] is state.pods[uid] for uid in kept), True


def _compared_usage(state: ClusterState) -> Iterator[Compared]:
    usages: dict[UsageKey, QueueUsage] = {}
    for entry in state.pods.values():
        charge = entry.queue_charge
        if charge is not None:
            usages.setdefault(charge.key, QueueUsage()).count(
                charge, queue_amounts(entry, charge), pods=1, at_us=state.recorded_at
            )
    for key in state.queue_registry.usages.keys() | usages.keys():
        kept, derived = state.queue_registry.usages.get(key, QueueUsage()), usages.get(key, QueueUsage())
        for name in ("used", "non_preemptible", "pending"):
            yield f"usage of {key}: {name}", getattr(kept, name), getattr(derived, name)


def _nonzero(array: Ints) -> dict[int, int]:
    return {int(row): int(array[row]) for row in array.nonzero()[0]}


def _by_node(matrix: Ints, resources: Mapping[str, int]) -> dict[tuple[int, str], int]:
    return {
        (int(row), resource): int(matrix[row, column])
        for resource, column in resources.items()
        for row in matrix[:, column].nonzero()[0]
    }


def _by_zone(array: Ints, resources: Mapping[str, int]) -> dict[tuple[int, int, str], int]:
    return {
        (int(row), int(zone), resource): int(array[row, zone, column])
        for resource, column in resources.items()
        for row, zone in zip(*array[:, :, column].nonzero(), strict=True)
    }
