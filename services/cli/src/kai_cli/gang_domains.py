"""Count of the topology domains, by level, that hold a group's pods, from the decisions in a log."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.network_topology import HYPER_NODE
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.topology.placing.request import NO_LEVEL
from kaicore.rules.topology.resolve import Resolved, resolve


@dataclass(frozen=True, slots=True)
class GangDomains:
    """Where the pods of a group with a topology constraint were placed.

    Attributes:
        name: of the group, as in `default/train`.
        pods: how many of its pods are counted.
        domains: how many domains they are in, by level from the widest to the single nodes.
        required: the level of which all of them are to share a domain; empty for none.
    """

    name: str
    pods: int
    domains: Mapping[str, int]
    required: str = ""

    @property
    def as_required(self) -> bool:
        """Whether they share a domain of the level that is required."""
        return self.domains.get(self.required, 0) <= 1


@dataclass(slots=True)
class PlacedDomains:
    """The domains that decisions tell of, pod by pod."""

    _by_uid: dict[str, dict[str, str]] = field(default_factory=dict)

    def see(self, events: Iterable[Event]) -> None:
        """Take in what follows in the log."""
        for event in events:
            if event.type == payloads.PodPlaced.__name__:
                placed = decode_payload(event)
                if isinstance(placed, payloads.PodPlaced) and placed.domains:
                    self._by_uid[placed.uid] = placed.domains

    def of_gangs(self, state: ClusterState) -> list[GangDomains]:
        """Return the groups that ask for a topology, by name.

        Args:
            state: at the end of what was seen. Pods that are gone, and those that failed, do not count: they have
                successors.
        """
        gangs = []
        for key, group in state.groups.items():
            name = f"{group.namespace}/{group.name}"
            resolved = resolve(group.sets, state.network_topologies, group=name)
            if not isinstance(resolved, Resolved):
                continue
            entries = [state.pods[uid] for uid in state.group_table.pods_of(key) if uid in state.pods]
            placed = [
                self._by_uid[entry.pod.uid]
                for entry in entries
                if entry.pod.uid in self._by_uid and entry.pod.phase != "Failed"
            ]
            levels = state.network_topologies.paths(resolved.topology).levels
            # The lowest level of any topology is its single nodes.
            tier = "tier " if resolved.topology.kind == HYPER_NODE else ""
            named = [*(f"{tier}{level.name}" for level in levels[:-1]), "node"]
            # A domain is known by the names from the top down.
            paths = [[domains.get(level.name, "") for level in levels] for domains in placed]
            counts = [len({tuple(path[: depth + 1]) for path in paths if path[depth]}) for depth in range(len(levels))]
            required = resolved.constraints[""].required if "" in resolved.constraints else NO_LEVEL
            level = "" if required == NO_LEVEL else named[required]
            gangs.append(GangDomains(name, len(placed), dict(zip(named, counts, strict=True)), level))
        return sorted(gangs, key=lambda one: one.name)
