"""Gangs that start together end together: as victims, and where one of them fell below its minimum."""

from typing import Any

import pytest
from kaicore.rules.engine.decisions import ClearReason, EvictionReason
from kaicore.rules.model.group import MatchPolicy

from tests.given.cluster.factory import pod
from tests.given.work.workloads import Workloads

BOTH = ("default/a", "default/b")
GRACE_US = 60_000_000


def running(*, a: dict[str, Any] | None = None, b: dict[str, Any] | None = None) -> Workloads:
    """Gang a on node n1 and gang b on n2, of one pod each unless more is said about them."""
    cluster = Workloads()
    for name, node, more in (("a", "n1", a or {}), ("b", "n2", b or {})):
        cluster.add_node(node, cpu=2)
        spec: dict[str, Any] = {"count": 1, "cpu": 2, "node_name": node, "phase": "Running", **more}
        group = {"together": BOTH, "match_policy": MatchPolicy.WAITING_AND_RUNNING, **spec.pop("group", {})}
        cluster.gang(name, spec.pop("count"), group=group, labels={"app": name}, **spec)
    return cluster


def evicted(cluster: Workloads) -> set[str]:
    """The pods that the next cycle evicts; a name is in brackets where its group goes on."""
    return {f"({one.name})" if one.shrinks else one.name for one in cluster.cycle().evictions}


NO_PODS: set[str] = set()
TWO = {"count": 2, "least": 1, "cpu": 1}


@pytest.mark.parametrize(
    ("a", "b", "high", "gone"),
    [
        # One node would be enough; yet neither runs on without the other.
        ({}, {}, {}, {"a-0", "b-0"}),
        ({"priority": 1}, {"priority": 5}, {}, {"a-0", "b-0"}),
        # A group that may not be evicted keeps those that it starts together with.
        ({}, {"group": {"preemptible": False}}, {}, NO_PODS),
        ({"priority": 1}, {"priority": 5}, {"priority": 3}, NO_PODS),
        ({}, {"scheduler_name": "other"}, {}, NO_PODS),
        # What one group can spare is no other's loss.
        (TWO, {"priority": 20}, {"cpu": 1}, {"(a-0)"}),
        (TWO, {"priority": 20}, {"cpu": 2}, NO_PODS),
        (TWO, {}, {"cpu": 2}, {"a-0", "a-1", "b-0"}),
        # Only a needs the other one.
        ({}, {"group": {"together": ()}, "priority": 5}, {}, {"a-0"}),
        ({"priority": 5}, {"group": {"together": ()}}, {"node_selector": {"host": "n2"}}, {"a-0", "b-0"}),
        ({"priority": 20}, {"group": {"together": ()}}, {"node_selector": {"host": "n2"}}, NO_PODS),
        # Neither needs the other.
        ({"group": {"together": ()}}, {"group": {"together": ()}, "priority": 5}, {}, {"a-0"}),
    ],
)
def test_victims_of_a_gang_group_are_the_expected_ones(
    a: dict[str, Any], b: dict[str, Any], high: dict[str, Any], gone: set[str]
) -> None:
    cluster = running(a=a, b=b)
    for name in ("n1", "n2"):
        cluster.add_node(name, cpu=2, labels={"host": name})
    cluster.add_pod(pod("high", **{"cpu": 2, "priority": 9, **high}))
    assert evicted(cluster) == gone


def test_a_budget_of_one_keeps_all() -> None:
    cluster = running()
    one = cluster.state.pods["uid-b-0"].pod
    cluster.see(one, labels=one.labels | {"spared": ""})
    cluster.budget(0, label="spared")
    cluster.add_pod(pod("high", cpu=2, priority=9))
    assert evicted(cluster) == NO_PODS


def test_lone_pod_is_cheaper_and_pods_that_are_not_needed_stay() -> None:
    cluster = running().add_node("n3", cpu=2)
    cluster.add_pod(pod("single", cpu=2, priority=0, node_name="n3", phase="Running"))
    cluster.add_pod(pod("high", cpu=2, priority=9))
    assert evicted(cluster) == {"single"}
    cluster.gang("higher", 2, cpu=2, priority=10)
    assert evicted(cluster) == {"a-0", "b-0"}


@pytest.mark.parametrize(
    ("policy", "ended", "again", "gone"),
    [
        (MatchPolicy.WAITING_AND_RUNNING, False, False, {"a-0"}),
        # It was there with the other one, and from then on each pod is on its own.
        (MatchPolicy.ONCE_SATISFIED, False, False, NO_PODS),
        # It is at its end.
        (MatchPolicy.WAITING_AND_RUNNING, True, False, NO_PODS),
        # What comes in time takes the place of what was lost.
        (MatchPolicy.WAITING_AND_RUNNING, False, True, NO_PODS),
    ],
)
def test_the_other_gang_is_gone(policy: MatchPolicy, ended: bool, again: bool, gone: set[str]) -> None:
    group = {"group": {"match_policy": policy}}
    cluster = running(a=group, b=group)
    lost = cluster.state.pods["uid-b-0"].pod
    if ended:
        cluster.see(lost, phase="Succeeded")
    cluster.delete_pod(lost)
    assert evicted(cluster) == NO_PODS
    cluster.now += GRACE_US + 1
    if again:
        cluster.members("b", [7], cpu=2)
    result = cluster.cycle()
    assert set(cluster.evicted(result)) == gone
    assert set(cluster.evicted(result).values()) <= {EvictionReason.STALE_GANG}
    assert set(cluster.placed(result)) == ({"b-7"} if again else NO_PODS)


