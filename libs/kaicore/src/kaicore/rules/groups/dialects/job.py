"""Jobs of Kubernetes: pods that start one by one, unless they say otherwise, and the failures that they bear.

The eviction API sets the condition `DisruptionTarget` on a pod. A pod failure policy may define the effect on the Job
of a failure with that condition. Without such a policy it counts towards `backoffLimit`, as does a pod that is deleted
while it runs.

Source: Kubernetes 1.36, `pkg/controller/job` (`job_controller.go`, `pod_failure_policy.go`, `backoff_utils.go`).
"""

from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from kaicore.errors import InvalidObject, Lost, unheard
from kaicore.rules.groups.dialects import source
from kaicore.rules.groups.dialects.dialect import Dialect, WorkloadKind
from kaicore.rules.groups.labels import JOB, KUEUE_QUEUE_LABEL, MIN_MEMBER_ANNOTATION
from kaicore.rules.groups.pod_templates import PodSetTemplate, with_templates
from kaicore.rules.model.group import GroupSource, GroupTemplate, JobFailures, PodSet, RankSource
from kaicore.rules.model.node import KUEUE_TOPOLOGY
from kaicore.rules.objects.made import Made, made_object, pod_from
from kaicore.rules.objects.mappings import Fields, Object, is_finished, name_of, spec_of, status_of
from kaicore.rules.objects.wire import KubernetesObject, Wire


class PodConditionPattern(Wire):
    """A condition of a failed pod."""

    type: str = ""
    status: str | None = None


class PodFailureRule(Wire):
    """A Job's rule for a failed pod, where every condition of the rule holds."""

    action: str = ""
    on_pod_conditions: list[PodConditionPattern] | None = None


class PodFailurePolicy(Wire):
    """Rules of which the first that matches counts."""

    rules: list[PodFailureRule] | None = None


class JobSpec(Wire):
    """A Job's number of running pods, and of allowed failures."""

    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    template: source.PodTemplate | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    suspend: bool | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    active_deadline_seconds: int | None = None


class JobObject(KubernetesObject):
    """A `batch/v1` Job."""

    spec: JobSpec = msgspec.field(default_factory=JobSpec)
    status: source.PodCounts = msgspec.field(default_factory=source.PodCounts)


MIN_PARALLELISM_ANNOTATION = "kueue.x-k8s.io/job-min-parallelism"

#: Annotation by which pods of an Indexed Job tell which one they are.
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"

#: Python reads no number of thousands of digits.
_MOST_DIGITS = 10


def normalize_job(wire: JobObject, lost: Lost = unheard) -> GroupSource:
    """Reduce a Job: its pods start one by one, unless an annotation names a minimum.

    One with a queue of Kueue starts as a whole, as Kueue admits it, or with as many pods as partial admission may leave
    of it (Kueue 0.14, `pkg/controller/jobs/job`). So does one with pods that must be near each other in Kueue's words.
    Raises InvalidObject: an annotation, or how many pods run at once, is no count.
    """
    subject = source.source_subject(JOB, wire)
    annotations, least = wire.metadata.annotations or {}, 1
    template = job_template(wire.spec, field="spec", pods=0)._replace(works=True)
    topology = with_templates((PodSet(),), {"": template})[0].topology
    near = topology is not None and topology.kind == KUEUE_TOPOLOGY
    if near or KUEUE_QUEUE_LABEL in (wire.metadata.labels or {}):
        whole = pods_at_once(wire.spec, subject=subject, field="spec")
        template = template._replace(pods=whole)
        least = min(_annotated_count(annotations, MIN_PARALLELISM_ANNOTATION, subject=subject) or whole, whole)
    least = _annotated_count(annotations, MIN_MEMBER_ANNOTATION, subject=subject) or least
    # What starts one by one waits for none of the others, whatever became of them: that is no news.
    ended = source.said_count(wire.status.succeeded) if least > 1 else 0
    sets = with_templates((PodSet(min_pods=least, ended=ended),), {"": template}, owner=annotations)
    return source.group_source(wire, JOB, (GroupTemplate(sets=sets),), lost=lost, failures=job_failures(wire))


def job_template(spec: JobSpec, *, field: str, pods: int) -> PodSetTemplate:
    """Return the pod template of a Job's spec that stands in a field, and where its pods tell their index."""
    rank = RankSource(COMPLETION_INDEX) if spec.completion_mode == "Indexed" else None
    return PodSetTemplate(source.annotations_of(spec.template), f"{field}.template.metadata", pods, rank=rank)


def _annotated_count(annotations: Mapping[str, str], name: str, *, subject: str) -> int:
    text = annotations.get(name)
    if text is None:
        return 0
    if not text.isdecimal() or len(text) > _MOST_DIGITS or not 1 <= int(text) < 2**31:
        raise InvalidObject(subject, f"metadata.annotations[{name}]", text, "is no count of 1 or more")
    return int(text)


def pods_at_once(spec: JobSpec, *, subject: str, field: str) -> int:
    """Return how many pods of a Job run at once. Raises InvalidObject: a count is none."""
    parallel = source.count(spec.parallelism, 1, subject=subject, field=f"{field}.parallelism")
    return min(parallel, source.count(spec.completions, parallel, subject=subject, field=f"{field}.completions"))


#: `spec.backoffLimit` where nothing is said.
_DEFAULT_LIMIT = 6

_DISRUPTION_TARGET = "DisruptionTarget"


def job_failures(wire: JobObject) -> JobFailures | None:
    """Return how many failures a Job bears; None where those by evictions are ignored."""
    action = _action(wire.spec)
    if action == "Ignore":
        return None
    failed = source.said_count(wire.status.failed)
    if action == "FailJob":
        return JobFailures(limit=failed, failed=failed)
    if wire.spec.backoff_limit_per_index is not None:
        per_index = 0 if action == "FailIndex" else source.said_count(wire.spec.backoff_limit_per_index)
        return JobFailures(limit=per_index, per_index=True)
    limit = _DEFAULT_LIMIT if wire.spec.backoff_limit is None else source.said_count(wire.spec.backoff_limit)
    return JobFailures(limit=limit, failed=failed)


def _action(spec: JobSpec) -> str:
    """Return what the first rule about the condition says; `Count` where none does."""
    rules = spec.pod_failure_policy.rules if spec.pod_failure_policy is not None else None
    return next((rule.action for rule in rules or () if _is_about_evictions(rule)), "Count")


def _is_about_evictions(rule: PodFailureRule) -> bool:
    return any(
        one.type == _DISRUPTION_TARGET and (one.status or "True") == "True" for one in rule.on_pod_conditions or ()
    )


#: Conditions of a Job that starts no more pods, the last two from before its last pods have ended.
_ENDS = ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")


def job_pods(job: Object) -> Iterator[Made]:
    """Yield the pods that a Job has active at first: as many as run at once, the lowest indexes first."""
    spec, status = spec_of(job), status_of(job)
    if spec.flag("suspend") or is_finished(job, *_ENDS):
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
    (WorkloadKind(JOB, "jobs", ("v1",), JobObject, normalize_job, job_pods, suspend=()),),
    annotations=("batch.kubernetes.io/",),
)
