"""Training jobs of Kubeflow: PyTorchJob, TFJob, XGBoostJob, PaddleJob, JAXJob and MPIJob.

Sources: training-operator 1.9 (`pkg/controller.v1/common/pod.go`), mpi-operator 0.6 (`pkg/controller`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from kaicore.errors import InvalidObject, Lost, unheard
from kaicore.rules.groups.dialects import source
from kaicore.rules.groups.dialects.dialect import Dialect, SetName, WorkloadKind
from kaicore.rules.groups.dialects.job import submitter_pod
from kaicore.rules.groups.pod_templates import PodSetTemplate, with_templates
from kaicore.rules.model.group import GroupSource, GroupTemplate, PodSet, RankSource
from kaicore.rules.model.pod import Pod
from kaicore.rules.objects.made import Made, pod_from
from kaicore.rules.objects.mappings import Fields, Object, is_finished, name_of, spec_of
from kaicore.rules.objects.wire import KubernetesObject, Wire

REPLICA_TYPE_LABELS = ("training.kubeflow.org/replica-type", "replica-type")
MPI_ROLE_LABELS = ("training.kubeflow.org/job-role", "mpi-job-role")
_TRAINING = "training.kubeflow.org"
_REPLICA_INDEX = "training.kubeflow.org/replica-index"

#: Replica types of which there is one that leads the others.
_LEADERS = ("master", "launcher", "chief")
_WORKER = "worker"


class ReplicaSpec(Wire):
    """Pods of one type."""

    replicas: int | None = None
    template: source.PodTemplate | None = None


class KubeflowSchedulingPolicy(Wire):
    """The job's scheduling policy."""

    min_available: int | None = None
    queue: str | None = None
    priority_class: str | None = None


class KubeflowRunPolicy(Wire):
    """The job's run policy."""

    scheduling_policy: KubeflowSchedulingPolicy | None = None
    suspend: bool | None = None
    active_deadline_seconds: int | None = None


class ElasticPolicy(Wire):
    """A PyTorchJob's elastic policy."""

    min_replicas: int | None = None


ReplicaSpecs = dict[str, ReplicaSpec]


class KubeflowJobSpec(Wire):
    """The spec of a job of the training operator; each kind has its own name for its replicas."""

    jax_replica_specs: ReplicaSpecs | None = None
    mpi_replica_specs: ReplicaSpecs | None = None
    paddle_replica_specs: ReplicaSpecs | None = None
    pytorch_replica_specs: ReplicaSpecs | None = None
    tf_replica_specs: ReplicaSpecs | None = None
    xgb_replica_specs: ReplicaSpecs | None = None
    run_policy: KubeflowRunPolicy | None = None
    elastic_policy: ElasticPolicy | None = None
    launcher_creation_policy: str | None = None
    run_launcher_as_worker: bool | None = None

    @property
    def replica_specs(self) -> tuple[str, ReplicaSpecs]:
        """The field in which the replicas are, and what it says."""
        for name in ("pytorch", "tf", "mpi", "xgb", "jax", "paddle"):
            specs: ReplicaSpecs | None = getattr(self, f"{name}_replica_specs")
            if specs is not None:
                return f"spec.{name}ReplicaSpecs", specs
        return "spec", {}


class KubeflowStatus(Wire):
    """The status of a job of the training operator, by replica type."""

    replica_statuses: dict[str, source.PodCounts] | None = None


class KubeflowJob(KubernetesObject):
    """A `kubeflow.org` PyTorchJob, TFJob, MPIJob, XGBoostJob, PaddleJob or JAXJob."""

    spec: KubeflowJobSpec = msgspec.field(default_factory=KubeflowJobSpec)
    status: KubeflowStatus = msgspec.field(default_factory=KubeflowStatus)


def normalize_kubeflow_job(wire: KubeflowJob, lost: Lost = unheard, *, kind: str) -> GroupSource:
    """Reduce a job of the training operator or the MPI operator: all its replicas start together.

    `schedulingPolicy.minAvailable`, or a PyTorchJob's `elasticPolicy.minReplicas`, is the minimum of all its pods: the
    leader's and so many workers. Where there are other types of replicas too, any of them count.

    Args:
        lost: is called with what is left out.
    """
    spec = wire.spec
    subject = source.source_subject(kind, wire)
    where, replicas = spec.replica_specs
    if not replicas:
        raise InvalidObject(subject, where, None, "has no replicas")
    counts = {
        name.lower(): source.count(one.replicas, 1, subject=subject, field=f"{where}.{name}.replicas")
        for name, one in sorted(replicas.items())
    }
    pod_templates = _replica_templates(spec, counts)
    policy = spec.run_policy.scheduling_policy if spec.run_policy is not None else None
    least = policy.min_available if policy is not None else None
    field = "spec.runPolicy.schedulingPolicy.minAvailable"
    if least is None and spec.elastic_policy is not None:
        least, field = spec.elastic_policy.min_replicas, "spec.elasticPolicy.minReplicas"
    if least is not None:
        least = source.count(least, 0, subject=subject, field=field)
        others = sum(number for name, number in counts.items() if name != _WORKER)
        if all(name in (*_LEADERS, _WORKER) for name in counts) and _WORKER in counts:
            counts[_WORKER] = max(0, least - others)
        else:
            counts = dict.fromkeys(counts, 0)
    if spec.launcher_creation_policy == "WaitForWorkersReady" and "launcher" in counts:
        # It is made when the workers run, so they cannot wait for it.
        counts["launcher"] = 0
        least = None
    ended = {
        name.lower(): source.said_count(one.succeeded) for name, one in (wire.status.replica_statuses or {}).items()
    }
    sets = (
        PodSet(min_pods=least or 0),
        *(PodSet(name, min_pods=number, ended=ended.get(name, 0)) for name, number in counts.items()),
    )
    return source.group_source(
        wire,
        kind,
        (GroupTemplate(sets=with_templates(sets, pod_templates, owner=wire.metadata.annotations)),),
        lost=lost,
        queue=policy.queue if policy is not None else None,
        priority_class=policy.priority_class if policy is not None else None,
    )


