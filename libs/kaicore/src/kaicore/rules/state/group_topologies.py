"""Topology requests of groups for one cycle, resolved against the existing network topologies."""

from collections.abc import Sequence

from kaicore.rules.engine.topology.group_topology import GroupTopology
from kaicore.rules.groups.membership import display_key
from kaicore.rules.model.group import Group
from kaicore.rules.reasons.reason import Reason
from kaicore.rules.state.queue_registry import QueueRegistry
from kaicore.rules.topology.resolve import Resolved
from kaicore.rules.topology.resolver import Resolver


class GroupTopologies:
    """Looks up groups' constraints, each group once."""

    def __init__(self, resolver: Resolver, queues: QueueRegistry, nodes: Sequence[str]) -> None:
        """Args:
        resolver: of the topologies as they are; not to change meanwhile.
        queues: likewise.
        nodes: names, by row.
        """
        self._resolver = resolver
        self._queues = queues
        self._nodes = nodes
        self._by_group: dict[str, GroupTopology | Reason | None] = {}

    def __call__(self, group: Group) -> GroupTopology | Reason | None:
        """See `kaicore.rules.engine.cycle_input.CycleInput.topology_of`."""
        if group.key not in self._by_group:
            self._by_group[group.key] = self._look_up(group)
        return self._by_group[group.key]

    def _look_up(self, group: Group) -> GroupTopology | Reason | None:
        resolved = self._resolver(
            group.sets,
            group=display_key(group.key),
            of_flavors=self._queues.flavor_topologies(group.queue, group.namespace),
        )
        if not isinstance(resolved, Resolved):
            return resolved
        tree = self._resolver.topologies.columns(resolved.topology, self._nodes)
        name = resolved.topology.name or f"{resolved.topology.kind.partition('.')[0]}s"
        return GroupTopology(name, group.sets, tree, resolved.constraints, resolved.together)
