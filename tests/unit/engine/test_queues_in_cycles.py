"""Queues in a cycle: limits, quotas, and from which queues is taken back."""

from typing import Any

import pytest
from kaicore.rules.engine.config import Action, EngineConfig
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.queue import QueueShare
from kaicore.rules.state.registries.queue_registry import figures
from msgspec.structs import replace

from tests.given.cluster.factory import pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.workloads import NO_PROMISES, OWNER, Workloads

QUEUE_LABEL = "kai.scheduler/queue"


def cluster_of(*queues: Any, nodes: int = 2) -> Workloads:
    cluster = Workloads().add_nodes(nodes, cpu=64, gpu=8)
    for one in queues:
        cluster.record(f"queue/{one.name}", payloads.QueueObserved(one))
    return cluster


def of_kueue(gpus: int) -> dict[str, QueueShare]:
    """A ClusterQueue's quotas."""
    return {"cpu": QueueShare(quota=10**6), "nvidia.com/gpu": QueueShare(quota=gpus), "memory": QueueShare(quota=2**50)}


def of(name: str, of_queue: str, gpu: int, **kwargs: Any) -> Pod:
    return pod(name, cpu=1, gpu=gpu, labels={QUEUE_LABEL: of_queue}, owner=OWNER, **kwargs)


def test_a_limit_holds_whatever_is_free() -> None:
    cluster = cluster_of(queue("a", quota=4, limit=4))
    first = cluster.add_pod(of("first", "a", 4))
    cluster.add_pod(of("second", "a", 4, created_at=1))
    result = cluster.cycle(NO_PROMISES)
    assert set(cluster.placed(result)) == {first.name}
    (alone,) = result.pending[0].alone
    assert alone.reasons[0].code == "OverLimit"
    assert not cluster.cycle(NO_PROMISES).evictions


@pytest.mark.parametrize("controlled", [True, False])
def test_a_pod_that_kueue_admitted_starts_whatever_its_queue_asks_besides(controlled: bool) -> None:
    cluster = cluster_of(
        queue("ClusterQueue/c", shares=of_kueue(4), unsupported=("admission checks",), controlled=controlled),
        queue("default/train", alias_of="ClusterQueue/c"),
    )
    labels = {"kueue.x-k8s.io/queue-name": "train"}
    gated = pod("p", cpu=1, gpu=1, labels=labels, owner=OWNER, scheduling_gates=("kueue.x-k8s.io/admission",))
    cluster.add_pod(gated)
    assert code_of_waiting(cluster) == "SchedulingGated"
    cluster.add_pod(replace(gated, labels={**labels, "kueue.x-k8s.io/podset": "main"}, scheduling_gates=()))
    if controlled:
        assert set(cluster.placed(cluster.cycle())) == {"p"}
    else:
        assert code_of_waiting(cluster) == "QueueUnsupported"


def code_of_waiting(cluster: Workloads) -> str:
    (waiting,) = cluster.cycle().pending
    return (*waiting.reasons, *(reason for one in waiting.alone for reason in one.reasons))[0].code


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
    cluster.full(cluster.add_pod(of("low", "a", 4, priority=1)))
    cluster.add_pod(of("high", "a", 4, priority=5))
    assert cluster.evicted(cluster.cycle()) == {"low": EvictionReason.PREEMPTED}


def test_the_limit_of_a_department_is_lifted_by_its_own_work() -> None:
    """The limit of both is in the way of b before any pod is evicted, and is not when its sibling has given back."""
    cluster = cluster_of(queue("d", quota=8, limit=8), queue("a", "d", quota=4), queue("b", "d", quota=4))
    cluster.full([cluster.add_pod(of(f"a{number}", "a", 1, created_at=number)) for number in range(8)])
    cluster.gang("b", 4, cpu=1, gpu=1, labels={QUEUE_LABEL: "b"}, created_at=9)
    result = cluster.cycle()
    assert set(cluster.evicted(result).values()) == {EvictionReason.RECLAIMED}
    assert len(result.evictions) == 4
    cluster.go(result)
    assert len(cluster.placed(cluster.cycle())) == 4
    cluster.add_pod(of("b4", "b", 1, created_at=20))
    assert not cluster.cycle().evictions, "both have their due"


