"""Accounts, bounds, order and reclaim: tables of cases, and a slow, obvious oracle."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.queue import Queue, QueueShare
from kaicore.rules.queues.accounts import QueueAccounts
from kaicore.rules.queues.cycle_queues import Claim, CycleQueues, is_victim, may_reclaim, reclaim_refusals
from kaicore.rules.queues.division import FairShareConfig, divide
from kaicore.rules.queues.tree import Demand, QueueTree

from tests.given.cluster.hierarchy import accounts, number, queue, table, tree


def ask(gpus: int) -> Demand:
    return Demand((gpus,), frozenset({"gpu"}))


def refusals(of: QueueAccounts, name: str, gpus: int, *, preemptible: bool = True) -> list[tuple[str, str, int]]:
    refused = of.refusals(number(of.tree, name), ask(gpus), preemptible=preemptible)
    return [(reason.code, reason.queue, reason.excess) for reason in refused]


DEPARTMENTS = (
    queue("d", quota=8, limit=10),
    queue("d1", "d", quota=4, limit=6),
    queue("d2", "d", quota=4),
    queue("e", quota=4),
    queue("e1", "e", quota=4),
)


@pytest.mark.parametrize(
    ("used", "name", "gpus", "preemptible", "expected"),
    [
        ({"d1": 5}, "d1", 1, True, []),
        ({"d1": 5}, "d1", 3, True, [("OverLimit", "d1", 2)]),
        ({"d1": 2, "d2": 7}, "d1", 2, True, [("OverLimit", "d", 1)]),
        ({"d1": 5, "d2": 5}, "d1", 3, True, [("OverLimit", "d1", 2), ("OverLimit", "d", 3)]),
        ({"e1": 50}, "e1", 50, True, []),
        ({"d1": 3}, "d1", 1, False, []),
        ({"d1": 3}, "d1", 2, False, [("NonPreemptibleOverQuota", "d1", 1)]),
        ({"d1": 2, "d2": 6}, "d1", 1, False, [("NonPreemptibleOverQuota", "d", 1)]),
        # What is exceeded already refuses no work that asks for none of it.
        ({"d1": 9}, "d1", 0, False, []),
    ],
)
def test_work_starts_within_quota_and_cohort(
    used: dict[str, int], name: str, gpus: int, preemptible: bool, expected: list[tuple[str, str, int]]
) -> None:
    of = accounts(tree(*DEPARTMENTS), 12, used=used, non_preemptible=used)
    assert refusals(of, name, gpus, preemptible=preemptible) == expected


def kueue(name: str, quota: int, **kwargs: Any) -> Queue:
    return queue(name, kwargs.pop("parent", "Cohort/c"), quota=quota, only_named=True, **kwargs)


@pytest.mark.parametrize(
    ("queues", "used", "name", "gpus", "expected"),
    [
        # A ClusterQueue of no cohort has no queue to borrow from.
        ([kueue("a", 4, parent="", borrowing=0)], {}, "a", 5, [("OverLimit", "a", 1)]),
        # In a cohort it borrows what is idle, up to what all have.
        ([kueue("a", 4), kueue("b", 4)], {}, "a", 8, []),
        ([kueue("a", 4), kueue("b", 4)], {"b": 1}, "a", 8, [("OverLimit", "Cohort/c", 1)]),
        ([kueue("a", 4, borrowing=2), kueue("b", 4)], {}, "a", 7, [("OverLimit", "a", 1)]),
        # What b does not lend is out of reach, used or not.
        ([kueue("a", 4), kueue("b", 4, lendable=1)], {}, "a", 6, [("OverLimit", "Cohort/c", 1)]),
        ([kueue("a", 4), kueue("b", 4, lendable=1)], {"b": 3}, "a", 5, []),
        ([kueue("a", 4), kueue("b", 4, lendable=1)], {"b": 4}, "a", 5, [("OverLimit", "Cohort/c", 1)]),
        ([kueue("a", 4), kueue("b", 4, lendable=1)], {"a": 5}, "b", 3, []),
        # Quotas of the cohort itself, and of cohorts below it.
        (
            [queue("Cohort/c", quota=2, pooled=True), kueue("a", 4),
             queue("Cohort/d", "Cohort/c", pooled=True, lendable=1), kueue("b", 3, parent="Cohort/d")],
            {}, "a", 8, [("OverLimit", "Cohort/c", 1)],
        ),
    ],
)  # fmt: skip
def test_cluster_queue_borrows_and_lends_within_its_quotas(
    queues: list[Queue], used: dict[str, int], name: str, gpus: int, expected: list[tuple[str, str, int]]
) -> None:
    assert refusals(accounts(tree(*queues), 100, used=used), name, gpus) == expected


def test_a_cluster_queue_is_not_for_what_it_does_not_name() -> None:
    of = accounts(tree(queue("a", only_named=True, shares={"nvidia.com/gpu": QueueShare(quota=4)})), 4, used={})
    wants = of.tree.demand({"nvidia.com/gpu": 1, "cpu": 1000, "pods": 1})
    (refusal,) = of.refusals(0, wants, preemptible=True)
    assert str(refusal) == "queue a is not for work that asks for cpu"
    assert of.refusals(0, of.tree.demand({"nvidia.com/gpu": 1, "pods": 1}), preemptible=True) == ()


def test_gpus_of_every_kind_count_as_gpus() -> None:
    of = tree(queue("a", quota=4))
    assert of.demand({"nvidia.com/gpu": 2, "amd.com/gpu": 1, "nvidia.com/mig-3g.20gb": 2, "cpu": 1}).amounts == (9,)


def test_refusal_reads_as_documented() -> None:
    of = accounts(tree(*DEPARTMENTS), 12, used={"d1": 3}, non_preemptible={"d1": 3})
    texts = [str(reason) for reason in of.refusals(number(of.tree, "d1"), ask(4), preemptible=False)]
    assert texts == [
        "queue d1 would be 1 gpu over its limit: 4 gpu asked for, 3 left",
        "queue d1 would be 3 gpu over its quota with work that cannot be preempted: 4 gpu asked for, 1 left",
    ]


# Which queue work belongs to.


@pytest.mark.parametrize(
    ("queues", "name", "expected"),
    [
        ([], "", "default"),
        ([], "whatever", "default"),
        ([queue("a")], "a", "a"),
        ([queue("a")], "b", "QueueDoesNotExist"),
        ([queue("a")], "", "default"),
        ([queue("a"), queue("default", "gone")], "", "QueueInvalid"),
        ([queue("a"), queue("default-queue")], "", "default-queue"),
        ([queue("a"), queue("default-queue"), queue("default")], "", "default"),
        ([queue("a"), queue("b", "a")], "a", "QueueNotLeaf"),
        ([queue("b", "a")], "b", "QueueInvalid"),
        ([queue("a", "b"), queue("b", "a")], "b", "QueueInvalid"),
        ([queue("a", stopped=True), queue("b", "a")], "b", "QueueStopped"),
        ([queue("a", unsupported=("admission checks",))], "a", "QueueUnsupported"),
        ([queue("ClusterQueue/c"), queue("ml/lq", alias_of="ClusterQueue/c")], "ml/lq", "ClusterQueue/c"),
        ([queue("ClusterQueue/c"), queue("ml/default", alias_of="ClusterQueue/c")], "", "ClusterQueue/c"),
        ([queue("ClusterQueue/c"), queue("other/lq", alias_of="ClusterQueue/c")], "ml/lq", "QueueDoesNotExist"),
        ([queue("ml/lq", alias_of="ClusterQueue/c")], "ml/lq", "QueueInvalid"),
        (
            [queue("ClusterQueue/c"), queue("ml/lq", alias_of="ClusterQueue/c", stopped=True)],
            "ml/lq",
            "QueueStopped",
        ),
    ],
)
def test_which_queue_work_belongs_to(queues: list[Queue], name: str, expected: str) -> None:
    of = tree(*queues)
    owner = of.resolve(name, namespace="ml")
    assert (owner.code if isinstance(owner, Reason) else of.queues[owner].name) == expected


@pytest.mark.parametrize(
    "held", [{"unsupported": ("admission checks",)}, {"stopped": True}, {"namespaces": ("others",)}], ids=str
)
def test_what_kueue_has_admitted_is_asked_no_question_that_kueue_has_answered(held: dict[str, Any]) -> None:
    alias = queue("ml/lq", alias_of="ClusterQueue/c")
    of = tree(queue("ClusterQueue/c", controlled=True, **held), alias)
    assert of.resolve("ml/lq", namespace="ml", admitted=True) == number(of, "ClusterQueue/c")
    assert isinstance(of.resolve("ml/lq", namespace="ml"), Reason)
    # The label alone is anybody's: without Kueue it opens nothing.
    without = tree(queue("ClusterQueue/c", **held), alias)
    assert isinstance(without.resolve("ml/lq", namespace="ml", admitted=True), Reason)


def test_a_broken_hierarchy_says_what_is_broken() -> None:
    of = tree(queue("a", "gone"), queue("b", "a"), queue("c", "d"), queue("d", "c"))
    assert of.problems == {
        "a": "queue a names the parent gone, which does not exist",
        "b": "queue a names the parent gone, which does not exist",
        "c": "queue c is its own ancestor",
        "d": "queue d is its own ancestor",
    }
    refused = of.resolve("b")
    assert isinstance(refused, Reason)
    assert str(refused) == "queue b cannot be used: queue a names the parent gone, which does not exist"


# Order.


def order_of(of: QueueAccounts, heads: dict[str, int]) -> list[str]:
    """The order in which the queues' only pieces of work would start, each charged before the next is chosen."""
    queues, left, names = CycleQueues(of, FairShareConfig()), dict(heads), []
    while left:
        name = min(left, key=lambda name: queues.order_key(name, {"nvidia.com/gpu": left[name]}))
        of.charge(number(of.tree, name), ask(left.pop(name)), preemptible=True)
        names.append(name)
    return names


