"""The webhook's verdicts on objects: denied, warned of, or nothing."""

import json
from typing import Any

import pytest
from kai_webhook.app import Judgement, denials_and_warnings, judge
from kaicore.rules.model.node import (
    KAI_TOPOLOGY,
    HyperNode,
    HyperNodeMember,
    TopologyDefinition,
    TopologyLevel,
)
from kaicore.rules.topology.book import TopologyBook

Json = dict[str, Any]


@pytest.fixture
def book() -> TopologyBook:
    """A topology of blocks and racks, the HyperNodes s0 (n1) and s1 (n2)."""
    topologies = TopologyBook()
    levels = (TopologyLevel("block", ("block",)), TopologyLevel("rack", ("rack",)))
    topologies.definition_seen(TopologyDefinition(KAI_TOPOLOGY, "default", "u", "1", levels))
    for number in (1, 2):
        topologies.node_seen(f"n{number}", {})
        members = (HyperNodeMember(node=f"n{number}"),)
        topologies.hyper_node_seen(HyperNode(f"s{number - 1}", f"uid-{number}", "1", 1, members=members))
    return topologies


def look(document: Json, topologies: TopologyBook | None = None) -> Judgement:
    document.setdefault("metadata", {}).update({"uid": "uid", "resourceVersion": "1"})
    body = json.dumps(document).encode()
    return judge(document["apiVersion"], document["kind"], body, topologies=topologies, scheduler_name="kai-ledger")


def hyper_node(*members: Json, name: str = "new", tier: object = 1) -> Json:
    spec = {"tier": tier, "members": list(members)}
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": name},
        "spec": spec,
    }


def member(kind: str = "Node", **selector: Any) -> Json:
    return {"type": kind, "selector": selector}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (member(exactMatch={"name": "a"}, regexMatch={"pattern": "b"}), "must have exactly one of exactMatch"),
        (member(), "must have exactly one of exactMatch"),
        (member(regexMatch={"pattern": "rack-(?!1)"}), "is no regular expression"),
        (member(regexMatch={"pattern": ""}), "regexMatch.pattern: is missing"),
        (member("HyperNode", regexMatch={"pattern": "a"}), "is not for members of type HyperNode"),
        (member("Rack", exactMatch={"name": "a"}), "is neither Node nor HyperNode"),
        (member(labelMatch={}), "has no requirement"),
        (member(labelMatch={"matchExpressions": [{"key": "a", "operator": "Near"}]}), "operator"),
    ],
)
def test_a_hyper_node_with_a_wrong_selector_is_denied(wrong: Json, said: str) -> None:
    judgement = look(hyper_node(member(exactMatch={"name": "a"}), wrong))
    (denial,) = judgement.denials
    assert "HyperNode new: spec.members[1]" in denial
    assert said in denial


@pytest.mark.parametrize("tier", [-1, "one", None])
def test_a_hyper_node_without_a_tier_is_denied(tier: object) -> None:
    (denial,) = look(hyper_node(tier=tier)).denials
    assert denial.startswith("HyperNode new: spec.tier: is no number of 0 or more")


def test_a_hyper_node_in_gos_syntax_is_let_through(book: TopologyBook) -> None:
    assert look(hyper_node(member(regexMatch={"pattern": r"^gpu-\d+$"})), book) == Judgement()


def test_a_hyper_node_beside_another_of_the_same_node_is_warned_of(book: TopologyBook) -> None:
    judgement = look(hyper_node(member(regexMatch={"pattern": "1$"})), book)
    assert judgement.denials == []
    assert judgement.warnings == [
        "Node n1 is in HyperNodes new and s0, of which none is in another; it is in none of them until that is mended"
    ]


def test_a_hyper_node_that_contradicts_others_is_warned_of(book: TopologyBook) -> None:
    judgement = look(hyper_node(member("HyperNode", exactMatch={"name": "s0"})), book)
    assert judgement.denials == []
    assert judgement.warnings == [
        "HyperNode s0 of tier 1 is a member of new of tier 1; its tier must be lower; "
        "no HyperNode is used until that is mended"
    ]


def test_a_contradiction_of_others_is_not_told_again(book: TopologyBook) -> None:
    book.hyper_node_seen(HyperNode("s9", "uid-9", "1", 1, members=(HyperNodeMember(hyper_node="s1"),)))
    assert look(hyper_node(member(exactMatch={"name": "n7"})), book) == Judgement()


