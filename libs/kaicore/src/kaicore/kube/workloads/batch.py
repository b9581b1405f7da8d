"""Jobs and JobSets.

Sources: the Job controller of Kubernetes 1.36 (`pkg/controller/job`), JobSet 0.8 (`pkg/controllers`, `pkg/webhooks`).
"""

from itertools import islice

from kaicore.kube.workloads.fields import Fields, annotation_of, is_finished, spec_of, status_of
from kaicore.kube.workloads.objects import Object, name_of, namespace_of, sha1_key
from kaicore.kube.workloads.pods import Made, keep_alone, made_object, marked, pod_from

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
