"""Owners of pods from the wire into the model: the number of their pods that must run at once.

Source: the pod grouper of KAI-Scheduler 0.17 (`pkg/podgrouper/podgrouper/plugins`), with a sub-group for each kind of
pods where it counts them all together.

Shared parts of all objects that group pods, converted from the wire into the model.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from kaicore.errors import InvalidObject
from kaicore.kube.normalize.fields import controller, int32, seconds
from kaicore.kube.normalize.job_failures import ended_well, job_failures
from kaicore.kube.normalize.losses import Lost, unheard
from kaicore.kube.wire.groups import (
    JobObject,
    JobSetObject,
    JobSpec,
    KubeflowJob,
    KubeflowJobSpec,
    PodTemplate,
    RayClusterObject,
    RayClusterSpec,
    RayJobObject,
    ReplicatedJob,
    annotations_of,
)
from kaicore.kube.wire.objects import KubernetesObject
from kaicore.kube.wire.resources import subject_of
from kaicore.rules.groups.kai_topology import around_segments, kai_topology, misplaced_segments, names_segments
from kaicore.rules.groups.labels import (
    JOB,
    JOBSET,
    KAI_QUEUE_LABEL,
    KUEUE_QUEUE_LABEL,
    POD_GROUPS,
    PREEMPTION_DELAY_ANNOTATION,
    RAY_CLUSTER,
    RAY_JOB,
    declared_limit_s,
    least_limit_s,
    queue_name,
)
from kaicore.rules.groups.making import MIN_MEMBER_ANNOTATION, PREEMPTIBILITY_LABEL, PRIORITY_CLASS_LABEL
from kaicore.rules.groups.membership import SUBMITTER
from kaicore.rules.groups.pod_templates import PodSetTemplate, with_templates
from kaicore.rules.model.group import PodSet, RankSource, TopologyConstraint
from kaicore.rules.model.group_source import GroupSource, GroupTemplate
from kaicore.rules.model.network_topology import KAI_TOPOLOGY, KUEUE_TOPOLOGY
from kaicore.rules.model.provisioning import PROVISIONING_CLASS_ANNOTATION
from kaicore.rules.model.quantity import parse_duration

#: Largest count that is believed, as in the schemas of these kinds.
_MOST = 2**31 - 1

_PREEMPTIBILITIES = {"": None, "preemptible": True, "non-preemptible": False}


def group_source(
    wire: KubernetesObject, kind: str, templates: tuple[GroupTemplate, ...], *, lost: Lost, **given: Any
) -> GroupSource:
    """Return the source that an object is.

    Args:
        wire: the object; its labels and annotations may name queue, priority class, preemptibility, delay and topology.
        kind: with its API group.
        templates: the groups that it stands for.
        lost: is called with labels and annotations that say nothing that there is; they count as not there.
        given: further fields of `GroupSource`; what is None or empty there is left to labels and annotations.

    Raises:
        InvalidObject: it has no name.
    """
    metadata = wire.metadata
    subject = subject_of(kind, metadata.namespace, metadata.name)
    if not metadata.name:
        raise InvalidObject(subject, "metadata.name", metadata.name, "is empty")
    labels, annotations = metadata.labels or {}, metadata.annotations or {}
    fields: dict[str, Any] = {
        "queue": queue_name(labels, annotations, namespace=metadata.namespace),
        "priority_class": labels.get(PRIORITY_CLASS_LABEL, ""),
        "preemptible": preemptible(
            labels.get(PREEMPTIBILITY_LABEL),
            subject=subject,
            field=f"metadata.labels[{PREEMPTIBILITY_LABEL}]",
            lost=lost,
        ),
        "preemption_delay_us": duration(
            annotations.get(PREEMPTION_DELAY_ANNOTATION),
            subject=subject,
            field=f"metadata.annotations[{PREEMPTION_DELAY_ANNOTATION}]",
            lost=lost,
        ),
        "kai": KAI_QUEUE_LABEL in labels,
        "provisioning_class": annotations.get(PROVISIONING_CLASS_ANNOTATION, ""),
        "suspended": _suspended(wire),
        "active_deadline_s": _deadline_s(wire),
    }
    fields |= {name: value for name, value in given.items() if value not in (None, "")}
    if "priority" in fields:
        fields["priority"] = int32(fields["priority"], subject=subject, field="spec.priority", lost=lost)
    return GroupSource(
        kind=kind,
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        resource_version=metadata.resource_version,
        created_at=seconds(metadata.creation_timestamp) or 0,
        owner=controller(metadata),
        templates=_with_topology(templates, annotations, of_pods=kind not in POD_GROUPS),
        **fields,
    )


def _suspended(wire: KubernetesObject) -> bool:
    """Tell whether an owner says that its pods are not to be made yet: in its spec, or its run policy."""
    spec = getattr(wire, "spec", None)
    return any(getattr(part, "suspend", None) is True for part in (spec, getattr(spec, "run_policy", None)))


def _deadline_s(wire: KubernetesObject) -> int:
    """Return after how many seconds an object's pods are ended, 0 for never.

    Its spec or its run policy says so (`activeDeadlineSeconds`), or a label of Kueue or an annotation of Volcano.
    """
    spec, metadata = getattr(wire, "spec", None), wire.metadata
    said = [getattr(part, "active_deadline_seconds", None) or 0 for part in (spec, getattr(spec, "run_policy", None))]
    return least_limit_s(*said, declared_limit_s(metadata.labels or {}, metadata.annotations or {}))


def _with_topology(
    templates: tuple[GroupTemplate, ...], annotations: Mapping[str, str], *, of_pods: bool
) -> tuple[GroupTemplate, ...]:
    """Return templates with what KAI's annotations say about all pods, where the objects themselves say nothing.

    Args:
        templates: the groups that an object stands for.
        annotations: of the object.
        of_pods: whether it makes pods, so that segments are of some of them; a PodGroup of KAI repeats what its owner
            says.
    """
    constraint = kai_topology(annotations)
    segmented = any(one.topology is not None for template in templates for one in template.sets)
    if of_pods and names_segments(annotations) and not segmented:
        constraint = misplaced_segments(annotations)
    if constraint is None:
        return templates
    return tuple(replace(template, sets=_around(constraint, template.sets)) for template in templates)


def _around(constraint: TopologyConstraint, sets: tuple[PodSet, ...]) -> tuple[PodSet, ...]:
    root, *others = sets
    own = root.topology
    if own is None:
        root = replace(root, topology=constraint)
    elif own.kind == KAI_TOPOLOGY and own.slices and not own.required and not own.preferred:
        root = replace(root, topology=around_segments(constraint, own))
    return (root, *others)


def preemptible(value: str | None, *, subject: str, field: str, lost: Lost) -> bool | None:
    """Return whether a group may be preempted, None where neither of the two words there are is said."""
    if (value or "") not in _PREEMPTIBILITIES:
        lost(InvalidObject(subject, field, value, "is neither preemptible nor non-preemptible"))
    return _PREEMPTIBILITIES.get(value or "")


def duration(text: str | None, *, subject: str, field: str, lost: Lost) -> int | None:
    """Return a duration in microseconds, None where none is said."""
    if not text:
        return None
    try:
        return parse_duration(text, subject=subject, field=field)
    except InvalidObject as error:
        lost(error)
        return None


def count(value: int | None, default: int, *, subject: str, field: str) -> int:
    """Return how many; the default where nothing is said.

    Raises:
        InvalidObject: it is negative, or more than 32 bits hold.
    """
    if value is None:
        return default
    if not 0 <= value <= _MOST:
        raise InvalidObject(subject, field, value, "is no count")
    return value


MIN_PARALLELISM_ANNOTATION = "kueue.x-k8s.io/job-min-parallelism"
RAY_PRIORITY_LABEL = "ray.io/priority-class-name"

#: Replica types of which there is one that leads the others.
_LEADERS = ("master", "launcher", "chief")
_WORKER = "worker"

#: Labels by which pods tell which one they are, as their controllers set them.
_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
_REPLICA_INDEX = "training.kubeflow.org/replica-index"

#: Python reads no number of thousands of digits.
_MOST_DIGITS = 10


def normalize_job(wire: JobObject, lost: Lost = unheard) -> GroupSource:
    """Reduce a Job: its pods start one by one, unless an annotation names a minimum.

    One with a queue of Kueue starts as a whole, as Kueue admits it, or with as many pods as partial admission may leave
    of it (Kueue 0.14, `pkg/controller/jobs/job`). So does one whose pods are to be near each other in Kueue's words.

    Raises:
        InvalidObject: an annotation, or how many pods run at once, is no count.
    """
    subject = _subject(JOB, wire)
    annotations, least = wire.metadata.annotations or {}, 1
    template = _job_template(wire.spec, field="spec", pods=0)._replace(works=True)
    topology = with_templates((PodSet(),), {"": template})[0].topology
    near = topology is not None and topology.kind == KUEUE_TOPOLOGY
    if near or KUEUE_QUEUE_LABEL in (wire.metadata.labels or {}):
        whole = _job_pods(wire.spec, subject=subject, field="spec")
        template = template._replace(pods=whole)
        least = min(_annotated_count(annotations, MIN_PARALLELISM_ANNOTATION, subject=subject) or whole, whole)
    least = _annotated_count(annotations, MIN_MEMBER_ANNOTATION, subject=subject) or least
    # What starts one by one waits for none of the others, whatever became of them: that is no news.
    ended = ended_well(wire.status.succeeded) if least > 1 else 0
    sets = with_templates((PodSet(min_pods=least, ended=ended),), {"": template}, owner=annotations)
    return group_source(wire, JOB, (GroupTemplate(sets=sets),), lost=lost, failures=job_failures(wire))


def _job_template(spec: JobSpec, *, field: str, pods: int) -> PodSetTemplate:
    rank = RankSource(_COMPLETION_INDEX) if spec.completion_mode == "Indexed" else None
    return PodSetTemplate(annotations_of(spec.template), f"{field}.template.metadata", pods, rank=rank)


def _annotated_count(annotations: Mapping[str, str], name: str, *, subject: str) -> int:
    """Return the count that an annotation names, 0 for none."""
    text = annotations.get(name)
    if text is None:
        return 0
    if not text.isdecimal() or len(text) > _MOST_DIGITS or not 1 <= int(text) < 2**31:
        raise InvalidObject(subject, f"metadata.annotations[{name}]", text, "is no count of 1 or more")
    return int(text)


def normalize_jobset(wire: JobSetObject, lost: Lost = unheard) -> GroupSource:
    """Reduce a JobSet: all jobs start together, but those that wait for others to start are groups of their own.

    Raises:
        InvalidObject: naming the field that says something impossible.
    """
    spec = wire.spec
    subject = _subject(JOBSET, wire)
    in_order = spec.startup_policy is not None and spec.startup_policy.startup_policy_order == "InOrder"
    together = [PodSet()]
    pod_templates: dict[str, PodSetTemplate] = {}
    templates, annotations = [], wire.metadata.annotations or {}
    done = {one.name: ended_well(one.succeeded) for one in wire.status.replicated_jobs_status or ()}
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
    template = _job_template(spec, field=field, pods=jobs * pods)
    if spec.completion_mode not in (None, "", "Indexed"):
        return template._replace(slice_size=pods)
    return template._replace(slice_size=pods, rank=RankSource(_COMPLETION_INDEX, 0, _JOB_INDEX, pods))


def _jobs_pods(one: ReplicatedJob, *, subject: str, field: str) -> tuple[int, int]:
    """Return how many Jobs there are of a kind, and how many pods of each run at once."""
    replicas = count(one.replicas, 1, subject=subject, field=f"{field}.replicas")
    return replicas, _job_pods(one.template.spec, subject=subject, field=f"{field}.template.spec")


def _job_pods(spec: JobSpec, *, subject: str, field: str) -> int:
    parallel = count(spec.parallelism, 1, subject=subject, field=f"{field}.parallelism")
    return min(parallel, count(spec.completions, parallel, subject=subject, field=f"{field}.completions"))


def normalize_kubeflow_job(wire: KubeflowJob, lost: Lost = unheard, *, kind: str) -> GroupSource:
    """Reduce a job of the training operator or the MPI operator: all its replicas start together.

    `schedulingPolicy.minAvailable`, or a PyTorchJob's `elasticPolicy.minReplicas`, is the minimum of all its pods: the
    leader's and so many workers. Where there are other types of replicas too, any of them count.

    Args:
        wire: the job.
        lost: is called with what is left out.
        kind: with its API group.

    Raises:
        InvalidObject: naming the field that says something impossible.
    """
    spec = wire.spec
    subject = _subject(kind, wire)
    where, replicas = spec.replica_specs
    if not replicas:
        raise InvalidObject(subject, where, None, "has no replicas")
    counts = {
        name.lower(): count(one.replicas, 1, subject=subject, field=f"{where}.{name}.replicas")
        for name, one in sorted(replicas.items())
    }
    pod_templates = _replica_templates(spec, counts)
    policy = spec.run_policy.scheduling_policy if spec.run_policy is not None else None
    least = policy.min_available if policy is not None else None
    field = "spec.runPolicy.schedulingPolicy.minAvailable"
    if least is None and spec.elastic_policy is not None:
        least, field = spec.elastic_policy.min_replicas, "spec.elasticPolicy.minReplicas"
    if least is not None:
        least = count(least, 0, subject=subject, field=field)
        others = sum(number for name, number in counts.items() if name != _WORKER)
        if all(name in (*_LEADERS, _WORKER) for name in counts) and _WORKER in counts:
            counts[_WORKER] = max(0, least - others)
        else:
            counts = dict.fromkeys(counts, 0)
    if spec.launcher_creation_policy == "WaitForWorkersReady" and "launcher" in counts:
        # It is made when the workers run, so they cannot wait for it.
        counts["launcher"] = 0
        least = None
    ended = {name.lower(): ended_well(one.succeeded) for name, one in (wire.status.replica_statuses or {}).items()}
    sets = (
        PodSet(min_pods=least or 0),
        *(PodSet(name, min_pods=number, ended=ended.get(name, 0)) for name, number in counts.items()),
    )
    return group_source(
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
            annotations_of(one.template),
            f"{where}.{name}.template.metadata",
            pods[name.lower()],
            rank=RankSource(_REPLICA_INDEX, first.get(name.lower(), 0)),
            leads=name.lower() in _LEADERS,
            works=name.lower() == _WORKER,
        )
        for name, one in sorted(replicas.items())
    }


def normalize_ray_cluster(wire: RayClusterObject, lost: Lost = unheard) -> GroupSource:
    """Reduce a RayCluster: its head and the workers that each group asks for start together.

    With its autoscaler, which makes the others later, the least workers that each group asks for.

    Raises:
        InvalidObject: naming the field that says something impossible.
    """
    subject = _subject(RAY_CLUSTER, wire)
    sets = _ray_sets(wire.spec, wire.metadata.annotations, subject=subject, field="spec")
    labels = wire.metadata.labels or {}
    return group_source(
        wire, RAY_CLUSTER, (GroupTemplate(sets=sets),), priority_class=labels.get(RAY_PRIORITY_LABEL), lost=lost
    )


def normalize_ray_job(wire: RayJobObject, lost: Lost = unheard) -> GroupSource:
    """Reduce a RayJob: the pods of its cluster; the one that submits it comes when the cluster is there.

    Raises:
        InvalidObject: naming the field that says something impossible.
    """
    subject = _subject(RAY_JOB, wire)
    cluster = wire.spec.ray_cluster_spec
    sets: tuple[PodSet, ...] = (PodSet(min_pods=1),)
    if cluster is not None:
        submitter = _template_of(wire.spec.submitter_pod_template, 1, where="spec.submitterPodTemplate.metadata")
        sets = (
            *_ray_sets(cluster, wire.metadata.annotations, subject=subject, field="spec.rayClusterSpec"),
            *with_templates((PodSet(SUBMITTER),), {SUBMITTER: submitter._replace(leads=True)}),
        )
    labels = wire.metadata.labels or {}
    return group_source(
        wire, RAY_JOB, (GroupTemplate(sets=sets),), priority_class=labels.get(RAY_PRIORITY_LABEL), lost=lost
    )


def _ray_sets(
    spec: RayClusterSpec, annotations: Mapping[str, str] | None, *, subject: str, field: str
) -> tuple[PodSet, ...]:
    sets = [PodSet(), PodSet("headgroup", min_pods=1)]
    head = spec.head_group_spec.template if spec.head_group_spec is not None else None
    pod_templates = {
        "headgroup": _template_of(head, 1, where=f"{field}.headGroupSpec.template.metadata")._replace(leads=True)
    }
    for index, one in enumerate(spec.worker_group_specs or ()):
        where = f"{field}.workerGroupSpecs[{index}]"
        wanted = count(one.replicas, 0, subject=subject, field=f"{where}.replicas")
        least = count(one.min_replicas, 0, subject=subject, field=f"{where}.minReplicas")
        hosts = count(one.num_of_hosts, 1, subject=subject, field=f"{where}.numOfHosts")
        if not one.group_name or one.group_name in (pod_set.name for pod_set in sets):
            raise InvalidObject(subject, f"{where}.groupName", one.group_name, "is there twice or empty")
        # KubeRay brings the replicas within their bounds, so that there are never less than the minimum. Only its
        # autoscaler makes fewer of them than are asked for (KubeRay 1.4, `volcano_scheduler.go`).
        pods = max(least, wanted) * hosts
        together = (least or wanted) * hosts if spec.enable_in_tree_autoscaling else pods
        sets.append(PodSet(one.group_name, min_pods=0 if one.suspend else together))
        pod_templates[one.group_name] = _template_of(one.template, pods, where=f"{where}.template.metadata")
    return with_templates(sets, pod_templates, owner=annotations)


def _template_of(template: PodTemplate | None, pods: int, *, where: str) -> PodSetTemplate:
    return PodSetTemplate(annotations_of(template), where, pods)


def _subject(kind: str, wire: KubernetesObject) -> str:
    return subject_of(kind, wire.metadata.namespace, wire.metadata.name)