def test_gang_that_never_ran_with_the_other_is_not_kept_running_alone() -> None:
    """Another scheduler put it there, or it has none: it has never been satisfied."""
    cluster = Workloads().add_node("n1", cpu=2)
    for name in ("a", "b"):
        cluster.gang(name, 0, least=1, group={"together": BOTH, "match_policy": MatchPolicy.ONCE_SATISFIED})
    cluster.members("a", [0], cpu=2, node_name="n1", phase="Running")
    cluster.now += GRACE_US + 1
    assert evicted(cluster) == {"a-0"}


def two_full_nodes() -> Workloads:
    """Gang `a` runs on `n1`, and pod `low` on `n2`."""
    cluster = Workloads()
    for name in ("n1", "n2"):
        cluster.add_node(name, cpu=2, labels={"host": name})
    cluster.gang("a", 1, cpu=2, node_name="n1", phase="Running")
    cluster.add_pod(pod("low", cpu=2, node_name="n2", phase="Running"))
    return cluster


def test_a_gang_that_another_one_is_about_to_start_with_is_not_taken_from_it() -> None:
    """Gang b needs a, which runs, and has pods evicted; a group that comes after it in the cycle does not take a."""
    cluster = two_full_nodes()
    cluster.gang("b", 1, group={"together": BOTH}, cpu=2, priority=9)
    cluster.add_pod(pod("next", cpu=2, priority=8, node_selector={"host": "n1"}))
    result = cluster.cycle()
    assert cluster.nominated(result) == {"b-0": "n2"}
    assert set(cluster.evicted(result)) == {"low"}


def test_a_gang_does_not_start_with_one_that_was_just_evicted() -> None:
    cluster = two_full_nodes()
    cluster.add_pod(pod("first", cpu=2, priority=10, node_selector={"host": "n1"}))
    cluster.gang("b", 1, group={"together": BOTH}, cpu=2, priority=9)
    result = cluster.cycle()
    assert cluster.nominated(result) == {"first": "n1"}
    assert set(cluster.evicted(result)) == {"a-0"}


def kept_for_both() -> Workloads:
    """Gangs a and b wait for `low-1` and `low-2` to leave their nodes; `low-3` might leave a third one for them."""
    cluster = Workloads()
    for number in (1, 2, 3):
        cluster.add_node(f"n{number}", cpu=2, labels={"host": f"n{number}"})
        cluster.add_pod(pod(f"low-{number}", cpu=2, node_name=f"n{number}", phase="Running"))
    for name in ("a", "b"):
        cluster.gang(name, 1, group={"together": BOTH}, cpu=2, priority=5)
    assert set(cluster.nominated(cluster.cycle())) == {"a-0", "b-0"}
    return cluster


def test_room_for_one_of_two_gangs_is_not_kept_when_higher_priority_takes_that_of_the_other() -> None:
    cluster = kept_for_both()
    kept = cluster.state.pods["uid-a-0"].nomination
    assert kept is not None
    cluster.add_pod(pod("top", cpu=2, priority=9, node_selector={"host": kept.node}))
    result = cluster.cycle()
    assert {one.name: one.reason for one in result.cleared} == {"a-0": ClearReason.TAKEN, "b-0": ClearReason.TAKEN}
    assert cluster.nominated(result) == {"top": "n1", "a-0": "n2", "b-0": "n3"}
    assert set(cluster.evicted(result)) == {"low-3"}, "the other two are leaving already"


def test_no_room_is_kept_for_one_of_two_gangs_while_there_is_none_for_the_other() -> None:
    cluster = kept_for_both()
    cluster.delete_pod(cluster.state.pods["uid-low-3"].pod)
    cluster.add_pod(pod("small", cpu=1, priority=5, created_at=1))
    for number in (1, 3):
        cluster.add_pod(pod(f"top-{number}", cpu=2, priority=9, node_selector={"host": f"n{number}"}))
    assert cluster.placed(cluster.cycle()) == {"top-3": "n3"}
    cluster.delete_pod(cluster.state.pods["uid-low-2"].pod)
    assert cluster.placed(cluster.cycle()) == {"small": "n2"}


def test_room_for_one_of_two_gangs_is_not_kept_when_the_other_has_gone() -> None:
    cluster = kept_for_both()
    cluster.delete_pod(cluster.state.pods["uid-a-0"].pod)
    assert [(one.name, one.reason) for one in cluster.cycle().cleared] == [("b-0", ClearReason.NO_LONGER_FITS)]
