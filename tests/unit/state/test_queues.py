"""Queues in the state: what the fold counts under which queue, what is divided, what is reported, snapshots."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import Amounts, Pod
from kaicore.rules.model.queue import Queue, QueueShare
from kaicore.rules.queues.division import HOUR_US, FairShareConfig
from kaicore.rules.queues.tree import counted
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.registries.queue_registry import UsageKey
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import GPU, Cluster, pod
from tests.given.cluster.hierarchy import fair, queue
from tests.given.examples import examples

OURS = "kai-ledger"
CONFIG = EngineConfig()


def of_queue(name: str, queue_name: str, **kwargs: Any) -> Pod:
    labels = {"kai.scheduler/queue": queue_name} if queue_name else {}
    return pod(name, labels=labels, **kwargs)


def observe(cluster: Cluster, *queues: Queue) -> None:
    for one in queues:
        cluster.record(f"queue/{one.name}", payloads.QueueObserved(one))


def gpus(cluster: Cluster, name: str) -> tuple[int, int, int]:
    """GPUs that the work of a queue holds, that of it that may not be preempted, and that it waits for."""
    use = cluster.state.queue_registry.usages.get(UsageKey(OURS, name))
    if use is None:
        return 0, 0, 0
    return use.used.get(GPU, 0), use.non_preemptible.get(GPU, 0), use.pending.get(GPU, 0)


def fair_shares(cluster: Cluster, config: EngineConfig = CONFIG) -> dict[str, int]:
    accounts = cluster.state.queue_accounts(config, now=cluster.now)
    return fair(accounts.tree, accounts.shares)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster().add_node("n1", cpu=64, memory=256, gpu=8)


def test_a_pod_is_counted_as_it_waits_runs_and_ends(cluster: Cluster) -> None:
    one = cluster.add_pod(of_queue("p", "a", cpu=1, gpu=2))
    assert gpus(cluster, "a") == (0, 0, 2)
    cluster.cycle()
    assert gpus(cluster, "a") == (2, 0, 0)
    cluster.add_pod(of_queue("p", "a", cpu=1, gpu=2, node_name="n1", phase="Running", deletion_at=5))
    assert gpus(cluster, "a") == (0, 0, 0), "a pod that is being deleted is no longer held against the queue"
    cluster.delete_pod(one)
    assert gpus(cluster, "a") == (0, 0, 0)


def test_a_gated_pod_asks_for_nothing_yet(cluster: Cluster) -> None:
    cluster.add_pod(of_queue("p", "a", gpu=2, scheduling_gates=("wait",)))
    assert gpus(cluster, "a") == (0, 0, 0)
    cluster.add_pod(of_queue("p", "a", gpu=2))
    assert gpus(cluster, "a") == (0, 0, 2)


def test_a_group_that_moves_to_another_queue_takes_its_pods_along(cluster: Cluster) -> None:
    cluster.add_pod(of_queue("p", "a", gpu=2, priority=200))
    cluster.add_pod(of_queue("q", "a", gpu=1, node_name="n1", phase="Running"))
    assert (gpus(cluster, "a"), gpus(cluster, "b")) == ((1, 0, 2), (0, 0, 0))
    cluster.add_pod(of_queue("q", "b", gpu=1, node_name="n1", phase="Running"))
    assert (gpus(cluster, "a"), gpus(cluster, "b")) == ((0, 0, 2), (1, 0, 0))


def test_what_is_divided_is_what_ready_nodes_have_and_others_do_not_hold(cluster: Cluster) -> None:
    cluster.add_node("n2", cpu=64, gpu=4, ready=False)
    observe(cluster, queue("a"), queue("b"))
    for index in range(20):
        cluster.add_pod(of_queue(f"p{index:02}", "ab"[index % 2], gpu=1))
    assert fair_shares(cluster) == {"a": 4, "b": 4}
    cluster.add_node("n2", cpu=64, gpu=4)
    cluster.add_pod(pod("foreign", gpu=2, scheduler_name="default-scheduler", node_name="n1", phase="Running"))
    cluster.add_pod(of_queue("lost", "gone", gpu=4, node_name="n2", phase="Running"))
    assert fair_shares(cluster) == {"a": 3, "b": 3}


def test_without_queues_all_work_is_in_one(cluster: Cluster) -> None:
    cluster.add_pod(of_queue("p", "whatever", gpu=2))
    accounts = cluster.state.queue_accounts(CONFIG, now=cluster.now)
    assert [one.name for one in accounts.tree.queues] == ["default"]
    assert accounts.refusals(0, accounts.tree.demand({GPU: 10**9}), preemptible=False) == ()


def test_past_use_counts_against_a_queue(cluster: Cluster) -> None:
    observe(cluster, queue("a"), queue("b"))
    cluster.add_pod(of_queue("p", "a", gpu=8, node_name="n1", phase="Running"))
    cluster.now += 10 * HOUR_US
    for name in "ab":
        cluster.add_pod(of_queue(f"more-{name}", name, gpu=8))
    assert fair_shares(cluster) == {"a": 0, "b": 8}
    assert fair_shares(cluster, EngineConfig(fair_share=FairShareConfig(k_milli=0))) == {"a": 4, "b": 4}
    cluster.add_pod(of_queue("p", "a", gpu=8, node_name="n1", phase="Succeeded"))
    cluster.now += 30 * HOUR_US
    # Of 40 hours, a quarter.
    assert fair_shares(cluster) == {"a": 3, "b": 5}


def test_queues_are_reported_when_they_changed_and_not_too_often(cluster: Cluster) -> None:
    def reports() -> list[list[payloads.QueueFigures]]:
        events = [event for event in cluster.events if event.type == "QueuesReported"]
        return [list(cluster.decoded(event).queues) for event in events]

    observe(cluster, queue("d"), queue("a", "d", quota=2), queue("b", "d"))
    cluster.add_pod(of_queue("p", "a", gpu=3))
    cluster.cycle()
    figures = {
        "a": payloads.QueueFigures("a", "uid-a", {"gpu": 3}, fair_share={"gpu": 3}),
        "b": payloads.QueueFigures("b", "uid-b"),
        "d": payloads.QueueFigures("d", "uid-d", {"gpu": 3}, fair_share={"gpu": 3}, children=("a", "b")),
    }
    assert reports() == [[figures["a"], figures["b"], figures["d"]]]
    cluster.add_pod(of_queue("q", "b", gpu=9))
    cluster.cycle()
    assert len(reports()) == 1
    cluster.now += 10_000_000
    cluster.cycle()
    assert [item.queue for item in reports()[1]] == ["a", "b", "d"]
    assert reports()[1][0].allocated == {"gpu": 3}
    cluster.now += 10_000_000
    cluster.cycle()
    assert len(reports()) == 2


def test_queues_that_come_and_go_change_the_accounts(cluster: Cluster) -> None:
    observe(cluster, queue("a"), queue("b"))
    cluster.record("queue/a", payloads.QueueDeleted("another", "a"))
    assert sorted(cluster.state.queues) == ["a", "b"]
    cluster.record("queue/a", payloads.QueueDeleted("uid-a", "a"))
    assert sorted(cluster.state.queues) == ["b"]


# For every course of events.

_NAMES = ("a", "b", "")
_STEPS = st.tuples(
    st.sampled_from(["waits", "runs", "terminates", "ends", "goes", "cycle", "queue"]),
    st.integers(0, 4),
    st.sampled_from(_NAMES),
    st.sampled_from([0, 150]),
    st.integers(0, 2 * HOUR_US),
)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(_STEPS, max_size=25))
def test_accounts_are_those_of_the_pods_that_are_there(steps: list[tuple[str, int, str, int, int]]) -> None:
    cluster = Cluster().add_node("n1", cpu=64, memory=256, gpu=8)
    for what, index, name, priority, wait in steps:
        cluster.now += wait
        spec: dict[str, Any] = {"gpu": 1 + index % 2, "priority": priority}
        if what in ("runs", "terminates", "ends"):
            spec |= {"node_name": "n1", "phase": "Succeeded" if what == "ends" else "Running"}
        if what == "terminates":
            spec["deletion_at"] = 1
        if what == "cycle":
            cluster.cycle()
        elif what == "queue":
            observe(cluster, queue(name or "default", share=QueueShare(quota=index)))
        elif what == "goes":
            cluster.delete_pod(of_queue(f"p{index}", name, **spec))
        else:
            cluster.add_pod(of_queue(f"p{index}", name, **spec))
        expected = counted_slowly(cluster)
        uses = cluster.state.queue_registry.usages
        for account, use in uses.items():
            assert (use.used, use.non_preemptible, use.pending) == expected.pop(account, ({}, {}, {}))
            assert use.history.rate == counted(use.used)
        assert expected == {}
    again, used = ClusterState("test"), dict.fromkeys(cluster.state.queue_registry.usages, 0)
    for event, after in pairwise([*cluster.events, None]):
        assert event is not None
        again.fold(event)
        span_ms = 0 if after is None else after.recorded_at // 1000 - event.recorded_at // 1000
        for account in used.keys() & again.queue_registry.usages.keys():
            used[account] += again.queue_registry.usages[account].used.get(GPU, 0) * span_ms
    for account, use in again.queue_registry.usages.items():
        use.history.settle(again.recorded_at)
        assert sum(use.history.hours.get(GPU, {}).values()) == used[account]
    restored = decode_state(encode_state(cluster.state))
    assert encode_state(restored) == encode_state(cluster.state)
    assert restored.queue_registry.usages == cluster.state.queue_registry.usages


def counted_slowly(cluster: Cluster) -> dict[UsageKey, tuple[Amounts, Amounts, Amounts]]:
    totals: dict[UsageKey, tuple[Amounts, Amounts, Amounts]] = {}
    for entry in cluster.state.pods.values():
        one = entry.pod
        running = bool(entry.node) and entry.charged and one.deletion_at is None
        if not running and one.uid not in cluster.state.waiting:
            continue
        name = one.labels.get("kai.scheduler/queue", "")
        account = UsageKey(one.scheduler_name, name, "" if name else one.namespace)
        sums = totals.setdefault(account, ({}, {}, {}))
        wanted = [0] if running else [2]
        if running and one.priority >= 100 and name:
            wanted.append(1)
        for index in wanted:
            for resource, amount in entry.requests.items():
                sums[index][resource] = sums[index].get(resource, 0) + amount
    return totals


def test_a_what_if_weighs_the_same_history_otherwise(cluster: Cluster) -> None:
    observe(cluster, queue("a"), queue("b"))
    cluster.add_pod(of_queue("p", "a", gpu=8, node_name="n1", phase="Running"))
    cluster.now += 8 * HOUR_US
    cluster.add_pod(of_queue("p", "a", gpu=8, node_name="n1", phase="Succeeded"))
    cluster.now += 30 * HOUR_US
    for name in "ab":
        cluster.add_pod(of_queue(f"more-{name}", name, gpu=8))
    short = EngineConfig(fair_share=FairShareConfig(window_hours=4))
    assert fair_shares(cluster, short) == {"a": 4, "b": 4}
    assert fair_shares(cluster, EngineConfig(fair_share=FairShareConfig(k_milli=4000))) == {"a": 3, "b": 5}
