"""Groups with a topology that is not there, or has no room."""

from kaicore.rules.events import payloads
from kaicore.rules.events.reasons import group as reasons
from kaicore.rules.events.reasons.group import TopologyHasNoRoom
from kaicore.rules.model.group import TopologyConstraint
from kaicore.rules.model.node import (
    HYPER_NODE,
    KAI_TOPOLOGY,
    HyperNode,
    HyperNodeMember,
    TopologyDefinition,
    TopologyLevel,
)
from kaicore.rules.model.pod import Pod

from tests.given.cluster.factory import Cluster
from tests.given.cluster.racks import Racks, asks
from tests.simulation.situations import shows


def group(cluster: Racks, count: int, topology: object) -> tuple[Cluster, Pod]:
    return cluster, cluster.group("g", count, topology)[0]  # type: ignore[arg-type]


def define(cluster: Cluster, name: str, *keys: str) -> None:
    levels = tuple(TopologyLevel(key, (key,)) for key in keys)
    definition = TopologyDefinition(KAI_TOPOLOGY, name, f"uid-{name}", "1", levels)
    cluster.record(f"topology/{name}", payloads.TopologyDefinitionObserved(definition))


@shows(reasons.TopologyNotFound, "default/g", "other", "dc", "4 nvidia.com/gpu")
def not_found() -> tuple[Cluster, Pod]:
    return group(Racks(), 2, TopologyConstraint("other", "rack"))


@shows(reasons.TopologyLevelNotFound, "default/g", "Rack", "block, rack", "4 nvidia.com/gpu")
def no_level() -> tuple[Cluster, Pod]:
    return group(Racks(), 2, asks("Rack"))


@shows(reasons.TopologyAmbiguous, "default/g", "rack", "dc", "dc-2", "4 nvidia.com/gpu")
def ambiguous() -> tuple[Cluster, Pod]:
    cluster = Racks()
    define(cluster, "dc-2", "rack")
    return group(cluster, 2, TopologyConstraint("", "rack", kind=KAI_TOPOLOGY))


@shows(reasons.TopologyInvalid, "default/g", "HyperNode", "r1", "4 nvidia.com/gpu")
def invalid() -> tuple[Cluster, Pod]:
    cluster = Racks()
    for name in ("s1", "s2"):
        members = (HyperNodeMember(hyper_node="r1"),)
        cluster.record(f"hypernode/{name}", payloads.HyperNodeObserved(HyperNode(name, name, "1", 2, "", members)))
    member = HyperNodeMember(node="n0")
    cluster.record("hypernode/r1", payloads.HyperNodeObserved(HyperNode("r1", "r1", "1", 1, "", (member,))))
    return group(cluster, 2, TopologyConstraint("", "1", kind=HYPER_NODE))


@shows(reasons.TopologyConstraintInvalid, "default/g", "4 nvidia.com/gpu")
def constraint_invalid() -> tuple[Cluster, Pod]:
    return group(Racks(), 2, asks("rack", problem="spec.topologyConstraint: no such thing"))


@shows(TopologyHasNoRoom, "rack", "3 pods", "takes 2", "b0/r0", "4 nvidia.com/gpu")
def no_room() -> tuple[Cluster, Pod]:
    return group(Racks(), 3, asks("rack"))
