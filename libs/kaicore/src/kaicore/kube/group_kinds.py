"""The kinds of objects that group pods: their API paths, and their conversion into facts."""

from collections.abc import Callable
from functools import partial
from typing import Any

from kaicore.kube import group_objects, hyper_job_objects, owner_objects
from kaicore.kube.kind import Kind
from kaicore.kube.losses import Lost
from kaicore.kube.normalize_hyper_job import normalize_hyper_job
from kaicore.kube.normalize_leader_worker_set import normalize_leader_worker_set
from kaicore.kube.normalize_owner import (
    normalize_job,
    normalize_jobset,
    normalize_kubeflow_job,
    normalize_ray_cluster,
    normalize_ray_job,
)
from kaicore.kube.normalize_pod_group import (
    normalize_kai_pod_group,
    normalize_native_pod_group,
    normalize_sigs_pod_group,
    normalize_workload,
    normalize_x_pod_group,
)
from kaicore.kube.normalize_volcano import normalize_volcano_job, normalize_volcano_pod_group
from kaicore.kube.resources import ObjectT, OptionalResource
from kaicore.rules.events import payloads
from kaicore.rules.groups.kinds import (
    HYPER_JOBS,
    JOB,
    JOBSET,
    KAI_POD_GROUP,
    KUBEFLOW_JOBS,
    LEADER_WORKER_SET,
    MPI_JOB,
    NATIVE_POD_GROUP,
    RAY_CLUSTER,
    RAY_JOB,
    SIGS_POD_GROUP,
    VOLCANO_JOB,
    VOLCANO_POD_GROUP,
    WORKLOAD,
    X_POD_GROUP,
)
from kaicore.rules.model.group_source import GroupSource


def _group_kind(
    kind: str,
    plural: str,
    versions: tuple[str, ...],
    wire: type[ObjectT],
    normalize: Callable[[ObjectT, Lost], GroupSource],
) -> Kind[ObjectT]:
    return Kind(
        OptionalResource(kind, kind.partition(".")[2], plural, versions, wire),
        normalize,
        payloads.GroupSourceObserved,
        payloads.GroupSourceDeleted,
        "group/{kind}/{namespace}/{name}",
    )


#: Every such kind.
GROUP_KINDS: tuple[Kind[Any], ...] = (
    _group_kind(KAI_POD_GROUP, "podgroups", ("v2alpha2",), group_objects.KaiPodGroup, normalize_kai_pod_group),
    _group_kind(SIGS_POD_GROUP, "podgroups", ("v1alpha1",), group_objects.SigsPodGroup, normalize_sigs_pod_group),
    _group_kind(X_POD_GROUP, "podgroups", ("v1alpha1",), group_objects.SigsPodGroup, normalize_x_pod_group),
    _group_kind(
        VOLCANO_POD_GROUP, "podgroups", ("v1beta1",), group_objects.VolcanoPodGroup, normalize_volcano_pod_group
    ),
    _group_kind(
        NATIVE_POD_GROUP,
        "podgroups",
        ("v1beta1", "v1alpha3", "v1alpha2"),
        group_objects.NativePodGroup,
        normalize_native_pod_group,
    ),
    _group_kind(
        WORKLOAD,
        "workloads",
        ("v1beta1", "v1alpha3", "v1alpha2", "v1alpha1"),
        group_objects.WorkloadObject,
        normalize_workload,
    ),
    _group_kind(JOB, "jobs", ("v1",), owner_objects.JobObject, normalize_job),
    _group_kind(VOLCANO_JOB, "jobs", ("v1alpha1",), owner_objects.VolcanoJobObject, normalize_volcano_job),
    *(
        _group_kind(
            kind, "hyperjobs", ("v1alpha1",), hyper_job_objects.HyperJobObject, partial(normalize_hyper_job, kind=kind)
        )
        for kind in sorted(HYPER_JOBS)
    ),
    _group_kind(JOBSET, "jobsets", ("v1alpha2",), owner_objects.JobSetObject, normalize_jobset),
    _group_kind(RAY_CLUSTER, "rayclusters", ("v1",), owner_objects.RayClusterObject, normalize_ray_cluster),
    _group_kind(RAY_JOB, "rayjobs", ("v1",), owner_objects.RayJobObject, normalize_ray_job),
    _group_kind(
        LEADER_WORKER_SET,
        "leaderworkersets",
        ("v1",),
        owner_objects.LeaderWorkerSetObject,
        normalize_leader_worker_set,
    ),
    *(
        _group_kind(
            kind,
            f"{kind.partition('.')[0].lower()}s",
            ("v2beta1", "v1") if kind == MPI_JOB else ("v1",),
            owner_objects.KubeflowJob,
            partial(normalize_kubeflow_job, kind=kind),
        )
        for kind in sorted(KUBEFLOW_JOBS)
    ),
)


def group_kind(api_version: str, kind: str) -> Kind[Any] | None:
    """Return the kind of an object that says how pods belong together; None for any other."""
    name = f"{kind}.{api_version.rpartition('/')[0]}"
    return next((row for row in GROUP_KINDS if row.name == name), None)
