"""The assignment of a group's pods to domains of its topology, in Kueue's form."""

from collections import Counter
from collections.abc import Callable

from kaicore.analysis.inquiry.json_spelling import time_text
from kaicore.analysis.inquiry.topology_answers import PodSetAssignment, TopologyAssignments
from kaicore.errors import InvalidObject, UnknownSubject
from kaicore.rules.model.group import Group
from kaicore.rules.model.network_topology import HOSTNAME
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.topology.assignment import AssignedDomain, Document, as_domains, as_slices
from kaicore.rules.topology.book import TopologyKey
from kaicore.rules.topology.resolve import Resolved, resolve

#: Kueue's versions, and how each writes an assignment.
VERSIONS: dict[str, Callable[..., Document]] = {"v1beta2": as_slices, "v1beta1": as_domains}


def topology_assignments(
    state: ClusterState, kind: str, namespace: str, name: str, *, version: str
) -> TopologyAssignments:
    """Return where the pods of a group are that have a node, by pod set.

    Args:
        state: of the cluster.
        kind: of the group's object, with its API group or without.
        namespace: its namespace.
        name: its name.
        version: of Kueue's API.

    Raises:
        InvalidObject: there is no such version.
        UnknownSubject: there is no such group, or it asks for no topology that there is.
    """
    if version not in VERSIONS:
        raise InvalidObject("question", "version", version, f"is none of {', '.join(VERSIONS)}")
    group = _group(state, kind, namespace, name)
    resolved = resolve(group.sets, state.network_topologies, group=f"{kind} {namespace}/{name}")
    if not isinstance(resolved, Resolved):
        why = "it asks for no topology" if resolved is None else str(resolved)
        raise UnknownSubject(f"{kind} {namespace}/{name} has no topology assignment: {why}")
    levels, depth = _levels(state, resolved.topology)
    paths = state.network_topologies.tree(resolved.topology)
    counts: dict[str, Counter[tuple[str, ...]]] = {}
    outside = 0
    for uid in state.group_table.pods_of(group.key):
        entry = state.pods.get(uid)
        if entry is None or not entry.charged:
            continue
        path = paths.path_of(entry.node)
        if len(path) < depth:
            outside += 1
            continue
        values = path[-1:] if levels == [HOSTNAME] else path[:depth]
        counts.setdefault(entry.pod_set, Counter())[values] += 1
    write = VERSIONS[version]
    return TopologyAssignments(
        group=group.key,
        topology=f"{resolved.topology.kind}/{resolved.topology.name}".rstrip("/"),
        position=state.position,
        recorded_at=time_text(state.recorded_at),
        outside=outside,
        pod_set_assignments=[
            PodSetAssignment(
                name=pod_set or "main",
                topology_assignment=write(levels, [AssignedDomain(*one) for one in counts[pod_set].items()]),
            )
            for pod_set in sorted(counts)
        ],
    )


def _group(state: ClusterState, kind: str, namespace: str, name: str) -> Group:
    for _, group in sorted(state.groups.items()):
        is_named = (group.namespace, group.name) == (namespace, name)
        if is_named and kind in (group.origin, group.origin.partition(".")[0]):
            return group
    raise UnknownSubject(f"the log knows of no group {kind} {namespace}/{name}")


def _levels(state: ClusterState, key: TopologyKey) -> tuple[list[str], int]:
    """Return the levels that an assignment names, and how many values lead to a domain of the lowest.

    Only the hostname where that is the lowest level, as Kueue has it; all of them where the definition ends above.
    """
    all_levels = state.network_topologies.paths(key).levels
    definition = state.network_topologies.definitions.get(key)
    if definition is not None and definition.levels and definition.levels[-1].keys:
        return [level.name for level in definition.levels], len(definition.levels)
    return [HOSTNAME], len(all_levels)