@pytest.mark.parametrize(
    ("queues", "used", "heads", "expected"),
    [
        # Not over the fair share before over it.
        ([queue("a", quota=2), queue("b", quota=6)], {"a": 6, "b": 5}, {"a": 1, "b": 1}, ["b", "a"]),
        # Within the quota with the work, before priority.
        ([queue("a", priority=200), queue("b", quota=4)], {}, {"a": 1, "b": 1}, ["b", "a"]),
        ([queue("a"), queue("b", priority=200)], {}, {"a": 1, "b": 1}, ["b", "a"]),
        # The smaller part of what it is owed.
        ([queue("a", quota=4), queue("b", quota=4)], {"a": 2, "b": 1}, {"a": 1, "b": 1}, ["b", "a"]),
        ([queue("a", quota=8), queue("b", quota=4)], {"a": 2, "b": 2}, {"a": 1, "b": 1}, ["a", "b"]),
        # The older.
        ([queue("a", quota=4, created_at=9), queue("b", quota=4, created_at=5)], {}, {"a": 1, "b": 1}, ["b", "a"]),
        # Level by level: e is behind its share, d is not, whatever d2 by itself.
        (
            [queue("d", quota=4), queue("d1", "d", quota=2), queue("d2", "d", quota=2), queue("e", quota=4),
             queue("e1", "e", quota=4)],
            {"d1": 2, "e1": 1}, {"d2": 1, "e1": 1}, ["e1", "d2"],
        ),
    ],
)  # fmt: skip
def test_work_of_the_queue_furthest_below_its_share_is_next(
    queues: list[Queue], used: dict[str, int], heads: dict[str, int], expected: list[str]
) -> None:
    assert order_of(accounts(tree(*queues), 8, used=used, pending=heads), heads) == expected


