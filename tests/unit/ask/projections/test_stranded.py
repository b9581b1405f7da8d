"""Stranded free GPUs: those with less beside them than pods here use for each."""

from collections.abc import Sequence

import pytest
from kaicore.analysis.ask.projections.capacity import Gpus, gpu_columns, use_per_gpu
from kaicore.analysis.trial.history.reading import Sampler
from kaicore.rules.model.pod import Amounts
from kaicore.rules.queues.tree import gpus_of

from tests.given.cluster.factory import GI, amounts, pod
from tests.given.cluster.sharing_cluster import SharingCluster
from tests.given.logs.dashboard_fleet import SharingFleet
from tests.given.work.workloads import Workloads

_ZONE = amounts(cpu=32, memory=256, gpu=4)
_TRAIN = {"cpu": 4, "memory": 32, "gpu": 1}
_TWO_ZONES = (_ZONE, _ZONE)
_NODE = {resource: 2 * amount for resource, amount in _ZONE.items()} | {"pods": 110}


@pytest.mark.parametrize(
    ("zones", "running", "per_gpu", "stranded"),
    [
        pytest.param(_TWO_ZONES, [], (1, 1), 0, id="nothing runs: a CPU and 1 GiB for each are enough"),
        pytest.param(_TWO_ZONES, [_TRAIN], (4, 32), 0, id="there is enough beside all that are free"),
        pytest.param(
            _TWO_ZONES, [_TRAIN, {"cpu": 27, "memory": 8}], (4, 32), 3, id="one zone has 4 GPUs and a CPU or 5"
        ),
        pytest.param(_TWO_ZONES, [{"cpu": 32, "memory": 8}], (1, 1), 4, id="a zone without CPUs"),
        pytest.param(_TWO_ZONES, [{"cpu": 1, "memory": 255}], (1, 1), 3, id="a zone with 1 GiB left"),
        pytest.param((), [{"cpu": 60, "memory": 8}], (1, 1), 4, id="no zones: the node has 4 CPUs left for 8 GPUs"),
        pytest.param(
            _TWO_ZONES, [_TRAIN, _TRAIN, {"cpu": 16, "memory": 32, "gpu": 1}], (4, 32), 0, id="the median counts"
        ),
    ],
)
def test_a_free_gpu_is_stranded_where_too_little_is_left_beside_it(
    zones: Sequence[Amounts], running: Sequence[dict[str, int]], per_gpu: tuple[int, int], stranded: int
) -> None:
    made = Workloads().add_node("n0", *zones, **({} if zones else {"allocatable": _NODE}))
    for number, one in enumerate(running):
        made.full(made.gang(f"g{number}", 1, **one))
    assert use_per_gpu(made.state) == {"cpu": per_gpu[0] * 1000, "memory": per_gpu[1] * GI}
    held = sum(one.get("gpu", 0) for one in running)
    gpus = gpu_columns(made.state).sum()
    assert gpus == Gpus(total=8000, held=1000 * held, free=1000 * (8 - held - stranded), stranded=1000 * stranded)
    sampler = Sampler(made.state, begin=0, end=1)
    sampler.take(at=0)
    assert sampler.samples[0].stranded == stranded, "what-if over history counts the same"


def test_pods_that_share_a_gpu_use_for_each_gpu_what_their_parts_are_of_it() -> None:
    made = SharingCluster()
    for name in "ab":
        made.share(name, 250)
    made.turn()
    assert gpus_of(made.state.pods["uid-a"].requests) == 0
    assert use_per_gpu(made.state) == {"cpu": 4000, "memory": GI}


def test_gpus_of_nodes_that_take_no_pods_are_out_of_service_and_not_stranded() -> None:
    made = Workloads().add_node("n0", *_TWO_ZONES)
    made.full(made.gang("cpus", 1, cpu=32, memory=8))
    made.add_node("n1", *_TWO_ZONES, unschedulable=True)
    assert gpu_columns(made.state).sum() == Gpus(total=16_000, free=4000, stranded=4000, out=8000)


def test_of_gpus_that_are_shared_pods_hold_their_parts_and_the_rest_is_free() -> None:
    fleet = SharingFleet()
    assert gpu_columns(fleet.state).sum() == Gpus(total=6000, held=4250, releasing=200, free=1550)
    sampler = Sampler(fleet.state, begin=0, end=1)
    sampler.take(at=0)
    assert (sampler.samples[0].gpus, sampler.samples[0].held) == (6, 4.45)


def test_rest_of_a_shared_gpu_is_stranded_by_the_part_that_nothing_is_left_beside() -> None:
    made = SharingCluster()
    made.share("a", 500)
    made.turn()
    # Of the zone's 8 CPUs one is used; pods here use two for each GPU.
    for number in range(2):
        made.add_pod(pod(f"cpus-{number}", cpu=8 - 2 * number))
    made.turn()
    assert use_per_gpu(made.state) == {"cpu": 2000, "memory": GI}
    gpus = gpu_columns(made.state).sum()
    assert (gpus.total, gpus.held) == (4000, 500)
    assert gpus.free + gpus.stranded == 3500
    assert gpus.free == 500, "a CPU is left: for half a GPU"


def test_gpus_beside_a_shared_one_that_nothing_holds_are_not_given_out() -> None:
    made = SharingCluster()
    made.share("a", 250)
    made.turn()
    (group,) = made.state.shared_gpus.groups.values()
    made.delete_pod(made.state.pods[group.uid].pod)
    assert group.exposed
    assert gpu_columns(made.state).sum() == Gpus(total=4000, held=250, out=3750)
