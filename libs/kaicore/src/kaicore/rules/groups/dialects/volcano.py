"""Volcano's Jobs and PodGroups, and HyperJobs: trees of Jobs. A Job contains, task by task, what its PodGroup repeats.

Sources: Volcano 1.13, `pkg/scheduler/api/job_info.go` (what must start), `pkg/controllers/job` (the PodGroup and the
pods of a Job), `pkg/webhooks/admission/jobs/mutate` (defaults of a Job); for partitions and HyperJobs v1.16.0-alpha.1,
`docs/design/Network Topology Aware Scheduling.md`, and `training/v1alpha1` of `volcano.sh/apis`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from kaicore.errors import InvalidObject, Lost, unheard
from kaicore.rules.groups.dialects.dialect import REST, Dialect, SetName, WorkloadKind
from kaicore.rules.groups.dialects.source import count, group_source, said_count
from kaicore.rules.groups.labels import HYPER_JOBS, OPERATORS, VOLCANO_JOB, VOLCANO_POD_GROUP, VOLCANO_PREEMPTABLE
from kaicore.rules.groups.pod_templates import refused_tiers, tier_topology
from kaicore.rules.groups.tree import check_minimums
from kaicore.rules.model.group import (
    SCHEDULER_NAMES,
    GroupSource,
    GroupTemplate,
    PodSet,
    RankSource,
    SetRule,
    TopologyConstraint,
)
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.selector import Requirement
from kaicore.rules.objects.made import Made, list_in, made_object, pod_from
from kaicore.rules.objects.mappings import Fields, Object, name_of, namespace_of, spec_of, status_of
from kaicore.rules.objects.wire import DEFAULT_SCHEDULER, KubernetesObject, LabelSelector, Wire, subject_of

TASK_NAME = "volcano.sh/task-spec"
TASK_INDEX = "volcano.sh/task-index"
PARTITION_LABEL = "volcano.sh/partition-id"

#: Python reads no number of thousands of digits.
_MOST_DIGITS = 10


class VolcanoNetworkTopology(Wire):
    """Up to which tier of the network pods may be apart."""

    mode: str | None = None
    highest_tier_allowed: int | None = None
    highest_tier_name: str | None = None


#: An object, or a list of one, as the examples of Volcano's design have it.
VolcanoNetworkTopologies = VolcanoNetworkTopology | list[VolcanoNetworkTopology] | None


class VolcanoPartitionPolicy(Wire):
    """Parts of a task, each with a place of its own in the network."""

    total_partitions: int | None = None
    partition_size: int | None = None
    min_partitions: int | None = None
    network_topology: VolcanoNetworkTopology | None = None


class VolcanoLifecyclePolicy(Wire):
    """A job's reaction to an event of one of its pods."""

    action: str | None = None
    event: str | None = None
    events: list[str] | None = None


class VolcanoPodSpec(Wire):
    """The scheduler of a task's pods; empty where the Job names it."""

    scheduler_name: str | None = None


class VolcanoPodTemplate(Wire):
    """The template of a task's pods."""

    spec: VolcanoPodSpec | None = None


class VolcanoTask(Wire):
    """Pods of a Volcano Job that are alike."""

    name: str = ""
    template: VolcanoPodTemplate | None = None
    replicas: int | None = None
    min_available: int | None = None
    policies: list[VolcanoLifecyclePolicy] | None = None
    partition_policy: VolcanoPartitionPolicy | None = None


class VolcanoJobSpec(Wire):
    """The tasks of a Volcano Job."""

    min_available: int | None = None
    tasks: list[VolcanoTask] | None = None
    policies: list[VolcanoLifecyclePolicy] | None = None
    queue: str | None = None
    scheduler_name: str | None = None
    priority_class_name: str | None = None
    network_topology: VolcanoNetworkTopologies = None


class VolcanoTaskState(Wire):
    """The counts of a task's pods by phase."""

    phase: dict[str, int] | None = None


