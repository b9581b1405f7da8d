"""Training jobs of Kubeflow: PyTorchJob, TFJob, XGBoostJob, PaddleJob, JAXJob and MPIJob.

Sources: training-operator 1.9 (`pkg/controller.v1/common/pod.go`), mpi-operator 0.6 (`pkg/controller`).
"""

from typing import NamedTuple

from kaicore.kube.workloads.batch import submitter_pod
from kaicore.kube.workloads.fields import Fields, is_finished, spec_of
from kaicore.kube.workloads.objects import Object, name_of
from kaicore.kube.workloads.pods import Made, pod_from

_TRAINING = "training.kubeflow.org"


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

#: Kinds that `training_job_pods` knows.
TRAINING_KINDS = tuple(_KINDS)


def training_job_pods(job: Object) -> list[Made]:
    """Return the pods of a training job, replica types in order of name, replicas by index."""
    kind = _KINDS[job["kind"]]
    spec = spec_of(job)
    if _is_held(job, spec):
        return []
    replicas = spec.inside(kind.replicas, required=True)
    pods = []
    for replica_type in sorted(replicas.value):
        labels = {f"{_TRAINING}/operator-name": kind.operator, f"{_TRAINING}/job-name": name_of(job)}
        if replica_type in kind.leaders:
            labels[f"{_TRAINING}/job-role"] = "master"
        pods += _replicas(job, replicas.inside(replica_type), replica_type=replica_type, labels=labels)
    return pods


def mpi_job_pods(job: Object) -> list[Made]:
    """Return workers and launcher of an MPIJob: of the training operator (v1), or of the MPI operator (v2beta1)."""
    spec = spec_of(job)
    if _is_held(job, spec):
        return []
    replicas = spec.inside("mpiReplicaSpecs", required=True)
    name, by_training_operator = name_of(job), job["apiVersion"].endswith("/v1")
    operator = "mpijob-controller" if by_training_operator else "mpi-operator"
    labels = {f"{_TRAINING}/operator-name": operator, f"{_TRAINING}/job-name": name}
    workers = replicas.inside("Worker")
    # Then the launcher is the first worker.
    leads = spec.flag("runLauncherAsWorker") and not by_training_operator
    made = []
    if workers.value:
        role = {f"{_TRAINING}/job-role": "worker"}
        made += _replicas(job, workers, replica_type="Worker", labels=labels | role, first=int(leads))
    template = replicas.inside("Launcher", required=True).inside("template", required=True)
    labels[f"{_TRAINING}/job-role"] = "launcher"
    if leads:
        labels[f"{_TRAINING}/replica-index"] = "0"
    if by_training_operator:
        labels |= {f"{_TRAINING}/replica-type": "launcher", f"{_TRAINING}/replica-index": "0"}
        made.append(pod_from(job, template, name=f"{name}-launcher", labels=labels))
    else:
        made.append(submitter_pod(job, name=f"{name}-launcher", template=template, labels=labels))
    return made


def _is_held(job: Object, spec: Fields) -> bool:
    return spec.inside("runPolicy").flag("suspend") or is_finished(job, "Succeeded", "Failed")


def _replicas(job: Object, replica: Fields, *, replica_type: str, labels: dict[str, str], first: int = 0) -> list[Made]:
    template = replica.inside("template", required=True)
    kind = replica_type.lower()
    return [
        pod_from(
            job,
            template,
            name=f"{name_of(job)}-{kind}-{index}",
            labels=labels | {f"{_TRAINING}/replica-type": kind, f"{_TRAINING}/replica-index": str(first + index)},
        )
        for index in range(replica.pods("replicas", 1))
    ]
