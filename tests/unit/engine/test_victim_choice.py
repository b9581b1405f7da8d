"""The choice among several victims: a table of cases, and the figures that decide them."""

from typing import NamedTuple

import pytest
from kaicore.rules.deciding.why import story_of
from kaicore.rules.engine.config import Action, EngineConfig
from kaicore.rules.engine.victims.eviction_cost import Ending, PodSizes, cost_of, cost_parts
from kaicore.rules.events.payloads import EvictionCost
from kaicore.rules.model.pod import Pod

from tests.given.cluster.factory import amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.workloads import Workloads

QUEUE_LABEL = "kai.scheduler/queue"
HOUR = 3600


class Runs(NamedTuple):
    """A pod that runs: `hours` since it started."""

    name: str
    node: str
    gpu: int
    priority: int = 1
    hours: int = 1
    queue: str = ""
    cpu: int = 1


def a_pod(one: Runs, *, now: int, uid: str = "") -> Pod:
    labels = {QUEUE_LABEL: one.queue} if one.queue else {}
    return pod(
        one.name,
        uid=uid or f"uid-{one.name}",
        cpu=one.cpu,
        gpu=one.gpu,
        priority=one.priority,
        node_name=one.node,
        phase="Running",
        labels=labels,
        start_time=now // 1_000_000 - one.hours * HOUR,
    )


def nodes(*gpus: int) -> Workloads:
    cluster = Workloads()
    for number, gpu in enumerate(gpus):
        cluster.add_node(f"n{number}", cpu=64, gpu=gpu)
    return cluster


@pytest.mark.parametrize(
    ("sizes", "running", "wanted", "goes"),
    [
        pytest.param((8, 8), [Runs("a", "n0", 8), Runs("b", "n1", 8)], 8, {"a"}, id="of equals the first by name"),
        pytest.param((16,), [Runs("b", "n0", 8), Runs("a", "n0", 8)], 8, {"a"}, id="on one node as well"),
        pytest.param((16,), [Runs(name, "n0", 4) for name in "dcba"], 8, {"a", "b"}, id="two of four equals"),
        pytest.param((8, 8), [Runs("a", "n0", 8, hours=2), Runs("b", "n1", 8)], 8, {"b"}, id="the younger"),
        pytest.param((8, 8), [Runs("a", "n0", 8), Runs("b", "n1", 4), Runs("c", "n1", 4, priority=9)], 4, {"b"},
                     id="the smaller where both suffice"),
        pytest.param((12,), [Runs("a", "n0", 8), Runs("b", "n0", 4)], 4, {"b"}, id="the smaller on one node"),
        pytest.param((8, 8), [Runs("a", "n0", 8, hours=1), Runs("b", "n1", 4, hours=99), Runs("c", "n1", 4, 9)], 4,
                     {"b"}, id="the smaller though it is older"),
        pytest.param((12,), [Runs("a", "n0", 8), Runs("b", "n0", 2), Runs("c", "n0", 2)], 4, {"b", "c"},
                     id="two small rather than one large"),
        pytest.param((8,), [Runs("a", "n0", 4), Runs("b", "n0", 2), Runs("c", "n0", 2)], 4, {"a"},
                     id="one rather than two that hold as much"),
        pytest.param((8, 8), [Runs("a", "n0", 8, priority=2), *(Runs(name, "n1", 2) for name in "bcde")], 8,
                     {*"bcde"}, id="any number of a lower priority, which a higher one would only evict in its turn"),
        pytest.param((8, 8), [Runs("a", "n0", 8), Runs("b", "n1", 4, priority=2), Runs("c", "n1", 4, 9)], 4, {"a"},
                     id="lower priority though it is larger"),
        pytest.param((8, 8, 8), [Runs("a", "n0", 4), Runs("b", "n0", 4), Runs("c", "n1", 8, 2), Runs("d", "n2", 8)], 8,
                     {"d"}, id="the fewest of the lowest priority"),
        pytest.param((8, 8), [Runs("a", "n0", 8, cpu=60), Runs("b", "n1", 8, cpu=1)], 8, {"a"},
                     id="what is large in one resource is not larger for another"),
    ],
)  # fmt: skip
def test_victim_is_the_one_of_the_lowest_cost(
    sizes: tuple[int, ...], running: list[Runs], wanted: int, goes: set[str]
) -> None:
    cluster = nodes(*sizes)
    for one in running:
        cluster.add_pod(a_pod(one, now=cluster.now))
    cluster.add_pod(pod("high", cpu=1, gpu=wanted, priority=5))
    assert set(cluster.evicted(cluster.cycle())) == goes


def test_equal_costs_go_by_name_whatever_their_uids() -> None:
    cluster = nodes(16)
    for name, uid in (("a", "z"), ("b", "y")):
        cluster.add_pod(a_pod(Runs(name, "n0", 8), now=cluster.now, uid=uid))
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    assert set(cluster.evicted(cluster.cycle())) == {"a"}