class VolcanoJobStatus(Wire):
    """The status of a Volcano Job."""

    task_status_count: dict[str, VolcanoTaskState] | None = None


class VolcanoJobObject(KubernetesObject):
    """A `batch.volcano.sh/v1alpha1` Job."""

    spec: VolcanoJobSpec = msgspec.field(default_factory=VolcanoJobSpec)
    status: VolcanoJobStatus = msgspec.field(default_factory=VolcanoJobStatus)


class VolcanoSubGroupPolicy(Wire):
    """Sub-groups that arise from labels."""

    name: str = ""
    sub_group_size: int | None = None
    min_sub_groups: int | None = None
    label_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    network_topology: VolcanoNetworkTopology | None = None


class VolcanoPodGroupSpec(Wire):
    """The spec of a `scheduling.volcano.sh` PodGroup."""

    min_member: int | None = None
    min_task_member: dict[str, int] | None = None
    queue: str | None = None
    priority_class_name: str | None = None
    sub_group_policy: list[VolcanoSubGroupPolicy] | None = None
    network_topology: VolcanoNetworkTopology | None = None


class VolcanoPodGroup(KubernetesObject):
    """A `scheduling.volcano.sh/v1beta1` PodGroup."""

    spec: VolcanoPodGroupSpec = msgspec.field(default_factory=VolcanoPodGroupSpec)


class HyperReplicatedJob(Wire):
    """Jobs that are alike; `templateSpec` is what `training.volcano.sh` calls their template."""

    name: str = ""
    replicas: int | None = None
    template: VolcanoJobSpec | None = None
    template_spec: VolcanoJobSpec | None = None


class HyperJobSpec(Wire):
    """The Jobs of a HyperJob."""

    min_available: int | None = None
    replicated_jobs: list[HyperReplicatedJob] | None = None
    network_topology: VolcanoNetworkTopologies = None


class HyperJobObject(KubernetesObject):
    """A HyperJob of `topology.volcano.sh` or `training.volcano.sh`."""

    spec: HyperJobSpec = msgspec.field(default_factory=HyperJobSpec)


#: Where pods tell which one of their task they are.
TASK_RANK = RankSource(TASK_INDEX)

#: Most partitions of a task that are believed.
_MOST_PARTITIONS = 10_000

#: Events of pods that an eviction brings about, and actions that end all pods of a job.
_EVICTION_EVENTS = frozenset({"PodEvicted", "*"})

_ENDING_ACTIONS = frozenset({"AbortJob", "CompleteJob", "RestartJob", "TerminateJob"})


def network_topology(given: VolcanoNetworkTopologies, *, field: str) -> TopologyConstraint | None:
    """Return up to which tier of the network pods may be apart, None where nothing is said."""
    if not given:
        return None
    if isinstance(given, list) and len(given) > 1:
        return refused_tiers(field, "may be one only", len(given))
    topology = given[0] if isinstance(given, list) else given
    return tier_topology(
        mode=topology.mode or "",
        tier=topology.highest_tier_allowed,
        tier_name=topology.highest_tier_name or "",
        field=field,
    )


def volcano_job_sets(
    spec: VolcanoJobSpec, states: Mapping[str, VolcanoTaskState], *, subject: str, field: str
) -> tuple[PodSet, ...]:
    """Return the tree of a job's tasks, and of their partitions.

    Args:
        states: what its status tells of its tasks, by name.
        field: where the spec stands in it.
    """
    tasks: dict[str, tuple[PodSet, ...]] = {}
    for index, task in enumerate(spec.tasks or ()):
        where = f"{field}.tasks[{index}]"
        name = task.name or f"default{index}"
        if name in tasks:
            raise InvalidObject(subject, f"{where}.name", name, "is the name of another task")
        ended = said_count((states[name].phase or {}).get("Succeeded")) if name in states else 0
        tasks[name] = _task_sets(task, name, ended, subject=subject, field=where)
    least = count(spec.min_available, 0, subject=subject, field=f"{field}.minAvailable")
    root = PodSet(
        # Not said, or 0, is the sum of its tasks'.
        min_pods=least or sum(task[0].min_pods for task in tasks.values()),
        topology=network_topology(spec.network_topology, field=f"{field}.networkTopology"),
    )
    return task_tree(root, tasks.values(), split=False)


