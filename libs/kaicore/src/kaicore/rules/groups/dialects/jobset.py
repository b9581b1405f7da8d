"""JobSets: Jobs that start together, or one after the other.

Source: JobSet 0.8 (`pkg/controllers`, `pkg/webhooks`).
"""

from collections.abc import Iterator

import msgspec

from kaicore.errors import InvalidObject, Lost, unheard
from kaicore.rules.groups.dialects.dialect import Dialect, WorkloadKind, named_by
from kaicore.rules.groups.dialects.job import COMPLETION_INDEX, JobSpec, job_template, pods_at_once
from kaicore.rules.groups.dialects.source import count, group_source, said_count, source_subject
from kaicore.rules.groups.pod_templates import PodSetTemplate, with_templates
from kaicore.rules.model.group import GroupSource, GroupTemplate, PodSet, RankSource
from kaicore.rules.objects.made import Made, keep_alone, made_object, marked
from kaicore.rules.objects.mappings import Object, annotation_of, is_finished, name_of, namespace_of, sha1_key, spec_of
from kaicore.rules.objects.wire import KubernetesObject, Wire

JOBSET = "JobSet.jobset.x-k8s.io"
JOBSET_NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
REPLICATED_JOB_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
_JOBSET = "jobset.sigs.k8s.io"
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_JOB_KEY = f"{_JOBSET}/job-key"


class JobTemplate(Wire):
    """A template of Jobs."""

    spec: JobSpec = msgspec.field(default_factory=JobSpec)


class DependsOn(Wire):
    """A condition that must hold first."""

    name: str = ""


class ReplicatedJob(Wire):
    """Jobs that are alike."""

    name: str = ""
    replicas: int | None = None
    template: JobTemplate = msgspec.field(default_factory=JobTemplate)
    depends_on: list[DependsOn] | None = None


class StartupPolicy(Wire):
    """True if replicated jobs start one after the other."""

    startup_policy_order: str | None = None


class JobSetSpec(Wire):
    """The jobs of a JobSet."""

    replicated_jobs: list[ReplicatedJob] | None = None
    startup_policy: StartupPolicy | None = None
    suspend: bool | None = None


class ReplicatedJobStatus(Wire):
    """The number of succeeded Jobs of a replicated job."""

    name: str = ""
    succeeded: int | None = None


class JobSetStatus(Wire):
    """A JobSet's status."""

    replicated_jobs_status: list[ReplicatedJobStatus] | None = None


class JobSetObject(KubernetesObject):
    """A `jobset.x-k8s.io/v1alpha2` JobSet."""

    spec: JobSetSpec = msgspec.field(default_factory=JobSetSpec)
    status: JobSetStatus = msgspec.field(default_factory=JobSetStatus)


def normalize_jobset(wire: JobSetObject, lost: Lost = unheard) -> GroupSource:
    """Reduce a JobSet: all jobs start together, but those that wait for others to start are groups of their own."""
    spec = wire.spec
    subject = source_subject(JOBSET, wire)
    in_order = spec.startup_policy is not None and spec.startup_policy.startup_policy_order == "InOrder"
    together = [PodSet()]
    pod_templates: dict[str, PodSetTemplate] = {}
    templates, annotations = [], wire.metadata.annotations or {}
    done = {one.name: said_count(one.succeeded) for one in wire.status.replicated_jobs_status or ()}
    for index, one in enumerate(spec.replicated_jobs or ()):
        field = f"spec.replicatedJobs[{index}]"
        replicas, pods = _jobs_pods(one, subject=subject, field=field)
        least, ended = replicas * pods, min(done.get(one.name, 0), replicas) * pods
        template = _jobs_template(one.template.spec, replicas, pods, field=f"{field}.template.spec")
        if in_order or one.depends_on:
            alone = PodSet(min_pods=least, ended=ended)
            templates.append(GroupTemplate(one.name, with_templates((alone,), {"": template}, owner=annotations)))
        else:
            together.append(PodSet(one.name, min_pods=least, ended=ended))
            pod_templates[one.name] = template
    names = [one.name for one in spec.replicated_jobs or ()]
    if len(set(names)) < len(names) or "" in names:
        raise InvalidObject(subject, "spec.replicatedJobs", names, "need names, each of them once")
    sets = with_templates(together, pod_templates, owner=annotations)
    return group_source(wire, JOBSET, (GroupTemplate(sets=sets), *templates), lost=lost)


def _jobs_template(spec: JobSpec, jobs: int, pods: int, *, field: str) -> PodSetTemplate:
    """Return the template of the pods of Jobs of a JobSet: the JobSet's webhook has them indexed.

    As with Kueue's, a Job is a slice where no size is said.
    """
    template = job_template(spec, field=field, pods=jobs * pods)
    if spec.completion_mode not in (None, "", "Indexed"):
        return template._replace(slice_size=pods)
    return template._replace(slice_size=pods, rank=RankSource(COMPLETION_INDEX, 0, _JOB_INDEX, pods))


def _jobs_pods(one: ReplicatedJob, *, subject: str, field: str) -> tuple[int, int]:
    """Return how many Jobs there are of a kind, and how many pods of each run at once."""
    replicas = count(one.replicas, 1, subject=subject, field=f"{field}.replicas")
    return replicas, pods_at_once(one.template.spec, subject=subject, field=f"{field}.template.spec")


def jobset_jobs(jobset: Object) -> Iterator[Made]:
    """Yield the Jobs of a JobSet, all of them: dependencies are taken to become ready, not to complete."""
    spec = spec_of(jobset)
    if spec.flag("suspend") or is_finished(jobset, "Completed", "Failed"):
        return
    name, namespace = name_of(jobset), namespace_of(jobset)
    replicated = spec.items("replicatedJobs")
    total = sum(item.pods("replicas", 1) for item in replicated)
    topology_key = annotation_of(jobset, _EXCLUSIVE)
    number = 0
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
                f"{_JOBSET}/job-global-index": str(number),
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
            yield Made(job, template.where("spec"))
            number += 1


DIALECT = Dialect(
    "JobSet",
    (
        WorkloadKind(
            JOBSET,
            "jobsets",
            ("v1alpha2",),
            JobSetObject,
            normalize_jobset,
            jobset_jobs,
            suspend=(),
            name_label=JOBSET_NAME_LABEL,
            template_label=REPLICATED_JOB_LABEL,
            pod_set=named_by(REPLICATED_JOB_LABEL),
        ),
    ),
    annotations=("jobset.sigs.k8s.io/",),
)
