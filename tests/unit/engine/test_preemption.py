"""Pods that a cycle evicts so that others can start, and pods that it never evicts."""

import msgspec
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.decisions import ClearReason, EvictionReason
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import PodRules, PodTerm
from kaicore.rules.model.selector import PodSelector, Requirement

from tests.given.cluster.factory import amounts, pod
from tests.given.work.workloads import OWNER, Workloads, gpu_nodes

ZONE = amounts(cpu=8, memory=64, gpu=4)


def test_lower_priority_makes_way_and_the_room_is_kept_until_it_is_gone() -> None:
    cluster = gpu_nodes(1)
    cluster.full(cluster.add_pod(pod("low", cpu=1, gpu=8, priority=1)))
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=2))
    result = cluster.cycle()
    assert cluster.evicted(result) == {"low": EvictionReason.PREEMPTED}
    assert cluster.nominated(result) == {"high": "n0"}
    assert result.evictions[0].preemptor == "Pod/default/high"
    assert len(result.batches) == 1, "room and victims are one decision"
    cluster.add_pod(pod("thief", cpu=1, gpu=8, priority=1))
    again = cluster.cycle()
    assert not again.evictions
    assert not again.nominations
    cluster.go(result)
    assert cluster.placed(cluster.cycle()) == {"high": "n0"}, "and not the thief, which is as good on an empty node"


def test_zones_count_a_pod_that_would_free_the_wrong_zone_stays() -> None:
    """Two GPUs are free on each zone; only who holds three of one zone can make room for three."""
    cluster = Workloads().add_node("n0", ZONE, ZONE, policy="single-numa-node")
    small = [cluster.add_pod(pod(f"small-{n}", cpu=1, memory=1, gpu=1, priority=1)) for n in range(2)]
    cluster.full(small, cluster.add_pod(pod("large", cpu=1, memory=1, gpu=4, priority=1, created_at=1)))
    cluster.add_pod(pod("high", cpu=1, memory=1, gpu=4, priority=2))
    result = cluster.cycle()
    assert cluster.evicted(result).keys() == {"small-0", "small-1"}, "all of one zone: they hold less than the other's"


def test_a_gang_goes_as_a_whole_and_what_it_can_spare_goes_first() -> None:
    cluster = gpu_nodes(2)
    gang = cluster.gang("gang", 2, cpu=1, gpu=4, priority=1)
    cluster.full(gang, cluster.gang("elastic", 2, least=1, cpu=1, gpu=4, priority=1))
    cluster.add_pod(pod("high", cpu=1, gpu=4, priority=5))
    result = cluster.cycle()
    (eviction,) = result.evictions
    assert eviction.group.endswith("/elastic")
    assert eviction.shrinks
    cluster.add_pod(pod("higher", cpu=1, gpu=8, priority=6))
    result = cluster.cycle()
    assert {eviction.name for eviction in result.evictions} == {"gang-0", "gang-1"}
    assert not any(eviction.shrinks for eviction in result.evictions)


APP = {"app": "app"}
NEAR_APP_TERM = PodTerm("row", PodSelector(("default",), None, (Requirement("app", "In", ("app",)),)))
AWAY_FROM_APP = PodRules(anti_affinity=(NEAR_APP_TERM,))
NEAR_APP = PodRules(affinity=(NEAR_APP_TERM,))


def test_pod_that_the_preemptor_must_not_be_near_is_evicted() -> None:
    cluster = gpu_nodes(1, labels={"row": "a"})
    for name, labels in (("app", APP), ("other", {})):
        cluster.full(cluster.add_pod(pod(name, cpu=1, gpu=4, priority=1, labels=labels)))
    cluster.add_pod(pod("high", cpu=1, gpu=1, priority=2, rules=AWAY_FROM_APP))
    assert cluster.evicted(cluster.cycle()) == {"app": EvictionReason.PREEMPTED}


def test_pod_that_has_to_stay_for_the_rules_is_not_moved() -> None:
    """Pods of a StatefulSet could be made again; but where they are is where the other pod must not be."""
    cluster = gpu_nodes(1, labels={"row": "a"})
    cluster.full(cluster.add_pod(pod("app", cpu=1, gpu=1, owner=OWNER, labels=APP)))
    cluster.add_pod(pod("new", cpu=1, gpu=1, rules=AWAY_FROM_APP))
    result = cluster.cycle()
    assert not result.evictions
    assert not result.nominations


def test_pod_that_the_preemptor_must_be_near_is_not_evicted() -> None:
    cluster = gpu_nodes(1, labels={"row": "a"})
    cluster.full(cluster.add_pod(pod("app", cpu=1, gpu=8, priority=1, labels=APP)))
    cluster.add_pod(pod("high", cpu=1, gpu=1, priority=2, rules=NEAR_APP))
    assert not cluster.cycle().evictions


