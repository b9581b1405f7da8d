"""Shares of a GPU by zone: the GPU of a share is one of the zone that the kubelet gives the pod's CPUs from."""

import pytest
from kaicore.rules.deciding.why import notes
from kaicore.rules.engine.config import EngineConfig, PlacementStrategy
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.model.gpu_share import GpuShare
from kaicore.rules.numa.scoring import NumaScoring, ScoringStrategy

from tests.given.cluster.factory import GPU, amounts, on_zone, pod
from tests.given.cluster.sharing_cluster import ON, Sharing

SPREAD = EngineConfig(gpu_sharing=True, placement_strategy=PlacementStrategy.SPREAD)
UNSCORED = EngineConfig(gpu_sharing=True, numa_scoring=NumaScoring(strategy=ScoringStrategy.OFF))
#: A zone with few CPUs, and one with many.
NARROW, WIDE = amounts(cpu=4, memory=32, gpu=1), amounts(cpu=16, memory=32, gpu=1)
#: The same without a GPU.
BARE = amounts(cpu=16, memory=32, gpu=0)


class ZonedSharing(Sharing):
    compares_indexes = True

    def zones(self, result: CycleResult) -> dict[str, str]:
        """By name of placed pods: the node and zone of the GPU that it shares, as it is charged now."""
        columns, zones = self.state.columns, {}
        for one in result.placements:
            mask = columns.gpus.copy().zones(one.gpus[0].group)
            zones[one.name] = f"{one.node}/{mask.bit_length() - 1}"
        return zones

    def observe(self, group: str, zone: str) -> None:
        """The reservation pod of a group is there, and is observed with the GPU of a zone."""
        one = self.reservation_pod(group)
        self.report(one, on_zone(zone, {GPU: 1}, "resource-reservation"), node=one.node_name, init=())


def open_both(config: EngineConfig = ON) -> ZonedSharing:
    """Of a node's GPUs that of zone 0 has 0.3 free, and that of zone 1 0.5; zone 0 has 2 CPUs, zone 1 has 16."""
    made = ZonedSharing().add_node("n0", NARROW, WIDE)
    made.share("first", 700)
    made.share("second", 500, created_at=1)
    assert made.zones(made.cycle(config)) == {"first": "n0/0", "second": "n0/1"}
    return made


@pytest.mark.parametrize("config", [ON, UNSCORED], ids=["scored", "unscored"])
def test_share_gets_the_open_gpu_of_the_zone_that_its_cpus_fit_in(config: EngineConfig) -> None:
    made = open_both(config)
    made.share("wide", 300, cpu=6, created_at=2)
    assert made.zones(made.cycle(config)) == {"wide": "n0/1"}


def test_share_without_exclusive_cpus_gets_the_open_gpu_with_the_least_left() -> None:
    made = open_both()
    made.share("any", 300, cpu=6, created_at=2, qos="Burstable")
    assert made.zones(made.cycle(ON)) == {"any": "n0/0"}


def test_spread_share_gets_the_gpu_of_its_zone_before_the_one_with_the_most_left() -> None:
    made = open_both(SPREAD)
    made.share("narrow", 200, cpu=1, created_at=2)
    assert made.zones(made.cycle(SPREAD)) == {"narrow": "n0/0"}


def test_share_gets_the_gpu_of_another_zone_where_its_own_has_none_left() -> None:
    made = open_both()
    made.share("most", 500, cpu=1, created_at=2)
    made.share("wide", 300, cpu=6, created_at=3)
    assert made.zones(made.cycle(ON)) == {"most": "n0/1", "wide": "n0/0"}


@pytest.mark.parametrize("strategy", list(PlacementStrategy))
def test_share_goes_to_the_node_where_its_cpus_and_its_gpu_are_of_one_zone(strategy: PlacementStrategy) -> None:
    made = ZonedSharing().add_node("a-apart", NARROW, BARE)
    made.add_node("b-aligned", amounts(cpu=4, memory=32, gpu=0), WIDE)
    made.add_node("c-apart", NARROW, BARE)
    config = EngineConfig(gpu_sharing=True, placement_strategy=strategy)
    made.share("one", 300, cpu=6, created_at=1)
    made.share("two", 300, cpu=6, created_at=2)
    assert made.placed(made.cycle(config)) == {"one": "b-aligned", "two": "b-aligned"}


def test_gpu_counts_where_its_reservation_pod_was_observed() -> None:
    made = open_both()
    first, second = made.state.shared_gpus.groups
    made.observe(first, "node-1")
    made.observe(second, "node-0")
    made.share("wide", 200, cpu=6, created_at=2)
    assert [part.group for one in made.cycle(ON).placements for part in one.gpus] == [first]


