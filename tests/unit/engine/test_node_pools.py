"""Shards by node pool, as KAI-Scheduler has them: nodes, groups and queues divided by a label."""

from typing import Any

import pytest
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.work.provisioning import ProvisioningConfig
from kaicore.rules.events.payloads import NodeDeleted, NodeObserved, QueueObserved
from kaicore.rules.model.queue import NODE_POOL_LABEL
from kaicore.rules.topology.placing.request import TopologyStrategy

from tests.given.cluster.factory import Cluster, node, pod
from tests.given.cluster.hierarchy import queue
from tests.given.logs.replaying import replayed

POOLS = {"red": EngineConfig(node_pool="red"), "default": EngineConfig(node_pool="")}


def pool_cluster() -> Cluster:
    cluster = Cluster()
    for name, labels in (("n1", {NODE_POOL_LABEL: "red"}), ("n2", {}), ("n3", {NODE_POOL_LABEL: "blue"})):
        cluster.record(f"node/{name}", NodeObserved(node(name, cpu=8, memory=8, gpu=2, labels=labels)))
    for name, pool in (("p-red", "red"), ("p-default", ""), ("p-blue", "blue")):
        cluster.add_pod(pod(name, cpu=1, gpu=1, labels={NODE_POOL_LABEL: pool} if pool else {}))
    return cluster


def cycle(cluster: Cluster, shard: str) -> dict[str, str]:
    proposal = decide(cluster.state, POOLS[shard], shard=shard, now=cluster.now, actor=shard)
    cluster.append(proposal.units)
    return {one.name: one.node for one in proposal.result.placements}


def test_each_shard_places_its_pools_pods_on_its_pools_nodes() -> None:
    cluster = pool_cluster()
    assert cycle(cluster, "red") == {"p-red": "n1"}
    assert cycle(cluster, "default") == {"p-default": "n2"}
    assert set(cluster.state.waiting) == {"uid-p-blue"}, "no shard is for its pool"
    assert replayed(cluster).differences == []


def test_a_full_pool_does_not_spill_over_and_its_reasons_are_about_its_nodes() -> None:
    cluster = pool_cluster()
    for number in range(3):
        cluster.add_pod(pod(f"more-{number}", cpu=1, gpu=1, labels={NODE_POOL_LABEL: "red"}))
    assert set(cycle(cluster, "red").values()) == {"n1"}
    (pending,) = decide(cluster.state, POOLS["red"], shard="red", now=cluster.now, actor="red").result.pending
    assert sum(reason.nodes for reason in pending.reasons if hasattr(reason, "nodes")) == 1


def test_a_pool_without_nodes_says_so() -> None:
    cluster = pool_cluster()
    cluster.record("node/n1", NodeDeleted("uid-n1", "n1"))
    (pending,) = decide(cluster.state, POOLS["red"], shard="red", now=cluster.now, actor="red").result.pending
    assert [str(reason) for reason in pending.reasons] == ["no node is in node pool red"]


def test_a_queues_quota_is_of_its_pools_nodes_among_its_pools_queues() -> None:
    cluster = pool_cluster()
    for name, pool in (("a", "red"), ("b", "red"), ("c", "")):
        cluster.record(f"queue/{name}", QueueObserved(queue(name, quota=1, node_pool=pool)))
    accounts = cluster.state.queue_accounts(POOLS["red"], now=cluster.now)
    assert [one.name for one in accounts.tree.queues if one.uid] == ["a", "b"]
    whole = cluster.state.queue_accounts(EngineConfig(), now=cluster.now)
    assert [one.name for one in whole.tree.queues if one.uid] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("node_pool", ""),
        ("topology_strategy", TopologyStrategy.SPREAD),
        ("provisioning", ProvisioningConfig(class_name="check-capacity")),
    ],
)
def test_a_setting_that_is_not_made_leaves_the_digest_of_settings_as_it_was(name: str, value: Any) -> None:
    made = EngineConfig(**{name: value})
    assert name not in EngineConfig().document()
    assert made.digest() != EngineConfig().digest()
    assert EngineConfig.recorded(made.document()) == made