# Reclaim.


def refused_for(
    of: QueueAccounts, asked: tuple[str, int], victims: list[tuple[str, int]], *, margin_milli: int = 1000
) -> list[str]:
    claims: list[Claim] = [(number(of.tree, name), ask(gpus)) for name, gpus in victims]
    claim: Claim = (number(of.tree, asked[0]), ask(asked[1]))
    refused = reclaim_refusals(of, [claim], claims, margin_milli=margin_milli)
    assert all(reason.code == "VictimWithinShare" for reason in refused)
    return [reason.queue for reason in refused]


def test_a_queue_takes_back_its_quota_from_one_that_is_over_its_own() -> None:
    of = accounts(tree(queue("a", quota=4), queue("b", quota=4)), 8, used={"b": 8}, pending={"a": 4})
    a, b = number(of.tree, "a"), number(of.tree, "b")
    assert may_reclaim(of, a, ask(4), preemptible=False) == ()
    assert [reason.code for reason in may_reclaim(of, a, ask(5), preemptible=True)] == ["OverFairShare"]
    assert refused_for(of, ("a", 4), [("b", 1)] * 4) == []
    assert (of.used[a], of.used[b]) == ([0], [8]), "asked only"
    assert refused_for(of, ("a", 4), [("b", 1)] * 5) == ["b"]
    assert is_victim(of, a, ask(4), b)


