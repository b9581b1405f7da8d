"""Room that a pod's status says is kept for it, by another scheduler or by us in an earlier life."""

from typing import Any

import pytest
from kaicore.rules.deciding.why import pending_reasons, story_of
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.decisions import ClearReason, CycleResult
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import Pod

from tests.given.cluster.factory import amounts, pod
from tests.given.work.workloads import Workloads, gpu_nodes

ZONE = amounts(cpu=8, memory=64, gpu=4)
OTHER = "default-scheduler"


def leaves(cluster: Workloads, one: Pod) -> None:
    cluster.see(one, deletion_at=1)


def cleared(result: CycleResult) -> list[tuple[str, str]]:
    return [(item.name, item.reason) for item in result.cleared]


def nominated(name: str, node: str = "n0", gpu: int = 8, **kwargs: Any) -> Pod:
    return pod(name, cpu=1, gpu=gpu, nominated_node=node, **kwargs)


@pytest.mark.parametrize("scheduler", ["kai-ledger", OTHER])
@pytest.mark.parametrize("restarted", [False, True])
def test_room_is_kept_while_its_victims_are_leaving(scheduler: str, restarted: bool) -> None:
    """The thief is older and asks for half: without the room kept, it would fit beside who leaves."""
    cluster = gpu_nodes(1)
    victim = cluster.runs("victim", "n0", 4)
    leaves(cluster, victim)
    cluster.add_pod(nominated("first", scheduler_name=scheduler, created_at=9))
    cluster.add_pod(pod("thief", cpu=1, gpu=4))
    if restarted:
        cluster.restart()
    assert not cluster.cycle().batches
    if scheduler == OTHER:
        return
    assert pending_reasons(cluster.state.pods["uid-first"], cluster.state)[0].code == "WaitsForVictims"
    cluster.delete_pod(victim)
    assert cluster.placed(cluster.cycle()) == {"first": "n0"}


def test_zones_count_where_none_will_have_enough_no_room_is_kept() -> None:
    """Two GPUs of each zone are free when who leaves is gone, and it needs four of one."""
    cluster = Workloads().add_node("n0", ZONE, ZONE, policy="single-numa-node")
    small = [cluster.add_pod(pod(f"small-{number}", cpu=1, gpu=2)) for number in range(4)]
    cluster.full(small)
    by_zone = sorted(small, key=lambda one: str(cluster.state.pods[one.uid].zone_charge.split))
    leaves(cluster, by_zone[0])
    cluster.delete_pod(by_zone[-1])
    cluster.add_pod(nominated("first", gpu=4))
    assert cleared(cluster.cycle(EngineConfig(actions=()))) == [("first", ClearReason.NO_LONGER_FITS)]


def test_room_on_a_node_that_no_pod_leaves_is_not_reserved() -> None:
    cluster = gpu_nodes(2)
    cluster.runs("stays", "n0", 8)
    cluster.add_pod(nominated("first"))
    result = cluster.cycle()
    assert cleared(result) == [("first", ClearReason.NO_LONGER_FITS)]
    assert cluster.placed(result) == {"first": "n1"}


def test_the_nominated_goes_first_when_its_victims_are_gone_and_keeps_nothing_if_it_cannot() -> None:
    cluster = gpu_nodes(1)
    cluster.gang("gang", 2, cpu=1, gpu=8, created_at=9)
    cluster.see(cluster.state.pods["uid-gang-0"].pod, nominated_node="n0")
    cluster.add_pod(pod("other", cpu=1, gpu=8))
    result = cluster.cycle()
    assert cleared(result) == [("gang-0", ClearReason.NOTHING_LEAVES)]
    assert not result.placements, "for this cycle it had been kept"
    assert cluster.placed(cluster.cycle()) == {"other": "n0"}