def test_a_limit_is_not_promised_twice() -> None:
    """Room that is kept counts below a limit from the next cycle on, though the pod it is for does not run yet."""
    cluster = cluster_of(
        queue("d", quota=8, limit=4), queue("a", "d", quota=4), queue("b", "d", quota=4), queue("e", quota=2), nodes=1
    )
    cluster.full([cluster.add_pod(of(f"e{number}", "e", 1, created_at=number)) for number in range(8)])
    cluster.add_pod(of("a0", "a", 2, created_at=9))
    first = cluster.cycle()
    assert len(first.evictions) == 2
    cluster.add_pod(of("b0", "b", 4, created_at=10, priority=-1))
    second = cluster.cycle()
    assert not second.evictions
    assert "OverLimit" in {
        one.code for alone in second.pending for explained in alone.alone for one in explained.reasons
    }
    cluster.go(first)
    assert set(cluster.placed(cluster.cycle())) == {"a0"}


def test_pod_that_relieves_no_limit_stays() -> None:
    """d is full, and so are the nodes: e uses more than its quota, too, and costs less, but is no help below d."""
    cluster = cluster_of(
        queue("d", quota=8, limit=4), queue("a", "d", quota=2), queue("b", "d", quota=2), queue("e", quota=2), nodes=1
    )
    cluster.add_node("small", cpu=64, gpu=4)
    for number in range(2):
        cluster.add_pod(of(f"e{number}", "e", 4, node_name="n0", phase="Running"))
        cluster.add_pod(of(f"a{number}", "a", 2, node_name="small", phase="Running", priority=3))
    cluster.add_pod(of("b0", "b", 2, created_at=9))
    assert cluster.evicted(cluster.cycle()) in ({"a0": "Reclaimed"}, {"a1": "Reclaimed"})


def test_other_pods_go_as_well_where_relieving_a_limit_makes_no_room() -> None:
    """No node is free of e, and without a the limit of d stays in the way."""
    cluster = cluster_of(queue("d", quota=8, limit=8), queue("a", "d"), queue("b", "d", quota=8), queue("e"), nodes=3)
    for node, held in (("n0", "ae"), ("n1", "ee"), ("n2", "ae")):
        for number, name in enumerate(held):
            cluster.add_pod(of(f"{name}-{node}-{number}", name, 4, node_name=node, phase="Running"))
    cluster.add_pod(of("b0", "b", 8, created_at=9))
    result = cluster.cycle()
    assert sorted(eviction.name[0] for eviction in result.evictions) == ["a", "a", "e"]
    assert cluster.nominated(result)["b0"] != "n1", "who goes for the limit is of use for the room"


def test_one_large_pod_goes_for_a_limit_rather_than_many_small_ones() -> None:
    cluster = cluster_of(queue("d", quota=8, limit=8), queue("a", "d", quota=4), queue("b", "d", quota=4))
    cluster.full([cluster.add_pod(of("large", "a", 4))])
    cluster.now += 600_000_000
    cluster.full([cluster.add_pod(of(f"small{number}", "a", 1)) for number in range(4)])
    cluster.add_pod(of("b0", "b", 4, created_at=9))
    assert set(cluster.evicted(cluster.cycle())) == {"large"}


def test_pods_that_relieve_a_limit_go_where_room_is_needed() -> None:
    """One on each node is young and costs less, but b needs a whole node, and its sibling owes it no more than one."""
    cluster = cluster_of(queue("d", quota=16, limit=16), queue("a", "d", quota=8), queue("b", "d", quota=8), nodes=0)
    for node in ("n0", "n1"):
        cluster.add_node(node, cpu=64, gpu=8, labels={"host": node})
    for age in range(2):
        both = [of(f"{node}-{age}", "a", 4, node_selector={"host": node}) for node in ("n0", "n1")]
        cluster.full([cluster.add_pod(one) for one in both])
        cluster.now += 50 * 60_000_000
    cluster.add_pod(of("b0", "b", 8, created_at=9))
    result = cluster.cycle()
    assert len({eviction.node for eviction in result.evictions}) == 1
    assert len(result.evictions) == 2


