"""Deployments, ReplicaSets, ReplicationControllers, StatefulSets and DaemonSets.

Source: `pkg/controller/{deployment,replicaset,statefulset,daemon}` of Kubernetes 1.36. The start of a StatefulSet's
pods one after the other is left out: all of them exist at once.

Jobs and JobSets.

Sources: the Job controller of Kubernetes 1.36 (`pkg/controller/job`), JobSet 0.8 (`pkg/controllers`, `pkg/webhooks`).

Training jobs of Kubeflow: PyTorchJob, TFJob, XGBoostJob, PaddleJob, JAXJob and MPIJob.

Sources: training-operator 1.9 (`pkg/controller.v1/common/pod.go`), mpi-operator 0.6 (`pkg/controller`).

LeaderWorkerSets: groups of a leader and its workers.

Source: LeaderWorkerSet 0.7 (`pkg/controllers`, `pkg/webhooks/pod_webhook.go`). Leaders belong to a StatefulSet named
as the set, the workers of a group to one named as their leader.

RayClusters and RayJobs.

Source: KubeRay 1.4 (`ray-operator/controllers/ray`): the head gets a sidecar where autoscaling is on, each worker an
init container that waits for the head, and a RayJob a Job beside its cluster that submits it.

Volcano Jobs, and HyperJobs of them.

Sources: Volcano 1.13 (`pkg/controllers/job/job_controller_util.go`, `pkg/webhooks/admission/jobs/mutate`), and for
partitions and HyperJobs v1.16.0-alpha.1 and `training/v1alpha1` of `volcano.sh/apis`.
"""

from collections.abc import Callable
from copy import deepcopy
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from kaicore.rules.objects.made import Made, keep_alone, list_in, made_object, mapping_in, marked, pod_from
from kaicore.rules.objects.mappings import (
    Fields,
    Object,
    annotation_of,
    generated_name,
    is_finished,
    name_of,
    namespace_of,
    sha1_key,
    spec_of,
    status_of,
    suffix,
)

#: Names of the nodes that a pod may run on, whatever is free there.
NodesFor = Callable[[Object], list[str]]

_encoder = msgspec.json.Encoder(order="deterministic")

#: Taints that pods of DaemonSets tolerate (`util.AddOrUpdateDaemonPodTolerations`).
_DAEMON_TOLERATIONS = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)


def template_hash(template: Fields, *, length: int = 10) -> str:
    """Return letters that stand for a pod template, as `pod-template-hash` does."""
    return suffix(sha256(_encoder.encode(template.value)).hexdigest(), length=length)


def deployment_replica_sets(deployment: Object) -> list[Made]:
    """Return the ReplicaSet of a Deployment."""
    spec = spec_of(deployment)
    template = spec.inside("template", required=True)
    revision = template_hash(template)
    made = made_object(
        deployment,
        api_version="apps/v1",
        kind="ReplicaSet",
        name=f"{name_of(deployment)}-{revision}",
        metadata=template.inside("metadata"),
    )
    labels = {"pod-template-hash": revision}
    made["metadata"]["labels"].update(labels)
    made_template = {**deepcopy(template.value), "metadata": marked(template, labels)}
    made["spec"] = {"replicas": spec.pods("replicas", 1), "template": made_template}
    return [Made(made, "spec")]


def replica_set_pods(owner: Object) -> list[Made]:
    """Return the pods of a ReplicaSet or a ReplicationController."""
    spec = spec_of(owner)
    template = spec.inside("template", required=True)
    count = spec.pods("replicas", 1)
    return [pod_from(owner, template, generate_name=f"{name_of(owner)}-", key=str(n)) for n in range(count)]


def stateful_set_pods(owner: Object) -> list[Made]:
    """Return the pods of a StatefulSet, by ordinal."""
    spec = spec_of(owner)
    template = spec.inside("template", required=True)
    first = spec.inside("ordinals").integer("start", 0)
    name = name_of(owner)
    revision = f"{name}-{template_hash(template)}"
    pods = []
    for ordinal in range(first, first + spec.pods("replicas", 1)):
        labels = {
            "controller-revision-hash": revision,
            "statefulset.kubernetes.io/pod-name": f"{name}-{ordinal}",
            "apps.kubernetes.io/pod-index": str(ordinal),
        }
        pod = pod_from(owner, template, name=f"{name}-{ordinal}", labels=labels)
        pod.object["spec"].setdefault("hostname", f"{name}-{ordinal}")
        for claim in spec.items("volumeClaimTemplates"):
            volume = claim.inside("metadata").text("name")
            claims = {"claimName": f"{volume}-{name}-{ordinal}"}
            list_in(pod, "volumes").append({"name": volume, "persistentVolumeClaim": claims})
        pods.append(pod)
    return pods


