"""Topologies of KAI, Kueue, Koordinator and Volcano from manifests: what is read, and what is refused.

The refusals restate the peers' own: Kueue pkg/webhooks and the definition of its Topology (v0.20.0-devel), Koordinator
pkg/scheduler/frameworkext/networktopology/tree.go (v1.8.0), and Volcano pkg/webhooks/admission/hypernodes
(v1.16.0-alpha.1).
"""

import json
from functools import partial
from typing import Any

import pytest
from kaicore.errors import InvalidObject
from kaicore.kube.api.reflector_core import ObjectGone, ObjectKey, ObjectSeen
from kaicore.kube.kinds.facts import Facts
from kaicore.kube.kinds.kind import Kind
from kaicore.kube.kinds.table import TOPOLOGY_KINDS, subject_of_fact, topology_kind
from kaicore.rules.model.node import HyperNodeMember, TopologyLevel
from kaicore.rules.model.selector import Requirement

from tests.given.work.losses import normalized_by, refuse

HOSTNAME = "kubernetes.io/hostname"


read = partial(normalized_by, topology_kind)


def topology(levels: str, api_version: str = "kai.scheduler/v1alpha1") -> str:
    return f"{{apiVersion: {api_version}, kind: Topology, metadata: {{name: t, uid: u}}, spec: {{levels: {levels}}}}}"


def layers(text: str) -> str:
    return f"""
        apiVersion: scheduling.koordinator.sh/v1alpha1
        kind: ClusterNetworkTopology
        metadata: {{name: default, uid: u}}
        spec: {{networkTopologySpec: {text}}}
    """


def hyper_node(spec: str) -> str:
    return f"{{apiVersion: topology.volcano.sh/v1alpha1, kind: HyperNode, metadata: {{name: h, uid: u}}, spec: {spec}}}"


def test_levels_of_kai_have_aliases_and_the_hostname_is_the_node_itself() -> None:
    model = read(topology(f"[{{nodeLabel: b, alias: block}}, {{nodeLabel: r}}, {{nodeLabel: {HOSTNAME}}}]"))
    assert model.levels == (
        TopologyLevel("b", ("b",), ("block",)),
        TopologyLevel("r", ("r",)),
        TopologyLevel(HOSTNAME),
    )


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1", "v1beta2"])
def test_levels_of_kueue_are_read_in_every_version(version: str) -> None:
    model = read(topology("[{nodeLabel: b}, {nodeLabel: r}]", f"kueue.x-k8s.io/{version}"))
    assert [level.name for level in model.levels] == ["b", "r"]


@pytest.mark.parametrize("api_version", ["kai.scheduler/v1alpha1", "kueue.x-k8s.io/v1beta1"])
@pytest.mark.parametrize(
    ("levels", "problem"),
    [
        ("[]", "must be 1 to 16 levels"),
        (json.dumps([{"nodeLabel": f"l{number}"} for number in range(17)]), "must be 1 to 16 levels"),
        ("[{nodeLabel: a}, {nodeLabel: b}, {nodeLabel: a}]", r"spec.levels\[2\].nodeLabel: is there twice: 'a'"),
        (f"[{{nodeLabel: {HOSTNAME}}}, {{nodeLabel: a}}]", "can only be the lowest level"),
        ("[{nodeLabel: a}, {}]", r"spec.levels\[1\].nodeLabel: is missing"),
    ],
)
def test_levels_that_make_no_tree_are_refused(api_version: str, levels: str, problem: str) -> None:
    with pytest.raises(InvalidObject, match=problem):
        read(topology(levels, api_version))


def test_an_alias_that_names_another_level_is_left_out() -> None:
    lost: list[InvalidObject] = []
    model = read(
        topology("[{nodeLabel: a, alias: b}, {nodeLabel: b, alias: c}, {nodeLabel: d, alias: c}]"), lost.append
    )
    assert [level.aliases for level in model.levels] == [(), ("c",), ()]
    assert [error.field for error in lost] == ["spec.levels[0].alias", "spec.levels[2].alias"]


def test_layers_of_koordinator_are_ordered_by_their_parents() -> None:
    model = read(
        layers(
            "[{topologyLayer: NodeTopologyLayer, parentTopologyLayer: BlockLayer},"
            " {topologyLayer: SpineLayer, labelKey: [spine]},"
            " {topologyLayer: BlockLayer, labelKey: [block, old-block], parentTopologyLayer: SpineLayer}]"
        )
    )
    assert model.levels == (
        TopologyLevel("SpineLayer", ("spine",)),
        TopologyLevel("BlockLayer", ("block", "old-block")),
        TopologyLevel("NodeTopologyLayer"),
    )
    assert model.fills_lowest


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("[{topologyLayer: SpineLayer, labelKey: [s]}]", "has no NodeTopologyLayer"),
        ("[{topologyLayer: NodeTopologyLayer}, {topologyLayer: NodeTopologyLayer}]", "is there twice"),
        (
            "[{topologyLayer: NodeTopologyLayer, parentTopologyLayer: spine}, {topologyLayer: Spine, labelKey: [s]}]",
            "is none of the layers Spine: 'spine'",
        ),
        (
            "[{topologyLayer: NodeTopologyLayer, parentTopologyLayer: A},"
            " {topologyLayer: A, labelKey: [a], parentTopologyLayer: B},"
            " {topologyLayer: B, labelKey: [b], parentTopologyLayer: A}]",
            "is below B: 'A'",
        ),
        (
            "[{topologyLayer: NodeTopologyLayer, parentTopologyLayer: A}, {topologyLayer: A}]",
            r"networkTopologySpec\[1\].labelKey: is missing",
        ),
    ],
    ids=["no-nodes", "twice", "unknown-parent", "circle", "no-label"],
)
def test_layers_that_make_no_chain_are_refused(given: str, problem: str) -> None:
    with pytest.raises(InvalidObject, match=problem):
        read(layers(given))


