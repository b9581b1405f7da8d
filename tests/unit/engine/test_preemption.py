"""Pods that a cycle evicts so that others can start, and pods that it never evicts."""

import msgspec
import pytest
from kaicore.rules.engine.config import Action, EngineConfig
from kaicore.rules.engine.decisions import ClearReason, EvictionReason
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import PodRules, PodTerm
from kaicore.rules.model.selector import PodSelector, Requirement

from tests.given.cluster.factory import amounts, pod
from tests.given.work.workloads import OWNER, Workloads

ZONE = amounts(cpu=8, memory=64, gpu=4)


def gpus(count: int, **kwargs: object) -> Workloads:
    """Nodes of 8 GPUs."""
    return Workloads().add_nodes(count, cpu=64, gpu=8, **kwargs)


def test_lower_priority_makes_way_and_the_room_is_kept_until_it_is_gone() -> None:
    cluster = gpus(1)
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


@pytest.mark.parametrize("priority", [1, 0])
def test_equal_or_lower_priority_evicts_no_pod(priority: int) -> None:
    cluster = gpus(1)
    cluster.full(cluster.add_pod(pod("running", cpu=1, gpu=8, priority=1)))
    cluster.add_pod(pod("other", cpu=1, gpu=8, priority=priority, created_at=1))
    assert not cluster.cycle().evictions


def test_nothing_is_evicted_for_a_gang_that_would_not_fit_even_then() -> None:
    cluster = gpus(3)
    low = [cluster.add_pod(pod(f"low-{n}", cpu=1, gpu=8, priority=1)) for n in range(2)]
    cluster.full(low, cluster.add_pod(pod("firm", cpu=1, gpu=8, priority=9)))
    cluster.gang("high", 3, cpu=1, gpu=8, priority=5)
    result = cluster.cycle()
    assert not result.evictions
    (group,) = result.groups
    assert group.reasons[-1].code == "NoVictimsWouldHelp"


def test_zones_count_a_pod_that_would_free_the_wrong_zone_stays() -> None:
    """Two GPUs are free on each zone; only who holds three of one zone can make room for three."""
    cluster = Workloads().add_node("n0", ZONE, ZONE, policy="single-numa-node")
    small = [cluster.add_pod(pod(f"small-{n}", cpu=1, memory=1, gpu=1, priority=1)) for n in range(2)]
    cluster.full(small, cluster.add_pod(pod("large", cpu=1, memory=1, gpu=4, priority=1, created_at=1)))
    cluster.add_pod(pod("high", cpu=1, memory=1, gpu=4, priority=2))
    result = cluster.cycle()
    assert cluster.evicted(result) == {"large": EvictionReason.PREEMPTED}, "one, where the other zone would take two"


def test_the_fewest_and_cheapest_go() -> None:
    cluster = gpus(3)
    for node, sizes, priority in (("n0", (4, 4), 1), ("n1", (8,), 2), ("n2", (8,), 1)):
        for index, gpu in enumerate(sizes):
            name = f"{node}-{index}"
            cluster.add_pod(pod(name, cpu=1, gpu=gpu, priority=priority, node_name=node, phase="Running"))
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    assert set(cluster.evicted(cluster.cycle())) == {"n2-0"}


def test_a_gang_goes_as_a_whole_and_what_it_can_spare_goes_first() -> None:
    cluster = gpus(2)
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
    cluster = gpus(1, labels={"row": "a"})
    for name, labels in (("app", APP), ("other", {})):
        cluster.full(cluster.add_pod(pod(name, cpu=1, gpu=4, priority=1, labels=labels)))
    cluster.add_pod(pod("high", cpu=1, gpu=1, priority=2, rules=AWAY_FROM_APP))
    assert cluster.evicted(cluster.cycle()) == {"app": EvictionReason.PREEMPTED}


def test_pod_that_has_to_stay_for_the_rules_is_not_moved() -> None:
    """Pods of a StatefulSet could be made again; but where they are is where the other pod must not be."""
    cluster = gpus(1, labels={"row": "a"})
    cluster.full(cluster.add_pod(pod("app", cpu=1, gpu=1, owner=OWNER, labels=APP)))
    cluster.add_pod(pod("new", cpu=1, gpu=1, rules=AWAY_FROM_APP))
    result = cluster.cycle()
    assert not result.evictions
    assert not result.nominations


def test_pod_that_the_preemptor_must_be_near_is_not_evicted() -> None:
    cluster = gpus(1, labels={"row": "a"})
    cluster.full(cluster.add_pod(pod("app", cpu=1, gpu=8, priority=1, labels=APP)))
    cluster.add_pod(pod("high", cpu=1, gpu=1, priority=2, rules=NEAR_APP))
    assert not cluster.cycle().evictions


