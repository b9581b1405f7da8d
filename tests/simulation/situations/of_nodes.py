"""Nodes that are not for a pod by their own facts, or that have no room."""

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons import node as reasons
from kaicore.rules.model.gpu_share import GpuShare
from kaicore.rules.model.node import Taint
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.reservation import NodeReservation
from kaicore.rules.model.selector import Requirement

from tests.given.cluster.factory import Cluster, amounts, pod
from tests.given.work.workloads import Workloads
from tests.simulation.situations import shows
from tests.unit.deciding.test_suspects import black_hole
from tests.unit.engine.test_flavors import cluster_of, of, quota
from tests.unit.state.test_doubts import beside_an_unobserved_pod

WAITS = EngineConfig(wait_for_observation=True)
SHARES = EngineConfig(gpu_sharing=True)


def one_node(**facts: object) -> Workloads:
    cluster = Workloads()
    cluster.add_node("n1", cpu=64, gpu=8, **facts)  # type: ignore[arg-type]
    return cluster


def asking(cluster: Cluster, **spec: object) -> tuple[Cluster, Pod]:
    return cluster, cluster.add_pod(pod("one", **({"cpu": 1, "gpu": 8} | spec)))  # type: ignore[arg-type]


@shows(reasons.NoNodes, "1 cpu", "8 nvidia.com/gpu", "cluster")
def no_nodes() -> tuple[Cluster, Pod]:
    return asking(Workloads())


@shows(reasons.NodeNotReady, "n1", "8 nvidia.com/gpu")
def not_ready() -> tuple[Cluster, Pod]:
    return asking(one_node(ready=False))


@shows(reasons.NodeUnschedulable, "n1", "8 nvidia.com/gpu")
def cordoned() -> tuple[Cluster, Pod]:
    return asking(one_node(unschedulable=True, taints=(Taint("node.kubernetes.io/unschedulable", "NoSchedule"),)))


@shows(reasons.NodeReserved, "n1", "upgrade", "for maintenance")
def reserved() -> tuple[Cluster, Pod]:
    cluster = one_node()
    hour = 3_600_000_000
    times = cluster.now + hour // 2, cluster.now + hour
    one = NodeReservation("uid", "upgrade", "1", *times, nodes=("n1",))
    cluster.record("reservation/upgrade", payloads.ReservationObserved(one))
    return asking(cluster)


@shows(reasons.NodeSelectorMismatch, "n1", "gpu=h100", "8 nvidia.com/gpu")
def selector() -> tuple[Cluster, Pod]:
    return asking(one_node(labels={"gpu": "a100"}), node_selector={"gpu": "h100"})


@shows(reasons.NodeAffinityMismatch, "n1", "gpu In h100", "8 nvidia.com/gpu")
def affinity() -> tuple[Cluster, Pod]:
    return asking(one_node(), node_affinity=((Requirement("gpu", "In", ("h100",)),),))


@shows(reasons.NodeFlavorMismatch, "ClusterQueue/a", "h100", "a100", "1 cpu")
def flavor() -> tuple[Cluster, Pod]:
    cluster = cluster_of(quota("h100"))
    cluster.record("node/h100", payloads.NodeDeleted("uid-h100", "h100"))
    return cluster, cluster.add_pod(of("one", gpu=8))


@shows(reasons.UntoleratedTaint, "n1", "spot=yes:NoSchedule", "8 nvidia.com/gpu")
def taint() -> tuple[Cluster, Pod]:
    return asking(one_node(taints=(Taint("spot", "NoSchedule", "yes"),)))


@shows(reasons.RejectedByKubelet, "n1", "TopologyAffinityError", "1 nvidia.com/gpu")
def rejected() -> tuple[Cluster, Pod]:
    cluster = Workloads().add_node("n1", amounts(cpu=8, gpu=2), amounts(cpu=8, gpu=2))
    other = cluster.add_pod(pod("other", cpu=1))
    first = cluster.add_pod(pod("first", cpu=1, gpu=1))
    cluster.full(other, first)
    cluster.record(
        f"pod/{first.uid}", payloads.PodRejected(first.uid, "default", "first", "n1", "TopologyAffinityError")
    )
    return cluster, cluster.add_pod(pod("again", cpu=1, gpu=1))


@shows(reasons.NodeSuspect, "n0", "3 pods in a row failed within a minute", "8 nvidia.com/gpu")
def suspect() -> tuple[Cluster, Pod]:
    fleet = black_hole(3)
    return fleet, fleet.add_pod(pod("one", cpu=1, gpu=8))


@shows(reasons.HistoryIncomplete, "n1", "4 cpu", "1 pod", config=WAITS)
def unobserved() -> tuple[Cluster, Pod]:
    cluster = Workloads().add_node("n1", amounts(cpu=8), amounts(cpu=8))
    cluster.add_pod(pod("theirs", cpu=6, scheduler_name="default-scheduler", node_name="n1", phase="Running"))
    return cluster, cluster.add_pod(pod("one", cpu=4))


@shows(reasons.NotObservedYet, "n1", "1 nvidia.com/gpu")
def just_starting() -> tuple[Cluster, Pod]:
    cluster, _, late = beside_an_unobserved_pod()
    return cluster, late


@shows(reasons.NodeTooSmall, "n1", "nvidia.com/gpu", "16 needed", "8 in all")
def too_small() -> tuple[Cluster, Pod]:
    return asking(one_node(), gpu=16)


@shows(reasons.InsufficientResource, "n1", "nvidia.com/gpu", "8 needed", "0 free")
def no_room() -> tuple[Cluster, Pod]:
    cluster = one_node()
    cluster.full(cluster.add_pod(pod("other", cpu=1, gpu=8)))
    return asking(cluster)


@shows(reasons.NoGpuToShare, "n1", "9 GPUs", config=SHARES)
def too_many_gpus_to_share() -> tuple[Cluster, Pod]:
    cluster = one_node()
    return cluster, cluster.add_pod(pod("late", cpu=1, gpu_share=GpuShare(milli=100, devices=9)))


@shows(reasons.NoPartOfGpu, "n1", "0.5 of a GPU needed", "0.3", config=SHARES)
def no_part_left() -> tuple[Cluster, Pod]:
    cluster = one_node()
    cluster.add_pod(pod("whole", cpu=1, gpu=7))
    cluster.add_pod(pod("part", cpu=1, gpu_share=GpuShare(milli=700)))
    cluster.cycle(SHARES)
    return cluster, cluster.add_pod(pod("late", cpu=1, gpu_share=GpuShare(milli=500)))
