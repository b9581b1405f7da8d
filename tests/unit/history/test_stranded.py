"""GPUs that are idle and of no use to what waits."""

import msgspec
from kaicore.analysis.history.stranded import stranded_gpus
from kaicore.rules.engine.config import EngineConfig

from tests.factory import Cluster, amounts, pod
from tests.racks import Racks, asks

ZONE = amounts(cpu=8, memory=32, gpu=4)
CONFIG = EngineConfig()


def cluster() -> Cluster:
    """Of two nodes of two zones of 8 CPUs and 4 GPUs; on `n0` pods without GPUs hold 6 CPUs of each zone."""
    made = Cluster()
    made.add_node("n0", ZONE, ZONE)
    for number in range(2):
        made.add_pod(pod(f"cpus-{number}", cpu=6, memory=1))
        made.cycle()
    made.add_node("n1", ZONE, ZONE)
    return made


def stranded(made: Cluster, config: EngineConfig = CONFIG) -> int:
    return stranded_gpus(made.state, config, now=made.now)


def test_no_gpu_is_stranded_where_nothing_waits_for_one() -> None:
    made = cluster()
    assert stranded(made) == 0
    made.add_pod(pod("cpu-only", cpu=40, memory=1))
    assert stranded(made) == 0


def test_gpus_are_stranded_where_cpus_beside_them_are_short_in_every_zone() -> None:
    made = cluster()
    made.add_pod(pod("training", cpu=4, memory=1, gpu=2))
    # On n0 there are 4 CPUs left, but in no zone more than 2.
    assert stranded(made) == 8
    assert stranded(made, msgspec.structs.replace(CONFIG, numa=False)) == 8


def test_gpus_are_of_use_as_soon_as_one_pod_that_waits_fits() -> None:
    made = cluster()
    made.add_pod(pod("training", cpu=4, memory=1, gpu=2))
    made.add_pod(pod("small", cpu=1, memory=1, gpu=1))
    assert stranded(made) == 0


def test_gpus_of_nodes_that_take_no_pods_are_not_stranded() -> None:
    made = Cluster()
    made.add_node("n0", ZONE, ZONE, unschedulable=True)
    made.add_pod(pod("training", cpu=4, memory=1, gpu=2))
    assert stranded(made) == 0


def test_gpus_are_stranded_in_racks_that_are_too_small_for_a_gang_that_must_share_one() -> None:
    made = Racks(4, per_rack=2, gpu=4)
    made.group("gang", 3, asks("rack"), gpu=4)
    assert stranded(made) == 16
    # Two pods fit in one rack.
    other = Racks(4, per_rack=2, gpu=4)
    other.group("gang", 2, asks("rack"), gpu=4)
    assert stranded(other) == 0
