"""Pods that wait because of themselves, or of their group."""

from kaicore.rules.events import payloads
from kaicore.rules.events.reasons import group as reasons
from kaicore.rules.groups.labels import COMPOSITE_POD_GROUP, NATIVE_POD_GROUP
from kaicore.rules.groups.membership import SIGS_GROUP_LABEL
from kaicore.rules.model.group import GroupSource, GroupTemplate, PodSet
from kaicore.rules.model.pod import Owner, Pod, WorkloadRef

from tests.given.cluster.factory import Cluster, pod
from tests.given.work.workloads import Workloads
from tests.simulation.situations import shows
from tests.unit.engine.test_flavors import cluster_of, of, quota


def nodes(count: int = 2) -> Workloads:
    return Workloads().add_nodes(count, cpu=64, gpu=8)


def asking(**spec: object) -> tuple[Cluster, Pod]:
    cluster = nodes()
    return cluster, cluster.add_pod(pod("one", **({"cpu": 1, "gpu": 8} | spec)))  # type: ignore[arg-type]


@shows(reasons.SchedulingGated, "example.com/held", "default/one", "8 nvidia.com/gpu")
def gated() -> tuple[Cluster, Pod]:
    return asking(scheduling_gates=("example.com/held",))


@shows(reasons.Unsupported, "resource claims", "default/one", "8 nvidia.com/gpu")
def unsupported() -> tuple[Cluster, Pod]:
    return asking(unsupported=("resource claims",))


@shows(reasons.Malformed, "kai.scheduler/numa-policy", "'odd'", "default/one")
def malformed() -> tuple[Cluster, Pod]:
    return asking(annotations={"kai.scheduler/numa-policy": "odd"})


@shows(reasons.FlavorNotFound, "ClusterQueue/a", "h100", "8 nvidia.com/gpu")
def no_flavor() -> tuple[Cluster, Pod]:
    cluster = cluster_of(quota("h100"), flavors=("any",))
    return cluster, cluster.add_pod(of("one", gpu=8))


@shows(reasons.GangIncomplete, "PodGroup", "default/gang", "needs 3 pods", "placed: 1;", "8 nvidia.com/gpu")
def incomplete() -> tuple[Cluster, Pod]:
    cluster = nodes(3)
    return cluster, cluster.gang("gang", 1, least=3, cpu=1, gpu=8)[0]


@shows(reasons.GangDoesNotFit, "default/gang", "4 pods", "there is room for 2", "8 nvidia.com/gpu", "n0")
def too_large() -> tuple[Cluster, Pod]:
    cluster = nodes()
    return cluster, cluster.gang("gang", 4, cpu=1, gpu=8)[0]


@shows(reasons.GangGroupWaits, "default/b", "8 nvidia.com/gpu")
def other_waits() -> tuple[Cluster, Pod]:
    cluster = nodes()
    together = {"together": ("default/a", "default/b")}
    first = cluster.gang("a", 1, cpu=1, gpu=8, group=together)
    cluster.gang("b", 1, least=2, cpu=1, gpu=4, group=together)
    return cluster, first[0]


@shows(reasons.WaitsAfterFailedBinds, "1 of its pods", "until 20", "8 nvidia.com/gpu")
def bind_failed() -> tuple[Cluster, Pod]:
    cluster, one = asking()
    cluster.cycle()
    for _ in range(4):
        node = cluster.state.pods[one.uid].node
        cluster.record(f"pod/{one.uid}", payloads.BindFailed(one.uid, "default", "one", node, 500, "InternalError"))
    return cluster, one


@shows(reasons.GroupNotFound, "PodGroup", "default/gone", "8 nvidia.com/gpu")
def no_group() -> tuple[Cluster, Pod]:
    return asking(labels={SIGS_GROUP_LABEL: "gone"})


@shows(reasons.PodGroupNotInWorkload, "Workload", "default/w", "workers", "8 nvidia.com/gpu")
def no_pod_group() -> tuple[Cluster, Pod]:
    cluster, one = asking(workload=WorkloadRef("workers", "w"))
    template = GroupTemplate("leaders", (PodSet(min_pods=1),))
    source = GroupSource("Workload.scheduling.k8s.io", "uid-w", "default", "w", "1", templates=(template,))
    cluster.record(f"group/{source.key}", payloads.GroupSourceObserved(source))
    return cluster, one


@shows(reasons.GroupTreeInvalid, "PodGroup", "default/a", "is basic", "default/r", "8 nvidia.com/gpu")
def invalid_tree() -> tuple[Cluster, Pod]:
    cluster, one = asking(workload=WorkloadRef("a", ""))
    gang = GroupTemplate("", (PodSet(min_sets=1),))
    top = GroupSource(COMPOSITE_POD_GROUP, "uid-r", "default", "r", "1", templates=(gang,))
    for source in (top, GroupSource(NATIVE_POD_GROUP, "uid-a", "default", "a", "1", parent=top.key)):
        cluster.record(f"group/{source.key}", payloads.GroupSourceObserved(source))
    return cluster, one


def of_sets(subgroup: str) -> tuple[Cluster, Pod]:
    cluster = nodes()
    cluster.gang("g", 0, sets=[PodSet(min_pods=0), PodSet("a", "", 1)])
    (one,) = cluster.subgroup(subgroup, "g", 1, cpu=1, gpu=8)
    return cluster, one


@shows(reasons.SubGroupNotFound, "PodGroup", "default/g", "b; it has a", "8 nvidia.com/gpu")
def no_sub_group() -> tuple[Cluster, Pod]:
    return of_sets("b")


@shows(reasons.SubGroupNotNamed, "PodGroup", "default/g", ": a", "8 nvidia.com/gpu")
def sub_group_not_named() -> tuple[Cluster, Pod]:
    return of_sets("")


@shows(reasons.OwnerNotFound, "Job", "default/train", "8 nvidia.com/gpu")
def no_owner() -> tuple[Cluster, Pod]:
    return asking(owner=Owner("Job", "train", "uid-train", "batch/v1"))
