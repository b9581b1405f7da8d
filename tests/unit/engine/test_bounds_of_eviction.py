"""Bounds of the search for victims: budgets, minimum runtimes, most groups and steps, and the first action."""

import pytest
from kaicore.rules.engine.config import Action, EngineConfig, PlacementStrategy
from kaicore.rules.engine.decisions import EvictionReason

from tests.given.cluster.factory import pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.workloads import OWNER, gpu_nodes

QUEUE_LABEL = "kai.scheduler/queue"
SECOND = 1_000_000


@pytest.mark.parametrize(("allowed", "gone"), [(0, 0), (1, 0), (2, 2)])
def test_budget_holds_for_all_victims_together(allowed: int, gone: int) -> None:
    cluster = gpu_nodes(1)
    for number in range(2):
        cluster.runs(f"low{number}", "n0", 4, labels={"app": "a"})
    cluster.budget(allowed)
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    assert len(cluster.cycle().evictions) == gone


def test_budget_holds_over_preemptors_and_cycles() -> None:
    cluster = gpu_nodes(2)
    for node in ("n0", "n1"):
        cluster.runs(f"low-{node}", node, 8, labels={"app": "a"})
    cluster.budget(1)
    for number in range(2):
        cluster.add_pod(pod(f"high{number}", cpu=1, gpu=8, priority=5))
    assert len(cluster.cycle().evictions) == 1
    assert not cluster.cycle().evictions, "the first has not even gone"


def test_pod_under_a_used_up_budget_is_spared_for_a_dearer_one() -> None:
    cluster = gpu_nodes(2)
    cluster.runs("cheap", "n0", 8, labels={"app": "a"})
    cluster.runs("dear", "n1", 8, priority=3)
    cluster.budget(0)
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    assert set(cluster.evicted(cluster.cycle())) == {"dear"}


def test_budget_does_not_count_a_pod_that_does_not_run_yet() -> None:
    cluster = gpu_nodes(1)
    cluster.add_pod(pod("low", cpu=1, gpu=8, node_name="n0", labels={"app": "a"}))
    cluster.budget(0)
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    assert set(cluster.evicted(cluster.cycle())) == {"low"}


@pytest.mark.parametrize(
    ("frees_unready", "unready", "budgets", "gone"),
    [(True, True, 1, 1), (True, False, 1, 0), (False, True, 1, 0), (True, True, 2, 0)],
)
def test_unready_pod_goes_where_its_only_budget_frees_it(
    frees_unready: bool, unready: bool, budgets: int, gone: int
) -> None:
    cluster = gpu_nodes(1)
    cluster.runs("low", "n0", 8, labels={"app": "a"}, unready=unready)
    for number in range(budgets):
        cluster.budget(0, name=f"b{number}", frees_unready=frees_unready)
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    assert len(cluster.cycle().evictions) == gone


def test_unready_pods_take_no_disruption_from_the_ready_ones() -> None:
    cluster = gpu_nodes(1)
    for number in range(2):
        cluster.runs(f"low{number}", "n0", 4, labels={"app": "a"}, unready=number == 0)
    cluster.budget(1, frees_unready=True)
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    assert len(cluster.cycle().evictions) == 2


@pytest.mark.parametrize(("of_queue", "reason"), [("a", EvictionReason.PREEMPTED), ("b", EvictionReason.RECLAIMED)])
def test_group_before_its_minimum_runtime_is_not_evicted(of_queue: str, reason: EvictionReason) -> None:
    runtimes = {"preempt_min_runtime_us": 60 * SECOND, "reclaim_min_runtime_us": 60 * SECOND}
    cluster = gpu_nodes(1).queues(*(queue(name, quota=quota, **runtimes) for name, quota in (("a", 0), ("b", 8))))
    cluster.full(cluster.add_pod(pod("low", cpu=1, gpu=8, labels={QUEUE_LABEL: "a"})))
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5, labels={QUEUE_LABEL: of_queue}))
    cluster.now += 59 * SECOND
    assert not cluster.cycle().evictions
    cluster.now += 2 * SECOND
    assert cluster.evicted(cluster.cycle()) == {"low": reason}


def test_pods_above_the_minimum_have_no_minimum_runtime() -> None:
    cluster = gpu_nodes(1).queues(queue("a", quota=8, preempt_min_runtime_us=60 * SECOND))
    cluster.full(cluster.gang("low", 2, least=1, cpu=1, gpu=4, labels={QUEUE_LABEL: "a"}))
    cluster.add_pod(pod("high", cpu=1, gpu=4, priority=5, labels={QUEUE_LABEL: "a"}))
    (eviction,) = cluster.cycle().evictions
    assert eviction.shrinks
    cluster.add_pod(pod("higher", cpu=1, gpu=8, priority=6, labels={QUEUE_LABEL: "a"}))
    assert not cluster.cycle().evictions


