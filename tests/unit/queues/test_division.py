"""The division of a cluster: tables that read like the specification, and what holds for every hierarchy."""

from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.model.queue import DEFAULT_QUEUE, Queue, QueueShare
from kaicore.rules.queues.division import USAGE_SCALE, divide
from kaicore.rules.queues.tree import UNLIMITED, QueueTree

from tests.given.cluster.hierarchy import fair, number, queue, table, tree

Case = tuple[int, dict[str, dict[str, Any]], dict[str, int], dict[str, int]]

#: What it shows: total, queues, what they ask for, their fair shares.
CASES: dict[str, Case] = {
    "each gets what it asks for while there is enough": (
        10, {"a": {"quota": 2}, "b": {"quota": 2}}, {"a": 1, "b": 7}, {"a": 1, "b": 7},
    ),
    "quotas come first, whatever the weights": (
        10, {"a": {"quota": 6, "weight": 0}, "b": {"quota": 2}}, {"a": 10, "b": 10}, {"a": 6, "b": 4},
    ),
    "an idle quota is lent": (
        10, {"a": {"quota": 6}, "b": {"quota": 2}}, {"a": 0, "b": 10}, {"a": 0, "b": 10},
    ),
    "what is beyond the quotas goes by weight": (
        12, {"a": {"quota": 2}, "b": {"quota": 2, "weight": 3000}}, {"a": 20, "b": 20}, {"a": 4, "b": 8},
    ),
    "no weight, nothing beyond the quota": (
        12, {"a": {"quota": 2, "weight": 0}, "b": {"quota": 2}}, {"a": 20, "b": 5}, {"a": 2, "b": 5},
    ),
    "what one does not need goes to the others": (
        12, {"a": {}, "b": {}, "c": {}}, {"a": 1, "b": 9, "c": 9}, {"a": 1, "b": 6, "c": 5},
    ),
    "left-over units go to those cut by most": (
        7, {"a": {"weight": 1000}, "b": {"weight": 2000}}, {"a": 9, "b": 9}, {"a": 2, "b": 5},
    ),
    "then to the older queue": (
        3, {"a": {"created_at": 20}, "b": {"created_at": 10}}, {"a": 9, "b": 9}, {"a": 1, "b": 2},
    ),
    "then by uid": (
        3, {"a": {"uid": "2"}, "b": {"uid": "1"}}, {"a": 9, "b": 9}, {"a": 1, "b": 2},
    ),
    "higher priority first, and all that it asks for": (
        5, {"a": {"priority": 2}, "b": {"priority": 2}, "c": {"priority": 1}}, {"a": 9, "b": 9, "c": 9},
        {"a": 3, "b": 2, "c": 0},
    ),
    "a queue alone at its priority takes no more than it asks for": (
        10, {"a": {"priority": 200}, "b": {}}, {"a": 4, "b": 9}, {"a": 4, "b": 6},
    ),
    "never beyond the limit": (
        10, {"a": {"limit": 3}, "b": {}}, {"a": 9, "b": 9}, {"a": 3, "b": 7},
    ),
    "an unlimited quota is one of everything": (
        10, {"a": {"quota": None}, "b": {"quota": 2}}, {"a": 9, "b": 9}, {"a": 9, "b": 2},
    ),
    "quotas are guaranteed, also beyond what there is": (
        10, {"a": {"quota": 8}, "b": {"quota": 8}, "c": {}}, {"a": 9, "b": 9, "c": 9}, {"a": 8, "b": 8, "c": 0},
    ),
    "what is kept from others stays idle": (
        10, {"a": {"quota": 6, "lendable": 2}, "b": {"quota": 4}}, {"a": 0, "b": 10}, {"a": 4, "b": 6},
    ),
    "a parent's share is what its children divide": (
        12,
        {"d": {"quota": 8}, "e": {"quota": 4}, "d1": {"parent": "d"}, "d2": {"parent": "d", "quota": 6},
         "e1": {"parent": "e"}},
        {"d1": 9, "d2": 9, "e1": 9},
        {"d": 8, "e": 4, "d1": 1, "d2": 7, "e1": 4},
    ),
    "children's limits cap what their parent asks for": (
        12,
        {"d": {}, "e": {}, "d1": {"parent": "d", "limit": 2}, "e1": {"parent": "e"}},
        {"d1": 50, "e1": 50},
        {"d": 2, "e": 10, "d1": 2, "e1": 10},
    ),
    "a cohort pools the quotas of its queues": (
        100,
        {"Cohort/c": {"pooled": True, "quota": 1}, "a": {"parent": "Cohort/c", "quota": 4},
         "b": {"parent": "Cohort/c", "quota": 4}},
        {"a": 50, "b": 2},
        {"Cohort/c": 9, "a": 7, "b": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_fair_shares_are_the_expected_ones(name: str) -> None:
    total, described, asked, expected = CASES[name]
    of = tree(*(queue(one, **given) for one, given in described.items()))
    assert fair(of, divide(of, totals=[total], requested=table(of, asked))) == expected


@pytest.mark.parametrize(
    ("used", "k", "expected"),
    [
        ({"a": 0, "b": 0}, 1000, {"a": 6, "b": 6}),
        ({"a": 500, "b": 0}, 0, {"a": 6, "b": 6}),
        # 1/2 + (1/2 - 1/2) to 1/2 + (1/2 - 0).
        ({"a": 500, "b": 0}, 1000, {"a": 4, "b": 8}),
        # 1/2 + (1/2 - 3/4) to 1/2 + (1/2 - 1/4).
        ({"a": 750, "b": 250}, 1000, {"a": 3, "b": 9}),
        ({"a": 1000, "b": 0}, 1000, {"a": 0, "b": 12}),
        ({"a": 1000, "b": 0}, 2000, {"a": 0, "b": 12}),
        # All beyond what they are owed: as if none were.
        ({"a": 1000, "b": 1000}, 1000, {"a": 6, "b": 6}),
    ],
)
def test_past_use_shifts_the_proportions(used: dict[str, int], k: int, expected: dict[str, int]) -> None:
    of = tree(queue("a"), queue("b"))
    usage = table(of, {name: amount * USAGE_SCALE // 1000 for name, amount in used.items()})
    shares = divide(of, totals=[12], requested=table(of, {"a": 50, "b": 50}), usage=usage, k_milli=k)
    assert fair(of, shares) == expected


def test_every_resource_is_divided_by_itself() -> None:
    cpus, gpus = QueueShare(quota=1000), QueueShare(quota=2)
    of = tree(queue("a", shares={"cpu": cpus, "gpu": gpus}), queue("b", shares={"gpu": QueueShare()}))
    requested = table(of, {"a": {"cpu": 8000, "gpu": 0}, "b": {"cpu": 8000, "gpu": 9}})
    shares = divide(of, totals=[4000, 5], requested=requested)
    assert fair(of, shares, "cpu") == {"a": 2500, "b": 1500}
    assert fair(of, shares, "gpu") == {"a": 0, "b": 5}


def test_what_a_queue_may_keep_is_the_larger_of_quota_and_share_within_its_limit() -> None:
    of = tree(queue("a", quota=4), queue("b", quota=1), queue("c", quota=9, limit=3), queue("d", quota=None))
    shares = divide(of, totals=[10], requested=table(of, {"a": 1, "b": 5}))
    assert [shares.allocatable[number(of, name)][0] for name in "abcd"] == [4, 5, 3, 10]


# For every hierarchy.


@st.composite
def hierarchies(draw: st.DrawFn) -> dict[str, Queue]:
    names: list[str] = []
    queues = {}
    amounts = st.integers(0, 40)
    for index in range(draw(st.integers(1, 12))):
        name = f"q{index:02}"
        parent = draw(st.sampled_from(["", "", *names]))
        names.append(name)
        share = QueueShare(
            quota=draw(st.none() | amounts),
            limit=draw(st.none() | amounts),
            lendable=draw(st.none() | amounts),
            weight=draw(st.sampled_from([0, 500, 1000, 1000, 3000])),
        )
        priority, age = draw(st.sampled_from([100, 100, 200])), draw(st.integers(0, 2))
        queues[name] = queue(name, parent, share=share, priority=priority, created_at=age)
    return queues


@st.composite
def divisions(draw: st.DrawFn) -> tuple[dict[str, Queue], int, dict[str, int], dict[str, int]]:
    queues = draw(hierarchies())
    of = QueueTree(queues)
    leaves = [one.name for one, below in zip(of.queues, of.children, strict=True) if not below]
    asked = {name: draw(st.integers(0, 60)) for name in leaves}
    used = {one.name: draw(st.sampled_from([0, 0, 3, 10])) * USAGE_SCALE // 20 for one in of.queues}
    return queues, draw(st.integers(0, 100)), asked, used


def shares_of(
    queues: dict[str, Queue], total: int, asked: dict[str, int], used: dict[str, int]
) -> tuple[QueueTree, dict[str, int]]:
    of = QueueTree(queues)
    shares = divide(of, totals=[total], requested=table(of, asked), usage=table(of, used))
    return of, {DEFAULT_QUEUE: 0} | fair(of, shares)


@settings(deadline=None)
@given(divisions())
def test_no_more_is_given_than_there_is_and_is_guaranteed_and_nothing_is_left_that_a_queue_with_weight_needs(
    division: tuple[dict[str, Queue], int, dict[str, int], dict[str, int]],
) -> None:
    queues, total, asked, used = division
    of, shares = shares_of(queues, total, asked, used)
    for parent in [-1, *range(len(of))]:
        siblings = of.roots if parent < 0 else of.children[parent]
        divided = total if parent < 0 else shares[of.queues[parent].name]
        guaranteed = sum(
            min(divided if of.quotas[one][0] == UNLIMITED else of.quotas[one][0], 2**40) for one in siblings
        )
        assert sum(shares[of.queues[one].name] for one in siblings) <= max(divided, guaranteed)
    for index, one in enumerate(of.queues):
        assert 0 <= shares[one.name] <= max(of.limits[index][0], 0)
    spent = sum(shares[of.queues[root].name] for root in of.roots)
    unmet = [
        leaf
        for leaf, below in enumerate(of.children)
        if not below and of.parents[leaf] < 0 and of.weights[leaf][0]
        if shares[of.queues[leaf].name] < min(asked[of.queues[leaf].name], of.limits[leaf][0])
    ]
    assert spent >= total or not unmet


@settings(deadline=None)
@given(divisions(), st.randoms(use_true_random=False))
def test_the_order_in_which_queues_are_told_of_does_not_matter(
    division: tuple[dict[str, Queue], int, dict[str, int], dict[str, int]], random: Random
) -> None:
    queues, total, asked, used = division
    names = list(queues)
    random.shuffle(names)
    _, shares = shares_of(queues, total, asked, used)
    _, again = shares_of({name: queues[name] for name in names}, total, asked, used)
    assert again == shares


def weighted(given: list[tuple[int, int]]) -> tuple[dict[str, Queue], dict[str, int]]:
    """Queues, and what each asks for, by need and weight."""
    queues = {f"q{index}": queue(f"q{index}", weight=weight * 1000) for index, (_, weight) in enumerate(given)}
    asked = {f"q{index}": need for index, (need, _) in enumerate(given)}
    return queues, asked


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), min_size=1, max_size=8), st.integers(0, 60))
def test_more_to_divide_takes_no_more_than_a_unit_from_any_queue(given: list[tuple[int, int]], total: int) -> None:
    queues, asked = weighted(given)
    _, before = shares_of(queues, total, asked, {})
    _, after = shares_of(queues, total + 1, asked, {})
    assert all(after[name] >= before[name] - 1 for name in queues)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), min_size=1, max_size=8), st.integers(0, 100))
def test_shares_are_within_a_unit_of_the_exact_ones(given: list[tuple[int, int]], total: int) -> None:
    queues, asked = weighted(given)
    _, shares = shares_of(queues, total, asked, {})
    for index, exact in enumerate(exact_shares(given, total)):
        assert abs(shares[f"q{index}"] - exact) < 1


def exact_shares(given: list[tuple[int, int]], total: int) -> list[Fraction]:
    """Weighted max-min fairness of what is divisible, for each need and weight."""
    shares = [Fraction(0)] * len(given)
    left, asking = Fraction(total), {index for index, (need, _) in enumerate(given) if need}
    while asking:
        level = left / sum(given[index][1] for index in asking)
        done = {index for index in asking if given[index][0] <= level * given[index][1]}
        for index in done or asking:
            shares[index] = Fraction(given[index][0]) if done else level * given[index][1]
        if not done:
            break
        left -= sum(given[index][0] for index in done)
        asking -= done
    return shares
