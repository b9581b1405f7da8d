"""Answers about topologies: domains' used and free amounts, and their room."""

import json
from typing import Any

import pytest
from kaicore.analysis.ask.topology.answers import DomainAnswer, TopologiesAnswer, TopologyQuestion
from kaicore.analysis.ask.topology.domains import topologies_of
from kaicore.errors import InvalidObject, UnknownSubject
from kaicore.rules.events import payloads
from kaicore.rules.model.node import (
    HOSTNAME,
    KUEUE_TOPOLOGY,
    HyperNode,
    HyperNodeMember,
    Taint,
    TopologyDefinition,
    TopologyLevel,
)
from kaicore.rules.model.pod import Owner

from tests.given.cluster.factory import amounts, pod
from tests.given.work.workloads import Workloads

LEVELS = (TopologyLevel("block", ("block",)), TopologyLevel("rack", ("rack",)), TopologyLevel(HOSTNAME))


@pytest.fixture
def cluster() -> Workloads:
    """Blocks b1 (racks r1 of n1 and n2, r2 of n3) and b2 (rack r1 of n4 and n5); every node has 16 CPUs and 4 GPUs.

    A pod uses a GPU of n1; n2 has one of a DaemonSet; n4 is not ready, n5 is tainted.
    """
    made = Workloads()
    for name, block, rack in (("n1", "b1", "r1"), ("n2", "b1", "r1"), ("n3", "b1", "r2"), ("n4", "b2", "r1")):
        labels = {"block": block, "rack": rack}
        made.add_node(name, ready=name != "n4", labels=labels, allocatable=amounts(cpu=16, memory=64, gpu=4, pods=110))
    made.add_node(
        "n5",
        labels={"block": "b2", "rack": "r1", "zone": "z"},
        allocatable=amounts(cpu=16, memory=64, gpu=4, pods=110),
        taints=(Taint(key="gpu", effect="NoSchedule", value="yes"),),
    )
    definition = TopologyDefinition(KUEUE_TOPOLOGY, "default", "uid-t", "1", LEVELS)
    made.record("topology/default", payloads.TopologyDefinitionObserved(definition))
    made.add_pod(pod("train", cpu=2, memory=8, gpu=1, node_name="n1", phase="Running"))
    made.add_pod(
        pod("agent", cpu=2, memory=2, node_name="n2", phase="Running", owner=Owner("DaemonSet", "agent", "uid-ds"))
    )
    return made


def ask(cluster: Workloads, **wanted: Any) -> TopologiesAnswer:
    return topologies_of(cluster.state, TopologyQuestion(**wanted))


def domains(answer: TopologiesAnswer) -> dict[str, DomainAnswer]:
    """The domains of the only topology, by path."""
    (topology,) = answer.topologies
    found: dict[str, DomainAnswer] = {}

    def walk(inside: list[DomainAnswer], above: str) -> None:
        for one in inside:
            found[f"{above}{one.name}"] = one
            walk(one.domains, f"{above}{one.name}/")

    walk(topology.domains, "")
    return found


def test_domains_tell_what_they_use_and_what_available_nodes_have_free(cluster: Workloads) -> None:
    found = domains(ask(cluster))
    assert list(found) == ["b1", "b1/r1", "b1/r2", "b2", "b2/r1"]
    gpus = {path: (one.resources[2].allocatable, one.resources[2].used, one.resources[2].free) for path, one in
            found.items()}  # fmt: skip
    assert gpus == {
        "b1": ("12", "1", "11"),
        "b1/r1": ("8", "1", "7"),
        "b1/r2": ("4", "0", "4"),
        "b2": ("8", "0", "4"),
        "b2/r1": ("8", "0", "4"),
    }
    assert (found["b2"].nodes, found["b2"].available) == (2, 1)
    cpu = found["b1/r1"].resources[0]
    assert (cpu.resource, cpu.allocatable, cpu.used, cpu.free) == ("cpu", "32", "4", "28")