#: The pod's own policy and the resources that it names, its CPUs, and whether the node takes it.
OWN: dict[str, tuple[str, str, int, bool]] = {
    "CPUs and the GPU are of the zone with the open one": ("single-numa-node", "", 2, True),
    "the only zone with so many CPUs has no GPU": ("single-numa-node", "", 6, False),
    "only the GPU matters": ("single-numa-node", GPU, 6, True),
    "only CPUs matter": ("single-numa-node", "cpu", 6, True),
    "restricted": ("restricted", "", 6, False),
    "a wish leaves no node out": ("best-effort", "", 6, True),
}


def asking(policy: str, resources: str = "") -> dict[str, str]:
    named = {"kai.scheduler/numa-policy": policy, "kai.scheduler/numa-resources": resources}
    return {name: value for name, value in named.items() if value}


@pytest.mark.parametrize("case", OWN.values(), ids=OWN)
def test_own_policy_counts_the_shared_gpu_as_any_device(case: tuple[str, str, int, bool]) -> None:
    policy, resources, cpu, taken = case
    made = ZonedSharing().add_node("n0", NARROW, BARE)
    made.share("first", 500)
    made.cycle(ON)
    made.share("second", 200, cpu=cpu, annotations=asking(policy, resources), created_at=1)
    result = made.cycle(ON)
    assert made.placed(result) == ({"second": "n0"} if taken else {})
    if not taken:
        (reason,) = result.pending[0].reasons
        assert reason.code == "NumaPolicyNotKept"
        assert f"cpu on node-1, {GPU} on node-0" in str(reason)


def test_own_policy_of_one_zone_opens_a_gpu_of_it_rather_than_share_that_of_another() -> None:
    made = ZonedSharing().add_node("n0", amounts(cpu=16, memory=32, gpu=2), amounts(cpu=2, memory=32, gpu=1))
    made.share("first", 900)
    made.cycle(ON)
    made.share("second", 500, cpu=2, annotations=asking("single-numa-node"), created_at=1)
    made.share("third", 500, cpu=12, annotations=asking("single-numa-node"), created_at=2)
    assert made.zones(made.cycle(ON)) == {"second": "n0/0", "third": "n0/0"}


def test_wish_prefers_the_node_where_cpus_and_the_shared_gpu_are_of_one_zone() -> None:
    made = ZonedSharing().add_node("a-apart", NARROW, BARE)
    made.add_node("b-aligned", amounts(cpu=4, memory=32, gpu=0), WIDE)
    made.share("one", 300, cpu=6, annotations=asking("best-effort"))
    assert made.placed(made.cycle(UNSCORED)) == {"one": "b-aligned"}


def test_two_shared_gpus_of_a_pod_without_exclusive_cpus_are_of_one_zone_where_it_asks_so() -> None:
    made = ZonedSharing().add_node("a-apart", WIDE, WIDE)
    made.add_node("b-together", amounts(cpu=16, memory=32, gpu=2), BARE)
    share, annotations = GpuShare(milli=500, devices=2), asking("single-numa-node", GPU)
    made.add_pod(pod("two", cpu=1, qos="Burstable", gpu_share=share, annotations=annotations))
    assert made.placed(made.cycle(ON)) == {"two": "b-together"}


def test_pod_misses_its_own_policy_once_its_reservation_pod_is_observed_on_another_zone() -> None:
    made = ZonedSharing().add_node("n0", WIDE, WIDE)
    one = made.share("one", 300, cpu=2, annotations=asking("single-numa-node"))
    (placed,) = made.cycle(ON).placements
    (part,) = placed.gpus
    made.report(one, on_zone("node-0", {"cpu": 2000}), node="n0", init=())
    assert not made.state.misaligned
    made.observe(part.group, "node-1")
    assert made.state.misaligned == {one.uid}
    assert made.state.pods[one.uid].misaligned == f"cpu on node-0, {GPU} on node-1"


def test_pod_away_from_its_gpu_says_so() -> None:
    made = ZonedSharing().add_node("n0", NARROW, BARE)
    made.share("near", 300)
    made.share("far", 300, cpu=6, created_at=1)
    made.cycle(ON)
    near, far = (notes(made.state.pods[f"uid-{name}"], made.state) for name in ("near", "far"))
    assert not [line for line in near if "GPU" in line]
    (line,) = [line for line in far if "GPU" in line]
    assert line == "it shares a GPU of node-0 (predicted), and its own CPUs and memory are of node-1"