def test_work_within_its_share_is_no_victim_and_neither_is_its_own_queues() -> None:
    of = accounts(tree(queue("a"), queue("b")), 8, used={"a": 4, "b": 4}, pending={"a": 4})
    a, b = number(of.tree, "a"), number(of.tree, "b")
    assert not is_victim(of, a, ask(1), b)
    assert not is_victim(of, a, ask(1), a)


def test_a_resource_that_is_not_asked_for_makes_no_victim() -> None:
    shares = {"cpu": QueueShare(quota=4), "gpu": QueueShare(quota=4)}
    of = tree(queue("a", shares=shares), queue("b", shares=shares))
    kept = QueueAccounts(
        of, divide(of, totals=[8, 8], requested=table(of, {"a": {"gpu": 4}, "b": {"cpu": 8, "gpu": 4}}))
    )
    kept.charge(1, Demand((8, 4)), preemptible=True)
    assert not is_victim(kept, 0, Demand((0, 4)), 1)
    assert is_victim(kept, 0, Demand((1, 4)), 1)


def test_departments_are_compared_where_their_paths_part() -> None:
    """Within d, d1 takes from d2 though d as a whole is over its share; from e it does not."""
    of = accounts(tree(*DEPARTMENTS), 12, used={"d1": 1, "d2": 8, "e1": 3}, pending={"d1": 3, "e1": 1})
    assert refused_for(of, ("d1", 1), [("d2", 1)]) == []
    assert refused_for(of, ("d1", 1), [("e1", 1)]) == ["e1"]
    assert refused_for(of, ("e1", 1), [("d2", 1)]) == []


def test_a_limit_above_is_for_victims_below_it_to_lift_and_ones_own_is_not() -> None:
    of = accounts(
        tree(queue("d", quota=8, limit=8), queue("a", "d", quota=4, limit=4), queue("b", "d", quota=4)),
        8, used={"b": 8}, pending={"a": 6},
    )  # fmt: skip
    a = number(of.tree, "a")
    assert may_reclaim(of, a, ask(4), preemptible=True) == ()
    assert {reason.code for reason in may_reclaim(of, a, ask(5), preemptible=True)} == {
        "OverFairShare",
        "OverLimit",
    }


def test_who_has_more_than_its_share_takes_nothing_from_who_then_has_less() -> None:
    """Below d, d1 has a right to 4 that d2 uses; e is over its share, but d would be further over its own."""
    of = accounts(
        tree(queue("d", quota=8), queue("d1", "d", quota=4), queue("d2", "d", quota=4), queue("e", quota=8)),
        16, used={"d2": 6, "e": 10}, pending={"d1": 4},
    )  # fmt: skip
    assert refused_for(of, ("d1", 4), [("e", 4)]) == ["e"], "10 of 8 where e would have 6 of 8"
    assert refused_for(of, ("d1", 4), [("e", 2), ("d2", 2)]) == []
    far = accounts(of.tree, 16, used={"d2": 6, "e": 30}, pending={"d1": 4})
    assert refused_for(far, ("d1", 4), [("e", 4)]) == [], "10 of 8 beside 26 of 8"
    assert refused_for(far, ("d1", 4), [("e", 4)], margin_milli=3000) == ["e"]