def test_without_a_start_time_the_creation_time_counts() -> None:
    cluster = nodes(8, 8)
    for name, node, created_at in (("a", "n0", 1), ("b", "n1", cluster.now // 1_000_000 - 60)):
        cluster.add_pod(pod(name, cpu=1, gpu=8, priority=1, node_name=node, phase="Running", created_at=created_at))
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    assert set(cluster.evicted(cluster.cycle())) == {"b"}


RECLAIM = EngineConfig(actions=(Action.ALLOCATE, Action.RECLAIM))


@pytest.mark.parametrize(
    ("running", "goes"),
    [
        pytest.param([Runs("a0", "n0", 8, queue="a"), Runs("a1", "n1", 8, queue="a")], {"a0"},
                     id="below its quota where there is no other choice"),
        pytest.param([Runs("a0", "n0", 8, queue="a"), Runs("a1", "n1", 2, 9, queue="a"), Runs("c", "n1", 6, queue="c")],
                     {"a1"}, id="higher priority, where the lower would take it below its quota"),
        pytest.param([Runs("a0", "n0", 8, queue="a"), Runs("a1", "n1", 2, queue="a"), Runs("c", "n1", 6, queue="c")],
                     {"a1"}, id="the smaller, which is all that it is over"),
    ],
)  # fmt: skip
def test_no_queue_falls_below_its_quota_where_another_choice_keeps_it_there(
    running: list[Runs], goes: set[str]
) -> None:
    cluster = nodes(8, 8)
    quotas = {"a": 8 if len(running) > 2 else 12, "b": 2, "c": 6}
    cluster.queues(*(queue(name, quota=quota) for name, quota in quotas.items()))
    for one in running:
        cluster.add_pod(a_pod(one, now=cluster.now))
    cluster.add_pod(pod("new", cpu=1, gpu=2, labels={QUEUE_LABEL: "b"}))
    assert set(cluster.evicted(cluster.cycle(RECLAIM))) == goes


def test_a_team_keeps_its_quota_where_another_of_its_department_is_over() -> None:
    """The department owes four; the first team has no more than its quota, and its pods cost less."""
    cluster = nodes(16)
    shares = {"d": ("", 12), "d/1": ("d", 4), "d/2": ("d", 8), "e": ("", 4)}
    cluster.queues(*(queue(name, above, quota=quota) for name, (above, quota) in shares.items()))
    cluster.add_pod(a_pod(Runs("one", "n0", 4, priority=1, queue="d/1"), now=cluster.now))
    for number in range(3):
        cluster.add_pod(a_pod(Runs(f"two-{number}", "n0", 4, priority=5, queue="d/2"), now=cluster.now))
    cluster.add_pod(pod("new", cpu=1, gpu=4, labels={QUEUE_LABEL: "e"}))
    assert set(cluster.evicted(cluster.cycle(RECLAIM))) == {"two-0"}


def test_the_queues_order_is_looked_at_again_after_each_group_that_was_helped() -> None:
    """Both are owed four by a third: each is given two, instead of the first all that it asks for."""
    cluster = nodes(4).queues(*(queue(name, quota=quota) for name, quota in (("a", 4), ("b", 4), ("c", 0))))
    for number in range(4):
        cluster.add_pod(a_pod(Runs(f"c{number}", "n0", 1, queue="c"), now=cluster.now))
    for name in "ab":
        for number in range(4):
            cluster.add_pod(pod(f"{name}{number}", cpu=1, gpu=1, created_at=number, labels={QUEUE_LABEL: name}))
    assert sorted(cluster.nominated(cluster.cycle(RECLAIM))) == ["a0", "a1", "b0", "b1"]


def test_eviction_for_room_records_its_cost_and_the_node_that_came_next() -> None:
    cluster = nodes(8, 8)
    for one in (Runs("a", "n0", 8, hours=2), Runs("b", "n1", 4)):
        cluster.add_pod(a_pod(one, now=cluster.now))
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    (eviction,) = cluster.cycle().evictions
    assert (eviction.name, eviction.chosen_for, eviction.runner_up) == ("b", "pod/default/high", "node/n0")
    assert eviction.cost == EvictionCost(rank=1, pods=1, size=10_000, minutes=60)
    assert eviction.runner_up_cost is not None
    assert eviction.runner_up_cost.pods == 1
    story = story_of([event for event in cluster.events if event.stream == "pod/uid-b"])[-1].text
    assert "chosen for pod/default/high at cost 1/10000/1/60, before node/n0 at cost 1/20000/1/120 or more" in story


@pytest.mark.parametrize(
    ("checkpoints", "goes"),
    [
        pytest.param({}, "b", id="without checkpoints the one that started last"),
        pytest.param({"a": 300}, "a", id="the one that wrote a checkpoint lately"),
        pytest.param({"a": 300, "b": 200}, "b", id="the later checkpoint"),
        pytest.param({"a": 24 * HOUR}, "b", id="a checkpoint from before the start counts for nothing"),
    ],
)
def test_of_equal_victims_the_one_that_loses_least_work_goes(checkpoints: dict[str, int], goes: str) -> None:
    cluster = nodes(8, 8)
    for one in (Runs("a", "n0", 8, hours=2), Runs("b", "n1", 8)):
        cluster.add_pod(a_pod(one, now=cluster.now))
    for name, ago in checkpoints.items():
        cluster.see(cluster.state.pods[f"uid-{name}"].pod, checkpoint_at=cluster.now // 1_000_000 - ago)
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    (eviction,) = cluster.cycle().evictions
    assert eviction.name == goes
    lost = checkpoints.get(goes, HOUR)
    assert lost * 8 <= eviction.lost_gpu_seconds <= (lost + 60) * 8, (
        "its 8 GPUs' work, and of the log's own time a little"
    )
    assert "GPU-hours of work" in story_of([one for one in cluster.events if one.stream == f"pod/uid-{goes}"])[-1].text


def test_eviction_for_a_limit_records_the_queue_and_the_pod_that_came_next() -> None:
    cluster = nodes(16).queues(queue("q", quota=8, limit=8))
    for one in (Runs("a", "n0", 4, queue="q"), Runs("b", "n0", 4, queue="q")):
        cluster.add_pod(a_pod(one, now=cluster.now))
    cluster.add_pod(pod("high", cpu=1, gpu=4, priority=5, labels={QUEUE_LABEL: "q"}))
    (eviction,) = cluster.cycle().evictions
    assert (eviction.name, eviction.chosen_for, eviction.runner_up) == ("a", "queue/q", "pod/default/b")
    assert eviction.cost == eviction.runner_up_cost == EvictionCost(rank=1, pods=1, size=5000, minutes=60)


def test_eviction_without_another_choice_records_no_runner_up() -> None:
    cluster = nodes(8)
    cluster.add_pod(a_pod(Runs("only", "n0", 8), now=cluster.now))
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    (eviction,) = cluster.cycle().evictions
    assert (eviction.runner_up, eviction.runner_up_cost) == ("", None)
    assert eviction.cost is not None


def test_cost_of_a_victim_has_the_documented_figures() -> None:
    """Each figure is above all that come after it: two of the first are more than many of the others."""
    one = {"rank": 1, "ending": Ending.SHRINKS, "pods": 1, "size": 1, "minutes": 1}
    many = {"ending": Ending.FAILS, "pods": 500_000, "size": 10**10, "minutes": 10**9, "extra": 10**6}
    assert cost_of(**one | {"rank": 2}) > cost_of(**one | many)
    assert cost_of(**one | {"ending": Ending.ENDS}) == cost_of(**one | {"size": 2})
    assert cost_of(**one | {"extra": 1}) > cost_of(**one | {"size": 10**10, "minutes": 10**9})
    assert cost_of(**one | {"size": 2}) > cost_of(**one | {"minutes": 10**9})
    assert cost_of(**one | {"size": 2, "pods": 2}) > cost_of(**one | {"size": 2, "minutes": 10**9})
    assert cost_of(**one | {"minutes": 2}) > cost_of(**one)
    both = cost_of(**one | {"rank": 3, "size": 5}) + cost_of(**one | {"ending": Ending.ENDS, "size": 7, "extra": 4})
    assert cost_parts(both) == EvictionCost(rank=3, policies=4, size=5 + 2 * 7, pods=2, minutes=2)


def test_group_that_can_spare_pods_goes_before_one_that_would_end() -> None:
    """A gang counts for what all of its pods hold, not for one victim."""
    cluster = nodes(4, 8)
    for name, count, least in (("fixed", 4, 4), ("elastic", 8, 4)):
        cluster.full(cluster.gang(name, count, least=least, cpu=1, gpu=1, group={"priority": 1}))
    cluster.add_pod(pod("high", cpu=1, gpu=3, priority=5))
    assert set(cluster.evicted(cluster.cycle())) == {"elastic-0", "elastic-1", "elastic-2"}


def test_size_of_a_group_has_the_documented_figures() -> None:
    """Parts of what the largest node has, of whichever resource it is most."""
    sizes = PodSizes(nodes(4, 8).state.columns)
    assert sizes.of(amounts(cpu=16, gpu=1)) == 2500
    assert sizes.of(amounts(cpu=1, gpu=8)) == 10_000
    assert sizes.of({"pods": 1}) == 0
    assert sizes.of({"example.com/no-node-has-it": 5, "cpu": 1}) == 1
