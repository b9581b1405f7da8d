"""Scores by zones: worked examples, by hand."""

from typing import Any

import pytest
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.model.pod import QosClass
from kaicore.rules.numa.kubelet.requests import aligned_request
from kaicore.rules.numa.kubelet.zones import ZoneCharge
from kaicore.rules.numa.scoring import UNKNOWN, NumaScoring, ScoringStrategy, score, span_score

from tests.given.cluster.factory import GPU, Cluster, amounts, container, pod

#: Two sockets of two zones: 12 within a socket, 32 between them.
FOUR = ((10, 12, 32, 32), (12, 10, 32, 32), (32, 32, 10, 12), (32, 32, 12, 10))


@pytest.mark.parametrize(
    ("distances", "mask", "most", "score"),
    [
        # One zone of eight costs 100 // 8 = 12; half of it comes back where no zones are closer.
        (FOUR, 0b0001, 8, 94),
        (FOUR, 0b0011, 8, 82),
        (FOUR, 0b1001, 8, 76),
        (FOUR, 0b0111, 8, 70),
        (FOUR, 0b1111, 8, 58),
        (((10, 11), (11, 12)), 0b10, 8, 88),
        (((255,) * 2,) * 2, 0b11, 8, 82),
        # GB200 has 34 zones: 100 // 34 = 2 each.
        (((255,) * 34,) * 34, 0b1, 34, 99),
        (((255,) * 34,) * 34, (1 << 34) - 1, 34, 33),
        (((255,) * 34,) * 34, 0b111, 34, 94),
    ],
)
def test_fewest_zones_then_the_closest(
    distances: tuple[tuple[int, ...], ...], mask: int, most: int, score: int
) -> None:
    assert span_score(distances, (mask,), zones=len(distances), most=most) == score


def node_for(cluster: Cluster, config: EngineConfig, **asked: Any) -> str:
    cluster.add_pod(pod(f"p{len(cluster.events)}", **asked))
    (decision,) = cluster.cycle(config).placements
    return decision.node


def scored(strategy: str, weights: dict[str, int] | None = None) -> EngineConfig:
    return EngineConfig(numa_scoring=NumaScoring(ScoringStrategy(strategy), weights or {}))


def test_best_effort_is_steered_to_where_it_is_aligned() -> None:
    """The fuller node would be preferred, but there GPU and CPUs are free on different zones only."""
    cluster = Cluster().add_node("apart", amounts(cpu=2, gpu=2), amounts(cpu=8, gpu=0), policy="best-effort")
    cluster.add_node("together", amounts(cpu=8, gpu=2), amounts(cpu=8, gpu=2), policy="best-effort")
    cluster.add_node("unknown", cpu=8, gpu=2)
    assert node_for(cluster, scored("Off"), cpu=4, gpu=1) == "apart"
    assert node_for(cluster, scored("LeastNUMANodes"), cpu=4, gpu=1) == "together"


def test_zones_of_containers_count_together() -> None:
    """Two containers that are aligned each by itself need two zones of small ones, and one of a large one."""
    cluster = Cluster().add_node("large", amounts(cpu=8, gpu=8))
    cluster.add_node("a-small", *[amounts(cpu=4, gpu=4)] * 2)
    cluster.add_pod(pod("two", container("a", cpu=3, gpu=3), container("b", cpu=3, gpu=3)))
    assert [decision.node for decision in cluster.cycle().placements] == ["large"]


def test_closer_zones_are_preferred() -> None:
    zone = amounts(cpu=4)
    cluster = Cluster()
    # Restricted takes the lowest of the masks; on one node these are far from each other.
    cluster.add_node("a-far", *[zone] * 4, policy="restricted", costs=((10, 32, 12, 32),) * 4)
    cluster.add_node("near", *[zone] * 4, policy="restricted", costs=FOUR)
    assert node_for(cluster, EngineConfig(), cpu=8) == "near"


