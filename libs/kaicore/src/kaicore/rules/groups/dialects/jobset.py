"""JobSets: Jobs that start together, or one after the other.

Source: JobSet 0.8 (`pkg/controllers`, `pkg/webhooks`).
"""

from collections.abc import Iterator

from kaicore.rules.groups.dialects.dialect import Dialect, ReadObject, WorkloadKind, check_names, named_by
from kaicore.rules.groups.dialects.job import COMPLETION_INDEX, job_template, pods_at_once
from kaicore.rules.groups.pod_templates import PodSetTemplate, with_templates
from kaicore.rules.model.group import GroupSource, GroupTemplate, PodSet, RankSource
from kaicore.rules.objects.made import Made, keep_alone, made_object, marked
from kaicore.rules.objects.mappings import (
    Fields,
    Object,
    annotation_of,
    is_finished,
    name_of,
    namespace_of,
    sha1_key,
    spec_of,
)
from kaicore.rules.objects.wire import said_count

JOBSET = "JobSet.jobset.x-k8s.io"
JOBSET_NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
REPLICATED_JOB_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
_JOBSET = "jobset.sigs.k8s.io"
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_JOB_KEY = f"{_JOBSET}/job-key"


def normalize_jobset(jobset: ReadObject) -> GroupSource:
    """Reduce a JobSet: all jobs start together, but those that wait for others to start are groups of their own."""
    spec, annotations = jobset.spec, jobset.annotations
    in_order = spec.inside("startupPolicy").text("startupPolicyOrder") == "InOrder"
    replicated = [(item.text("name"), item) for item in spec.items("replicatedJobs")]
    check_names([name for name, _ in replicated], spec, "replicatedJobs")
    done = {
        item.text("name"): said_count(item.value.get("succeeded"))
        for item in jobset.status.items("replicatedJobsStatus")
    }
    together, templates = [PodSet()], []
    pod_templates: dict[str, PodSetTemplate] = {}
    for name, item in replicated:
        jobs, job = item.integer("replicas", 1), item.inside("template").inside("spec")
        pods = pods_at_once(job)
        least, ended = jobs * pods, min(done.get(name, 0), jobs) * pods
        template = _jobs_template(job, jobs, pods)
        if in_order or item.items("dependsOn"):
            alone = PodSet(min_pods=least, ended=ended)
            templates.append(GroupTemplate(name, with_templates((alone,), {"": template}, owner=annotations)))
        else:
            together.append(PodSet(name, min_pods=least, ended=ended))
            pod_templates[name] = template
    sets = with_templates(together, pod_templates, owner=annotations)
    return jobset.source(GroupTemplate(sets=sets), *templates)


def _jobs_template(spec: Fields, jobs: int, pods: int) -> PodSetTemplate:
    """Return the template of the pods of Jobs of a JobSet: the JobSet's webhook has them indexed.

    As with Kueue's, a Job is a slice by default.
    """
    template = job_template(spec, pods=jobs * pods)._replace(slice_size=pods)
    if spec.text("completionMode") not in ("", "Indexed"):
        return template
    return template._replace(rank=RankSource(COMPLETION_INDEX, 0, _JOB_INDEX, pods))


def jobset_jobs(jobset: Object) -> Iterator[Made]:
    """Yield the Jobs of a JobSet, all of them: dependencies are taken to become ready, not to complete."""
    spec = spec_of(jobset)
    if is_finished(jobset, "Completed", "Failed"):
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
                JOBSET_NAME_LABEL: name,
                f"{_JOBSET}/jobset-uid": jobset["metadata"]["uid"],
                REPLICATED_JOB_LABEL: item.text("name"),
                f"{_JOBSET}/replicatedjob-replicas": str(item.pods("replicas", 1)),
                f"{_JOBSET}/global-replicas": str(total),
                _JOB_INDEX: str(index),
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
