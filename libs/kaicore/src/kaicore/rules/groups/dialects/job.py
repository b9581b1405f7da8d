"""Jobs of Kubernetes: pods that start one by one, unless they say otherwise, and the failures that they bear.

The eviction API sets the condition `DisruptionTarget` on a pod. A pod failure policy may define the effect on the Job
of a failure with that condition. Without such a policy it counts towards `backoffLimit`, as does a pod that is deleted
while it runs.

Source: Kubernetes 1.36, `pkg/controller/job` (`job_controller.go`, `pod_failure_policy.go`, `backoff_utils.go`).
"""

from collections.abc import Iterator
from itertools import islice

from kaicore.errors import InvalidObject
from kaicore.rules.groups.dialects.dialect import Dialect, ReadObject, WorkloadKind, pod_set_template
from kaicore.rules.groups.labels import JOB, KUEUE_QUEUE_LABEL, MIN_MEMBER_ANNOTATION
from kaicore.rules.groups.pod_templates import PodSetTemplate, with_templates
from kaicore.rules.model.group import GroupSource, GroupTemplate, JobFailures, PodSet, RankSource
from kaicore.rules.model.node import KUEUE_TOPOLOGY
from kaicore.rules.objects.made import Made, made_object, pod_from
from kaicore.rules.objects.mappings import Fields, Object, is_finished, name_of, spec_of, status_of
from kaicore.rules.objects.wire import count_in, said_count

MIN_PARALLELISM_ANNOTATION = "kueue.x-k8s.io/job-min-parallelism"

#: Annotation by which pods of an Indexed Job tell which one they are.
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


def normalize_job(job: ReadObject) -> GroupSource:
    """Reduce a Job: its pods start one by one, unless an annotation names a minimum.

    One with a queue of Kueue starts as a whole, as Kueue admits it, or with as many pods as partial admission may leave
    of it (Kueue 0.14, `pkg/controller/jobs/job`). So does one with pods that must be near each other in Kueue's words.
    Raises InvalidObject: an annotation, or how many pods run at once, is no count.
    """
    annotations, least = job.annotations, 1
    template = job_template(job.spec, pods=0)._replace(works=True)
    topology = with_templates((PodSet(),), {"": template})[0].topology
    near = topology is not None and topology.kind == KUEUE_TOPOLOGY
    if near or KUEUE_QUEUE_LABEL in (job.metadata.labels or {}):
        whole = pods_at_once(job.spec)
        template = template._replace(pods=whole)
        least = min(_annotated_count(job, MIN_PARALLELISM_ANNOTATION) or whole, whole)
    least = _annotated_count(job, MIN_MEMBER_ANNOTATION) or least
    # What starts one by one waits for none of the others, whatever became of them: that is no news.
    ended = said_count(job.status.value.get("succeeded")) if least > 1 else 0
    sets = with_templates((PodSet(min_pods=least, ended=ended),), {"": template}, owner=annotations)
    failures = job_failures(job.spec, job.status)
    return job.source(GroupTemplate(sets=sets), failures=failures)


def job_template(spec: Fields, *, pods: int) -> PodSetTemplate:
    """Return the pod template of a Job's spec, and where its pods tell their index."""
    rank = RankSource(COMPLETION_INDEX) if spec.text("completionMode") == "Indexed" else None
    return pod_set_template(spec.inside("template"), pods)._replace(rank=rank)


def _annotated_count(job: ReadObject, name: str) -> int:
    text = job.annotations.get(name)
    if text is None:
        return 0
    if not (count := count_in(text)):
        raise InvalidObject(job.spec.subject, f"metadata.annotations[{name}]", text, "is no count of 1 or more")
    return count


def pods_at_once(spec: Fields) -> int:
    """Return how many pods of a Job run at once. Raises InvalidObject: a count is none."""
    parallel = spec.integer("parallelism", 1)
    return min(parallel, spec.integer("completions", parallel))


#: The default of `spec.backoffLimit`.
_DEFAULT_LIMIT = 6

_DISRUPTION_TARGET = "DisruptionTarget"


def job_failures(spec: Fields, status: Fields) -> JobFailures | None:
    """Return how many failures a Job bears; None where those by evictions are ignored."""
    action = _action(spec)
    if action == "Ignore":
        return None
    failed = said_count(status.value.get("failed"))
    if action == "FailJob":
        return JobFailures(limit=failed, failed=failed)
    limit_per_index = spec.integer("backoffLimitPerIndex", None)
    if limit_per_index is not None:
        return JobFailures(limit=0 if action == "FailIndex" else limit_per_index, per_index=True)
    return JobFailures(limit=spec.integer("backoffLimit", _DEFAULT_LIMIT), failed=failed)


def _action(spec: Fields) -> str:
    """Return what the first rule about the condition says; `Count` where none does."""
    rules = spec.inside("podFailurePolicy").items("rules")
    return next((rule.text("action") for rule in rules if _is_about_evictions(rule)), "Count")


def _is_about_evictions(rule: Fields) -> bool:
    return any(
        one.text("type") == _DISRUPTION_TARGET and (one.text("status") or "True") == "True"
        for one in rule.items("onPodConditions")
    )


#: Conditions of a Job that starts no more pods, the last two from before its last pods have ended.
_ENDS = ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")


def job_pods(job: Object) -> Iterator[Made]:
    """Yield the pods that a Job has active at first: as many as run at once, the lowest indexes first."""
    spec, status = spec_of(job), status_of(job)
    if is_finished(job, *_ENDS):
        return
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
        for number in range(wanted):
            yield pod_from(job, template, generate_name=f"{name}-", key=str(number), labels=labels)
        return
    if completions is None:
        raise spec.error("completions", "is needed with completionMode Indexed")
    over = _indexes(status, completions)
    for index in islice((index for index in range(completions) if index not in over), parallelism):
        says = {COMPLETION_INDEX: str(index)}
        pod = pod_from(job, template, generate_name=f"{name}-{index}-", labels=labels | says, annotations=says)
        pod.object["spec"].setdefault("hostname", f"{name}-{index}")
        yield pod


def _indexes(status: Fields, completions: int) -> set[int]:
    """Return the completed indexes, which a status writes as `0-2,5`."""
    indexes: set[int] = set()
    for part in filter(None, status.text("completedIndexes").split(",")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise status.error("completedIndexes", "must be indexes such as 0-2,5")
        indexes.update(range(int(first), min(int(last or first), completions) + 1))
    return indexes


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


DIALECT = Dialect(
    "Kubernetes' batch",
    (WorkloadKind(JOB, "jobs", ("v1",), normalize_job, job_pods, suspend=()),),
    annotations=("batch.kubernetes.io/",),
)