@pytest.mark.parametrize(
    ("victim", "reclaimer", "expected"),
    [("d1", "d2", 10), ("d1", "e1", 20), ("e1", "d1", 5), ("d2", "d1", 20)],
)
def test_min_runtimes_are_those_of_the_side_where_queues_part(victim: str, reclaimer: str, expected: int) -> None:
    of = tree(
        queue("d", reclaim_min_runtime_us=20),
        queue("d1", "d", reclaim_min_runtime_us=10, preempt_min_runtime_us=7),
        queue("d2", "d"),
        queue("e"),
        queue("e1", "e", reclaim_min_runtime_us=1),
    )
    assert of.reclaim_min_runtime_us(number(of, victim), number(of, reclaimer), default=5) == expected
    assert of.preempt_min_runtime_us(number(of, "d1"), default=5) == 7
    assert of.preempt_min_runtime_us(number(of, "d2"), default=5) == 5


# Against an oracle.


@st.composite
def trees(draw: st.DrawFn) -> QueueTree:
    queues: list[Queue] = []
    amounts = st.integers(0, 12)
    for index in range(draw(st.integers(2, 8))):
        parent = draw(st.sampled_from(["", *(one.name for one in queues)]))
        bounds = {name: draw(st.none() | amounts) for name in ("limit", "lendable", "borrowing")}
        share = QueueShare(quota=draw(amounts), **bounds)
        queues.append(queue(f"q{index}", parent, share=share, pooled=draw(st.booleans())))
    return tree(*queues)


def counted_slowly(of: QueueTree, held: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Each queue's usage, and its part of its ancestors' limits."""
    used, own = [0] * len(of), [0] * len(of)
    for index in range(len(of) - 1, -1, -1):
        direct = sum(gpus for leaf, gpus in held if leaf == index)
        used[index] = direct + sum(used[child] for child in of.children[index])
        own[index] = direct + sum(max(own[child], of.kept[child][0]) for child in of.children[index])
    return used, own


@settings(deadline=None)
@given(trees(), st.data())
def test_accounts_are_those_of_an_obvious_count(of: QueueTree, data: st.DataObject) -> None:
    shares = divide(of, totals=[20], requested=[[6] if not children else [0] for children in of.children])
    quick = QueueAccounts(of, shares)
    fresh = deepcopy((quick.used, quick._own))
    held: list[tuple[int, int]] = []
    leaves = [one for one, below in enumerate(of.children) if not below]
    for _ in range(data.draw(st.integers(1, 12))):
        leaf, gpus = data.draw(st.sampled_from(leaves)), data.draw(st.integers(0, 5))
        if held and data.draw(st.booleans()):
            leaf, gpus = held.pop(data.draw(st.integers(0, len(held) - 1)))
            quick.take_back(leaf, ask(gpus), preemptible=True)
        else:
            _, own = counted_slowly(of, held)
            _, then = counted_slowly(of, [*held, (leaf, gpus)])
            over = {of.queues[one].name for one in of.paths[leaf] if own[one] < then[one] > of.limits[one][0]}
            refused = quick.refusals(leaf, ask(gpus), preemptible=True)
            assert {reason.queue for reason in refused} == over
            for reason in refused:
                one = number(of, reason.queue)
                assert reason.excess == then[one] - of.limits[one][0]
            quick.charge(leaf, ask(gpus), preemptible=True)
            held.append((leaf, gpus))
        used, _ = counted_slowly(of, held)
        assert [row[0] for row in quick.used] == used
    for leaf, gpus in held:
        quick.take_back(leaf, ask(gpus), preemptible=True)
    assert (quick.used, quick._own) == fresh
