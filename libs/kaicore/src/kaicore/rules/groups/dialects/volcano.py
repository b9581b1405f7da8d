"""Volcano's Jobs and PodGroups, and HyperJobs: trees of Jobs. A Job contains, task by task, what its PodGroup repeats.

Sources: Volcano 1.13, `pkg/scheduler/api/job_info.go` (what must start), `pkg/controllers/job` (the PodGroup and the
pods of a Job), `pkg/webhooks/admission/jobs/mutate` (defaults of a Job); for partitions and HyperJobs v1.16.0-alpha.1,
`docs/design/Network Topology Aware Scheduling.md`, and `training/v1alpha1` of `volcano.sh/apis`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import deepcopy

from msgspec.structs import replace

from kaicore.rules.groups.dialects.dialect import REST, Dialect, ReadObject, SetName, WorkloadKind, check_names
from kaicore.rules.groups.labels import (
    HYPER_JOBS,
    OPERATORS,
    VOLCANO_JOB,
    VOLCANO_POD_GROUP,
    VOLCANO_PREEMPTABLE,
    refused,
    volcano_preemptable,
)
from kaicore.rules.groups.pod_templates import tier_topology
from kaicore.rules.model.group import (
    SCHEDULER_NAMES,
    GroupSource,
    GroupTemplate,
    PodSet,
    RankSource,
    SetRule,
    TopologyConstraint,
    check_minimums,
)
from kaicore.rules.model.node import HYPER_NODE
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.selector import Requirement
from kaicore.rules.objects.made import Made, list_in, made_object, pod_from
from kaicore.rules.objects.mappings import Fields, Object, name_of, namespace_of, spec_of, status_of
from kaicore.rules.objects.wire import DEFAULT_SCHEDULER, count_in, said_count

TASK_NAME = "volcano.sh/task-spec"
TASK_INDEX = "volcano.sh/task-index"
PARTITION_LABEL = "volcano.sh/partition-id"

#: Where pods tell which one of their task they are.
TASK_RANK = RankSource(TASK_INDEX)

#: Most partitions of a task that are believed.
_MOST_PARTITIONS = 10_000

#: Events of pods that an eviction brings about, and actions that end all pods of a job.
_EVICTION_EVENTS = frozenset({"PodEvicted", "*"})

_ENDING_ACTIONS = frozenset({"AbortJob", "CompleteJob", "RestartJob", "TerminateJob"})


def network_topology(given: Fields) -> TopologyConstraint | None:
    """Return the highest tier of the network within which pods stay; None without one."""
    topologies, field = _topologies(given), given.where("networkTopology")
    if not topologies:
        return None
    if len(topologies) > 1:
        return refused(HYPER_NODE, field, "may be one only", len(topologies))
    (topology,) = topologies
    return tier_topology(
        mode=topology.text("mode"),
        tier=topology.integer("highestTierAllowed", None, least=-(2**31)),
        tier_name=topology.text("highestTierName"),
        field=field,
    )


def _topologies(given: Fields) -> list[Fields]:
    """Return the network topologies: an object, or a list of one, as the examples of Volcano's design have it."""
    if isinstance(given.value.get("networkTopology"), dict):
        return [given.inside("networkTopology")]
    return given.items("networkTopology")


def volcano_job_sets(spec: Fields, states: Fields) -> tuple[PodSet, ...]:
    """Return the tree of a job's tasks, and of their partitions.

    Args:
        states: what its status tells of its tasks, by name.
    """
    tasks: dict[str, tuple[PodSet, ...]] = {}
    for index, task in enumerate(spec.items("tasks")):
        name = task.text("name") or f"default{index}"
        if name in tasks:
            raise task.error("name", "is the name of another task")
        ended = said_count(states.inside(name).inside("phase").value.get("Succeeded"))
        tasks[name] = _task_sets(task, name, ended)
    root = PodSet(
        # Not said, or 0, is the sum of its tasks'.
        min_pods=spec.integer("minAvailable", 0) or sum(task[0].min_pods for task in tasks.values()),
        topology=network_topology(spec),
    )
    return task_tree(root, tasks.values(), split=False)