def _task_sets(task: VolcanoTask, name: str, ended: int, *, subject: str, field: str) -> tuple[PodSet, ...]:
    replicas = count(task.replicas, 0, subject=subject, field=f"{field}.replicas")
    least = count(task.min_available, replicas, subject=subject, field=f"{field}.minAvailable")
    policy, where = task.partition_policy, f"{field}.partitionPolicy"
    if policy is None:
        return (PodSet(name, min_pods=least, ended=ended, rank=TASK_RANK),)
    total = count(policy.total_partitions, 0, subject=subject, field=f"{where}.totalPartitions")
    size = count(policy.partition_size, 0, subject=subject, field=f"{where}.partitionSize")
    needed = count(policy.min_partitions, 0, subject=subject, field=f"{where}.minPartitions")
    if needed and task.min_available is None:
        least = needed * size
    whole = PodSet(name, min_pods=least, min_sets=needed)
    if refused := _refused_partitions(policy, replicas, least, field=where):
        return (replace(whole, min_sets=None, topology=refused, ended=ended),)
    topology = network_topology(policy.network_topology, field=f"{where}.networkTopology")
    # Ended pods are not counted by partition.
    return whole, *(
        PodSet(
            f"{name}.{number}",
            name,
            min_pods=size,
            topology=topology,
            rank=RankSource(TASK_INDEX, number * size),
        )
        for number in range(total)
    )


def _refused_partitions(
    policy: VolcanoPartitionPolicy, replicas: int, least: int, *, field: str
) -> TopologyConstraint | None:
    """Return why a task cannot be parted as it says, None if it can."""
    total, size, needed = policy.total_partitions or 0, policy.partition_size or 0, policy.min_partitions or 0
    if total > _MOST_PARTITIONS:
        return refused_tiers(f"{field}.totalPartitions", f"is more than {_MOST_PARTITIONS}", total)
    if not total or total * size != replicas:
        return refused_tiers(f"{field}.partitionSize", f"{total} partitions are not the {replicas} replicas", size)
    if needed > total:
        return refused_tiers(f"{field}.minPartitions", f"is more than the {total} partitions", needed)
    if needed and needed * size != least:
        return refused_tiers(f"{field}.minPartitions", f"is not the minAvailable of {least} pods", needed)
    return None


def task_tree(root: PodSet, tasks: Collection[tuple[PodSet, ...]], *, split: bool) -> tuple[PodSet, ...]:
    """Return the tree of tasks, each of them first of the sets that it is made of.

    As in Volcano, minimums of tasks count only where that of all is no less than their sum; a smaller one means that
    the job may start with any of its pods.
    """
    if not (tasks or split):
        return (root,)
    binding = root.min_pods >= sum(task.min_pods for task, *_ in tasks)
    counted = [task if binding else replace(task, min_pods=0) for task, *_ in tasks]
    partitions = [one for _, *inside in tasks for one in inside]
    return root, *counted, *partitions, PodSet(REST)


def ends_whole(spec: VolcanoJobSpec) -> bool:
    """Tell whether the eviction of one pod ends the whole job, by the policies of the job and of its tasks."""
    return any(_ends_all(task, spec.policies or ()) for task in spec.tasks or ())


def _ends_all(task: VolcanoTask, of_job: Iterable[VolcanoLifecyclePolicy]) -> bool:
    """True if evicting a task's pod ends the whole job: the first matching policy counts, the task's own first."""
    for policy in (*(task.policies or ()), *of_job):
        if _EVICTION_EVENTS & {policy.event, *(policy.events or ())}:
            return policy.action in _ENDING_ACTIONS
    return False


_PREEMPTABLE = {"true": True, "false": False}


