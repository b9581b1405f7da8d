"""Kubelets that would not give a pod its zones."""

from kaicore.rules.engine.config import EngineConfig, KubeletOverride
from kaicore.rules.events.reasons import numa as reasons
from kaicore.rules.model.pod import Pod

from tests.given.cluster.factory import Cluster, amounts, pod
from tests.given.work.workloads import Workloads
from tests.simulation.situations import shows

WHOLE_CORES = EngineConfig(kubelets=(KubeletOverride(cpu_options=("full-pcpus-only",), threads_per_core=2),))
POLICY = "kai.scheduler/numa-policy"


def zoned(*, policy: str = "single-numa-node", **zone: int) -> Workloads:
    cluster = Workloads()
    cluster.add_node("n1", amounts(**zone), amounts(**zone), policy=policy)  # type: ignore[arg-type]
    return cluster


@shows(reasons.NumaNeverFits, "n1", "node-0", "nvidia.com/gpu", "5 needed", "4 in the largest")
def never() -> tuple[Cluster, Pod]:
    cluster = zoned(cpu=32, gpu=4)
    return cluster, cluster.add_pod(pod("one", cpu=1, gpu=5))


@shows(reasons.NumaWidthsDiffer, "n1", "nvidia.com/gpu on 2 zones", "cpu on 1 zone", "6 nvidia.com/gpu")
def widths() -> tuple[Cluster, Pod]:
    cluster = zoned(cpu=16, gpu=4, policy="restricted")
    return cluster, cluster.add_pod(pod("one", cpu=10, gpu=6))


@shows(reasons.NumaZoneShort, "n1", "node-0", "nvidia.com/gpu", "2 needed", "1 free")
def zone_short() -> tuple[Cluster, Pod]:
    cluster = zoned(cpu=8, gpu=2)
    cluster.full(*[cluster.add_pod(pod(f"taker-{number}", cpu=5, gpu=1)) for number in range(2)])
    return cluster, cluster.add_pod(pod("one", cpu=1, gpu=2))


@shows(reasons.NumaZonesApart, "n1", "cpu and nvidia.com/gpu", "2 cpu", "1 nvidia.com/gpu")
def apart() -> tuple[Cluster, Pod]:
    cluster = zoned(cpu=4, gpu=2)
    first = cluster.add_pod(pod("cpus-of-zone-0", cpu=4))
    cluster.full(first)
    cluster.full(
        cluster.add_pod(pod("cpus-of-zone-1", cpu=4)),
        cluster.add_pod(pod("gpus-of-zone-0", gpu=2)),
    )
    cluster.delete_pod(first)
    return cluster, cluster.add_pod(pod("one", cpu=2, gpu=1))


@shows(reasons.NumaMemoryGroups, "n1", "memory", "1Gi memory")
def memory_groups() -> tuple[Cluster, Pod]:
    cluster = zoned(cpu=32, memory=100, policy="restricted")
    cluster.full(cluster.add_pod(pod("wide", cpu=40, memory=110)))
    return cluster, cluster.add_pod(pod("one", cpu=1, memory=1))


@shows(reasons.NumaWholeCores, "n1", "cpu", "6 cpu", config=WHOLE_CORES)
def whole_cores() -> tuple[Cluster, Pod]:
    """The zones have less than the node."""
    cluster = Workloads()
    cluster.add_node("n1", amounts(cpu=6), allocatable=amounts(cpu=8) | {"pods": 110}, policy="best-effort")
    cluster.full(cluster.add_pod(pod("other", cpu=2)))
    return cluster, cluster.add_pod(pod("one", cpu=6))


@shows(reasons.NumaPolicyUntold, "n1", "single-numa-node", "1 nvidia.com/gpu")
def untold() -> tuple[Cluster, Pod]:
    cluster = Workloads().add_node("n1", cpu=8, gpu=2)
    return cluster, cluster.add_pod(pod("one", cpu=1, gpu=1, annotations={POLICY: "single-numa-node"}))


@shows(reasons.NumaPolicyNeverKept, "n1", "node-0+node-1", "3 nvidia.com/gpu")
def never_kept() -> tuple[Cluster, Pod]:
    cluster = zoned(cpu=8, gpu=2, policy="best-effort")
    return cluster, cluster.add_pod(pod("one", cpu=1, gpu=3, annotations={POLICY: "single-numa-node"}))


@shows(reasons.NumaPolicyNotKept, "n1", "node-0+node-1", "2 nvidia.com/gpu")
def not_kept() -> tuple[Cluster, Pod]:
    cluster = zoned(cpu=8, gpu=2, policy="best-effort")
    cluster.full(*[cluster.add_pod(pod(f"taker-{number}", cpu=7, gpu=1)) for number in range(2)])
    return cluster, cluster.add_pod(pod("one", cpu=1, gpu=2, annotations={POLICY: "single-numa-node"}))