def test_one_queue_gives_what_it_owes_and_another_the_rest() -> None:
    """a's pods cost less, but it is over its quota by one of them only."""
    cluster = cluster_of(*(queue(name, quota=8) for name in "abc"), nodes=3)
    for number in range(6):
        name = "ac"[number % 2]
        cluster.add_pod(
            of(f"{name}{number}", name, 4, node_name=f"n{number // 2}", phase="Running", priority=number % 2)
        )
    cluster.gang("b", 2, cpu=1, gpu=4, labels={QUEUE_LABEL: "b"}, created_at=9)
    assert sorted(name[0] for name in cluster.evicted(cluster.cycle())) == ["a", "c"]


def test_a_cohort_that_has_lent_everything_gives_nominal_quota_back() -> None:
    cohort = "Cohort/team"
    a = queue("ClusterQueue/a", cohort, quota=4, only_named=True, shares=of_kueue(4), may_preempt=False)
    b = queue("ClusterQueue/b", cohort, quota=4, only_named=True, shares=of_kueue(4), may_preempt=False)
    cluster = cluster_of(a, b)
    cluster.full([cluster.add_pod(of(f"a{number}", a.name, 1)) for number in range(8)])
    cluster.gang("b", 2, cpu=1, gpu=1, labels={QUEUE_LABEL: b.name}, created_at=9)
    result = cluster.cycle()
    assert set(cluster.evicted(result).values()) == {EvictionReason.RECLAIMED}
    assert len(result.evictions) == 2
    assert not any(eviction.fits_on for eviction in result.evictions), "the cohort has nothing left for successors"


@pytest.mark.parametrize("priority", [0, 1, 2])
def test_a_queue_that_takes_only_lower_priority_back(priority: int) -> None:
    """Kueue's `reclaimWithinCohort: LowerPriority`."""
    cluster = cluster_of(queue("a", quota=4), queue("b", quota=4, reclaims_lower=True), nodes=1)
    for number in range(2):
        cluster.add_pod(of(f"a{number}", "a", 4, priority=number))
    cluster.full()
    cluster.run(*(entry.pod for entry in cluster.state.pods.values()))
    cluster.add_pod(of("b0", "b", 4, priority=priority, created_at=9))
    assert set(cluster.evicted(cluster.cycle())) == ({"a0"} if priority else set())


def test_a_queue_that_spares_its_own_work_evicts_none_of_it() -> None:
    """Kueue's `withinClusterQueue: Never`."""
    cluster = cluster_of(queue("a", quota=8, may_preempt=False), nodes=1)
    cluster.full(cluster.add_pod(of("low", "a", 8, priority=1)))
    cluster.add_pod(of("high", "a", 8, priority=5, created_at=9))
    result = cluster.cycle(NO_PROMISES)
    assert not result.evictions
    (group,) = result.pending[0].alone
    assert group.reasons[-1].code == "QueueMayNotPreempt"


def test_quota_is_reclaimed_from_a_queue_over_its_own_though_within_its_share() -> None:
    """Eight GPUs are free, four on each node: b is within its fair share, but a has a right to a whole node."""
    cluster = cluster_of(queue("a", quota=8), queue("b", quota=4))
    for node in ("n0", "n1"):
        cluster.add_pod(of(f"b-{node}", "b", 4, node_name=node, phase="Running"))
    cluster.add_pod(of("a0", "a", 8, created_at=9))
    only = EngineConfig(actions=(Action.ALLOCATE, Action.RECLAIM))
    assert set(cluster.evicted(cluster.cycle(only)).values()) == {EvictionReason.RECLAIMED}