def normalize_volcano_pod_group(wire: VolcanoPodGroup, lost: Lost = unheard) -> GroupSource:
    """Reduce a `scheduling.volcano.sh` PodGroup."""
    spec = wire.spec
    subject = subject_of(VOLCANO_POD_GROUP, wire.metadata.namespace, wire.metadata.name)
    least = count(spec.min_member, 0, subject=subject, field="spec.minMember")
    tasks = [
        (PodSet(name, min_pods=count(number, 0, subject=subject, field=f"spec.minTaskMember[{name}]"), rank=TASK_RANK),)
        for name, number in sorted((spec.min_task_member or {}).items())
    ]
    rules = tuple(
        _rule(one, subject=subject, field=f"spec.subGroupPolicy[{index}]")
        for index, one in enumerate(spec.sub_group_policy or ())
    )
    names = [rule.name for rule in rules]
    if len(set(names)) < len(names) or "" in names:
        raise InvalidObject(subject, "spec.subGroupPolicy", names, "needs names, each of them once")
    root = PodSet(
        min_pods=least,
        topology=network_topology(spec.network_topology, field="spec.networkTopology"),
        rank=None if tasks or rules else TASK_RANK,
    )
    return group_source(
        wire,
        VOLCANO_POD_GROUP,
        (GroupTemplate(sets=task_tree(root, tasks, split=bool(rules)), rules=rules),),
        lost=lost,
        queue=spec.queue,
        priority_class=spec.priority_class_name,
        preemptible=_preemptable(wire),
    )


def normalize_volcano_job(wire: VolcanoJobObject, lost: Lost = unheard) -> GroupSource:
    """Reduce a `batch.volcano.sh` Job: its tasks, and how many pods of all and of each must start together.

    A job that ends as a whole when one pod is evicted, by its policies, is not evicted in part.
    """
    spec = wire.spec
    subject = subject_of(VOLCANO_JOB, wire.metadata.namespace, wire.metadata.name)
    sets = volcano_job_sets(spec, wire.status.task_status_count or {}, subject=subject, field="spec")
    return group_source(
        wire,
        VOLCANO_JOB,
        (GroupTemplate(sets=sets),),
        lost=lost,
        queue=spec.queue,
        priority_class=spec.priority_class_name,
        preemptible=_preemptable(wire),
        ends_whole=ends_whole(spec) or None,
        kept={SCHEDULER_NAMES: ",".join(_scheduler_names(spec))},
    )


def _scheduler_names(spec: VolcanoJobSpec) -> list[str]:
    own = spec.scheduler_name or DEFAULT_SCHEDULER
    templates = [task.template.spec for task in spec.tasks or () if task.template is not None]
    return sorted({(one.scheduler_name if one is not None else None) or own for one in templates} or {own})


def _rule(one: VolcanoSubGroupPolicy, *, subject: str, field: str) -> SetRule:
    selector = one.label_selector
    requirements = []
    for index, expression in enumerate(selector.match_expressions or () if selector is not None else ()):
        if expression.operator not in OPERATORS:
            where = f"{field}.labelSelector.matchExpressions[{index}].operator"
            raise InvalidObject(subject, where, expression.operator, "is none of " + ", ".join(OPERATORS))
        requirements.append(Requirement(expression.key, expression.operator, tuple(sorted(expression.values or ()))))
    return SetRule(
        name=one.name,
        min_pods=count(one.sub_group_size, 1, subject=subject, field=f"{field}.subGroupSize"),
        min_sets=count(one.min_sub_groups, 0, subject=subject, field=f"{field}.minSubGroups"),
        match_labels=(selector.match_labels or {}) if selector is not None else {},
        requirements=tuple(requirements),
        label_keys=tuple(one.match_label_keys or ()),
        topology=network_topology(one.network_topology, field=f"{field}.networkTopology"),
        rank=TASK_RANK,
    )


