"""Trees over nodes that come, go and are relabelled."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kaicore.rules.model.node import (
    CLUSTER_NETWORK_TOPOLOGY,
    KAI_TOPOLOGY,
    HyperNode,
    HyperNodeMember,
    TopologyDefinition,
    TopologyLevel,
)
from kaicore.rules.model.selector import Requirement
from kaicore.rules.topology.book import TopologyBook, TopologyKey
from kaicore.rules.topology.paths import HyperNodePaths, LabelPaths, Paths
from kaicore.rules.topology.tree import TopologyTree

BLOCK, RACK, HOST = TopologyLevel("block", ("block",)), TopologyLevel("rack", ("rack",)), TopologyLevel("host")
DEFINITION = TopologyDefinition(KAI_TOPOLOGY, "t", "u", "1", (BLOCK, RACK, HOST))
TWO_RACKS = {
    "n1": {"block": "b1", "rack": "r1"},
    "n2": {"block": "b1", "rack": "r1"},
    "n3": {"block": "b2", "rack": "r1"},
    "n4": {"block": "b2"},
    "n5": {"rack": "r1"},
}


def tree_of(paths: Paths, nodes: Mapping[str, Mapping[str, str]]) -> TopologyTree:
    tree = TopologyTree(paths)
    for name, labels in nodes.items():
        tree.put(name, labels)
    return tree


def test_racks_of_the_same_name_in_two_blocks_are_two_domains() -> None:
    columns = tree_of(LabelPaths(DEFINITION), TWO_RACKS).columns(["n3", "n1", "n2"])
    assert columns.domains[0] == (("b1",), ("b2",))
    assert columns.domains[1] == (("b1", "r1"), ("b2", "r1"))
    assert columns.of_rows[1].tolist() == [1, 0, 0]
    assert columns.parents[1].tolist() == [0, 1]
    assert columns.parents[0].tolist() == [-1, -1]
    assert columns.of_rows[1].dtype == columns.parents[1].dtype == np.int32


def test_a_node_without_a_label_is_outside_from_that_level_down() -> None:
    tree = tree_of(LabelPaths(DEFINITION), TWO_RACKS)
    columns = tree.columns(["n4", "n5", "unknown"])
    assert [rows.tolist() for rows in columns.of_rows] == [[1, -1, -1], [-1, -1, -1], [-1, -1, -1]]
    assert tree.outside == (1, 2, 2)


def test_sums_add_up_the_rows_of_each_domain() -> None:
    columns = tree_of(LabelPaths(DEFINITION), TWO_RACKS).columns(list(TWO_RACKS))
    blocks, racks, _ = columns.sums(np.array([1, 20, 300, 4000, 50000], np.int64))
    assert (blocks.tolist(), racks.tolist()) == ([21, 4300], [21, 300])


def test_koordinators_node_without_a_label_of_the_lowest_layer_has_a_domain_of_its_own() -> None:
    definition = TopologyDefinition(
        CLUSTER_NETWORK_TOPOLOGY, "default", "u", "1", (BLOCK, RACK, HOST), fills_lowest=True
    )
    tree = tree_of(LabelPaths(definition), TWO_RACKS)
    assert tree.columns([]).domains[1] == (("b1", "r1"), ("b2", "n4"), ("b2", "r1"))
    assert tree.outside == (1, 1, 1)


def test_of_several_labels_of_a_level_the_first_that_is_set_tells_the_domain() -> None:
    level = TopologyLevel("rack", ("new", "old"))
    paths = LabelPaths(TopologyDefinition(CLUSTER_NETWORK_TOPOLOGY, "default", "u", "1", (level,)))
    assert paths.path("n", {"old": "a", "new": "b"}) == ("b", "n")
    assert paths.path("n", {"old": "a", "new": ""}) == ("a", "n")


_LABELS = st.dictionaries(st.sampled_from(["block", "rack"]), st.sampled_from(["", "x", "y", "z"]))
_STEPS = st.lists(st.tuples(st.sampled_from(["n1", "n2", "n3", "n4", "x7"]), st.none() | _LABELS), max_size=30)
_HYPER_NODES = (
    HyperNode("top", "u", "1", 2, "", (HyperNodeMember(hyper_node="low"), HyperNodeMember(node="n1"))),
    HyperNode("low", "u", "1", 1, "", (HyperNodeMember(labels=(Requirement("rack", "In", ("x",)),)),)),
    HyperNode("other", "u", "1", 1, "", (HyperNodeMember(pattern="^n[34]$"),)),
)


@pytest.mark.parametrize("paths", [LabelPaths(DEFINITION), HyperNodePaths(_HYPER_NODES)], ids=["labels", "hyper-nodes"])
@given(steps=_STEPS)
def test_a_tree_that_followed_the_nodes_is_the_tree_of_the_nodes_that_are_left(
    paths: Paths, steps: list[tuple[str, dict[str, str] | None]]
) -> None:
    followed = TopologyTree(paths)
    left: dict[str, dict[str, str]] = {}
    for name, labels in steps:
        followed.columns([name])  # what is kept from one question to the next must not outlive a change
        if labels is None:
            followed.remove(name)
            left.pop(name, None)
        else:
            followed.put(name, labels)
            left[name] = labels
    rebuilt = tree_of(paths, left)
    names = ["n4", "n3", "n2", "n1", "x7"]
    one, other = followed.columns(names), rebuilt.columns(names)
    assert one.domains == other.domains
    for these, those in ((one.of_rows, other.of_rows), (one.parents, other.parents)):
        assert [array.tolist() for array in these] == [array.tolist() for array in those]
    assert (followed.outside, followed.problems) == (rebuilt.outside, rebuilt.problems)


def test_topologies_side_by_side_follow_the_same_nodes() -> None:
    book = TopologyBook()
    book.node_seen("n1", {"block": "b1", "rack": "r1"})
    book.definition_seen(DEFINITION)
    book.hyper_node_seen(HyperNode("low", "u", "1", 1, "", (HyperNodeMember(pattern="n"),)))
    assert book.topologies() == [TopologyKey("HyperNode.topology.volcano.sh", ""), TopologyKey(KAI_TOPOLOGY, "t")]
    book.node_seen("n2", {"block": "b9"})
    hyper_nodes, labels = (book.tree(key).columns(["n1", "n2"]) for key in book.topologies())
    assert hyper_nodes.domains[0] == (("low",),)
    assert labels.domains[0] == (("b1",), ("b9",))
    book.hyper_node_seen(HyperNode("low", "u", "2", 1, "", (HyperNodeMember(node="n2"),)))
    assert book.tree(book.topologies()[0]).columns(["n1", "n2"]).of_rows[0].tolist() == [-1, 0]