def _task_sets(task: Fields, name: str, ended: int) -> tuple[PodSet, ...]:
    replicas = task.integer("replicas", 0)
    least = task.integer("minAvailable", replicas)
    if task.value.get("partitionPolicy") is None:
        return (PodSet(name, min_pods=least, ended=ended, rank=TASK_RANK),)
    policy = task.inside("partitionPolicy")
    size, needed = policy.integer("partitionSize", 0), policy.integer("minPartitions", 0)
    if needed and task.value.get("minAvailable") is None:
        least = needed * size
    whole = PodSet(name, min_pods=least, min_sets=needed)
    if refused := _refused_partitions(policy, replicas, least):
        return (replace(whole, min_sets=None, topology=refused, ended=ended),)
    topology = network_topology(policy)
    # Ended pods are not counted by partition.
    return whole, *(
        PodSet(
            f"{name}.{number}",
            name,
            min_pods=size,
            topology=topology,
            rank=RankSource(TASK_INDEX, number * size),
        )
        for number in range(policy.integer("totalPartitions", 0))
    )


def _refused_partitions(policy: Fields, replicas: int, least: int) -> TopologyConstraint | None:
    """Return why a task cannot be parted as it says, None if it can."""
    total, size, needed = (policy.integer(name, 0) for name in ("totalPartitions", "partitionSize", "minPartitions"))
    if total > _MOST_PARTITIONS:
        return refused(HYPER_NODE, policy.where("totalPartitions"), f"is more than {_MOST_PARTITIONS}", total)
    if not total or total * size != replicas:
        problem = f"{total} partitions are not the {replicas} replicas"
        return refused(HYPER_NODE, policy.where("partitionSize"), problem, size)
    if needed > total:
        return refused(HYPER_NODE, policy.where("minPartitions"), f"is more than the {total} partitions", needed)
    if needed and needed * size != least:
        return refused(HYPER_NODE, policy.where("minPartitions"), f"is not the minAvailable of {least} pods", needed)
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


def ends_whole(spec: Fields) -> bool:
    """Tell whether the eviction of one pod ends the whole job, by the policies of the job and of its tasks."""
    of_job = spec.items("policies")
    return any(_ends_all([*task.items("policies"), *of_job]) for task in spec.items("tasks"))


def _ends_all(policies: Iterable[Fields]) -> bool:
    """True if evicting a pod ends the whole job: the first policy about evictions counts."""
    for policy in policies:
        if _EVICTION_EVENTS & {policy.text("event"), *policy.texts("events")}:
            return policy.text("action") in _ENDING_ACTIONS
    return False


def normalize_volcano_pod_group(group: ReadObject) -> GroupSource:
    """Reduce a `scheduling.volcano.sh` PodGroup."""
    spec = group.spec
    members = spec.inside("minTaskMember")
    tasks = [(PodSet(name, min_pods=members.integer(name, 0), rank=TASK_RANK),) for name in sorted(members.value)]
    rules = tuple(_rule(one) for one in spec.items("subGroupPolicy"))
    check_names([rule.name for rule in rules], spec, "subGroupPolicy")
    root = PodSet(
        min_pods=spec.integer("minMember", 0),
        topology=network_topology(spec),
        rank=None if tasks or rules else TASK_RANK,
    )
    return group.source(
        GroupTemplate(sets=task_tree(root, tasks, split=bool(rules)), rules=rules),
        queue=spec.text("queue"),
        priority_class=spec.text("priorityClassName"),
        preemptible=volcano_preemptable(group.metadata.labels or {}, group.annotations),
    )


def normalize_volcano_job(job: ReadObject) -> GroupSource:
    """Reduce a `batch.volcano.sh` Job: its tasks, and how many pods of all and of each must start together.

    A job that ends as a whole when one pod is evicted, by its policies, is not evicted in part.
    """
    spec = job.spec
    return job.source(
        GroupTemplate(sets=volcano_job_sets(spec, job.status.inside("taskStatusCount"))),
        queue=spec.text("queue"),
        priority_class=spec.text("priorityClassName"),
        preemptible=volcano_preemptable(job.metadata.labels or {}, job.annotations),
        ends_whole=ends_whole(spec) or None,
        kept={SCHEDULER_NAMES: ",".join(_scheduler_names(spec))},
    )


def _scheduler_names(spec: Fields) -> list[str]:
    own = spec.text("schedulerName") or DEFAULT_SCHEDULER
    pod_specs = [task.inside("template").inside("spec") for task in spec.items("tasks")]
    return sorted({one.text("schedulerName") or own for one in pod_specs} or {own})


