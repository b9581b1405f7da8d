"""Topologies as data, for `kai topology` and the API (see `kaicore.analysis.ask.answers`)."""

from typing import Any

import msgspec

from kaicore.analysis.json_spelling import Answer, AsOf


class TopologyQuestion(Answer, frozen=True, kw_only=True):
    """The parts of topologies to show.

    Attributes:
        topology: only those of this name; the kind may go before it, as in `HyperNode.topology.volcano.sh`.
        slots: what one pod asks for, such as `gpu=8,cpu=16`; empty for no slots.
        pod: the manifest of a Pod as JSON, instead: its selector, affinity and tolerations count too.
        segments: sizes of segments, such as `4,18`; by default powers of two.
        nodes: whether the level of single nodes is shown too.
    """

    topology: str = ""
    slots: str = ""
    pod: str = ""
    segments: str = ""
    nodes: bool = False


class DomainResource(Answer, frozen=True, kw_only=True):
    """A resource of a domain; `free` is what nodes have free that are ready and not cordoned."""

    resource: str
    allocatable: str
    used: str
    free: str


class SegmentCount(Answer, frozen=True, kw_only=True):
    """The number of disjoint segments of `size` idle nodes, each within one domain."""

    size: int
    count: int


class DomainAnswer(Answer, frozen=True, kw_only=True):
    """A domain.

    Attributes:
        available: of them, those that are ready and not cordoned.
        idle: of these, those without any pods but their own and DaemonSets'.
        slots: how many pods of the shape that was asked about fit; None where none was.
    """

    name: str
    level: str
    nodes: int
    available: int
    idle: int
    resources: list[DomainResource]
    segments: list[SegmentCount]
    slots: int | None = None
    domains: list["DomainAnswer"] = msgspec.field(default_factory=list)


class LevelAnswer(Answer, frozen=True, kw_only=True):
    """A level of a topology.

    Attributes:
        labels: that tell a node's domain.
        outside: nodes in none of them.
        slots: over all its domains; None where no shape was asked about.
        most_slots_in: names of the first such domain and of those around it, the widest first.
    """

    name: str
    aliases: list[str]
    labels: list[str]
    domains: int
    outside: int
    segments: list[SegmentCount]
    slots: int | None = None
    most_slots: int = 0
    most_slots_in: list[str] = msgspec.field(default_factory=list)


class TopologyAnswer(Answer, frozen=True, kw_only=True):
    """A topology over the present nodes.

    Attributes:
        kind: of the object that defines it, with its API group.
        name: of that object; empty for HyperNodes, which are one topology together.
        problems: what is wrong with the definitions, each with the names of the objects.
        levels: from the widest to the narrowest.
        domains: of the widest level.
    """

    kind: str
    name: str
    nodes: int
    problems: list[str]
    levels: list[LevelAnswer]
    domains: list[DomainAnswer]


class TopologiesAnswer(AsOf, frozen=True, kw_only=True):
    """The topologies of a cluster.

    Attributes:
        cluster: empty for manifests.
        position: in the log; 0 for manifests.
        recorded_at: when the event there was recorded; empty for manifests.
        slot: what one pod asks for, where slots were asked about.
    """

    slot: dict[str, str]
    topologies: list[TopologyAnswer]


class PodSetAssignment(Answer, frozen=True, kw_only=True):
    """The places of a set's pods; `topology_assignment` is Kueue's object of that name."""

    name: str
    topology_assignment: dict[str, Any]


class TopologyAssignments(Answer, frozen=True, kw_only=True):
    """The places of a group's pods in the topology that it asks for.

    Attributes:
        group: its key, `<kind>/<namespace>/<name>`.
        topology: kind and name.
        recorded_at: when the event there was recorded.
        outside: pods on nodes that are in no domain of the lowest level.
        pod_set_assignments: as in Kueue's `status.admission`.
    """

    group: str
    topology: str
    position: int
    recorded_at: str
    outside: int
    pod_set_assignments: list[PodSetAssignment]