def test_department_reclaims_within_itself_though_pods_elsewhere_cost_less() -> None:
    """e's pods cost less, but with one gone d would be further over its share than e; so d settles it by itself."""
    shares = {"d": ("", 12), "d1": ("d", 6), "d2": ("d", 6), "e": ("", 12)}
    cluster = cluster_of(*(queue(name, above, quota=quota) for name, (above, quota) in shares.items()), nodes=3)
    layout = [("n0", "d2", 4), ("n0", "d2", 4), ("n1", "d2", 2), ("n1", "e", 6), ("n2", "e", 4), ("n2", "e", 4)]
    for index, (node, name, gpu) in enumerate(layout):
        priority = 1 if name == "e" else 2
        cluster.add_pod(of(f"{name}-{index}", name, gpu, node_name=node, phase="Running", priority=priority))
    cluster.add_pod(of("d1-0", "d1", 4, created_at=9))
    assert set(cluster.evicted(cluster.cycle())) < {"d2-0", "d2-1"}


def test_reasons_with_one_queue_name_no_shares() -> None:
    cluster = cluster_of(queue("a", quota=8), nodes=1)
    cluster.full(cluster.add_pod(of("first", "a", 8)))
    cluster.add_pod(of("second", "a", 8, created_at=9))
    result = cluster.cycle()
    codes = {reason.code for group in result.groups for reason in group.reasons}
    assert "OverFairShare" not in codes


def five_slots(*queues: Any) -> Workloads:
    """One node of five GPUs, on two of which a1 runs: it belongs to the first queue, and its priority is the lowest."""
    cluster = cluster_of(*queues, nodes=0).add_node("n0", cpu=64, gpu=5)
    cluster.full(cluster.gang("a1", 2, cpu=1, gpu=1, labels={QUEUE_LABEL: queues[0].name}))
    return cluster


def of_cohort(name: str, quota: int, **kwargs: Any) -> Any:
    return queue(f"ClusterQueue/{name}", "Cohort/c", only_named=True, shares=of_kueue(quota), **kwargs)


def in_queues(owner: str, other: str) -> dict[str, tuple[str, int, int]]:
    """The case of the issue: a2 is of middle priority and wants four slots, b1 is of low priority and wants three."""
    return {"a2": (owner, 4, 5), "b1": (other, 3, 1)}


A, B = "ClusterQueue/a", "ClusterQueue/b"


ONE = (queue("a", quota=5),)


@pytest.mark.parametrize(
    ("queues", "waiting", "room"),
    [
        pytest.param(ONE, in_queues("a", "a"), {"a2"}, id="one-queue"),
        pytest.param((of_cohort("a", 4), of_cohort("b", 1)), in_queues(A, B), {"a2"}, id="cohort"),
        pytest.param((of_cohort("a", 4), of_cohort("b", 4)), in_queues(A, B), {"a2"}, id="quotas-exceed-the-nodes"),
        pytest.param((queue("a", quota=4), queue("b", quota=4)), in_queues("a", "b"), {"a2"}, id="queues-of-kai"),
        pytest.param((of_cohort("a", 2), of_cohort("b", 3)), in_queues(A, B), set(), id="not-owed-so-much"),
        pytest.param(
            (of_cohort("a", 4, may_preempt=False), of_cohort("b", 1)), in_queues(A, B), set(), id="may-not-preempt"
        ),
        pytest.param(ONE, {"a2": ("a", 5, 5), "b1": ("a", 3, 1), "b2": ("a", 1, 1)}, {"a2"}, id="all-of-the-node"),
        pytest.param(ONE, {"a2": ("a", 4, 5), "b1": ("a", 3, 5)}, set(), id="equal-priority-that-fits-starts"),
        pytest.param(ONE, {"a2": ("a", 6, 5), "b1": ("a", 3, 1)}, set(), id="preemption-would-not-help"),
        pytest.param(ONE, {"a2": ("a", 4, 5), "b1": ("a", 1, 1)}, {"a2", "b1"}, id="room-enough-for-both"),
    ],
)
def test_room_that_a_preemptor_needs_is_not_taken_by_lower_priority(
    queues: tuple[Any, ...], waiting: dict[str, tuple[str, int, int]], room: set[str]
) -> None:
    """Either a1 makes room for who comes first, or nobody goes, and b1 starts on what is free."""
    cluster = five_slots(*queues)
    for age, (name, (of_queue, slots, priority)) in enumerate(waiting.items()):
        labels = {QUEUE_LABEL: of_queue}
        cluster.gang(name, slots, cpu=1, gpu=1, labels=labels, priority=priority, created_at=9 - age)
    result = cluster.cycle()
    assert {eviction.group.rpartition("/")[2] for eviction in result.evictions} == ({"a1"} if room else set())
    assert {nomination.group.rpartition("/")[2] for nomination in result.nominations} == room
    assert {placed.rpartition("-")[0] for placed in cluster.placed(result)} == (set() if room else {"b1"})
    cluster.go(result)
    later = cluster.cycle()
    assert not later.evictions, "who was evicted was all that it took"
    assert {placed.rpartition("-")[0] for placed in cluster.placed(later)} >= room


