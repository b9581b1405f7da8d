"""Training jobs of Kubeflow: PyTorchJob, TFJob, XGBoostJob, PaddleJob, JAXJob and MPIJob.

Sources: training-operator 1.9 (`pkg/controller.v1/common/pod.go`), mpi-operator 0.6 (`pkg/controller`).
"""

from collections.abc import Iterator
from typing import NamedTuple

from kaicore.rules.groups.dialects.dialect import (
    Dialect,
    ReadObject,
    SetName,
    WorkloadKind,
    check_names,
    pod_set_template,
)
from kaicore.rules.groups.dialects.job import submitter_pod
from kaicore.rules.groups.pod_templates import with_templates
from kaicore.rules.model.group import GroupSource, GroupTemplate, PodSet, RankSource
from kaicore.rules.model.pod import Pod
from kaicore.rules.objects.made import Made, pod_from
from kaicore.rules.objects.mappings import Fields, Object, is_finished, name_of, spec_of
from kaicore.rules.objects.wire import said_count

REPLICA_TYPE_LABELS = ("training.kubeflow.org/replica-type", "replica-type")
MPI_ROLE_LABELS = ("training.kubeflow.org/job-role", "mpi-job-role")
_TRAINING = "training.kubeflow.org"
_REPLICA_INDEX = "training.kubeflow.org/replica-index"

#: Replica types of which there is one that leads the others.
_LEADERS = ("master", "launcher", "chief")
_WORKER = "worker"


class _Kind(NamedTuple):
    """A kind of training jobs: where its replicas stand, who makes its pods, and which replicas lead."""

    replicas: str
    operator: str
    leaders: tuple[str, ...] = ()


_KINDS = {
    "MPIJob": _Kind("mpiReplicaSpecs", "mpijob-controller"),
    "PyTorchJob": _Kind("pytorchReplicaSpecs", "pytorchjob-controller", ("Master",)),
    "TFJob": _Kind("tfReplicaSpecs", "tfjob-controller", ("Chief", "Master")),
    "XGBoostJob": _Kind("xgbReplicaSpecs", "xgboostjob-controller", ("Master",)),
    "PaddleJob": _Kind("paddleReplicaSpecs", "paddlejob-controller", ("Master",)),
    "JAXJob": _Kind("jaxReplicaSpecs", "jaxjob-controller"),
}


def normalize_kubeflow_job(job: ReadObject) -> GroupSource:
    """Reduce a job of the training operator or the MPI operator: all its replicas start together.

    `schedulingPolicy.minAvailable`, or a PyTorchJob's `elasticPolicy.minReplicas`, is the minimum of all its pods: the
    leader's and so many workers. Where there are other types of replicas too, any of them count.
    """
    spec = job.spec
    field = _KINDS[job.kind.partition(".")[0]].replicas
    replicas = spec.inside(field)
    if not replicas.value:
        raise spec.error(field, "has no replicas")
    check_names([name.lower() for name in replicas.value], spec, field)
    by_type = {name.lower(): replicas.inside(name) for name in sorted(replicas.value)}
    counts = {name: one.integer("replicas", 1) for name, one in by_type.items()}
    pod_templates = {
        name: pod_set_template(one.inside("template"), counts[name])._replace(
            rank=RankSource(_REPLICA_INDEX, int(name == _WORKER and spec.flag("runLauncherAsWorker"))),
            leads=name in _LEADERS,
            works=name == _WORKER,
        )
        for name, one in by_type.items()
    }
    policy = spec.inside("runPolicy").inside("schedulingPolicy")
    least = policy.integer("minAvailable", None)
    if least is None:
        least = spec.inside("elasticPolicy").integer("minReplicas", None)
    if least is not None:
        others = sum(number for name, number in counts.items() if name != _WORKER)
        if all(name in (*_LEADERS, _WORKER) for name in counts) and _WORKER in counts:
            counts[_WORKER] = max(0, least - others)
        else:
            counts = dict.fromkeys(counts, 0)
    if spec.text("launcherCreationPolicy") == "WaitForWorkersReady" and "launcher" in counts:
        # It is made when the workers run, so they cannot wait for it.
        counts["launcher"] = 0
        least = None
    statuses = job.status.inside("replicaStatuses")
    ended = {name.lower(): said_count(statuses.inside(name).value.get("succeeded")) for name in statuses.value}
    sets = (
        PodSet(min_pods=least or 0),
        *(PodSet(name, min_pods=number, ended=ended.get(name, 0)) for name, number in counts.items()),
    )
    return job.source(
        GroupTemplate(sets=with_templates(sets, pod_templates, owner=job.annotations)),
        queue=policy.text("queue"),
        priority_class=policy.text("priorityClass"),
    )


def _pod_set(pod: Pod, _template: GroupTemplate, _key: str) -> SetName:
    labels = (*REPLICA_TYPE_LABELS, *MPI_ROLE_LABELS)
    return SetName(next((pod.labels[label].lower() for label in labels if pod.labels.get(label)), ""))


#: Conditions of a job that makes no more pods.
_ENDS = ("Succeeded", "Failed")


def training_job_pods(job: Object) -> Iterator[Made]:
    """Yield the pods of a training job, replica types in order of name, replicas by index."""
    kind = _KINDS[job["kind"]]
    spec = spec_of(job)
    if is_finished(job, *_ENDS):
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
    if is_finished(job, *_ENDS):
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
        labels[_REPLICA_INDEX] = "0"
    if by_training_operator:
        labels |= {f"{_TRAINING}/replica-type": "launcher", _REPLICA_INDEX: "0"}
        yield pod_from(job, template, name=f"{name}-launcher", labels=labels)
    else:
        yield submitter_pod(job, name=f"{name}-launcher", template=template, labels=labels)


def _replicas(
    job: Object, replica: Fields, *, replica_type: str, labels: dict[str, str], first: int = 0
) -> Iterator[Made]:
    template = replica.inside("template", required=True)
    kind = replica_type.lower()
    for index in range(replica.pods("replicas", 1)):
        marks = {f"{_TRAINING}/replica-type": kind, _REPLICA_INDEX: str(first + index)}
        yield pod_from(job, template, name=f"{name_of(job)}-{kind}-{index}", labels=labels | marks)


def _workload(name: str) -> WorkloadKind:
    by_mpi = name == "MPIJob"
    return WorkloadKind(
        f"{name}.kubeflow.org",
        f"{name.lower()}s",
        ("v2beta1", "v1") if by_mpi else ("v1",),
        normalize_kubeflow_job,
        mpi_job_pods if by_mpi else training_job_pods,
        suspend=("runPolicy",),
        pod_set=_pod_set,
    )


DIALECT = Dialect(
    "Kubeflow",
    tuple(_workload(name) for name in _KINDS),
    annotations=(
        "kubeflow.org/",
        "training.kubeflow.org/",
    ),
)