def test_each_container_wants_zones_of_its_own_that_are_near_each_other() -> None:
    """Two containers of two zones each take all four on either node; on one they are pairs of sockets."""
    zone = amounts(cpu=4, gpu=2)
    cluster = Cluster()
    cluster.add_node("a-far", *[zone] * 4, policy="restricted", costs=((10, 32, 12, 32), (32, 10, 32, 12)) * 2)
    cluster.add_node("near", *[zone] * 4, policy="restricted", costs=FOUR)
    cluster.add_pod(pod("two", container("a", cpu=8, gpu=4), container("b", cpu=8, gpu=4)))
    assert [decision.node for decision in cluster.cycle().placements] == ["near"]


@pytest.mark.parametrize(
    ("spans", "score"),
    [
        ((0b0011, 0b1100), 58),
        ((0b0101, 0b1100), 68),
        ((0b0101, 0b1010), 54),
        ((0b01, 0b10), 82),
        ((0b0001, 0b0100), 80),
    ],
)
def test_closeness_is_that_of_each_container_and_of_all_together(spans: tuple[int, ...], score: int) -> None:
    assert span_score(FOUR, spans, zones=4, most=8) == score


@pytest.mark.parametrize(
    ("strategy", "weights", "expected"),
    [
        # On zones of 10 CPUs and 10 GPUs a pod of 2 CPUs and 2 GPUs leaves in use, per cent:
        # 20 and 20 on an idle one, 80 and 20 where 6 CPUs are taken, 80 and 80 where 6 GPUs are too.
        ("LeastAllocated", {}, [80, 50, 20]),
        ("MostAllocated", {}, [20, 50, 80]),
        ("MostAllocated", {GPU: 0}, [20, 80, 80]),
        ("MostAllocated", {"cpu": 3}, [20, 65, 80]),
        ("MostAllocated", {"cpu": 0, GPU: 0}, [UNKNOWN] * 3),
        # The sample variance of 0.8 and 0.2 is 0.18.
        ("BalancedAllocation", {}, [100, 82, 100]),
        ("BalancedAllocation", {"cpu": 0}, [100, 100, 100]),
    ],
)
def test_used_zones_are_packed_or_spread_as_configured(
    strategy: str, weights: dict[str, int], expected: list[int]
) -> None:
    cluster = Cluster()
    zones = cluster.state.columns.zones
    for row, held in enumerate(((), ((0, "cpu", 6000),), ((0, "cpu", 6000), (0, GPU, 6)))):
        cluster.add_node(f"n{row}", amounts(cpu=10, gpu=10), amounts(cpu=99, gpu=99))
        zones.charge(row, ZoneCharge(held))
    request = aligned_request(pod("p", cpu=2, gpu=2))
    scoring = NumaScoring(ScoringStrategy(strategy), weights)
    assert [score(zones, row, (0b01,), request, scoring=scoring) for row in range(3)] == expected


def test_node_with_the_best_score_is_chosen() -> None:
    cluster = Cluster().add_node("a", amounts(cpu=10, gpu=10))
    cluster.add_node("b", amounts(cpu=10, gpu=10))
    assert node_for(cluster, EngineConfig(), cpu=6, gpu=1) == "a"
    assert node_for(cluster, scored("MostAllocated"), cpu=1, gpu=1) == "a"
    assert node_for(cluster, scored("LeastAllocated"), cpu=1, gpu=1) == "b"


def test_pods_without_devices_keep_off_devices_whatever_their_zones() -> None:
    cluster = Cluster().add_node("cpus", cpu=16)
    cluster.add_node("gpus", amounts(cpu=16, gpu=4))
    assert node_for(cluster, EngineConfig(), cpu=4) == "cpus"
    assert node_for(cluster, EngineConfig(), cpu=4, gpu=1) == "gpus"
    assert node_for(cluster, EngineConfig(), cpu=1, qos=QosClass.BURSTABLE) == "cpus"


@pytest.mark.parametrize("weight", [-1, 101])
def test_weights_are_per_cent(weight: int) -> None:
    with pytest.raises(ValueError, match=r"weights\[cpu\]"):
        NumaScoring(weights={"cpu": weight})