def _rule(one: Fields) -> SetRule:
    selector = one.inside("labelSelector")
    requirements = []
    for expression in selector.items("matchExpressions"):
        operator = expression.text("operator")
        if operator not in OPERATORS:
            raise expression.error("operator", "is none of " + ", ".join(OPERATORS))
        requirements.append(Requirement(expression.text("key"), operator, tuple(sorted(expression.texts("values")))))
    return SetRule(
        name=one.text("name"),
        min_pods=one.integer("subGroupSize", 1),
        min_sets=one.integer("minSubGroups", 0),
        match_labels=selector.text_by_name("matchLabels"),
        requirements=tuple(requirements),
        label_keys=tuple(one.texts("matchLabelKeys")),
        topology=network_topology(one),
        rank=TASK_RANK,
    )


_SOFT = "soft"

#: The tier of the HyperNode that a Job has for itself by default.
_OWN_TIER = 1

#: Most pod sets that are believed.
_MOST_SETS = 20_000


def normalize_hyper_job(hyper_job: ReadObject) -> GroupSource:
    """Reduce a HyperJob: `minAvailable` of its Jobs start together, by default all of them.

    Where it or one of its Jobs says something of the network, each Job is in a HyperNode of its own: of the tier that
    its template allows at most, by default of tier 1, unless it is `soft`.
    """
    spec = hyper_job.spec
    given = spec.items("replicatedJobs")
    names = [one.text("name") for one in given] or [""]
    check_names(names, spec, "replicatedJobs", "needs jobs with names, each of them once")
    templates = [_template(one) for one in given]
    near = any(_topologies(one) for one in (spec, *templates))
    sets = [PodSet(min_sets=spec.integer("minAvailable", 0) or None, topology=network_topology(spec))]
    for one, template in zip(given, templates, strict=True):
        replicas = one.integer("replicas", 1)
        tree = volcano_job_sets(template, Fields("", {}))
        if len(sets) + replicas * len(tree) > _MOST_SETS:
            raise one.error("replicas", f"are jobs of more than {_MOST_SETS} pod sets together")
        place = _place(template) if near else None
        for number in range(replicas):
            sets += _job(tree, f"{one.text('name')}-{number}", place)
    check_minimums(sets, subject=spec.subject, field="spec.minAvailable")
    return hyper_job.source(
        GroupTemplate(sets=tuple(sets)),
        queue=next(filter(None, (template.text("queue") for template in templates)), None),
        priority_class=templates[0].text("priorityClassName"),
    )


def _template(one: Fields) -> Fields:
    """Return the spec of Jobs; `training.volcano.sh` calls their template `templateSpec`."""
    return one.inside("templateSpec" if one.value.get("templateSpec") is not None else "template", required=True)


def _place(template: Fields) -> TopologyConstraint:
    constraint = network_topology(template)
    soft = any(one.text("mode") == _SOFT for one in _topologies(template))
    if constraint is None or not (constraint.required or constraint.problem or soft):
        constraint = tier_topology(mode="", tier=_OWN_TIER, tier_name="", field=template.where("networkTopology"))
    return replace(constraint, exclusive=bool(constraint.required))


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
    if not partition and (number := count_in(index)) is not None:
        partition = str(number // size)
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
        template = _template(item)
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
            job["spec"] = deepcopy(template.value)
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
    queue, own = spec.text("queue"), {TASK_INDEX: str(index), TASK_NAME: name}
    shared = {**own, f"{_VOLCANO}/job-name": name_of(job), f"{_VOLCANO}/queue-name": queue}
    labels = {**shared, f"{_VOLCANO}/job-namespace": namespace_of(job)}
    if size := task.inside("partitionPolicy").integer("partitionSize", 0):
        labels[PARTITION_LABEL] = str(index // size)
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
            normalize_volcano_pod_group,
            pod_set=_set_of_job,
            short_names=("pg",),
        ),
        WorkloadKind(
            VOLCANO_JOB,
            "jobs",
            ("v1alpha1",),
            normalize_volcano_job,
            volcano_job_pods,
            pod_set=_set_of_job,
        ),
        *(
            WorkloadKind(
                kind,
                "hyperjobs",
                ("v1alpha1",),
                normalize_hyper_job,
                hyper_job_jobs,
                pod_set=_set_of_hyper_job,
                short_names=("hj",),
            )
            for kind in sorted(HYPER_JOBS)
        ),
    ),
    annotations=("volcano.sh/",),
)