#: Of a ClusterQueue its quota, and of its head GPUs, priority and time of creation.
Head = tuple[int, int, int, int]


@pytest.mark.parametrize(
    ("heads", "first"),
    [
        pytest.param({"a": (8, 2, 1, 1), "b": (4, 3, 2, 1), "c": (1, 2, 3, 1)}, "b", id="none-borrows"),
        pytest.param({"a": (8, 2, 1, 2), "b": (4, 3, 1, 1)}, "b", id="none-borrows-the-older"),
        pytest.param({"a": (1, 3, 1, 1), "b": (1, 3, 2, 2), "c": (9, 9, 0, 3)}, "b", id="both-borrow"),
        pytest.param({"a": (1, 3, 1, 2), "b": (1, 4, 1, 1), "c": (9, 9, 0, 3)}, "b", id="both-borrow-the-older"),
        pytest.param({"a": (2, 3, 9, 1), "b": (2, 2, 1, 2)}, "b", id="one-borrows"),
    ],
)
def test_heads_of_one_cohort_go_by_borrowing_priority_and_age(heads: dict[str, Head], first: str) -> None:
    """There is room for one of them; shares with the work would decide otherwise."""
    cluster = cluster_of(*(of_cohort(name, quota) for name, (quota, *_) in heads.items()), nodes=0)
    cluster.add_node("n0", cpu=64, gpu=4)
    for name, (_, gpu, priority, age) in heads.items():
        cluster.add_pod(of(name, f"ClusterQueue/{name}", gpu, priority=priority, created_at=age))
    assert set(cluster.placed(cluster.cycle())) == {first}


def test_reason_names_the_group_that_room_is_kept_for() -> None:
    cluster = five_slots(queue("a", quota=5))
    cluster.gang("a2", 4, cpu=1, gpu=1, labels={QUEUE_LABEL: "a"}, priority=5)
    cluster.gang("b1", 3, cpu=1, gpu=1, labels={QUEUE_LABEL: "a"}, priority=1)
    cluster.gang("b2", 6, cpu=1, gpu=1, labels={QUEUE_LABEL: "a"}, priority=1)
    for _ in range(2):
        reasons = {one.group.rpartition("/")[2]: one.reasons for one in cluster.cycle().groups}
        kept, *others = reasons["b1"]
        assert str(kept) == (
            "would fit where room is kept for PodGroup.scheduling.sigs.k8s.io default/a2, which comes first: "
            "on 1 node (such as n0)"
        )
        assert others
        assert "RoomKeptForOthers" not in {reason.code for reason in reasons["b2"]}, "it would not fit without, either"


@pytest.mark.parametrize(("quota", "waits"), [(0, True), (4, False)])
def test_room_of_another_queue_is_taken_only_by_who_is_owed_it(quota: int, waits: bool) -> None:
    """One victim of two is gone when work of higher priority comes, of the queue that the room was taken back from."""
    cluster = cluster_of(queue("a"), queue("b", quota=8), nodes=0)
    cluster.add_nodes(2, cpu=64, gpu=4)
    cluster.full([cluster.add_pod(of(f"a{number}", "a", 4, priority=3)) for number in range(2)])
    cluster.gang("b", 2, cpu=1, gpu=4, labels={QUEUE_LABEL: "b"}, created_at=9)
    result = cluster.cycle()
    assert len(result.evictions) == 2
    cluster.queues(queue("a", quota=quota))
    cluster.delete_pod(cluster.state.pods[result.evictions[0].uid].pod)
    cluster.add_pod(of("successor", "a", 4, priority=3, created_at=10))
    assert set(cluster.placed(cluster.cycle())) == (set() if waits else {"successor"})


