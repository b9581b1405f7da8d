"""The path of a node in a topology that is defined by labels."""

from collections.abc import Mapping

from kaicore.rules.model.network_topology import HOSTNAME, TopologyDefinition, TopologyLevel
from kaicore.rules.topology.paths import Path

#: The level of single nodes, below levels that are told by labels.
_NODE_LEVEL = TopologyLevel(HOSTNAME)


class LabelPaths:
    """Finds nodes' paths by their labels.

    The lowest level is that of single nodes: where the definition ends above it, it is added, named by the hostname.

    A node has a path down to the first level of which it lacks the label: it is in no domain of that level or below.
    Kueue (pkg/cache/scheduler/tas_flavor_snapshot.go, v0.20.0-devel) and KAI (pkg/scheduler/plugins/topology, v0.17.0)
    leave such a node out altogether. Where the definition fills the lowest level, it is in a domain of its own there
    (Koordinator pkg/scheduler/frameworkext/networktopology/tree.go, v1.8.0, `getTreeNodesMeta`).
    """

    def __init__(self, definition: TopologyDefinition) -> None:
        ends_above = not definition.levels or bool(definition.levels[-1].keys)
        self.levels = (*definition.levels, _NODE_LEVEL) if ends_above else definition.levels
        #: What is wrong with the definition: nothing, for that would have been refused before.
        self.problems: tuple[str, ...] = ()
        self._filled = len(self.levels) - 2 if definition.fills_lowest else None

    def path(self, name: str, labels: Mapping[str, str]) -> Path:
        """Return names of a node's domains, from the widest to the narrowest."""
        domains: list[str] = []
        for depth, level in enumerate(self.levels):
            value = next((value for key in level.keys if (value := labels.get(key))), "") if level.keys else name
            if not value and depth == self._filled:
                value = name
            if not value:
                break
            domains.append(value)
        return tuple(domains)