def topology(api_version: str, *labels: str) -> Json:
    levels = [{"nodeLabel": label} for label in labels]
    return {"apiVersion": api_version, "kind": "Topology", "metadata": {"name": "t"}, "spec": {"levels": levels}}


@pytest.mark.parametrize("api_version", ["kueue.x-k8s.io/v1beta1", "kueue.x-k8s.io/v1beta2", "kai.scheduler/v1alpha1"])
def test_a_topology_that_its_project_refuses_is_denied(api_version: str) -> None:
    (denial,) = look(topology(api_version, "rack", "rack")).denials
    assert denial == "Topology t: spec.levels[1].nodeLabel: is there twice: 'rack'"
    assert look(topology(api_version, "block", "rack")) == Judgement()


def test_a_cluster_network_topology_without_the_nodes_layer_is_warned_of() -> None:
    spec = {"networkTopologySpec": [{"topologyLayer": "SpineLayer", "labelKey": ["spine"]}]}
    judgement = look(
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "ClusterNetworkTopology",
            "metadata": {"name": "default"},
            "spec": spec,
        }
    )
    assert judgement.denials == []
    assert "has no NodeTopologyLayer" in judgement.warnings[0]


def job(scheduler: str | None, pods: int = 4, **annotations: str) -> Json:
    template: Json = {
        "metadata": {
            "annotations": {
                f"kueue.x-k8s.io/podset-{key.replace('_', '-')}": value for key, value in annotations.items()
            }
        },
        "spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"},
    }
    if scheduler is not None:
        template["spec"]["schedulerName"] = scheduler
    spec = {"parallelism": pods, "completions": pods, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "d"}, "spec": spec}


SLICES = {"slice_required_topology": "rack", "slice_size": "2"}


def test_slices_that_do_not_divide_the_pods_are_denied() -> None:
    (denial,) = look(job("kai-ledger", 5, **SLICES)).denials
    assert "5 pods are not divided by slices of 2" in denial
    assert look(job("kai-ledger", 4, **SLICES)) == Judgement()


def test_another_schedulers_jobs_are_not_looked_at() -> None:
    assert look(job(None, 5, **SLICES)) == Judgement()
    assert look(job("default-scheduler", 5, **SLICES)) == Judgement()


def test_layers_of_slices_that_do_not_divide_each_other_are_denied() -> None:
    layers = json.dumps([{"topology": "block", "size": 4}, {"topology": "rack", "size": 3}])
    (denial,) = look(job("kai-ledger", 4, slice_required_topology_constraints=layers)).denials
    assert "size 3 of rack does not divide the 4 of the layer above" in denial


def pod_group(**constraint: str) -> Json:
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "d"},
        "spec": {"minMember": 2, "topologyConstraint": constraint},
    }


def test_a_level_that_there_is_not_is_warned_of_with_those_that_there_are(book: TopologyBook) -> None:
    judgement = look(pod_group(topology="default", requiredTopologyLevel="rak"), book)
    assert judgement.denials == []
    (warning,) = judgement.warnings
    assert "level rak is not in Topology default: it has block, rack" in warning
    assert "did you mean 'rack'?; its pods do not start until that is mended" in warning
    assert look(pod_group(topology="default", requiredTopologyLevel="rack"), book) == Judgement()


def test_a_topology_that_there_is_not_yet_is_warned_of(book: TopologyBook) -> None:
    (warning,) = look(pod_group(topology="later", requiredTopologyLevel="rack"), book).warnings
    assert "there is no Topology later" in warning


def test_names_are_not_looked_up_where_no_topologies_are_known() -> None:
    assert look(pod_group(topology="later", requiredTopologyLevel="rack")) == Judgement()


def test_an_object_that_cannot_be_read_is_warned_of() -> None:
    broken = pod_group()
    broken["spec"]["minMember"] = "two"
    judgement = look(broken)
    assert judgement.denials == []
    assert judgement.warnings[0].endswith("; its pods do not start")


def test_a_kind_that_is_not_read_is_let_through() -> None:
    assert look({"apiVersion": "v1", "kind": "ConfigMap"}) == Judgement()


def test_what_was_wrong_before_stands_in_no_changes_way() -> None:
    before = Judgement(denials=["old"])
    assert denials_and_warnings(Judgement(denials=["old", "new"], warnings=["careful"]), before) == (
        "new",
        ["old", "careful"],
    )
    assert denials_and_warnings(Judgement(denials=["old"]), before) == ("", ["old"])