def test_a_layer_above_no_node_is_left_out() -> None:
    lost: list[InvalidObject] = []
    model = read(layers("[{topologyLayer: NodeTopologyLayer}, {topologyLayer: A, labelKey: [a]}]"), lost.append)
    assert [level.name for level in model.levels] == ["NodeTopologyLayer"]
    assert [error.value for error in lost] == ["A"]


@pytest.mark.parametrize("tier", ["2", "'2'"])
def test_a_hyper_node_with_members_of_every_sort(tier: str) -> None:
    model = read(
        hyper_node(f"""{{tier: {tier}, tierName: spine, members: [
            {{type: HyperNode, selector: {{exactMatch: {{name: s0}}}}}},
            {{type: Node, selector: {{exactMatch: {{name: n1}}}}}},
            {{type: Node, selector: {{regexMatch: {{pattern: "^n[0-9]+$"}}}}}},
            {{type: Node, selector: {{labelMatch: {{matchLabels: {{leaf: a}}}}}}}}]}}""")
    )
    assert (model.tier, model.tier_name) == (2, "spine")
    assert model.members == (
        HyperNodeMember(hyper_node="s0"),
        HyperNodeMember(node="n1"),
        HyperNodeMember(pattern="^n[0-9]+$"),
        HyperNodeMember(labels=(Requirement("leaf", "In", ("a",)),)),
    )


@pytest.mark.parametrize("tier", ["-1", "first", "null"])
def test_a_tier_that_is_no_number_is_refused(tier: str) -> None:
    with pytest.raises(InvalidObject, match="is no number of 0 or more"):
        read(hyper_node(f"{{tier: {tier}}}"))


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        ("{type: Node, selector: {}}", "must have exactly one of exactMatch, regexMatch, labelMatch"),
        (
            "{type: Node, selector: {exactMatch: {name: a}, regexMatch: {pattern: b}}}",
            "must have exactly one of exactMatch, regexMatch, labelMatch",
        ),
        ("{type: Pod, selector: {exactMatch: {name: a}}}", "is neither Node nor HyperNode"),
        ("{type: HyperNode, selector: {regexMatch: {pattern: a}}}", "is not for members of type HyperNode"),
        ("{type: HyperNode, selector: {labelMatch: {matchLabels: {a: b}}}}", "is not for members of type HyperNode"),
        ("{type: Node, selector: {exactMatch: {name: ''}}}", "is missing"),
        ("{type: Node, selector: {regexMatch: {pattern: ''}}}", "is missing"),
        ("{type: Node, selector: {regexMatch: {pattern: 'a['}}}", r"is no regular expression: missing \]"),
        ("{type: Node, selector: {labelMatch: {}}}", "has no requirement"),
        ("{type: Node, selector: {labelMatch: {matchExpressions: [{key: a, operator: In}]}}}", "not values of In"),
    ],
)
def test_a_member_that_makes_no_sense_is_left_out_and_the_others_stay(member: str, problem: str) -> None:
    lost: list[InvalidObject] = []
    good = "{type: Node, selector: {exactMatch: {name: n1}}}"
    model = read(hyper_node(f"{{tier: 1, members: [{member}, {good}]}}"), lost.append)
    assert model.members == (HyperNodeMember(node="n1"),)
    assert [error.subject for error in lost] == ["HyperNode h"]
    with pytest.raises(InvalidObject, match=problem):
        raise lost[0]


@pytest.mark.parametrize("kind", TOPOLOGY_KINDS, ids=lambda kind: kind.name)
def test_topologies_are_facts_of_their_kinds(kind: Kind[Any]) -> None:
    version = kind.resource.versions[0]
    spec = {
        "levels": [{"nodeLabel": "a"}],
        "networkTopologySpec": [{"topologyLayer": "NodeTopologyLayer"}],
        "tier": 1,
    }
    wire = kind.resource.at(version).decode(json.dumps({"metadata": {"name": "t", "uid": "u"}, "spec": spec}).encode())
    key = ObjectKey("", "t")
    facts = Facts("c")
    (seen,) = facts.translate(kind, ObjectSeen(wire), now=1).events
    model = kind.normalize(wire, refuse)
    assert subject_of_fact(seen.payload) == (kind.name, key, model)
    (gone,) = facts.translate(kind, ObjectGone(key, "u", "2"), now=2).events
    assert subject_of_fact(gone.payload) == (kind.name, key, None)
    assert gone.stream == seen.stream