@pytest.mark.parametrize(("most", "moved"), [(0, 0), (1, 0), (2, 2)])
def test_groups_beyond_consolidate_groups_are_not_moved(most: int, moved: int) -> None:
    """Only both of n0 can make way: who is on n1 would not be made again."""
    cluster = gpu_nodes(2)
    for number in range(2):
        cluster.runs(f"n0-{number}", "n0", 2, owner=OWNER)
    cluster.runs("n1-0", "n1", 4)
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    assert len(cluster.cycle(EngineConfig(consolidate_groups=most)).evictions) == moved


PACK, SPREAD = PlacementStrategy.BINPACK, PlacementStrategy.SPREAD


@pytest.mark.parametrize(
    ("gpu", "cpu", "moved"), [(PACK, None, 1), (SPREAD, None, 0), (PACK, SPREAD, 0), (SPREAD, PACK, 0)]
)
def test_pods_are_not_moved_where_any_are_to_be_spread(
    gpu: PlacementStrategy, cpu: PlacementStrategy | None, moved: int
) -> None:
    cluster = gpu_nodes(2)
    for node in ("n0", "n1"):
        cluster.runs(f"half-{node}", node, 4, owner=OWNER)
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    assert len(cluster.cycle(EngineConfig(placement_strategy=gpu, cpu_placement_strategy=cpu)).evictions) == moved


def test_search_ends_after_search_steps() -> None:
    def searched(steps: int) -> tuple[int, bool]:
        cluster = gpu_nodes(4)
        for number in range(4):
            # No two nodes are alike, so that each is tried.
            cluster.runs(f"low{number}", f"n{number}", 8, priority=-number)
        for name, cpu in (("one", 1), ("two", 2)):
            cluster.gang(name, 2, cpu=cpu, gpu=8, priority=5)
        result = cluster.cycle(EngineConfig(search_steps=steps))
        ended = any(reason.code == "VictimSearchEnded" for group in result.groups for reason in group.reasons)
        return len(result.evictions), ended

    assert searched(0) == (0, True)
    assert searched(1) == (0, True), "not in the middle of a search, either"
    assert searched(8) == (2, True)
    assert searched(1000) == (4, False)


def test_search_for_one_group_leaves_steps_for_the_next() -> None:
    cluster = gpu_nodes(4)
    for number in range(4):
        cluster.runs(f"low{number}", f"n{number}", 8, priority=-number)
    cluster.gang("first", 4, cpu=1, gpu=8, priority=6)
    cluster.gang("next", 1, cpu=1, gpu=8, priority=5)
    result = cluster.cycle(EngineConfig(search_steps=5))
    (waiting,) = result.groups
    assert [reason.code for reason in waiting.reasons][-1] == "VictimSearchEnded"
    assert [eviction.preemptor.rpartition("/")[2] for eviction in result.evictions] == ["next"]


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        ((Action.CONSOLIDATE, Action.RECLAIM), EvictionReason.CONSOLIDATED),
        ((Action.RECLAIM, Action.CONSOLIDATE), EvictionReason.RECLAIMED),
        ((Action.RECLAIM,), EvictionReason.RECLAIMED),
        ((), None),
    ],
)
def test_first_action_of_the_configuration_decides(actions: tuple[Action, ...], reason: EvictionReason | None) -> None:
    cluster = gpu_nodes(2).queues(*(queue(name, quota=quota) for name, quota in (("a", 8), ("b", 4))))
    for node in ("n0", "n1"):
        cluster.runs(f"half-{node}", node, 4, owner=OWNER, labels={QUEUE_LABEL: "b"})
    cluster.add_pod(pod("whole", cpu=1, gpu=8, labels={QUEUE_LABEL: "a"}))
    result = cluster.cycle(EngineConfig(actions=(Action.ALLOCATE, *actions)))
    assert {eviction.reason for eviction in result.evictions} == ({reason} if reason else set())


def test_what_a_queue_is_owed_is_not_taken_though_more_is_promised_than_there_is() -> None:
    cluster = gpu_nodes(2).queues(*(queue(name, quota=8) for name in ("a", "b", "c")))
    for node, name in (("n0", "a"), ("n1", "b")):
        for number in range(2):
            cluster.runs(f"{name}{number}", node, 4, labels={QUEUE_LABEL: name})
    cluster.add_pod(pod("c0", cpu=1, gpu=4, labels={QUEUE_LABEL: "c"}, priority=9))
    assert not cluster.cycle().evictions
