"""The statuses of HyperNodes and ClusterNetworkTopologies."""

from collections.abc import Mapping

from kaicore.rules.model.node import (
    CLUSTER_NETWORK_TOPOLOGY,
    HyperNode,
    HyperNodeMember,
    TopologyDefinition,
    TopologyLevel,
)
from kaicore.rules.topology.paths import HyperNodePaths, LabelPaths
from kaicore.rules.topology.published import detail_status, hyper_node_conditions, node_counts
from kaicore.rules.topology.tree import TopologyTree

LAYERS = (
    TopologyLevel("SpineLayer", ("spine",)),
    TopologyLevel("BlockLayer", ("block",)),
    TopologyLevel("NodeTopologyLayer"),
)


def cluster_network_topology(nodes: Mapping[str, Mapping[str, str]], levels: tuple[TopologyLevel, ...]) -> TopologyTree:
    definition = TopologyDefinition(CLUSTER_NETWORK_TOPOLOGY, "default", "u", "1", levels, fills_lowest=True)
    tree = TopologyTree(LabelPaths(definition))
    for name, labels in nodes.items():
        tree.put(name, labels)
    return tree


def info(layer: str, name: str) -> dict[str, str]:
    return {"topologyLayer": layer, "topologyName": name}


def test_detail_status_is_the_seeds_example_with_sorted_names() -> None:
    """Koordinator's page on network topologies; its own lists are not sorted, its code sorts them."""
    blocks = {"s1": ("b2", "b1"), "s2": ("b3", "b4")}
    nodes = {
        f"{block}-{number}": {"spine": spine, "block": block}
        for spine, names in blocks.items()
        for block in names
        for number in range(2)
    }
    status = detail_status(cluster_network_topology(nodes, LAYERS))
    assert status[:3] == [
        {
            "topologyInfo": info("ClusterTopologyLayer", ""),
            "childTopologyLayer": "SpineLayer",
            "childTopologyNames": ["s1", "s2"],
            "nodeNum": 8,
        },
        {
            "topologyInfo": info("SpineLayer", "s1"),
            "parentTopologyInfo": info("ClusterTopologyLayer", ""),
            "childTopologyLayer": "BlockLayer",
            "childTopologyNames": ["b1", "b2"],
            "nodeNum": 4,
        },
        {
            "topologyInfo": info("BlockLayer", "b1"),
            "parentTopologyInfo": info("SpineLayer", "s1"),
            "childTopologyLayer": "NodeTopologyLayer",
            "nodeNum": 2,
        },
    ]
    assert [one["topologyInfo"]["topologyName"] for one in status] == ["", "s1", "b1", "b2", "s2", "b3", "b4"]


def test_detail_status_leaves_out_nodes_that_are_not_in_every_layer() -> None:
    nodes = {"n1": {"spine": "s1", "block": "b1"}, "n2": {"spine": "s1"}, "n3": {"block": "b1"}}
    status = detail_status(cluster_network_topology(nodes, LAYERS))
    # Without a label of the lowest layer n2 is a block of its own.
    assert [(one["topologyInfo"]["topologyName"], one["nodeNum"]) for one in status] == [
        ("", 2),
        ("s1", 2),
        ("b1", 1),
        ("n2", 1),
    ]


def test_detail_status_without_nodes_has_the_cluster_alone() -> None:
    assert detail_status(cluster_network_topology({}, LAYERS)) == [
        {"topologyInfo": info("ClusterTopologyLayer", ""), "nodeNum": 0}
    ]


def test_detail_status_of_nodes_without_layers_names_no_children() -> None:
    assert detail_status(cluster_network_topology({"n1": {}}, LAYERS[2:])) == [
        {"topologyInfo": info("ClusterTopologyLayer", ""), "childTopologyLayer": "NodeTopologyLayer", "nodeNum": 1}
    ]


def hyper_node(name: str, tier: int, *, nodes: tuple[str, ...] = (), within: tuple[str, ...] = ()) -> HyperNode:
    members = (
        *(HyperNodeMember(node=node) for node in nodes),
        *(HyperNodeMember(hyper_node=one) for one in within),
    )
    return HyperNode(name, f"uid-{name}", "1", tier, members=members)


def of_hyper_nodes(*hyper_nodes: HyperNode, nodes: tuple[str, ...] = ("n1", "n2", "n3")) -> TopologyTree:
    tree = TopologyTree(HyperNodePaths(hyper_nodes))
    for name in nodes:
        tree.put(name, {})
    return tree


def test_a_hyper_node_counts_the_nodes_of_its_members() -> None:
    tree = of_hyper_nodes(
        hyper_node("s0", 1, nodes=("n1", "n2", "missing")),
        hyper_node("s1", 1, nodes=("n3",)),
        hyper_node("s3", 3, within=("s0", "s1")),
        hyper_node("empty", 2),
    )
    assert node_counts(tree) == {"s0": 2, "s1": 1, "s3": 3}


def test_a_contradiction_is_told_by_all_and_named_by_those_that_have_to_be_mended() -> None:
    paths = HyperNodePaths(
        [hyper_node("a", 2, within=("b",)), hyper_node("b", 2, within=("a",)), hyper_node("c", 1, nodes=("n1",))]
    )
    conditions = hyper_node_conditions(["a", "b", "c"], paths.wrong, {})
    assert conditions["a"][0][1:] == (False, "InvalidDefinition", "HyperNodes a, b contain each other")
    assert conditions["b"][0].reason == "InvalidDefinition"
    assert conditions["c"][0].reason == "InvalidTopology"
    assert conditions["c"][0].message == (
        "no HyperNode is used until others are mended: HyperNodes a, b contain each other"
    )


def test_nodes_in_several_hyper_nodes_are_told_by_each_with_the_others() -> None:
    tree = of_hyper_nodes(
        hyper_node("s0", 1, nodes=("n1", "n2")), hyper_node("s1", 1, nodes=("n2",)), hyper_node("s2", 1, nodes=("n3",))
    )
    overlaps = {node: error.domains for node, error in tree.overlaps.items()}
    conditions = hyper_node_conditions(["s0", "s1", "s2"], (), overlaps)
    assert conditions["s0"][1][1:] == (
        True,
        "NodesInSeveral",
        "node n2 is also in s1; such nodes are in no HyperNode",
    )
    assert conditions["s1"][1].message == "node n2 is also in s0; such nodes are in no HyperNode"
    assert not conditions["s2"][1].true
    assert all(ready.true for ready, _ in conditions.values())


def test_very_many_problems_are_counted() -> None:
    overlaps = {f"n{number}": ("s0", "s1") for number in range(7)}
    (_, overlapping) = hyper_node_conditions(["s0"], (), overlaps)["s0"]
    assert overlapping.message.endswith("node n4 is also in s1; and 2 more; such nodes are in no HyperNode")
