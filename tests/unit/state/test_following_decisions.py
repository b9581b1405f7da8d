"""A decision holds only with those before it on its node: which zones a kubelet gives depends on the pods it has."""

from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.payloads import PodPlaced

from tests.given.cluster.factory import Cluster, amounts, container, pod
from tests.given.logs.replaying import replayed


def test_decisions_fall_with_a_stale_one_that_was_charged_to_their_node_before_them() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=4, gpu=4), amounts(cpu=4, gpu=4), policy="single-numa-node")
    cluster.add_node("n2", amounts(cpu=4), labels={"pool": "b"})
    first, second = pod("first", container(cpu=4, gpu=3), created_at=1), pod("second", container(gpu=2), created_at=2)
    elsewhere = pod("elsewhere", container(cpu=2), created_at=3, node_selector={"pool": "b"})
    for one in (first, second, elsewhere):
        cluster.add_pod(one)
    proposal = decide(cluster.state, EngineConfig(), shard="default", now=cluster.now, actor="scheduler")
    zones = {
        decision.name: [zone.zone for item in decision.placement.containers for zone in item.zones]
        for decision in proposal.result.placements
        if decision.placement is not None
    }
    assert zones == {"first": ["node-0"], "second": ["node-1"], "elsewhere": ["node-0"]}

    # `first` changes before the cycle is recorded: without it the kubelet gives `second` node-0.
    cluster.add_pod(pod("first", container(cpu=4, gpu=3), created_at=1, labels={"touched": "yes"}))
    cluster.append(proposal.units)
    placed = [cluster.decoded(event).name for event in cluster if event.type == "PodPlaced"]
    assert placed == ["elsewhere"]

    cluster.cycle()
    decisions = [cluster.decoded(event) for event in cluster if event.type == "PodPlaced"]
    assert [decision.name for decision in decisions] == ["elsewhere", "first", "second"]
    assert all(isinstance(decision, PodPlaced) for decision in decisions)

    report = replayed(cluster)
    assert (report.kinds, report.late) == ({}, 2)