def _preemptable(wire: KubernetesObject) -> bool | None:
    metadata = wire.metadata
    texts = ((metadata.annotations or {}).get(VOLCANO_PREEMPTABLE), (metadata.labels or {}).get(VOLCANO_PREEMPTABLE))
    return next((_PREEMPTABLE[text] for text in texts if text in _PREEMPTABLE), None)


_SOFT = "soft"

#: The tier of the HyperNode that a Job has for itself where none is said.
_OWN_TIER = 1

#: Most pod sets that are believed.
_MOST_SETS = 20_000


def normalize_hyper_job(wire: HyperJobObject, lost: Lost = unheard, *, kind: str) -> GroupSource:
    """Reduce a HyperJob: `minAvailable` of its Jobs start together, by default all of them.

    Where it or one of its Jobs says something of the network, each Job is in a HyperNode of its own: of the tier that
    its template allows at most, by default of tier 1, unless it is `soft`.

    Args:
        lost: is called with what is left out.
    """
    spec = wire.spec
    subject = subject_of(kind, wire.metadata.namespace, wire.metadata.name)
    given = spec.replicated_jobs or []
    names = [one.name for one in given]
    if not given or len(set(names)) < len(names) or "" in names:
        raise InvalidObject(subject, "spec.replicatedJobs", names, "needs jobs with names, each of them once")
    templates = [
        _template(one, subject=subject, field=f"spec.replicatedJobs[{index}]") for index, one in enumerate(given)
    ]
    near = bool(spec.network_topology or any(template.network_topology for template, _ in templates))
    root = PodSet(
        min_sets=count(spec.min_available, 0, subject=subject, field="spec.minAvailable") or None,
        topology=network_topology(spec.network_topology, field="spec.networkTopology"),
    )
    sets = [root]
    for index, (one, (template, field)) in enumerate(zip(given, templates, strict=True)):
        where = f"spec.replicatedJobs[{index}].replicas"
        replicas = count(one.replicas, 1, subject=subject, field=where)
        tree = volcano_job_sets(template, {}, subject=subject, field=field)
        if len(sets) + replicas * len(tree) > _MOST_SETS:
            raise InvalidObject(subject, where, replicas, f"are jobs of more than {_MOST_SETS} pod sets together")
        place = _place(template, field=field) if near else None
        for number in range(replicas):
            sets += _job(tree, f"{one.name}-{number}", place)
    check_minimums(sets, subject=subject, field="spec.minAvailable")
    return group_source(
        wire,
        kind,
        (GroupTemplate(sets=tuple(sets)),),
        lost=lost,
        queue=next((template.queue for template, _ in templates if template.queue), None),
        priority_class=next((template.priority_class_name for template, _ in templates), None),
    )


def _template(one: HyperReplicatedJob, *, subject: str, field: str) -> tuple[VolcanoJobSpec, str]:
    """Return the spec of Jobs, and where it stands."""
    if one.template is not None:
        return one.template, f"{field}.template"
    if one.template_spec is None:
        raise InvalidObject(subject, f"{field}.template", None, "is missing")
    return one.template_spec, f"{field}.templateSpec"


def _place(template: VolcanoJobSpec, *, field: str) -> TopologyConstraint:
    where = f"{field}.networkTopology"
    constraint = network_topology(template.network_topology, field=where)
    if constraint is None or not (constraint.required or constraint.problem or _is_soft(template)):
        constraint = tier_topology(mode="", tier=_OWN_TIER, tier_name="", field=where)
    return replace(constraint, exclusive=bool(constraint.required))


def _is_soft(template: VolcanoJobSpec) -> bool:
    given = template.network_topology
    return any(one.mode == _SOFT for one in (given if isinstance(given, list) else [given]) if one is not None)


def _job(tree: tuple[PodSet, ...], name: str, place: TopologyConstraint | None) -> list[PodSet]:
    """Return the tree of a Job below its HyperJob."""
    root, *inside = tree
    return [
        replace(root, name=name, topology=place),
        *(
            replace(one, name=f"{name}.{one.name}", parent=f"{name}.{one.parent}" if one.parent else name)
            for one in inside
        ),
    ]


