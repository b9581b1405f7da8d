"""Network topologies in the folded state: they follow definitions and nodes, and a snapshot keeps them."""

from kaicore.rules.events import payloads
from kaicore.rules.model.node import (
    HYPER_NODE,
    KUEUE_TOPOLOGY,
    HyperNode,
    HyperNodeMember,
    Node,
    TopologyDefinition,
    TopologyLevel,
)
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import decode_state, encode_state
from kaicore.rules.topology.book import TopologyBook, TopologyKey

from tests.given.cluster.factory import Cluster

RACKS = TopologyKey(KUEUE_TOPOLOGY, "racks")
HYPER_NODES = TopologyKey(HYPER_NODE, "")


def with_topologies() -> Cluster:
    cluster = Cluster()
    definition = TopologyDefinition(KUEUE_TOPOLOGY, "racks", "u-racks", "1", (TopologyLevel("rack", ("rack",)),))
    hyper_node = HyperNode("s0", "u-s0", "1", 1, "", (HyperNodeMember(pattern="^n"),))
    cluster.record("topology/racks", payloads.TopologyDefinitionObserved(definition))
    cluster.record("hypernode/s0", payloads.HyperNodeObserved(hyper_node))
    for name, rack in (("n1", "r1"), ("n2", "r2")):
        cluster.record(f"node/{name}", payloads.NodeObserved(Node(f"u-{name}", name, "1", labels={"rack": rack})))
    return cluster


def domains(state: ClusterState, key: TopologyKey) -> list[str]:
    return ["/".join(path) for path in state.network_topologies.tree(key).columns([]).domains[-1]]


def test_trees_follow_nodes_that_come_are_relabelled_and_go() -> None:
    cluster = with_topologies()
    assert domains(cluster.state, RACKS) == ["r1/n1", "r2/n2"]
    assert domains(cluster.state, HYPER_NODES) == ["s0/n1", "s0/n2"]
    cluster.record("node/n1", payloads.NodeObserved(Node("u-n1", "n1", "2", labels={"rack": "r9"})))
    assert domains(cluster.state, RACKS) == ["r2/n2", "r9/n1"]
    cluster.record("node/n2", payloads.NodeDeleted(uid="u-n2", name="n2"))
    assert domains(cluster.state, RACKS) == ["r9/n1"]
    assert domains(cluster.state, HYPER_NODES) == ["s0/n1"]


def test_a_topology_is_gone_with_its_object_and_not_with_one_before_it() -> None:
    cluster = with_topologies()
    for uid in ("u-before", "u-racks"):
        assert RACKS in cluster.state.network_topologies.topologies()
        cluster.record("topology/racks", payloads.TopologyDefinitionDeleted(kind=KUEUE_TOPOLOGY, uid=uid, name="racks"))
    cluster.record("hypernode/s0", payloads.HyperNodeDeleted(uid="u-s0", name="s0"))
    assert cluster.state.network_topologies.topologies() == []


def test_a_snapshot_keeps_topologies_and_goes_on_like_the_state_that_was_saved() -> None:
    cluster = with_topologies()
    restored = decode_state(encode_state(cluster.state))
    assert encode_state(restored) == encode_state(cluster.state)
    event = cluster.record("node/n3", payloads.NodeObserved(Node("u-n3", "n3", "1", labels={"rack": "r3"})))
    restored.fold(event)
    for key in (RACKS, HYPER_NODES):
        assert domains(restored, key) == domains(cluster.state, key)
    assert domains(restored, RACKS) == ["r1/n1", "r2/n2", "r3/n3"]


def test_columns_are_made_anew_only_when_a_path_changes_or_a_row_comes() -> None:
    book = TopologyBook()
    book.definition_seen(TopologyDefinition(KUEUE_TOPOLOGY, "racks", "u", "1", (TopologyLevel("rack", ("rack",)),)))
    book.node_seen("n0", {"rack": "a"})
    first = book.columns(RACKS, ["n0"])
    book.node_seen("n0", {"rack": "a", "other": "label"})
    assert book.columns(RACKS, ["n0"]) is first
    book.node_seen("n1", {"rack": "b"})
    assert book.columns(RACKS, ["n0", "n1"]).of_rows[0].tolist() == [0, 1]
    book.node_seen("n1", {"rack": "a"})
    assert book.columns(RACKS, ["n0", "n1"]).of_rows[0].tolist() == [0, 0]
    book.node_gone("n1")
    assert book.columns(RACKS, ["n0", "n1"]).of_rows[0].tolist() == [0, -1]