def test_members_of_a_gang_are_all_nominated() -> None:
    cluster = gpu_nodes(2)
    low = [cluster.add_pod(pod(f"low-{n}", cpu=1, gpu=8, priority=1)) for n in range(2)]
    cluster.full(low)
    cluster.gang("high", 2, cpu=1, gpu=8, priority=5)
    assert cluster.nominated(cluster.cycle()) == {"high-0": "n0", "high-1": "n1"}
    cluster.delete_pod(low[0])
    waiting = cluster.cycle()
    assert not waiting.placements, "half of a gang is nothing"
    assert waiting.groups[0].reasons[0].code == "WaitsForVictims"
    cluster.delete_pod(low[1])
    assert len(cluster.cycle().placements) == 2


def test_pods_that_leave_anyway_are_waited_for_and_no_other_is_evicted() -> None:
    cluster = gpu_nodes(2)
    low = [cluster.add_pod(pod(f"low-{n}", cpu=1, gpu=8, priority=1)) for n in range(2)]
    cluster.full(low)
    cluster.see(low[1], deletion_at=1)
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    result = cluster.cycle()
    assert not result.evictions
    assert cluster.nominated(result) == {"high": "n1"}


def test_an_eviction_that_failed_has_the_room_given_up_and_another_victim_looked_for() -> None:
    cluster = gpu_nodes(2)
    low = [cluster.add_pod(pod(f"low-{n}", cpu=1, gpu=8, priority=1)) for n in range(2)]
    cluster.full(low)
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    (first,) = cluster.cycle().evictions
    failed = payloads.EvictionFailed(first.uid, "default", first.name, first.node, 429, "TooManyRequests")
    cluster.record(f"pod/{first.uid}", failed)
    result = cluster.cycle()
    assert [cleared.reason for cleared in result.cleared] == [ClearReason.NO_LONGER_FITS]
    assert len(result.evictions) == 1


def test_higher_priority_takes_room_that_is_kept_for_lower() -> None:
    cluster = gpu_nodes(1)
    cluster.full(cluster.add_pod(pod("low", cpu=1, gpu=8, priority=1)))
    cluster.add_pod(pod("middle", cpu=1, gpu=8, priority=3))
    cluster.go(cluster.cycle())
    cluster.add_pod(pod("top", cpu=1, gpu=8, priority=9))
    result = cluster.cycle()
    assert cluster.placed(result) == {"top": "n0"}
    assert len(result.batches) == 1
    assert [(cleared.name, cleared.reason) for cleared in result.cleared] == [("middle", ClearReason.TAKEN)]


def test_lone_pod_does_not_preempt_before_its_delay_is_over() -> None:
    cluster = gpu_nodes(1)
    cluster.full(cluster.add_pod(pod("low", cpu=1, gpu=8, priority=1)))
    annotations = {"kai.scheduler/preemption-delay": "1m"}
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5, created_at=cluster.now // 1_000_000, annotations=annotations))
    assert not cluster.cycle().evictions
    cluster.now += 61_000_000
    assert cluster.cycle().evictions


def test_where_the_cheapest_cannot_move_another_does() -> None:
    cluster = Workloads()
    for node in ("n0", "n1"):
        cluster.add_node(node, cpu=64, gpu=8, labels={"host": node})
    half = {"cpu": 1, "gpu": 4, "phase": "Running"}
    cluster.add_pod(pod("pinned", owner=OWNER, node_name="n0", node_selector={"host": "n0"}, **half))
    other = msgspec.structs.replace(OWNER, name="other", uid="uid-other")
    cluster.add_pod(pod("movable", owner=other, node_name="n1", priority=1, **half))
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    result = cluster.cycle()
    assert cluster.evicted(result) == {"movable": EvictionReason.CONSOLIDATED}
    assert cluster.nominated(result) == {"whole": "n1"}


def test_room_is_not_kept_for_ever() -> None:
    cluster = gpu_nodes(1)
    cluster.full(cluster.add_pod(pod("low", cpu=1, gpu=8, priority=1)))
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    assert cluster.cycle().evictions
    cluster.now += EngineConfig().nomination_us
    assert [cleared.reason for cleared in cluster.cycle().cleared] == [ClearReason.GAVE_UP]


def test_cycles_without_news_decide_nothing_more() -> None:
    cluster = gpu_nodes(2)
    for number in range(4):
        cluster.add_pod(pod(f"p{number}", cpu=1, gpu=8, priority=number))
    last = -1
    for _ in range(20):
        result = cluster.cycle()
        cluster.run(*(cluster.state.pods[decision.uid].pod for decision in result.placements))
        cluster.go(result)
        last = len(result.batches)
    assert last == 0