def _task_set(pod: Pod, sets: Sequence[PodSet], job: str = "") -> SetName:
    """Return the set that a pod names: its task, or its partition of that.

    A pod tells its partition by its label. One without it tells its number, and partitions are of equal size.

    Args:
        job: name of the job's own set where the tree is of several jobs; empty otherwise.
    """
    others = f"{job}.{REST}" if job else REST
    task = pod.annotations.get(TASK_NAME, "")
    name = ".".join(part for part in (job, task) if part)
    size = next((one.min_pods for one in sets[1:] if one.parent == name), 0) if task else 0
    if not size:
        return SetName(name, others)
    partition = pod.labels.get(PARTITION_LABEL, "")
    index = pod.labels.get(TASK_INDEX) or pod.annotations.get(TASK_INDEX, "")
    if not partition and index.isdecimal() and len(index) <= _MOST_DIGITS:
        partition = str(int(index) // size)
    return SetName(f"{name}.{partition}", others, required=True)


def _job_of_hyper_job(pod: Pod, key: str) -> str:
    """Return the name of the set of the Job that owns a pod: the Job's own, without that of its HyperJob.

    Args:
        key: of the HyperJob, `<kind>/<namespace>/<name>`.
    """
    hyper_job = key.split("/", 2)[2]
    return pod.owner.name.removeprefix(f"{hyper_job}-") if pod.owner is not None else ""


def _set_of_job(pod: Pod, template: GroupTemplate, _key: str) -> SetName:
    return _task_set(pod, template.sets)


def _set_of_hyper_job(pod: Pod, template: GroupTemplate, key: str) -> SetName:
    return _task_set(pod, template.sets, _job_of_hyper_job(pod, key))


_VOLCANO = "volcano.sh"

_GROUP_NAME = "scheduling.k8s.io/group-name"

_NUMA_POLICY = f"{_VOLCANO}/numa-topology-policy"

#: Phases of a job that has no pods, or is about to have none.
_OVER = ("Aborted", "Aborting", "Completed", "Completing", "Failed", "Terminated", "Terminating")


def hyper_job_jobs(hyper_job: Object) -> Iterator[Made]:
    """Yield the Jobs of a HyperJob, of each template in order of their index."""
    name = name_of(hyper_job)
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
            yield Made(job, template.path)


def volcano_job_pods(job: Object) -> Iterator[Made]:
    """Yield the pods of a job, task by task; those that wait for other tasks too, which are taken to be ready."""
    spec, status = spec_of(job), status_of(job)
    if status.inside("state").text("phase") in _OVER:
        return
    for index, task in enumerate(spec.items("tasks")):
        for replica in range(task.pods("replicas", 0)):
            yield _pod(job, task, name=task.text("name") or f"default{index}", index=replica)


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
        if value := metadata.inside(map_name).text(VOLCANO_PREEMPTABLE):
            into[VOLCANO_PREEMPTABLE] = value
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


DIALECT = Dialect(
    "Volcano",
    (
        WorkloadKind(
            VOLCANO_POD_GROUP,
            "podgroups",
            ("v1beta1",),
            VolcanoPodGroup,
            normalize_volcano_pod_group,
            pod_set=_set_of_job,
            short_names=("pg",),
        ),
        WorkloadKind(
            VOLCANO_JOB,
            "jobs",
            ("v1alpha1",),
            VolcanoJobObject,
            normalize_volcano_job,
            volcano_job_pods,
            pod_set=_set_of_job,
        ),
        *(
            WorkloadKind(
                kind,
                "hyperjobs",
                ("v1alpha1",),
                HyperJobObject,
                partial(normalize_hyper_job, kind=kind),
                hyper_job_jobs,
                pod_set=_set_of_hyper_job,
                short_names=("hj",),
            )
            for kind in sorted(HYPER_JOBS)
        ),
    ),
    annotations=("volcano.sh/",),
)
