"""The kinds of objects that say how pods belong together: where they are served, and how each becomes a fact."""

from collections.abc import Callable
from functools import partial
from typing import Any

from kaicore.kube import group_objects, owner_objects
from kaicore.kube.kinds import Kind
from kaicore.kube.losses import Lost
from kaicore.kube.normalize_owner import (
    normalize_job,
    normalize_jobset,
    normalize_kubeflow_job,
    normalize_leader_worker_set,
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
from kaicore.rules.model.group_source import GroupSource, source_key

#: Every such kind, with the resource that it is.
GROUP_KINDS: list[tuple[Kind[Any], OptionalResource[Any]]] = []


def _served(
    kind: str,
    plural: str,
    versions: tuple[str, ...],
    wire: type[ObjectT],
    normalize: Callable[[ObjectT, Lost], GroupSource],
) -> None:
    GROUP_KINDS.append(
        (
            Kind(
                kind,
                normalize,
                payloads.GroupSourceObserved,
                lambda key, uid: payloads.GroupSourceDeleted(kind, uid, key.namespace, key.name),
                lambda key, _: f"group/{source_key(kind, key.namespace, key.name)}",
            ),
            OptionalResource(kind, kind.partition(".")[2], plural, versions, wire),
        )
    )


_served(KAI_POD_GROUP, "podgroups", ("v2alpha2",), group_objects.KaiPodGroup, normalize_kai_pod_group)
_served(SIGS_POD_GROUP, "podgroups", ("v1alpha1",), group_objects.SigsPodGroup, normalize_sigs_pod_group)
_served(X_POD_GROUP, "podgroups", ("v1alpha1",), group_objects.SigsPodGroup, normalize_x_pod_group)
_served(VOLCANO_POD_GROUP, "podgroups", ("v1beta1",), group_objects.VolcanoPodGroup, normalize_volcano_pod_group)
_served(
    NATIVE_POD_GROUP,
    "podgroups",
    ("v1beta1", "v1alpha3", "v1alpha2"),
    group_objects.NativePodGroup,
    normalize_native_pod_group,
)
_served(
    WORKLOAD,
    "workloads",
    ("v1beta1", "v1alpha3", "v1alpha2", "v1alpha1"),
    group_objects.WorkloadObject,
    normalize_workload,
)
_served(JOB, "jobs", ("v1",), owner_objects.JobObject, normalize_job)
_served(VOLCANO_JOB, "jobs", ("v1alpha1",), owner_objects.VolcanoJobObject, normalize_volcano_job)
_served(JOBSET, "jobsets", ("v1alpha2",), owner_objects.JobSetObject, normalize_jobset)
_served(RAY_CLUSTER, "rayclusters", ("v1",), owner_objects.RayClusterObject, normalize_ray_cluster)
_served(RAY_JOB, "rayjobs", ("v1",), owner_objects.RayJobObject, normalize_ray_job)
_served(
    LEADER_WORKER_SET,
    "leaderworkersets",
    ("v1",),
    owner_objects.LeaderWorkerSetObject,
    normalize_leader_worker_set,
)
for _kind in sorted(KUBEFLOW_JOBS):
    _served(
        _kind,
        f"{_kind.partition('.')[0].lower()}s",
        ("v2beta1", "v1") if _kind == MPI_JOB else ("v1",),
        owner_objects.KubeflowJob,
        partial(normalize_kubeflow_job, kind=_kind),
    )


def group_kind(api_version: str, kind: str) -> tuple[Kind[Any], OptionalResource[Any]] | None:
    """Return the kind of an object that says how pods belong together; None for any other."""
    name = f"{kind}.{api_version.rpartition('/')[0]}"
    return next((found for found in GROUP_KINDS if found[0].name == name), None)
