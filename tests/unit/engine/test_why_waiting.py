"""Reasons of pods that start one by one: none is lost, and none is recorded pod by pod."""

import pytest
from kaicore.rules.deciding.cycle_input import next_retry
from kaicore.rules.deciding.why import notes, pending_reasons
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.queue import Queue

from tests.given.cluster.factory import pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.workloads import NO_PROMISES, OWNER, Workloads

QUEUE_LABEL = "kai.scheduler/queue"
HOUR = 3_600_000_000


def full(*, nodes: int = 1, of_queue: str = "", queues: tuple[Queue, ...] = ()) -> Workloads:
    """Nodes of 8 GPUs, each taken by two pods of low priority."""
    cluster = Workloads().queues(*queues)
    labels = {"app": "low", **({QUEUE_LABEL: of_queue} if of_queue else {})}
    for node in range(nodes):
        cluster.add_node(f"n{node}", cpu=64, gpu=8)
        for half in range(2):
            cluster.runs(f"low-{node}-{half}", f"n{node}", 4, priority=1, owner=OWNER, labels=labels)
    return cluster


def why(cluster: Workloads, one: Pod) -> list[Reason]:
    """The reason why a pod waits, as recorded."""
    return pending_reasons(cluster.state.pods[one.uid], cluster.state)


def texts(cluster: Workloads, one: Pod) -> list[str]:
    """The same in words, less what nodes say."""
    return [str(reason) for reason in why(cluster, one) if reason.code != "InsufficientResource"]


def test_pod_without_a_queue_is_in_the_default_one_and_why_says_how_it_gets_another() -> None:
    cluster = full(queues=(queue("a", quota=4),))
    one = cluster.add_pod(pod("one", cpu=1, gpu=2, owner=OWNER))
    for each in (one, cluster.state.pods["uid-low-0-0"].pod):
        (note,) = notes(cluster.state.pods[each.uid], cluster.state)
        assert note.startswith("names no queue: it counts in queue default, which is no object and has no quota; ")
        assert "such as kai.scheduler/queue=a" in note
    cluster.add_pod(pod("one", cpu=1, gpu=2, labels={QUEUE_LABEL: "a"}))
    assert not notes(cluster.state.pods[one.uid], cluster.state)
    cluster.queues(queue("default"))
    assert not notes(cluster.state.pods["uid-low-0-0"].pod and cluster.state.pods["uid-low-0-0"], cluster.state)


def test_pod_that_never_preempts_says_so() -> None:
    cluster = full()
    one = cluster.add_pod(pod("one", cpu=1, gpu=8, priority=9, preemption_policy="Never"))
    cluster.cycle(NO_PROMISES)
    assert [reason.code for reason in why(cluster, one)] == ["InsufficientResource", "NeverPreempts"]


def test_preemptor_without_victims_says_so() -> None:
    cluster = full()
    one = cluster.add_pod(pod("one", cpu=100, gpu=8, priority=9))
    other = cluster.add_pod(pod("other", cpu=63, gpu=8, priority=9))
    firm = cluster.add_pod(pod("firm", cpu=2, gpu=0, priority=10, node_name="n0", phase="Running"))
    cluster.cycle(NO_PROMISES)
    assert texts(cluster, other) == ["Preempted: evicting all allowed victims would not make room"]
    assert "NodeTooSmall" in {reason.code for reason in why(cluster, one)}, "and no victims are looked for"
    assert not why(cluster, firm)


@pytest.mark.parametrize(
    ("allowed", "words"),
    [
        (0, "PodDisruptionBudget default/b protects 2 pods that could make way: it allows 0 disruptions now"),
        (1, "PodDisruptionBudget default/b protects 2 pods that could make way: it allows 1 disruption now"),
    ],
)
def test_victims_under_a_used_up_budget_are_named_with_it(allowed: int, words: str) -> None:
    cluster = full()
    cluster.budget(allowed)
    one = cluster.add_pod(pod("one", cpu=1, gpu=8, priority=9))
    assert not cluster.cycle().evictions
    assert words in texts(cluster, one)


def test_pods_under_several_budgets() -> None:
    cluster = full()
    for name in "bc":
        cluster.budget(1, name=name)
    one = cluster.add_pod(pod("one", cpu=1, gpu=4, priority=9))
    assert not cluster.cycle(NO_PROMISES).evictions, "the API server would refuse"
    assert texts(cluster, one)[1:] == [
        "no pod under several PodDisruptionBudgets can be evicted: 2 pods that could make way, by default/b, default/c"
    ]


def test_budget_that_protected_no_pod_is_not_named() -> None:
    cluster = full()
    cluster.budget(0)
    cluster.add_pod(pod("firm", cpu=1, gpu=0, priority=10, node_name="n0", phase="Running"))
    one = cluster.add_pod(pod("one", cpu=64, gpu=8, priority=9))
    cluster.cycle()
    assert "ProtectedByDisruptionBudget" not in {reason.code for reason in why(cluster, one)}


