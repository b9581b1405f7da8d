"""Groups in a cycle: what starts together, what grows, and what is left alone."""

import pytest
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.events.reasons.group import GangDoesNotFit, GangIncomplete
from kaicore.rules.groups.labels import SIGS_POD_GROUP
from kaicore.rules.model.group import MatchPolicy, PodSet

from tests.given.cluster.factory import amounts, pod
from tests.given.work.workloads import Workloads


def test_a_gang_starts_as_a_whole_in_one_unit_or_leaves_no_trace() -> None:
    cluster = Workloads()
    for name in ("n1", "n2"):
        cluster.add_node(name, cpu=64, gpu=8)
    cluster.gang("big", 5, cpu=1, gpu=4)
    cluster.gang("fits", 4, cpu=1, gpu=4, created_at=1)
    result = cluster.cycle()
    assert cluster.placed(result) == {"fits-0": "n1", "fits-1": "n1", "fits-2": "n2", "fits-3": "n2"}
    assert len(result.batches) == 1
    (group,) = result.groups
    assert (group.group, group.pods) == (f"{SIGS_POD_GROUP}/default/big", 5)
    assert group.reasons[0] == GangDoesNotFit(pods=5, fitting_pods=4)
    assert group.reasons[1].resource == "nvidia.com/gpu"


def test_a_gang_waits_for_all_its_pods_and_for_gates() -> None:
    cluster = Workloads().add_node("n1", cpu=64)
    cluster.gang("g", 2, least=3, cpu=1)
    (group,) = cluster.cycle().groups
    assert group.reasons == (GangIncomplete(min_pods=3, ready_pods=2),)
    cluster.members("g", [2], cpu=1, scheduling_gates=("wait",))
    (group,) = cluster.cycle().groups
    assert [reason.code for reason in group.reasons] == ["SchedulingGated"]
    cluster.members("g", [3], cpu=1)
    assert len(cluster.cycle().placements) == 3


def test_above_its_minimum_a_group_grows_pod_by_pod_after_others_have_started() -> None:
    cluster = Workloads().add_node("n1", cpu=4)
    cluster.gang("elastic", 4, least=2, cpu=1)
    cluster.gang("late", 1, cpu=1, created_at=9)
    units = decide(cluster.state, EngineConfig(), shard="s", now=cluster.now, actor="test").units[1:]
    result = cluster.cycle()
    assert set(cluster.placed(result)) == {"elastic-0", "elastic-1", "late-0", "elastic-2"}
    names = [[decision.name for decision in batch.decisions] for batch in result.batches]
    assert names == [["elastic-0", "elastic-1"], ["late-0"], ["elastic-2"]], "kubelets see them as they were charged"
    assert [batch.depends_on for batch in result.batches] == [-1, -1, 0]
    assert units[2].follows == (1, 2), "what it grows by falls with its start, and with who came to the node before it"


def test_sub_groups_start_with_as_many_as_are_asked_for_and_grow_one_by_one() -> None:
    cluster = Workloads().add_node("n1", cpu=5)
    cluster.gang("g", 0, sets=(PodSet(min_sets=1), PodSet("a", "", 2), PodSet("b", "", 2)))
    cluster.subgroup("a", "g", 2, cpu=1)
    cluster.subgroup("b", "g", 1, cpu=1)
    result = cluster.cycle()
    assert set(cluster.placed(result)) == {"g-a-0", "g-a-1"}
    assert result.groups[0].reasons == (GangIncomplete(min_pods=2, ready_pods=1),), "b is not complete"
    cluster.subgroup("b", "g", 2, cpu=2)
    assert not cluster.cycle().placements, "three CPUs are left, and b starts as a whole"
    cluster.add_node("n2", cpu=2)
    assert set(cluster.placed(cluster.cycle())) == {"g-b-0", "g-b-1"}