def daemon_set_pods(owner: Object, nodes_for: NodesFor) -> list[Made]:
    """Return a pod of a DaemonSet for each node that it may run on, bound to that node by its affinity."""
    spec = spec_of(owner)
    template = spec.inside("template", required=True)
    labels = {"controller-revision-hash": template_hash(template)}
    model = pod_from(owner, template, generate_name=f"{name_of(owner)}-")
    tolerations = [item.value for item in template.inside("spec").items("tolerations")]
    tolerations += [{"key": key, "operator": "Exists", "effect": effect} for key, effect in _DAEMON_TOLERATIONS]
    if model.object["spec"].get("hostNetwork"):
        key = "node.kubernetes.io/network-unavailable"
        tolerations.append({"key": key, "operator": "Exists", "effect": "NoSchedule"})
    model.object["spec"]["tolerations"] = tolerations
    pods = []
    for node in nodes_for(model.object):
        pod = pod_from(owner, template, generate_name=f"{name_of(owner)}-", key=node, labels=labels)
        pod_spec = pod.object["spec"]
        pod_spec["tolerations"] = deepcopy(tolerations)
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        node_affinity = mapping_in(mapping_in(pod_spec, "affinity"), "nodeAffinity")
        node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [term]}
        pods.append(pod)
    return pods


_INDEX = "batch.kubernetes.io/job-completion-index"
_JOBSET = "jobset.sigs.k8s.io"
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_JOB_KEY = f"{_JOBSET}/job-key"

#: Conditions of a Job that starts no more pods, the last two from before its last pods have ended.
_ENDS = ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")


def job_pods(job: Object) -> list[Made]:
    """Return the pods that a Job has active at first: as many as run at once, the lowest indexes first."""
    spec, status = spec_of(job), status_of(job)
    if spec.flag("suspend") or is_finished(job, *_ENDS):
        return []
    completions = None if spec.value.get("completions") is None else spec.integer("completions", 0)
    if completions is None and spec.value.get("parallelism") is None:
        completions = 1
    parallelism = spec.pods("parallelism", 1)
    done = status.integer("succeeded", 0)
    indexed = spec.text("completionMode", "NonIndexed") == "Indexed"
    name, labels = name_of(job), _labels(job)
    template = spec.inside("template", required=True)
    if not indexed:
        wanted = parallelism if completions is None else min(parallelism, max(completions - done, 0))
        if completions is None and done:
            wanted = 0
        return [pod_from(job, template, generate_name=f"{name}-", key=str(n), labels=labels) for n in range(wanted)]
    if completions is None:
        raise spec.error("completions", "is needed with completionMode Indexed")
    over = _indexes(status, completions)
    pods = []
    for index in islice((index for index in range(completions) if index not in over), parallelism):
        says = {_INDEX: str(index)}
        pod = pod_from(job, template, generate_name=f"{name}-{index}-", labels=labels | says, annotations=says)
        pod.object["spec"].setdefault("hostname", f"{name}-{index}")
        pods.append(pod)
    return pods


