"""Pods with devices leave room for the work that the log saw lately; what counts as such."""

from typing import Any

import pytest
from kaicore.rules.engine.config import DAY_US, EngineConfig
from kaicore.rules.engine.placement.pod_class import PodClass, class_identity, pod_class
from kaicore.rules.model.pod import Pod, QosClass
from kaicore.rules.model.selector import Requirement
from kaicore.rules.state.indexes.past_runs import LEAST_PODS, RecentWork
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.devices import devices, exactly, from_template
from tests.given.cluster.factory import Cluster, amounts, pod

MODEL = "gpu-model"


def _one(name: str, *, models: tuple[str, ...] = (), **more: Any) -> Pod:
    terms = ((Requirement(MODEL, "In", models),),) if models else ()
    return pod(name, qos=QosClass.BURSTABLE, node_affinity=terms, **more)


def _saw(cluster: Cluster, count: int, *, models: tuple[str, ...] = (), gpu: int = 1, cpu: float = 1) -> None:
    """Pods come that go before any cycle."""
    for number in range(count):
        cluster.delete_pod(cluster.add_pod(_one(f"seen-{number}", models=models, cpu=cpu, gpu=gpu)))


def _node_for(cluster: Cluster, config: EngineConfig | None = None, **asked: Any) -> str:
    cluster.add_pod(_one("asks", **asked))
    (placed,) = cluster.cycle(config).placements
    return placed.node


def _models() -> Cluster:
    """Scarce GPUs on a node in use, and two idle nodes with others: by fullness the scarce ones would go first."""
    cluster = Cluster().add_node("a-scarce", cpu=16, memory=64, gpu=4, labels={MODEL: "scarce"})
    for name in ("b-plain", "c-plain"):
        cluster.add_node(name, cpu=16, memory=64, gpu=4, labels={MODEL: "plain"})
    cluster.add_pod(_one("runs", cpu=1, gpu=1, node_name="a-scarce", phase="Running"))
    return cluster


def test_pod_for_any_gpu_leaves_those_alone_that_recent_work_needs() -> None:
    cluster = _models()
    _saw(cluster, LEAST_PODS, models=("scarce",))
    assert _node_for(cluster, cpu=1, gpu=1) == "b-plain"


@pytest.mark.parametrize(("cpu", "node"), [(8, "b-rich"), (1, "a-lean")])
def test_pod_goes_where_the_mix_of_work_needs_its_cpus_least(cpu: int, node: str) -> None:
    cluster = Cluster().add_node("a-lean", cpu=16, memory=64, gpu=4)
    cluster.add_node("b-rich", cpu=64, memory=64, gpu=4)
    _saw(cluster, LEAST_PODS, cpu=8)
    _saw(cluster, LEAST_PODS, cpu=1)
    assert _node_for(cluster, cpu=cpu, gpu=1) == node


@pytest.mark.parametrize(
    ("seen", "config"), [(LEAST_PODS - 3, EngineConfig()), (LEAST_PODS, EngineConfig(recent_work_days=0))]
)
def test_fullness_decides_where_too_little_is_known_or_nothing_wanted(seen: int, config: EngineConfig) -> None:
    cluster = _models()
    _saw(cluster, seen, models=("scarce",))
    assert _node_for(cluster, config, cpu=1, gpu=1) == "a-scarce"


def test_recent_work_may_have_asked_for_devices_that_no_node_has() -> None:
    cluster = _models()
    _saw(cluster, LEAST_PODS, models=("scarce",))
    cluster.delete_pod(cluster.add_pod(_one("seen-nic", cpu=1, gpu=1, nic=1)))
    cluster.add_pod(_one("asks", cpu=1, gpu=1))
    result = cluster.cycle()
    assert [placed.node for placed in result.placements] == ["b-plain"], result.groups


def test_pod_goes_where_it_leaves_no_gpu_without_the_cpus_that_recent_work_asks_for() -> None:
    cluster = Cluster().add_node("a", cpu=16, memory=64, gpu=4)
    cluster.add_node("b", cpu=40, memory=64, gpu=8)
    cluster.add_pod(_one("on-a", cpu=6, gpu=2, node_name="a", phase="Running"))
    cluster.add_pod(_one("on-b", cpu=4, gpu=1, node_name="b", phase="Running"))
    _saw(cluster, LEAST_PODS, cpu=4)
    # On a it would be fuller, and the last GPU there would have two CPUs.
    assert _node_for(cluster, cpu=8, gpu=1) == "b"


def test_pod_of_few_cpus_goes_where_they_do_not_suffice_for_all_gpus() -> None:
    cluster = Cluster().add_node("a-many", cpu=64, memory=64, gpu=8)
    cluster.add_node("b-few", cpu=32, memory=64, gpu=8)
    _saw(cluster, LEAST_PODS, cpu=8)
    # Every other GPU of b is without CPUs for such work, whatever comes there; on a each has its eight.
    assert _node_for(cluster, cpu=1, gpu=1) == "b-few"