def _replica_templates(spec: KubeflowJobSpec, pods: Mapping[str, int]) -> dict[str, PodSetTemplate]:
    """Return the pod templates of a job by replica type, of each of which there are so many pods."""
    where, replicas = spec.replica_specs
    first = {_WORKER: 1} if spec.run_launcher_as_worker else {}
    return {
        name.lower(): PodSetTemplate(
            source.annotations_of(one.template),
            f"{where}.{name}.template.metadata",
            pods[name.lower()],
            rank=RankSource(_REPLICA_INDEX, first.get(name.lower(), 0)),
            leads=name.lower() in _LEADERS,
            works=name.lower() == _WORKER,
        )
        for name, one in sorted(replicas.items())
    }


def _pod_set(pod: Pod, _template: GroupTemplate, _key: str) -> SetName:
    labels = (*REPLICA_TYPE_LABELS, *MPI_ROLE_LABELS)
    return SetName(next((pod.labels[label].lower() for label in labels if pod.labels.get(label)), ""))


class _Kind(NamedTuple):
    """A kind of training jobs: where its replicas stand, who makes its pods, and which replicas lead."""

    replicas: str
    operator: str
    leaders: tuple[str, ...] = ()


_KINDS = {
    "PyTorchJob": _Kind("pytorchReplicaSpecs", "pytorchjob-controller", ("Master",)),
    "TFJob": _Kind("tfReplicaSpecs", "tfjob-controller", ("Chief", "Master")),
    "XGBoostJob": _Kind("xgbReplicaSpecs", "xgboostjob-controller", ("Master",)),
    "PaddleJob": _Kind("paddleReplicaSpecs", "paddlejob-controller", ("Master",)),
    "JAXJob": _Kind("jaxReplicaSpecs", "jaxjob-controller"),
}


def training_job_pods(job: Object) -> Iterator[Made]:
    """Yield the pods of a training job, replica types in order of name, replicas by index."""
    kind = _KINDS[job["kind"]]
    spec = spec_of(job)
    if _is_held(job, spec):
        return
    replicas = spec.inside(kind.replicas, required=True)
    for replica_type in sorted(replicas.value):
        labels = {f"{_TRAINING}/operator-name": kind.operator, f"{_TRAINING}/job-name": name_of(job)}
        if replica_type in kind.leaders:
            labels[f"{_TRAINING}/job-role"] = "master"
        yield from _replicas(job, replicas.inside(replica_type), replica_type=replica_type, labels=labels)


def mpi_job_pods(job: Object) -> Iterator[Made]:
    """Yield workers and launcher of an MPIJob: of the training operator (v1), or of the MPI operator (v2beta1)."""
    spec = spec_of(job)
    if _is_held(job, spec):
        return
    replicas = spec.inside("mpiReplicaSpecs", required=True)
    name, by_training_operator = name_of(job), job["apiVersion"].endswith("/v1")
    operator = "mpijob-controller" if by_training_operator else "mpi-operator"
    labels = {f"{_TRAINING}/operator-name": operator, f"{_TRAINING}/job-name": name}
    workers = replicas.inside("Worker")
    # Then the launcher is the first worker.
    leads = spec.flag("runLauncherAsWorker") and not by_training_operator
    if workers.value:
        role = {f"{_TRAINING}/job-role": "worker"}
        yield from _replicas(job, workers, replica_type="Worker", labels=labels | role, first=int(leads))
    template = replicas.inside("Launcher", required=True).inside("template", required=True)
    labels[f"{_TRAINING}/job-role"] = "launcher"
    if leads:
        labels[f"{_TRAINING}/replica-index"] = "0"
    if by_training_operator:
        labels |= {f"{_TRAINING}/replica-type": "launcher", f"{_TRAINING}/replica-index": "0"}
        yield pod_from(job, template, name=f"{name}-launcher", labels=labels)
    else:
        yield submitter_pod(job, name=f"{name}-launcher", template=template, labels=labels)


def _is_held(job: Object, spec: Fields) -> bool:
    return spec.inside("runPolicy").flag("suspend") or is_finished(job, "Succeeded", "Failed")


def _replicas(
    job: Object, replica: Fields, *, replica_type: str, labels: dict[str, str], first: int = 0
) -> Iterator[Made]:
    template = replica.inside("template", required=True)
    kind = replica_type.lower()
    for index in range(replica.pods("replicas", 1)):
        marks = {f"{_TRAINING}/replica-type": kind, f"{_TRAINING}/replica-index": str(first + index)}
        yield pod_from(job, template, name=f"{name_of(job)}-{kind}-{index}", labels=labels | marks)


def _workload(name: str, versions: tuple[str, ...], made: Callable[[Object], Iterable[Made]]) -> WorkloadKind:
    kind = f"{name}.kubeflow.org"
    return WorkloadKind(
        kind,
        f"{name.lower()}s",
        versions,
        KubeflowJob,
        partial(normalize_kubeflow_job, kind=kind),
        made,
        suspend=("runPolicy",),
        pod_set=_pod_set,
    )


DIALECT = Dialect(
    "Kubeflow",
    (
        _workload("MPIJob", ("v2beta1", "v1"), mpi_job_pods),
        *(_workload(name, ("v1",), training_job_pods) for name in _KINDS),
    ),
    annotations=(
        "kubeflow.org/",
        "training.kubeflow.org/",
    ),
)