def _indexes(status: Fields, completions: int) -> set[int]:
    """Return the completed indexes, which a status writes as `0-2,5`."""
    indexes: set[int] = set()
    for part in filter(None, status.text("completedIndexes").split(",")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise status.error("completedIndexes", "must be indexes such as 0-2,5")
        indexes.update(range(int(first), min(int(last or first), completions) + 1))
    return indexes


def jobset_jobs(jobset: Object) -> list[Made]:
    """Return the Jobs of a JobSet, all of them: dependencies are taken to become ready, not to complete."""
    spec = spec_of(jobset)
    if spec.flag("suspend") or is_finished(jobset, "Completed", "Failed"):
        return []
    name, namespace = name_of(jobset), namespace_of(jobset)
    replicated = spec.items("replicatedJobs")
    total = sum(item.pods("replicas", 1) for item in replicated)
    topology_key = annotation_of(jobset, _EXCLUSIVE)
    jobs: list[Made] = []
    for item in replicated:
        if any(need.text("status") == "Complete" for need in item.items("dependsOn")):
            continue
        template = item.inside("template", required=True)
        pod_template = template.inside("spec", required=True).inside("template", required=True)
        pod_template.inside("spec", required=True)
        for index in range(item.pods("replicas", 1)):
            job_name = f"{name}-{item.text('name')}-{index}"
            marks = {
                f"{_JOBSET}/jobset-name": name,
                f"{_JOBSET}/jobset-uid": jobset["metadata"]["uid"],
                f"{_JOBSET}/replicatedjob-name": item.text("name"),
                f"{_JOBSET}/replicatedjob-replicas": str(item.pods("replicas", 1)),
                f"{_JOBSET}/global-replicas": str(total),
                f"{_JOBSET}/job-index": str(index),
                f"{_JOBSET}/job-global-index": str(len(jobs)),
                _JOB_KEY: sha1_key(f"{namespace}/{job_name}"),
                f"{_JOBSET}/restart-attempt": "0",
            }
            notes = marks | ({_EXCLUSIVE: topology_key} if topology_key else {})
            job = made_object(
                jobset, api_version="batch/v1", kind="Job", name=job_name, metadata=template.inside("metadata")
            )
            job["spec"] = template.copy("spec")
            # The JobSet webhook's default.
            job["spec"].setdefault("completionMode", "Indexed")
            job["spec"]["template"]["metadata"] = marked(pod_template, marks, notes)
            job["metadata"]["labels"].update(marks)
            job["metadata"]["annotations"].update(notes)
            if topology_key:
                keep_alone(job["spec"]["template"], label=_JOB_KEY, topology_key=topology_key)
            jobs.append(Made(job, template.where("spec")))
    return jobs


def submitter_pod(owner: Object, *, name: str, template: Fields, labels: dict[str, str]) -> Made:
    """Return the pod of the Job that an operator makes to start something, such as an MPI launcher."""
    job = made_object(owner, api_version="batch/v1", kind="Job", name=name, metadata=Fields("", {"labels": labels}))
    return pod_from(job, template, generate_name=f"{name}-", labels=labels | _labels(job))._replace(through=job)


def _labels(job: Object) -> dict[str, str]:
    name, uid = name_of(job), job["metadata"]["uid"]
    return {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }


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


_PREFIX = "leaderworkerset.sigs.k8s.io"
_GROUP_KEY = f"{_PREFIX}/group-key"
_EXCLUSIVE_TOPOLOGY = f"{_PREFIX}/exclusive-topology"


def leader_worker_set_pods(owner: Object) -> list[Made]:
    """Return leaders and workers of all groups; a group has `size` pods, its leader among them."""
    spec = spec_of(owner)
    template = spec.inside("leaderWorkerTemplate", required=True)
    worker = template.inside("workerTemplate", required=True)
    leader = template.inside("leaderTemplate") if template.value.get("leaderTemplate") else worker
    size = template.pods("size", 1)
    if not size:
        raise template.error("size", "must be 1 or more")
    revision = template_hash(template)
    leaders = _stateful_set(owner, name_of(owner))
    topology_key = annotation_of(owner, _EXCLUSIVE_TOPOLOGY)
    pods = []
    for group in range(spec.pods("replicas", 1)):
        leader_name = f"{name_of(owner)}-{group}"
        workers = _stateful_set(owner, leader_name)
        for index in range(size):
            labels = {
                f"{_PREFIX}/name": name_of(owner),
                f"{_PREFIX}/group-index": str(group),
                f"{_PREFIX}/worker-index": str(index),
                f"{_PREFIX}/template-revision-hash": revision,
                _GROUP_KEY: sha1_key(f"{namespace_of(owner)}/{leader_name}"),
            }
            notes = {f"{_PREFIX}/size": str(size)}
            if index:
                notes[f"{_PREFIX}/leader-name"] = leader_name
            _mark_subgroup(template, labels, notes, leader=leader_name, index=index, size=size)
            name = f"{leader_name}-{index}" if index else leader_name
            labels["statefulset.kubernetes.io/pod-name"] = name
            labels["apps.kubernetes.io/pod-index"] = str(index or group)
            pod = pod_from(
                workers if index else leaders,
                worker if index else leader,
                name=name,
                labels=labels,
                annotations=notes | ({_EXCLUSIVE_TOPOLOGY: topology_key} if topology_key else {}),
            )
            if topology_key:
                keep_alone(pod.object, label=_GROUP_KEY, topology_key=topology_key)
            pods.append(pod)
    return pods


def _stateful_set(owner: Object, name: str) -> Object:
    return made_object(owner, api_version="apps/v1", kind="StatefulSet", name=name)


def _mark_subgroup(
    template: Fields, labels: dict[str, str], notes: dict[str, str], *, leader: str, index: int, size: int
) -> None:
    """Say which subgroup a pod belongs to, where the group is divided."""
    policy = template.inside("subGroupPolicy")
    width = policy.integer("subGroupSize", 0)
    if not width:
        return
    notes[f"{_PREFIX}/subgroup-size"] = str(width)
    alone = policy.text("subGroupPolicyType", "LeaderWorker") == "LeaderExcluded"
    if alone and not index:
        return
    # A leader that is one too many joins the first subgroup.
    extra = alone or (size - 1) % width == 0
    number = max(index - 1, 0) // width if extra else index // width
    labels[f"{_PREFIX}/subgroup-index"] = str(number)
    labels[f"{_PREFIX}/subgroup-key"] = sha1_key(f"{leader}/{number}")


_ENDED = ("Complete", "Failed")


def _same(cpu: str, memory: str) -> dict[str, Any]:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


def ray_cluster_pods(cluster: Object) -> list[Made]:
    """Return the head and the workers of a RayCluster."""
    spec = spec_of(cluster)
    if spec.flag("suspend"):
        return []
    name = name_of(cluster)
    template = spec.inside("headGroupSpec", required=True).inside("template", required=True)
    labels = _ray_labels(name, group="headgroup", node_type="head")
    head = pod_from(cluster, template, generate_name=f"{name}-head-", labels=labels)
    if spec.flag("enableInTreeAutoscaling"):
        resources = spec.inside("autoscalerOptions").copy("resources") or _same("500m", "512Mi")
        list_in(head, "containers").append({"name": "autoscaler", "resources": resources})
    pods = [head]
    for group in spec.items("workerGroupSpecs"):
        template = group.inside("template", required=True)
        group_name = group.text("groupName")
        labels = _ray_labels(name, group=group_name, node_type="worker")
        base = f"{name}-{group_name}-worker-"
        for number in range(_workers(group)):
            worker = pod_from(cluster, template, generate_name=base, key=str(number), labels=labels)
            waiting = {"name": "wait-gcs-ready", "resources": _same("200m", "256Mi")}
            list_in(worker, "initContainers").append(waiting)
            pods.append(worker)
    return pods


def ray_job_parts(job: Object) -> list[Made]:
    """Return the RayCluster of a RayJob and the Job that submits it; nothing where it uses a cluster that is there."""
    spec, status = spec_of(job), status_of(job)
    if spec.flag("suspend") or spec.value.get("clusterSelector") or status.text("jobDeploymentStatus") in _ENDED:
        return []
    name = name_of(job)
    source = spec.inside("rayClusterSpec", required=True)
    marks = {"ray.io/originated-from-cr-name": name, "ray.io/originated-from-crd": "RayJob"}
    cluster = made_object(
        job,
        api_version=job["apiVersion"],
        kind="RayCluster",
        name=generated_name(f"{name}-", job["metadata"]["uid"]),
        metadata=Fields("", {"labels": marks}),
    )
    cluster["spec"] = spec.copy("rayClusterSpec")
    made = [Made(cluster, source.path)]
    if spec.text("submissionMode", "K8sJobMode") == "K8sJobMode":
        template = spec.inside("submitterPodTemplate")
        if not template.value:
            resources = {"requests": {"cpu": "500m", "memory": "200Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
            containers = [{"name": "ray-job-submitter", "resources": resources}]
            template = Fields("", {"spec": {"containers": containers, "restartPolicy": "Never"}}, template.path)
        made.append(submitter_pod(job, name=name, template=template, labels=marks))
    return made


def _ray_labels(cluster: str, *, group: str, node_type: str) -> dict[str, str]:
    return {
        "ray.io/cluster": cluster,
        "ray.io/group": group,
        "ray.io/node-type": node_type,
        "ray.io/identifier": f"{cluster}-{node_type}"[-63:].lstrip("-"),
        "ray.io/is-ray-node": "yes",
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }


def _workers(group: Fields) -> int:
    """How many pods a group of workers has: its replicas within their bounds, times the hosts of each."""
    if group.flag("suspend"):
        return 0
    least, most = group.pods("minReplicas", 0), group.integer("maxReplicas", 2**31 - 1)
    return min(max(group.pods("replicas", 0), least), most) * group.pods("numOfHosts", 1)


_VOLCANO = "volcano.sh"
_GROUP_NAME = "scheduling.k8s.io/group-name"
_NUMA_POLICY = f"{_VOLCANO}/numa-topology-policy"
_PREEMPTABLE = f"{_VOLCANO}/preemptable"

#: Phases of a job that has no pods, or is about to have none.
_OVER = ("Aborted", "Aborting", "Completed", "Completing", "Failed", "Terminated", "Terminating")


def hyper_job_jobs(hyper_job: Object) -> list[Made]:
    """Return the Jobs of a HyperJob, of each template in order of their index."""
    name = name_of(hyper_job)
    jobs = []
    for item in spec_of(hyper_job).items("replicatedJobs"):
        field = "templateSpec" if item.value.get("templateSpec") is not None else "template"
        template = item.inside(field, required=True)
        for index in range(item.pods("replicas", 1)):
            marks = {
                f"{_VOLCANO}/hyperjob-name": name,
                f"{_VOLCANO}/hyperjob-replicatedjob-name": item.text("name"),
                f"{_VOLCANO}/hyperjob-replicatedjob-index": str(index),
            }
            job = made_object(
                hyper_job,
                api_version="batch.volcano.sh/v1alpha1",
                kind="Job",
                name=f"{name}-{item.text('name')}-{index}",
                metadata=Fields("", {"labels": marks}),
            )
            job["spec"] = item.copy(field)
            jobs.append(Made(job, template.path))
    return jobs


def volcano_job_pods(job: Object) -> list[Made]:
    """Return the pods of a job, task by task; those that wait for other tasks too, which are taken to be ready."""
    spec, status = spec_of(job), status_of(job)
    if status.inside("state").text("phase") in _OVER:
        return []
    return [
        _pod(job, task, name=task.text("name") or f"default{index}", index=replica)
        for index, task in enumerate(spec.items("tasks"))
        for replica in range(task.pods("replicas", 0))
    ]


def _pod(job: Object, task: Fields, *, name: str, index: int) -> Made:
    spec, status = spec_of(job), status_of(job)
    metadata = Fields(name_of(job), job).inside("metadata")
    queue, own = spec.text("queue"), {f"{_VOLCANO}/task-index": str(index), f"{_VOLCANO}/task-spec": name}
    shared = {**own, f"{_VOLCANO}/job-name": name_of(job), f"{_VOLCANO}/queue-name": queue}
    labels = {**shared, f"{_VOLCANO}/job-namespace": namespace_of(job)}
    if size := task.inside("partitionPolicy").integer("partitionSize", 0):
        labels[f"{_VOLCANO}/partition-id"] = str(index // size)
    annotations = {
        **shared,
        _GROUP_NAME: f"{name_of(job)}-{job['metadata']['uid']}",
        f"{_VOLCANO}/job-version": str(status.integer("version", 0)),
        f"{_VOLCANO}/job-retry-count": str(status.integer("retryCount", 0)),
        f"{_VOLCANO}/template-uid": f"{name_of(job)}-{name}",
    }
    if policy := task.text("topologyPolicy"):
        annotations[_NUMA_POLICY] = policy
    for map_name, into in (("labels", labels), ("annotations", annotations)):
        if value := metadata.inside(map_name).text(_PREEMPTABLE):
            into[_PREEMPTABLE] = value
    pod = pod_from(
        job,
        task.inside("template", required=True),
        name=f"{name_of(job)}-{name}-{index}",
        labels=labels,
        annotations=annotations,
    )
    for field in ("schedulerName", "priorityClassName"):
        if value := spec.text(field):
            pod.object["spec"].setdefault(field, value)
    # Claims that the controller would make itself are not simulated.
    for claim in filter(None, dict.fromkeys(volume.text("volumeClaimName") for volume in spec.items("volumes"))):
        list_in(pod, "volumes").append({"name": claim, "persistentVolumeClaim": {"claimName": claim}})
    return pod
