"""The pod sets of a group: their progress, and their domains in the group's topology."""

from collections import Counter

from kaicore.analysis.inquiry.listing import counts_by_stage
from kaicore.analysis.inquiry.why_answers import SubGroupAnswer
from kaicore.rules.model.group import Group, PodSet, TopologyConstraint
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pod_entry import PodEntry
from kaicore.rules.topology.resolve import Resolved

#: Domains that are told of one level.
_MOST_DOMAINS = 20


def sub_groups(state: ClusterState, group: Group) -> list[SubGroupAnswer]:
    """Return the sets of a group, the root first; of the root the pods of all."""
    entries = group_entries(state, group.key)
    parents = {one.name: one.parent for one in group.sets}
    answers = []
    for one in group.sets:
        members = [entry for entry in entries if one is group.sets[0] or _below(entry.pod_set, one.name, parents)]
        answers.append(_answer(state, group, one, members))
    return answers


def group_entries(state: ClusterState, key: str) -> list[PodEntry]:
    """Return the pods of a group, in the order of their uids."""
    return [state.pods[uid] for uid in sorted(state.group_table.pods_of(key)) if uid in state.pods]


def _below(name: str, wanted: str, parents: dict[str, str]) -> bool:
    while name and name != wanted:
        name = parents.get(name, "")
    return name == wanted


def _answer(state: ClusterState, group: Group, one: PodSet, members: list[PodEntry]) -> SubGroupAnswer:
    stages = counts_by_stage(members)
    return SubGroupAnswer(
        name=one.name,
        minimum=one.min_pods or one.min_sets or 0,
        waiting=stages["waiting"],
        running=stages["running"],
        leaving=stages["leaving"],
        succeeded=stages["succeeded"],
        constraint="" if one.topology is None else _text(one.topology),
        domains=_domains(state, group, members),
    )


def _text(asked: TopologyConstraint) -> str:
    parts = [f"requires one {asked.required}"] if asked.required else []
    parts += [f"prefers one {asked.preferred}"] if asked.preferred else []
    parts += [f"slices of {layer.size} in one {layer.required or layer.preferred}" for layer in asked.slices]
    topology = f" of topology {asked.topology}" if asked.topology else ""
    return ", ".join(parts) + topology if parts else topology.strip()


def _domains(state: ClusterState, group: Group, members: list[PodEntry]) -> dict[str, dict[str, int]]:
    """Return how many of the pods that have a node are in each domain, by level, but for the nodes themselves."""
    flavors = state.queue_registry.flavor_topologies(group.queue, group.namespace)
    asked = state.topology_resolver(group.sets, group=group.key, of_flavors=flavors)
    if not isinstance(asked, Resolved):
        return {}
    columns = state.network_topologies.tree(asked.topology).columns(state.columns.names)
    rows = [state.columns.rows[entry.node] for entry in members if entry.charged]
    domains: dict[str, dict[str, int]] = {}
    for level, definition in enumerate(columns.levels):
        if not definition.keys and level == len(columns.levels) - 1:
            continue
        counts = Counter(int(columns.of_rows[level][row]) for row in rows)
        named = {"/".join(columns.domains[level][number]): count for number, count in counts.items() if number >= 0}
        if named:
            domains[definition.name] = dict(sorted(named.items())[:_MOST_DOMAINS])
    return domains
