"""Statuses of topologies are folded from the log, and written when they change."""

import msgspec
from kai_binder.projection.open_work import BinderProjection
from kai_binder.projection.topology_statuses import TopologyStatus
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload
from kaicore.rules.model.node import (
    CLUSTER_NETWORK_TOPOLOGY,
    HyperNode,
    HyperNodeMember,
    TopologyDefinition,
    TopologyLevel,
)

from tests.given.cluster.factory import node
from tests.given.logs.ledger import Ledger


class Story(Ledger):
    """A log with topologies, and a projection that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = BinderProjection()

    def tell(self, stream: str, payload: Payload) -> None:
        assert self.projection.fold(self.record(stream, payload)) is None

    def node(self, name: str, **labels: str) -> None:
        self.tell(f"node/{name}", payloads.NodeObserved(node(name, labels=labels)))

    def hyper_node(self, name: str, *nodes: str, uid: str = "") -> None:
        members = tuple(HyperNodeMember(node=one) for one in nodes)
        model = HyperNode(name, uid or f"uid-{name}", "1", 1, members=members)
        self.tell(f"hypernode/{name}", payloads.HyperNodeObserved(model))

    def news(self) -> list[TopologyStatus]:
        statuses = list(self.projection.topologies.news())
        for status in statuses:
            self.projection.topologies.mark_written(status)
        return statuses

    def restart(self) -> None:
        self.projection = BinderProjection.restored(self.projection.snapshot())


def counts(statuses: list[TopologyStatus]) -> dict[str, int]:
    return {status.name: status.status["nodeCount"] for status in statuses}


def test_a_status_is_told_when_the_tree_changes_and_not_again() -> None:
    story = Story()
    story.node("n1")
    story.hyper_node("s0", "n1", "n2")
    story.hyper_node("s1", "n3")
    assert counts(story.news()) == {"s0": 1, "s1": 0}
    assert story.news() == []
    story.node("n1", other="label")
    assert story.news() == []
    story.node("n2")
    assert counts(story.news()) == {"s0": 2}
    story.tell("node/n1", payloads.NodeDeleted("uid-n1", "n1"))
    assert counts(story.news()) == {"s0": 1}


def test_what_was_not_written_is_told_again() -> None:
    story = Story()
    story.hyper_node("s0")
    (lost,) = story.projection.topologies.news()
    story.node("n1")
    assert list(story.projection.topologies.news()) == [lost]


def test_a_binder_that_starts_again_tells_what_has_changed_alone() -> None:
    story = Story()
    story.node("n1", block="b1")
    story.hyper_node("s0", "n1")
    story.news()
    story.restart()
    assert story.news() == []
    story.node("n2")
    story.hyper_node("s0", "n1", "n2")
    assert counts(story.news()) == {"s0": 2}


def test_a_condition_keeps_the_time_since_when_it_has_been_so() -> None:
    story = Story()
    story.node("n1")
    story.hyper_node("s0", "n1")
    (first,) = story.news()
    story.hyper_node("s1", "n1")
    conditions = {status.name: status.status["conditions"] for status in story.news()}
    assert conditions["s0"][0] == first.status["conditions"][0]
    assert (conditions["s0"][1]["type"], conditions["s0"][1]["status"]) == ("Overlapping", "True")
    assert conditions["s0"][1]["message"] == "node n1 is also in s1; such nodes are in no HyperNode"


def test_another_object_of_the_name_is_told_anew() -> None:
    story = Story()
    story.hyper_node("s0")
    story.news()
    story.hyper_node("s0", uid="uid-another")
    assert [status.uid for status in story.news()] == ["uid-another"]
    story.tell("hypernode/s0", payloads.HyperNodeDeleted("uid-another", "s0"))
    assert story.news() == []


def test_a_cluster_network_topology_tells_its_domains() -> None:
    story = Story()
    story.node("n1", spine="s1")
    levels = (TopologyLevel("SpineLayer", ("spine",)), TopologyLevel("NodeTopologyLayer"))
    definition = TopologyDefinition(CLUSTER_NETWORK_TOPOLOGY, "default", "uid", "1", levels, fills_lowest=True)
    story.tell("topology/x", payloads.TopologyDefinitionObserved(definition))
    story.tell(
        "topology/y",
        payloads.TopologyDefinitionObserved(msgspec.structs.replace(definition, kind="Topology.kai.scheduler")),
    )
    (status,) = story.news()
    assert (status.kind, status.name) == (CLUSTER_NETWORK_TOPOLOGY, "default")
    assert [one["nodeNum"] for one in status.status["detailStatus"]] == [1, 1]
