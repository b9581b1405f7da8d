"""The places of a group's pods in its topology, in Kueue's form."""

import pytest
from kaicore.analysis.ask.topology.domains import topology_assignments
from kaicore.errors import InvalidObject, UnknownSubject
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_POD_GROUP
from kaicore.rules.model.group import PodSet, TopologyConstraint
from kaicore.rules.model.node import HOSTNAME, KUEUE_TOPOLOGY, TopologyDefinition, TopologyLevel

from tests.given.cluster.factory import amounts
from tests.given.work.workloads import Workloads

RACK = TopologyLevel("rack", ("rack",))


def cluster(*levels: TopologyLevel, required: str = "rack") -> Workloads:
    """A gang of three pods, two of which fit on a node, in rack r1 of nodes n1 and n2."""
    made = Workloads()
    for name in ("n1", "n2"):
        made.add_node(name, labels={"rack": "r1"}, allocatable=amounts(cpu=16, memory=64, gpu=2, pods=110))
    definition = TopologyDefinition(KUEUE_TOPOLOGY, "default", "uid", "1", levels)
    made.record("topology/default", payloads.TopologyDefinitionObserved(definition))
    constraint = TopologyConstraint(topology="default", required=required)
    made.gang("gang", 3, sets=[PodSet(), PodSet(name="workers", min_pods=3, topology=constraint)])
    made.subgroup("workers", "gang", 3, cpu=1, memory=1, gpu=1)
    made.cycle()
    return made


def test_hostnames_alone_are_named_where_they_are_the_lowest_level() -> None:
    made = cluster(RACK, TopologyLevel(HOSTNAME))
    found = topology_assignments(made.state, "PodGroup", "default", "gang", version="v1beta1")
    (workers,) = found.pod_set_assignments
    assert workers.name == "workers"
    assert workers.topology_assignment == {
        "levels": [HOSTNAME],
        "domains": [{"values": ["n1"], "count": 2}, {"values": ["n2"], "count": 1}],
    }
    assert (found.topology, found.outside) == (f"{KUEUE_TOPOLOGY}/default", 0)


def test_all_levels_are_named_where_the_definition_ends_above_the_nodes() -> None:
    made = cluster(RACK)
    (workers,) = topology_assignments(
        made.state, KAI_POD_GROUP, "default", "gang", version="v1beta2"
    ).pod_set_assignments
    assert workers.topology_assignment == {
        "levels": ["rack"],
        "slices": [{"domainCount": 1, "valuesPerLevel": [{"universal": "r1"}], "podCounts": {"universal": 3}}],
    }


def test_what_cannot_be_answered_says_why() -> None:
    made = cluster(RACK)
    with pytest.raises(InvalidObject, match="is none of v1beta2, v1beta1"):
        topology_assignments(made.state, "PodGroup", "default", "gang", version="v1")
    with pytest.raises(UnknownSubject, match="knows of no group PodGroup default/none"):
        topology_assignments(made.state, "PodGroup", "default", "none", version="v1beta2")
    made.gang("plain", 1, cpu=1)
    with pytest.raises(UnknownSubject, match="has no topology assignment: it asks for no topology"):
        topology_assignments(made.state, "PodGroup", "default", "plain", version="v1beta2")
    wrong = cluster(RACK, required="rak")
    with pytest.raises(UnknownSubject, match="level rak is not in Topology default"):
        topology_assignments(wrong.state, "PodGroup", "default", "gang", version="v1beta2")
