"""Volcano Jobs, and HyperJobs of them.

Sources: Volcano 1.13 (`pkg/controllers/job/job_controller_util.go`, `pkg/webhooks/admission/jobs/mutate`), and for
partitions and HyperJobs v1.16.0-alpha.1 and `training/v1alpha1` of `volcano.sh/apis`.
"""

from kaicore.kube.workloads.fields import Fields, spec_of, status_of
from kaicore.kube.workloads.objects import Object, name_of, namespace_of
from kaicore.kube.workloads.pods import Made, list_in, made_object, pod_from

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