def test_gangs_of_a_gang_group_start_at_once_or_none_does() -> None:
    together = ("default/leader", "default/worker")
    cluster = Workloads().add_node("n1", cpu=3)
    cluster.gang("leader", 1, group={"together": together}, cpu=1)
    (group,) = cluster.cycle().groups
    assert group.reasons[0].code == "GangGroupWaits"
    cluster.gang("worker", 3, group={"together": together}, cpu=1)
    result = cluster.cycle()
    assert not result.placements
    assert result.groups[0].reasons[0].code == "GangDoesNotFit"
    cluster.add_node("n2", cpu=1)
    result = cluster.cycle()
    assert len(result.placements) == 4
    assert len(result.batches) == 1


def test_no_zone_is_promised_twice_by_a_gang_that_is_undone() -> None:
    zone = amounts(cpu=8, memory=64, gpu=4)
    cluster = Workloads().add_node("n1", zone, zone, policy="restricted")
    cluster.gang("no", 3, cpu=2, memory=8, gpu=3)
    cluster.gang("yes", 2, cpu=2, memory=8, gpu=4, created_at=1)
    assert set(cluster.placed(cluster.cycle())) == {"yes-0", "yes-1"}
    assert cluster.cycle().placements == ()


def test_a_gang_below_its_minimum_is_evicted_after_its_grace() -> None:
    cluster = Workloads().add_node("n1", cpu=3)
    pods = cluster.gang("g", 3, cpu=1, group={"staleness_grace_us": 5_000_000})
    cluster.full(pods)
    cluster.delete_pod(pods[0])
    cluster.add_pod(pod("taker", cpu=1))
    assert set(cluster.placed(cluster.cycle())) == {"taker"}
    cluster.members("g", [3], cpu=1)
    assert not cluster.cycle().evictions
    cluster.now += 6_000_000
    assert cluster.evicted(cluster.cycle()) == {"g-1": EvictionReason.STALE_GANG, "g-2": EvictionReason.STALE_GANG}
    assert not cluster.cycle().evictions, "decided once"


@pytest.mark.parametrize(
    ("ended", "lost", "waits", "placed"),
    [
        (1, 1, 1, 1),
        (2, 1, 1, 1),
        # A pod that is not there and did not succeed is missed.
        (1, 1, 0, 0),
        (1, 2, 1, 0),
        (0, 3, 2, 0),
    ],
)
def test_members_that_ended_well_count_towards_the_minimum(ended: int, lost: int, waits: int, placed: int) -> None:
    """Of a gang of three pods some end well and some are lost; others of them come again and wait."""
    cluster = Workloads().add_node("n1", cpu=3)
    pods = cluster.gang("g", 3, cpu=1)
    cluster.full(pods)
    for one in pods[:ended]:
        cluster.see(one, phase="Succeeded")
    for one in pods[3 - lost :]:
        cluster.delete_pod(one)
    cluster.members("g", range(7, 7 + waits), cpu=1)
    assert len(cluster.cycle().placements) == placed
    cluster.now += 3_600_000_000
    assert not cluster.cycle().evictions, "it is at its end"


