"""Queues in a cycle: limits, quotas, and what is taken back from whom."""

from typing import Any

from kaicore.engine.decisions import EvictionReason
from kaicore.events import payloads
from kaicore.model.pod import Pod
from kaicore.queues.refusals import QueueRefusal

from tests.factory import pod
from tests.hierarchy import queue
from tests.workloads import OWNER, Workloads

QUEUE_LABEL = "kai.scheduler/queue"


def cluster_of(*queues: Any, nodes: int = 2) -> Workloads:
    """Nodes of 8 GPUs and some queues."""
    cluster = Workloads()
    for number in range(nodes):
        cluster.add_node(f"n{number}", cpu=64, gpu=8)
    for one in queues:
        cluster.record(f"queue/{one.name}", payloads.QueueObserved(one))
    return cluster


def of(name: str, of_queue: str, gpu: int, **kwargs: Any) -> Pod:
    """A pod of a queue."""
    return pod(name, cpu=1, gpu=gpu, labels={QUEUE_LABEL: of_queue}, owner=OWNER, **kwargs)


def test_a_limit_holds_whatever_is_free() -> None:
    cluster = cluster_of(queue("a", quota=4, limit=4))
    first = cluster.add_pod(of("first", "a", 4))
    cluster.add_pod(of("second", "a", 4, created_at=1))
    result = cluster.cycle()
    assert set(cluster.placed(result)) == {first.name}
    (group,) = result.groups
    assert group.reasons[0].code == QueueRefusal.OVER_LIMIT
    assert not cluster.cycle().evictions


def test_what_is_beyond_the_share_is_taken_back_and_no_more() -> None:
    cluster = cluster_of(queue("a", quota=8), queue("b", quota=8))
    greedy = [cluster.add_pod(of(f"a{number}", "a", 4)) for number in range(4)]
    cluster.full(greedy)
    cluster.add_pod(of("b0", "b", 8, created_at=5))
    result = cluster.cycle()
    assert set(cluster.evicted(result).values()) == {EvictionReason.RECLAIMED}
    assert len(result.evictions) == 2
    cluster.go(result)
    assert set(cluster.placed(cluster.cycle())) == {"b0"}
    cluster.add_pod(of("b1", "b", 8, created_at=6))
    assert not cluster.cycle().evictions, "both have their due"


def test_lower_priority_within_the_queue_makes_way_for_a_limit_too() -> None:
    cluster = cluster_of(queue("a", quota=4, limit=4))
    low = cluster.add_pod(of("low", "a", 4, priority=1))
    cluster.full(low)
    cluster.add_pod(of("high", "a", 4, priority=5))
    result = cluster.cycle()
    assert cluster.evicted(result) == {"low": EvictionReason.PREEMPTED}