def test_a_node_with_only_a_daemonsets_pod_is_idle(cluster: Workloads) -> None:
    answer = ask(cluster, segments="1,2")
    found = domains(answer)
    assert {path: one.idle for path, one in found.items()} == {"b1": 2, "b1/r1": 1, "b1/r2": 1, "b2": 1, "b2/r1": 1}
    assert [(one.size, one.count) for one in found["b1"].segments] == [(1, 2), (2, 1)]
    by_level = {level.name: [(one.size, one.count) for one in level.segments] for level in answer.topologies[0].levels}
    assert by_level["block"] == [(1, 3), (2, 1)]
    assert by_level["rack"] == [(1, 3), (2, 0)]


def test_slots_are_counted_node_by_node(cluster: Workloads) -> None:
    answer = ask(cluster, slots="gpu=2,cpu=4")
    assert {path: one.slots for path, one in domains(answer).items()} == {
        "b1": 5,
        "b1/r1": 3,
        "b1/r2": 2,
        "b2": 2,
        "b2/r1": 2,
    }
    rack = answer.topologies[0].levels[1]
    assert (rack.slots, rack.most_slots, rack.most_slots_in) == (7, 3, ["b1", "r1"])
    assert answer.slot == {"cpu": "4", "gpu": "2"}


def test_a_pods_selector_and_tolerations_count(cluster: Workloads) -> None:
    spec: dict[str, Any] = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "8"}, "limits": {"nvidia.com/gpu": "1"}}}]
    }

    def slots(**more: Any) -> dict[str, int | None]:
        manifest = json.dumps({"metadata": {"name": "p", "namespace": "d"}, "spec": spec | more})
        return {path: one.slots for path, one in domains(ask(cluster, pod=manifest)).items() if "/" not in path}

    assert slots() == {"b1": 4, "b2": 0}
    assert slots(tolerations=[{"operator": "Exists"}]) == {"b1": 4, "b2": 2}
    assert slots(tolerations=[{"operator": "Exists"}], nodeSelector={"zone": "z"}) == {"b1": 0, "b2": 2}


def test_single_nodes_are_told_when_they_are_asked_for(cluster: Workloads) -> None:
    found = domains(ask(cluster, nodes=True, slots="gpu=1"))
    assert found["b1/r1/n1"].slots == 3
    assert found["b2/r1/n4"].slots == 0


def test_a_node_that_goes_is_in_no_figure(cluster: Workloads) -> None:
    cluster.record("node/n3", payloads.NodeDeleted("uid-n3", "n3"))
    answer = ask(cluster)
    assert answer.topologies[0].nodes == 4
    assert "b1/r2" not in domains(answer)


def test_hyper_nodes_that_contradict_each_other_are_told_as_problems(cluster: Workloads) -> None:
    for name in ("s0", "s1"):
        one = HyperNode(name, f"uid-{name}", "1", 1, members=(HyperNodeMember(node="n1"),))
        cluster.record(f"hypernode/{name}", payloads.HyperNodeObserved(one))
    (topology,) = ask(cluster, topology="HyperNode.topology.volcano.sh").topologies
    assert topology.problems == ["Node n1 is in HyperNodes s0 and s1, of which none is in another"]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"slots": "gpu"}, "is no RESOURCE=AMOUNT"),
        ({"slots": "gpu=x"}, "not a Kubernetes quantity"),
        ({"slots": "gpu=1,gpu=2"}, "says gpu twice"),
        ({"slots": "gpus=1"}, "is a resource that no node has; did you mean 'gpu'"),
        ({"slots": "cpu=0"}, "asks for nothing"),
        ({"slots": "cpu=1", "pod": "{}"}, "is said together with a pod"),
        ({"pod": "no json"}, "is no JSON|malformed|JSON"),
        ({"segments": "4,0"}, "is no number of nodes"),
        ({"segments": "four"}, "is no number of nodes"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(cluster: Workloads, wanted: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidObject, match=said):
        ask(cluster, **wanted)


def test_a_topology_that_there_is_not_is_refused_with_those_that_there_are(cluster: Workloads) -> None:
    with pytest.raises(UnknownSubject, match=r"no topology 'defualt'; did you mean 'default'\? \(there are: default\)"):
        ask(cluster, topology="defualt")