def test_recent_work_is_the_same_after_a_snapshot() -> None:
    cluster = _models()
    _saw(cluster, LEAST_PODS, models=("scarce",))
    again = decode_state(encode_state(cluster.state))
    mix = cluster.state.recent_work.mix(days=7, now_us=cluster.now)
    assert again.recent_work.mix(days=7, now_us=cluster.now) == mix
    assert sorted((one.pod_class.node_affinity != (), one.weight) for one in mix) == [
        (False, 3600),
        (True, LEAST_PODS * 3600),
    ]


def _class(cpu: int, gpu: int | None = 1, models: tuple[str, ...] = ()) -> PodClass:
    one = _one("one", models=models, cpu=cpu, gpu=gpu)
    return pod_class(one, class_identity(one))


def test_long_runs_outweigh_many_short_ones_until_they_are_days_ago() -> None:
    work, long, short = RecentWork(), _class(1), _class(2)
    for _ in range(LEAST_PODS):
        work.came(short, claimed=0, at_us=0)
    work.came(long, claimed=0, at_us=0)
    work.ended(long, claimed=0, ran_us=200 * 3_600_000_000, at_us=4 * DAY_US)
    first, second = work.mix(days=7, now_us=5 * DAY_US)
    assert (first.pod_class, first.weight) == (long, 200 * 3600)
    assert (second.pod_class, second.weight) == (short, LEAST_PODS * 3600)
    assert work.mix(days=3, now_us=9 * DAY_US) == ()


def test_pod_counts_alike_however_many_devices_it_has() -> None:
    work = RecentWork()
    for _ in range(LEAST_PODS):
        work.came(_class(1), claimed=0, at_us=0)
    work.came(_class(8, gpu=8), claimed=0, at_us=0)
    work.came(_class(1, gpu=None), claimed=4, at_us=0)
    assert [one.weight for one in work.mix(days=1, now_us=0)] == [LEAST_PODS * 3600, 3600, 3600]


def test_no_more_classes_are_kept_than_the_bound_and_the_heaviest_stay() -> None:
    work = RecentWork()
    for cpu in range(1, 400):
        work.came(_class(cpu), claimed=0, at_us=0)
        work.came(_class(1000), claimed=0, at_us=0)
    work.came(_class(1, gpu=None), claimed=0, at_us=0)
    assert len(work.record()) <= 256
    mix = work.mix(days=1, now_us=0)
    assert len(mix) == 64
    assert mix[0].pod_class == _class(1000)
    seen = sum(day.seconds for one in work.record() for day in one.days)
    assert sum(one.weight for one in mix) == pytest.approx(seen, abs=64), "the counted ones stand for all"


def test_work_for_nodes_that_no_heavy_class_asks_for_is_counted_with_all_its_weight() -> None:
    work = RecentWork()
    for number in range(400):
        for _ in range(3):
            work.came(_class(number + 1), claimed=0, at_us=0)
        if number < 100:
            work.came(_class(number + 1, models=("rare",)), claimed=0, at_us=0)
    kept = [one for one in work.record() if one.pod_class.node_affinity]
    (rare,) = [one for one in work.mix(days=1, now_us=0) if one.pod_class.node_affinity]
    assert rare.weight == sum(day.seconds for one in kept for day in one.days) >= 3600


def test_pod_without_devices_goes_where_no_devices_of_claims_are_free() -> None:
    cluster = devices(a=4, b=4, c=4)
    for number in range(3):
        from_template(cluster, exactly(count=1), name=f"uses-{number}", cpu=1)
    assert {one.node for one in cluster.cycle().placements} == {"a"}
    cluster.add_pod(pod("plain", cpu=1, memory=1))
    assert [one.node for one in cluster.cycle().placements] == ["a"]
    cluster.add_node("d", cpu=8, memory=64)
    cluster.add_pod(pod("other", cpu=1, memory=1))
    assert [one.node for one in cluster.cycle().placements] == ["d"]


def test_pod_with_claims_goes_where_most_devices_are_in_use_whatever_its_cpus() -> None:
    cluster = devices(a=4, b=4)
    cluster.add_pod(pod("cpus", cpu=4, memory=1, node_name="a", phase="Running"))
    from_template(cluster, exactly(count=2), name="uses", cpu=1, node_selector={"kubernetes.io/hostname": "b"})
    cluster.add_node("b", cpu=8, memory=64, labels={"kubernetes.io/hostname": "b"})
    assert [one.node for one in cluster.cycle().placements] == ["b"]
    from_template(cluster, exactly(count=1), name="next", cpu=1)
    assert [one.node for one in cluster.cycle().placements] == ["b"]


def test_one_device_alone_gains_nothing_from_zones_and_packs_on_a_node_without() -> None:
    cluster = Cluster()
    zone = amounts(cpu=16, memory=64, gpu=4)
    cluster.add_node("a-zoned", zone, zone)
    cluster.add_node("b-plain", cpu=32, memory=128, gpu=8)
    cluster.add_pod(_one("runs", cpu=1, gpu=1, node_name="b-plain", phase="Running"))
    assert _node_for(cluster, cpu=1, gpu=1) == "b-plain"
    cluster.add_pod(_one("two", cpu=1, gpu=2))
    assert [one.node for one in cluster.cycle().placements] == ["a-zoned"]
