"""The demand of a tree, and whether it is met."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kaicore.rules.model.group import PodSet, leaves, min_pods, satisfied

GANG = (PodSet(min_pods=3),)
#: A leader and workers, and two kinds of helpers of which one is enough; eight pods at least.
TREE = (
    PodSet(min_pods=8),
    PodSet("leader", min_pods=1),
    PodSet("workers", min_pods=4),
    PodSet("helpers", min_sets=1),
    PodSet("a", "helpers", min_pods=2),
    PodSet("b", "helpers", min_pods=3),
)


@pytest.mark.parametrize(
    ("sets", "pods", "enough"),
    [
        (GANG, {"": 2}, False),
        (GANG, {"": 3}, True),
        ((PodSet(),), {}, True),
        (TREE, {"leader": 1, "workers": 4, "a": 2}, False),
        (TREE, {"leader": 1, "workers": 5, "a": 2}, True),
        (TREE, {"leader": 1, "workers": 4, "b": 3}, True),
        (TREE, {"leader": 1, "workers": 6, "a": 1, "b": 2}, False),
        (TREE, {"workers": 9, "a": 2}, False),
    ],
)
def test_examples(sets: tuple[PodSet, ...], pods: dict[str, int], enough: bool) -> None:
    assert satisfied(sets, pods) is enough


def test_least_pods_of_a_tree_are_as_computed() -> None:
    assert (min_pods(GANG), min_pods(TREE), min_pods(TREE[1:2]), min_pods((PodSet(),))) == (3, 8, 1, 0)
    assert [one.name for one in leaves(TREE)] == ["leader", "workers", "a", "b"]


@st.composite
def trees(draw: st.DrawFn) -> tuple[PodSet, ...]:
    parents = [""]
    sets = [PodSet(min_pods=draw(st.integers(0, 6)), min_sets=draw(st.none() | st.integers(0, 2)))]
    for number in range(draw(st.integers(0, 6))):
        parent = draw(st.sampled_from(parents))
        name = f"s{number}"
        parents.append(name)
        sets.append(PodSet(name, parent, draw(st.integers(0, 4)), draw(st.none() | st.integers(0, 2))))
    return tuple(sets)


def obviously_satisfied(sets: tuple[PodSet, ...], pods: dict[str, int]) -> bool:
    below = {one.name: [child for child in sets[1:] if child.parent == one.name] for one in sets}

    def count(one: PodSet) -> int:
        return sum(map(count, below[one.name])) if below[one.name] else pods.get(one.name, 0)

    def enough(one: PodSet) -> bool:
        needed = len(below[one.name]) if one.min_sets is None else one.min_sets
        met = sum(enough(child) for child in below[one.name])
        return count(one) >= one.min_pods and (not below[one.name] or met >= needed)

    return enough(sets[0])


@given(trees(), st.lists(st.integers(0, 5), min_size=8, max_size=8))
def test_satisfied_as_an_obvious_rule_says(sets: tuple[PodSet, ...], counts: list[int]) -> None:
    pods = {one.name: number for one, number in zip(leaves(sets), counts, strict=False)}
    assert satisfied(sets, pods) is obviously_satisfied(sets, pods)
    more = {name: number + 1 for name, number in pods.items()}
    assert not satisfied(sets, pods) or satisfied(sets, more)
