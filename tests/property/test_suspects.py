"""Random fleets: work that fails everywhere keeps no other work off a node, and a bad node takes few pods."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.given.examples import examples
from tests.unit.deciding.test_suspects import Fleet, wait

_WORKS = st.lists(st.sampled_from("abcd"), min_size=4, max_size=12)


@given(_WORKS, st.sampled_from("abcd"), st.integers(4, 7))
@settings(max_examples=examples(8), deadline=None)
def test_work_that_fails_everywhere_keeps_no_other_off_a_node(works: list[str], broken: str, nodes: int) -> None:
    fleet = Fleet(nodes, broken=(broken,))
    for work in works:
        assert fleet.try_one(work)
        assert all(some and all(one.endswith(f"/{broken}") for one in some) for some in fleet.suspects().values())


@given(st.permutations("aabbccddee"), st.integers(0, 3), st.integers(0, 4))
@settings(max_examples=examples(8), deadline=None)
def test_bad_node_takes_three_pods_in_any_order_of_works(works: list[str], known: int, minutes: int) -> None:
    fleet = Fleet(5, bad=("n0",))
    nodes = []
    for work in works:
        nodes.append(fleet.try_one(work))
        wait(fleet, minutes)
    # Of fewer works, each keeps off alone until its next pod, elsewhere, has told.
    assert nodes.count("n0") <= 4
    assert nodes[-1] != "n0"