def test_members_of_a_gang_are_all_nominated() -> None:
    cluster = gpus(2)
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
    cluster = gpus(2)
    low = [cluster.add_pod(pod(f"low-{n}", cpu=1, gpu=8, priority=1)) for n in range(2)]
    cluster.full(low)
    cluster.see(low[1], deletion_at=1)
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    result = cluster.cycle()
    assert not result.evictions
    assert cluster.nominated(result) == {"high": "n1"}


def test_an_eviction_that_failed_has_the_room_given_up_and_another_victim_looked_for() -> None:
    cluster = gpus(2)
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
    cluster = gpus(1)
    cluster.full(cluster.add_pod(pod("low", cpu=1, gpu=8, priority=1)))
    cluster.add_pod(pod("middle", cpu=1, gpu=8, priority=3))
    cluster.go(cluster.cycle())
    cluster.add_pod(pod("top", cpu=1, gpu=8, priority=9))
    result = cluster.cycle()
    assert cluster.placed(result) == {"top": "n0"}
    assert len(result.batches) == 1
    assert [(cleared.name, cleared.reason) for cleared in result.cleared] == [("middle", ClearReason.TAKEN)]


def test_pod_with_policy_never_preempts_no_pod() -> None:
    cluster = gpus(1)
    cluster.full(cluster.add_pod(pod("low", cpu=1, gpu=8, priority=1)))
    cluster.gang("high", 2, least=1, cpu=1, gpu=8, priority=5, preemption_policy="Never")
    assert not cluster.cycle().evictions


def test_group_does_not_preempt_before_its_delay_is_over() -> None:
    cluster = gpus(1)
    cluster.full(cluster.add_pod(pod("low", cpu=1, gpu=8, priority=1)))
    born = cluster.now // 1_000_000
    delayed = {"created_at": born, "preemption_delay_us": 60_000_000}
    cluster.gang("high", 1, group=delayed, cpu=1, gpu=8, priority=5)
    assert not cluster.cycle().evictions
    cluster.now += 61_000_000
    assert cluster.cycle().evictions


def test_lone_pod_does_not_preempt_before_its_delay_is_over() -> None:
    cluster = gpus(1)
    cluster.full(cluster.add_pod(pod("low", cpu=1, gpu=8, priority=1)))
    annotations = {"kai.scheduler/preemption-delay": "1m"}
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5, created_at=cluster.now // 1_000_000, annotations=annotations))
    assert not cluster.cycle().evictions
    cluster.now += 61_000_000
    assert cluster.cycle().evictions


def test_group_that_ends_whole_is_evicted_whole() -> None:
    cluster = gpus(1)
    cluster.full(cluster.gang("g", 4, least=2, group={"ends_whole": True}, cpu=1, gpu=2))
    cluster.add_pod(pod("high", cpu=1, gpu=1, priority=5))
    result = cluster.cycle()
    assert len(result.evictions) == 4
    assert not any(eviction.shrinks for eviction in result.evictions)


def test_moved_pod_has_another_place_and_a_controller() -> None:
    cluster = gpus(2)
    for node in ("n0", "n1"):
        cluster.add_pod(pod(f"half-{node}", cpu=1, gpu=4, owner=OWNER, node_name=node, phase="Running"))
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    result = cluster.cycle()
    (eviction,) = result.evictions
    assert eviction.reason == EvictionReason.CONSOLIDATED
    assert eviction.fits_on
    assert eviction.fits_on != eviction.node
    assert cluster.nominated(result) == {"whole": eviction.node}


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


def test_bare_pods_are_not_moved_and_actions_can_be_left_out() -> None:
    cluster = gpus(2)
    for node in ("n0", "n1"):
        cluster.add_pod(pod(f"half-{node}", cpu=1, gpu=4, node_name=node, phase="Running"))
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    assert not cluster.cycle().evictions
    owned = gpus(2)
    for node in ("n0", "n1"):
        owned.add_pod(pod(f"half-{node}", cpu=1, gpu=4, owner=OWNER, node_name=node, phase="Running"))
    owned.add_pod(pod("whole", cpu=1, gpu=8))
    assert not owned.cycle(EngineConfig(actions=(Action.ALLOCATE, Action.PREEMPT))).evictions


def test_room_is_not_kept_for_ever() -> None:
    cluster = gpus(1)
    cluster.full(cluster.add_pod(pod("low", cpu=1, gpu=8, priority=1)))
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    assert cluster.cycle().evictions
    cluster.now += EngineConfig().nomination_us
    assert [cleared.reason for cleared in cluster.cycle().cleared] == [ClearReason.GAVE_UP]


def test_cycles_without_news_decide_nothing_more() -> None:
    cluster = gpus(2)
    for number in range(4):
        cluster.add_pod(pod(f"p{number}", cpu=1, gpu=8, priority=number))
    last = -1
    for _ in range(20):
        result = cluster.cycle()
        cluster.run(*(cluster.state.pods[decision.uid].pod for decision in result.placements))
        cluster.go(result)
        last = len(result.batches)
    assert last == 0
