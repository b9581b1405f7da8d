"""Keys that have changed are looked at again, by those who look often, and by those who have not looked for long."""

import weakref

from kaicore.rules.state.indexes.workload_index import ChangedKeys, RestingGroups

from tests.given.cluster.factory import pod
from tests.given.work.workloads import OWNER, Workloads

MANY = 100_001


class Key(str):
    """A key of which it is known when it is gone."""

    __slots__ = ("__weakref__",)


def test_keys_are_those_since_they_were_taken_and_all_at_first() -> None:
    keys = ChangedKeys()
    keys.add("a")
    assert keys.take() is None
    keys.add("b", "c")
    keys.add("b")
    assert (keys.take(), keys.take()) == ({"b", "c"}, set())


def test_keys_that_nobody_takes_take_up_no_more_and_more_memory() -> None:
    keys, one = ChangedKeys(), Key("one")
    keys.take()
    there = weakref.ref(one)
    keys.add(one)
    del one
    keys.add(*map(str, range(MANY)))
    assert there() is None
    keys.add("later")
    assert keys.take() is None


def test_lines_of_one_who_has_not_looked_for_long_are_those_made_anew() -> None:
    made = Workloads()
    made.add_node("n", cpu=8)
    pods = [made.add_pod(pod(f"p{number}", cpu=16, owner=OWNER)) for number in range(3)]
    made.cycle()
    state, index = made.state, made.state.workload_index
    assert [len(line.uids) for line in state.resting.lines(index.workloads, index.pending, state.pods)] == [3]
    made.delete_pod(pods[0])
    for number in range(MANY):
        state.resting.touch(str(number))
    lines, anew = (
        [sorted(line.uids) for line in one.lines(index.workloads, index.pending, state.pods)]
        for one in (state.resting, RestingGroups())
    )
    assert lines == anew == [["uid-p1", "uid-p2"]]