@pytest.mark.parametrize("node", ["n9", "n1"])
def test_where_it_cannot_fit_even_then_no_room_is_kept(node: str) -> None:
    """There is no node of the name, or one that is too full."""
    cluster = gpu_nodes(2)
    cluster.runs("stays", "n1", 4)
    leaves(cluster, cluster.runs("victim", "n1", 4))
    cluster.add_pod(nominated("first", node))
    result = cluster.cycle()
    assert cleared(result) == [("first", ClearReason.NO_LONGER_FITS)]
    assert cluster.placed(result) == {"first": "n0"}
    assert not cleared(cluster.cycle()), "once is enough, though the status still says so"


def test_foreign_nomination_is_given_up_after_nomination_us() -> None:
    cluster = gpu_nodes(1)
    leaves(cluster, cluster.runs("victim", "n0", 8))
    cluster.add_pod(nominated("first"))
    assert not cluster.cycle().batches
    cluster.now += EngineConfig().nomination_us
    assert cleared(cluster.cycle()) == [("first", ClearReason.GAVE_UP)]


def test_a_status_that_names_no_node_any_more_lets_go() -> None:
    cluster = gpu_nodes(1)
    leaves(cluster, cluster.runs("victim", "n0", 4))
    first = cluster.add_pod(nominated("first", scheduler_name=OTHER))
    thief = cluster.add_pod(pod("thief", cpu=1, gpu=4))
    assert not cluster.cycle().batches
    cluster.see(first, nominated_node="")
    assert cluster.placed(cluster.cycle()) == {thief.name: "n0"}


def test_a_status_that_names_another_node_keeps_room_there() -> None:
    cluster = gpu_nodes(2)
    for node in ("n0", "n1"):
        leaves(cluster, cluster.runs(f"victim-{node}", node, 4))
    cluster.see(cluster.add_pod(nominated("first", scheduler_name=OTHER)), nominated_node="n1")
    cluster.add_pod(pod("thief", cpu=1, gpu=4))
    assert cluster.placed(cluster.cycle()) == {"thief": "n0"}


def test_status_that_repeats_our_nomination_is_not_foreign() -> None:
    """The binder writes where room is kept into the status, and takes it out again: both come back, late."""
    cluster = gpu_nodes(1)
    low = cluster.add_pod(pod("low", cpu=1, gpu=8, priority=1))
    cluster.full(low)
    high = cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    (eviction,) = cluster.cycle().evictions
    failed = payloads.EvictionFailed(eviction.uid, "default", "low", "n0", 429, "TooManyRequests")
    cluster.record(f"pod/{eviction.uid}", failed)
    assert cleared(cluster.cycle(EngineConfig(actions=()))) == [("high", ClearReason.NO_LONGER_FITS)]
    cluster.see(high, nominated_node="n0")
    assert cluster.state.pods[high.uid].nomination is None
    cluster.see(high, nominated_node="")
    leaves(cluster, low)
    cluster.see(high, nominated_node="n0")
    nomination = cluster.state.pods[high.uid].nomination
    assert nomination is not None, "this is news: our own was taken back in between"
    assert nomination.foreign


def test_our_own_nomination_stands_whatever_the_status_says() -> None:
    cluster = gpu_nodes(2)
    low = [cluster.add_pod(pod(f"low-{number}", cpu=1, gpu=8, priority=1)) for number in range(2)]
    cluster.full(low)
    high = cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    assert cluster.nominated(cluster.cycle()) == {"high": "n0"}
    cluster.see(high, nominated_node="n1")
    nomination = cluster.state.pods[high.uid].nomination
    assert nomination is not None
    assert (nomination.node, nomination.foreign) == ("n0", False)


def test_story_tells_of_foreign_nominations() -> None:
    cluster = gpu_nodes(1)
    cluster.see(cluster.add_pod(pod("high", cpu=1, gpu=8)), nominated_node="n0")
    story = [line.text for line in story_of([event for event in cluster.events if event.stream == "pod/uid-high"])]
    assert story[-1] == "its status names n0 as kept for it, by another scheduler"