FIRM = {"kai.scheduler/preemptibility": "non-preemptible"}


def of_kai(gpus: int) -> dict[str, QueueShare]:
    """The shares of a Queue of KAI that bounds GPUs only."""
    return {"cpu": QueueShare(quota=None), "memory": QueueShare(quota=None), "gpu": QueueShare(quota=gpus)}


def unnamed(name: str, gpu: int, **kwargs: Any) -> Pod:
    return pod(name, cpu=1, gpu=gpu, owner=OWNER, **kwargs)


def test_work_without_a_queue_goes_on_when_the_first_queue_is_created_and_gives_way_to_its_quota() -> None:
    cluster = cluster_of()
    cluster.full(cluster.add_pod(unnamed("before", 8)))
    cluster.queues(queue("a", quota=8))
    cluster.full(cluster.add_pod(unnamed("after", 8)))
    accounts = cluster.state.queue_accounts(EngineConfig(), now=cluster.now)
    assert accounts.used[accounts.tree.implied_default] == [16]
    cluster.add_pod(of("a0", "a", 8))
    assert list(cluster.evicted(cluster.cycle()).values()) == [EvictionReason.RECLAIMED]
    cluster.queues(queue("default", quota=16))
    assert cluster.state.queue_registry.tree.implied_default == -1


def test_work_without_a_queue_that_cannot_be_preempted_has_what_quotas_leave() -> None:
    cluster = cluster_of(queue("a", quota=8), queue("b", quota=None))
    for number in range(2):
        cluster.add_pod(unnamed(f"firm{number}", 8, labels=FIRM, created_at=number))
    result = cluster.cycle(NO_PROMISES)
    assert set(cluster.placed(result)) == {"firm0"}
    (waiting,) = result.pending
    reasons = {str(reason) for alone in waiting.alone for reason in alone.reasons}
    assert (
        "queue default would be 8 gpu over its quota with work that cannot be preempted: 8 gpu asked for, 0 left"
        in reasons
    )


def test_gpus_count_once_where_queues_of_both_dialects_are() -> None:
    """KAI's queue counts them as `gpu`, the ClusterQueue by their name; what is divided is the same 16."""
    cluster = cluster_of(queue("team", shares=of_kai(8)), of_cohort("a", 8))
    firm = [of("team", "team", 8, priority=100), of("a", A, 8, priority=100)]
    cluster.full([cluster.add_pod(one) for one in firm])
    accounts = cluster.state.queue_accounts(EngineConfig(), now=cluster.now)
    by_name = figures(accounts)
    for name, resource in (("team", "gpu"), (A, "nvidia.com/gpu")):
        figure = by_name[name]
        for amounts in (figure.allocated, figure.requested, figure.non_preemptible, figure.fair_share):
            assert {key: amount for key, amount in amounts.items() if key.endswith("gpu")} == {resource: 8}
    tree = accounts.tree
    a, gpu = tree.find(A), tree.resources.index("gpu")
    assert a is not None
    assert (tree.quotas[a][gpu], accounts.used[a][gpu]) == (8, 8)


def test_cluster_queue_takes_its_gpus_back_from_a_queue_of_kai() -> None:
    cluster = cluster_of(queue("team", shares=of_kai(8)), of_cohort("a", 8))
    cluster.full([cluster.add_pod(of(f"team{number}", "team", 4)) for number in range(4)])
    cluster.add_pod(of("a", A, 8, created_at=9))
    result = cluster.cycle()
    assert list(cluster.evicted(result).values()) == [EvictionReason.RECLAIMED] * 2
    cluster.go(result)
    assert set(cluster.placed(cluster.cycle())) == {"a"}
    cluster.add_pod(of("more", A, 1, created_at=10))
    assert not cluster.cycle().evictions, "both have their due"
