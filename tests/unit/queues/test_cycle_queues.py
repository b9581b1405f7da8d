"""Queues as a cycle asks about them: by group, with everything put back on demand."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.model.group import Group
from kaicore.rules.queues.cycle_queues import CycleQueues
from kaicore.rules.queues.division import FairShareConfig

from tests.given.cluster.hierarchy import accounts, queue, tree

GPU = "nvidia.com/gpu"
CONFIG = FairShareConfig(preempt_min_runtime_us=3, reclaim_min_runtime_us=5)


def group(name: str, **kwargs: Any) -> Group:
    return Group(key=name, namespace="ml", name=name, queue=name, **kwargs)


def gpus(count: int) -> dict[str, int]:
    return {GPU: count, "cpu": 1000}


@pytest.fixture
def queues() -> CycleQueues:
    of = tree(
        queue("a", quota=4),
        queue("b", quota=4, limit=6, reclaim_min_runtime_us=9),
        queue("c", quota=4, may_reclaim=False, may_preempt=False),
        queue("ClusterQueue/k"),
        queue("ml/default", alias_of="ClusterQueue/k"),
    )
    return CycleQueues(accounts(of, 12, used={"b": 6, "c": 3}, pending={"a": 4, "c": 1}), CONFIG)


def codes(reasons: tuple[Any, ...]) -> list[str]:
    return [reason.code for reason in reasons]


def test_work_is_charged_to_the_queue_and_those_above_it(queues: CycleQueues) -> None:
    assert queues.queue_of(group("a")) == "a"
    assert queues.queue_of(group("")) == "ClusterQueue/k"
    assert queues.queue_of(group("unknown")) == "unknown"


def test_work_starts_only_within_all_limits(queues: CycleQueues) -> None:
    assert queues.refusal(group("a"), gpus(9)) == ()
    assert codes(queues.refusal(group("a", preemptible=False), gpus(5))) == ["NonPreemptibleOverQuota"]
    assert codes(queues.refusal(group("b"), gpus(1))) == ["OverLimit"]
    assert codes(queues.refusal(group("unknown"), gpus(1))) == ["QueueDoesNotExist"]
    queues.release(group("b"), gpus(2))
    assert queues.refusal(group("b"), gpus(1)) == ()


def test_bounds_of_a_queue_that_kueue_keeps_are_not_asked_of_what_it_admitted() -> None:
    of = tree(queue("ClusterQueue/k", quota=2, limit=2, only_named=True, controlled=True))
    queues = CycleQueues(accounts(of, 12, used={}), CONFIG)
    asked = group("ClusterQueue/k"), gpus(4)
    assert codes(queues.refusal(*asked)) == ["ResourceNotCovered"]
    admitted = group("ClusterQueue/k", admitted=True)
    assert queues.refusal(admitted, gpus(4)) == ()
    queues.charge(admitted, gpus(4))
    assert queues.accounts.used[0] == [4], "it counts for all that"


def test_reclaim_needs_fair_share_and_a_preemptible_victim(queues: CycleQueues) -> None:
    assert queues.reclaim_refusal([(group("a"), gpus(4))]) == ()
    assert codes(queues.reclaim_refusal([(group("a"), gpus(5))])) == ["OverFairShare"]
    together = [(group("a"), gpus(2)), (group("a"), gpus(3))]
    assert codes(queues.reclaim_refusal(together)) == ["OverFairShare"]
    assert codes(queues.reclaim_refusal([(group("c"), gpus(1))])) == ["QueueMayNotReclaim"]
    assert codes(queues.reclaim_refusal([(group("unknown"), gpus(1))])) == ["QueueDoesNotExist"]
    one = [(group("a"), gpus(1))]
    assert queues.may_reclaim(one, group("b"))
    assert not queues.may_reclaim(one, group("b", preemptible=False))
    assert not queues.may_reclaim(one, group("c"))
    asked = [(group("a"), gpus(2))]
    assert queues.exchange_refusal(asked, [(group("b"), gpus(2))]) == ()
    two = [(group("b"), gpus(2)), (group("b"), gpus(1))]
    refused = queues.exchange_refusal(asked, two)
    assert codes(refused) == ["VictimWithinShare"]
    assert queues.is_about(refused, group("b"))
    assert not queues.is_about(refused, group("c"))
    assert queues.preempt_refusal(group("a")) == ()
    assert codes(queues.preempt_refusal(group("c"))) == ["QueueMayNotPreempt"]


def test_end_of_a_victim_makes_room_below_a_common_limit(queues: CycleQueues) -> None:
    refused = queues.refusal(group("b"), gpus(4))
    assert codes(refused) == ["OverLimit"]
    assert queues.relief(group("b"), gpus(1), refused) == 250
    assert queues.relief(group("b"), gpus(9), refused) == 1000
    assert queues.relief(group("b"), {"cpu": 1000}, refused) == 0
    assert queues.relief(group("a"), gpus(4), refused) == 0
    queues.charge(group("b"), gpus(4))
    assert queues.exceeded(group("b"), gpus(4)) == refused


def test_victim_must_have_run_for_the_minimum_of_its_queue(queues: CycleQueues) -> None:
    assert queues.min_runtime_us(group("b"), for_group=group("b")) == 3
    assert queues.min_runtime_us(group("b"), for_group=group("a")) == 9
    assert queues.min_runtime_us(group("a"), for_group=group("b")) == 5


def test_turns_get_worse_with_every_charge(queues: CycleQueues) -> None:
    assert queues.order_key("a", gpus(1)) < queues.order_key("b", gpus(1))
    before = queues.order_key("a", gpus(1))
    queues.charge(group("a"), gpus(1))
    assert queues.order_key("a", gpus(1)) > before


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["charge", "release", "save", "undo"]), st.sampled_from("abc"), st.integers(0, 5))
    )
)
def test_accounts_are_exact_after_undo_in_any_nesting(steps: list[tuple[str, str, int]]) -> None:
    of = accounts(
        tree(queue("d"), queue("a", "d", quota=4, lendable=1), queue("b", "d"), queue("c")), 12, used={"a": 2}
    )
    queues = CycleQueues(of, CONFIG)
    saved: list[tuple[int, Any]] = []
    for what, name, count in [("save", "a", 0), *steps]:
        one = group(name, preemptible=count % 2 == 0)
        if what == "charge":
            queues.charge(one, gpus(count))
        elif what == "release":
            queues.release(one, gpus(count))
        elif what == "save":
            saved.append((queues.savepoint(), deepcopy((of.used, of.non_preemptible, of._own))))
        elif len(saved) > 1:
            savepoint, before = saved.pop()
            queues.undo(savepoint)
            assert (of.used, of.non_preemptible, of._own) == before
    queues.undo(saved[0][0])
    assert (of.used, of.non_preemptible, of._own) == saved[0][1]