@pytest.mark.parametrize(
    ("policy", "lost", "come", "placed", "stale"),
    [
        # What runs counts: two that are left and one that comes are three; of two that are lost one is not enough.
        (MatchPolicy.WAITING_AND_RUNNING, 1, 1, 1, 0),
        (MatchPolicy.WAITING_AND_RUNNING, 2, 1, 0, 1),
        (MatchPolicy.WAITING_AND_RUNNING, 2, 2, 2, 0),
        # What runs does not count: only three that come start.
        (MatchPolicy.ONLY_WAITING, 1, 1, 0, 2),
        (MatchPolicy.ONLY_WAITING, 2, 2, 0, 1),
        (MatchPolicy.ONLY_WAITING, 1, 3, 3, 0),
        # It was whole once: each pod is on its own, and none is left alone.
        (MatchPolicy.ONCE_SATISFIED, 1, 1, 1, 0),
        (MatchPolicy.ONCE_SATISFIED, 2, 1, 1, 0),
        (MatchPolicy.ONCE_SATISFIED, 2, 0, 0, 0),
        # Without any pod left it is a gang anew.
        (MatchPolicy.ONCE_SATISFIED, 3, 2, 0, 0),
    ],
)
def test_gang_counts_pods_that_ended_well_as_its_match_policy_says(
    policy: MatchPolicy, lost: int, come: int, placed: int, stale: int
) -> None:
    """A gang of three pods runs and loses some; others come, and later its grace is over."""
    cluster = Workloads().add_node("n1", cpu=9)
    pods = cluster.gang("g", 3, cpu=1, group={"match_policy": policy, "staleness_grace_us": 5_000_000})
    assert len(cluster.cycle().placements) == 3
    cluster.run(pods)
    for one in pods[:lost]:
        cluster.delete_pod(one)
    cluster.members("g", range(7, 7 + come), cpu=1)
    assert len(cluster.cycle().placements) == placed
    cluster.now += 6_000_000
    assert len(cluster.cycle().evictions) == stale


@pytest.mark.parametrize("policy", list(MatchPolicy))
def test_before_it_was_whole_once_every_policy_waits_for_all(policy: MatchPolicy) -> None:
    cluster = Workloads().add_node("n1", cpu=9)
    cluster.gang("g", 2, least=3, cpu=1, group={"match_policy": policy})
    assert not cluster.cycle().placements
    cluster.members("g", [7], cpu=1)
    assert len(cluster.cycle().placements) == 3


def test_members_that_ended_well_and_are_gone_count_no_more() -> None:
    cluster = Workloads().add_node("n1", cpu=3)
    pods = cluster.gang("g", 2, cpu=1)
    cluster.full(pods)
    for one in pods:
        cluster.see(one, phase="Succeeded")
        cluster.delete_pod(one)
    cluster.members("g", [7], cpu=1)
    assert not cluster.cycle().placements, "it is a gang anew"


def test_a_gang_of_which_members_ended_well_is_evicted_whole() -> None:
    cluster = Workloads().add_node("n1", cpu=2)
    pods = cluster.gang("g", 3, cpu=1, group={"match_policy": MatchPolicy.WAITING_AND_RUNNING}, least=2)
    cluster.run(*[one for one in pods if one.name in cluster.placed(cluster.cycle())])
    cluster.see(pods[0], phase="Succeeded")
    cluster.full(pods[2])
    cluster.add_pod(pod("high", cpu=1, priority=9))
    assert len(cluster.evicted(cluster.cycle())) == 1, "with the one that ended well, one is enough"
    cluster = Workloads().add_node("n1", cpu=3)
    pods = cluster.gang("g", 3, cpu=1)
    cluster.full(pods)
    cluster.see(pods[0], phase="Succeeded")
    cluster.add_pod(pod("high", cpu=2, priority=9))
    result = cluster.cycle()
    assert set(cluster.evicted(result)) == {"g-1", "g-2"}
    assert not any(eviction.shrinks for eviction in result.evictions)


def test_running_group_whose_tree_changes_follows_the_new_one() -> None:
    cluster = Workloads().add_node("n1", cpu=3)
    cluster.gang("g", 0, sets=(PodSet(min_pods=2),))
    pods = cluster.subgroup("a", "g", 2, cpu=1)
    cluster.full(pods)
    cluster.gang("g", 0, sets=(PodSet(), PodSet("a", "", 2), PodSet("b", "", 1)))
    (workload,) = cluster.state.workload_index.workloads.values()
    assert dict(workload.counts) == {"a": 2}
    cluster.delete_pod(pods[0])
    assert dict(workload.counts) == {"a": 1}
    cluster.subgroup("b", "g", 1, cpu=1)
    assert not cluster.cycle().placements
    cluster.add_pod(pods[0])
    assert set(cluster.placed(cluster.cycle())) == {"g-a-0", "g-b-0"}