def test_victims_within_their_minimum_runtime_are_named_with_its_end() -> None:
    queues = (queue("a", reclaim_min_runtime_us=HOUR), queue("b", quota=8))
    cluster = full(queues=queues, of_queue="a")
    one = cluster.add_pod(pod("one", cpu=1, gpu=8, labels={QUEUE_LABEL: "b"}))
    result = cluster.cycle()
    assert not result.evictions
    (reason,) = [reason for reason in why(cluster, one) if reason.code == "WithinMinimumRuntime"]
    began = cluster.state.workload_index.workloads["Pod/default/low-0-0"].started_at
    assert (reason.pods, reason.until) == (2, began + HOUR)
    assert result.due == began + HOUR
    cluster.now = result.due + 1_000_000
    assert len(cluster.cycle().evictions) == 2


def test_victims_of_a_delayed_group_are_named_with_the_end_of_its_delay() -> None:
    cluster = full()
    delayed = {"preemption_delay_us": 30_000_000, "created_at": cluster.now // 1_000_000}
    gang = cluster.gang("gang", 1, cpu=1, gpu=8, priority=9, group=delayed)
    result = cluster.cycle()
    (reason,) = [reason for reason in why(cluster, gang[0]) if reason.code == "PreemptionDelayNotElapsed"]
    assert result.due == reason.until
    assert next_retry(cluster.state, EngineConfig(), now=cluster.now, due=result.due) == result.due, "and no later"
    again = cluster.cycle()
    assert again.groups == result.groups, "what is recorded of it does not change from cycle to cycle"
    cluster.now = result.due
    assert cluster.cycle().evictions


def test_reasons_of_many_groups_are_recorded_once() -> None:
    cluster = full(queues=(queue("a", limit=0), queue("b", quota=8)), of_queue="b")
    many = [
        cluster.add_pod(pod(f"{name}-{number}", cpu=1, gpu=8, labels={QUEUE_LABEL: name}))
        for number in range(50)
        for name in "ab"
    ]
    odd = cluster.add_pod(pod("odd", cpu=1, gpu=8, labels={QUEUE_LABEL: "b"}, priority=1, preemption_policy="Never"))
    assert not cluster.cycle(NO_PROMISES).groups
    assert {reason.code for reason in why(cluster, many[0])} >= {"OverLimit"}
    assert "OverLimit" not in {reason.code for reason in why(cluster, many[1])}
    assert "NeverPreempts" in {reason.code for reason in why(cluster, odd)}
    assert "NeverPreempts" not in {reason.code for reason in why(cluster, many[1])}


def test_group_with_other_reasons_than_most_is_recorded_alone_and_taken_back() -> None:
    cluster = full()
    cluster.budget(0)
    many = [cluster.add_pod(pod(f"p{number}", cpu=1, gpu=8, priority=9)) for number in range(5)]
    odd = cluster.add_pod(pod("odd", cpu=1, gpu=8, priority=9, preemption_policy="Never"))
    (group,) = cluster.cycle(NO_PROMISES).groups
    assert group.group == "Pod/default/odd"
    assert "NeverPreempts" in {reason.code for reason in why(cluster, odd)}
    assert "NeverPreempts" not in {reason.code for reason in why(cluster, many[0])}
    cluster.see(odd, preemption_policy="PreemptLowerPriority")
    cluster.cycle(NO_PROMISES)
    assert "Pod/default/odd" not in cluster.state.reasons.by_group
    assert why(cluster, odd) == why(cluster, many[0])
    cluster.restart()
    assert why(cluster, odd) == why(cluster, many[0])


def test_a_successor_fits_only_if_its_queue_lets_it() -> None:
    cluster = full(nodes=2, queues=(queue("a", limit=16), queue("b")), of_queue="a")
    cluster.delete_pod(cluster.state.pods["uid-low-1-0"].pod)
    cluster.delete_pod(cluster.state.pods["uid-low-1-1"].pod)
    one = pod("one", cpu=1, gpu=8, priority=9, node_selector={"x": "y"}, labels={QUEUE_LABEL: "a"})
    cluster.add_node("n0", cpu=64, gpu=8, labels={"x": "y"})
    cluster.add_pod(one)
    fits = {eviction.name: eviction.fits_on for eviction in cluster.cycle().evictions}
    assert fits == {"low-0-0": "n1", "low-0-1": "n1"}
    narrow = full(nodes=1, queues=(queue("a", limit=8),), of_queue="a")
    narrow.add_node("n1", cpu=64, gpu=8)
    narrow.add_pod(pod("one", cpu=1, gpu=8, priority=9, labels={QUEUE_LABEL: "a"}))
    fits = {eviction.name: eviction.fits_on for eviction in narrow.cycle().evictions}
    assert fits == {"low-0-0": "", "low-0-1": ""}


def test_protected_pods_that_could_not_be_evicted_anyway_are_not_named() -> None:
    cluster = full()
    cluster.budget(0)
    high = cluster.add_pod(pod("high", cpu=1, gpu=8, priority=9))
    low = cluster.add_pod(pod("low", cpu=1, gpu=8, priority=1))
    cluster.cycle()
    assert "ProtectedByDisruptionBudget" in {reason.code for reason in why(cluster, high)}
    assert [reason.code for reason in why(cluster, low)] == ["InsufficientResource"]
