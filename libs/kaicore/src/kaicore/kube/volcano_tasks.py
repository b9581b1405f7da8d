"""The tasks of a Volcano Job, and the partitions of a task, as a tree of pod sets.

Sources: Volcano 1.13, `pkg/scheduler/api/job_info.go`; of partitions v1.16.0-alpha.1, `pkg/webhooks/admission/jobs`.
"""

from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from kaicore.errors import InvalidObject
from kaicore.kube.job_failures import ended_well
from kaicore.kube.normalize_source import count
from kaicore.kube.owner_objects import (
    VolcanoJobSpec,
    VolcanoLifecyclePolicy,
    VolcanoNetworkTopologies,
    VolcanoPartitionPolicy,
    VolcanoTask,
    VolcanoTaskState,
)
from kaicore.rules.groups.volcano_sets import REST, TASK_INDEX
from kaicore.rules.groups.volcano_topology import refused_tiers, tier_topology
from kaicore.rules.model.group import PodSet, RankSource, TopologyConstraint

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
        spec: of the job.
        states: what its status tells of its tasks, by name.
        subject: the object, for errors.
        field: where the spec stands in it.

    Raises:
        InvalidObject: naming the field that says something impossible.
    """
    tasks: dict[str, tuple[PodSet, ...]] = {}
    for index, task in enumerate(spec.tasks or ()):
        where = f"{field}.tasks[{index}]"
        name = task.name or f"default{index}"
        if name in tasks:
            raise InvalidObject(subject, f"{where}.name", name, "is the name of another task")
        ended = ended_well((states[name].phase or {}).get("Succeeded")) if name in states else 0
        tasks[name] = _task_sets(task, name, ended, subject=subject, field=where)
    least = count(spec.min_available, 0, subject=subject, field=f"{field}.minAvailable")
    root = PodSet(
        # Not said, or 0, is the sum of its tasks'.
        min_pods=least or sum(task[0].min_pods for task in tasks.values()),
        topology=network_topology(spec.network_topology, field=f"{field}.networkTopology"),
    )
    return task_tree(root, tasks.values(), split=False)


def _task_sets(task: VolcanoTask, name: str, ended: int, *, subject: str, field: str) -> tuple[PodSet, ...]:
    """Return the set of a task, and those of its partitions if it has any."""
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
    # Which of its pods have ended is not told by partition.
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
    """Whether the eviction of a task's pod ends the whole job: the first policy about it counts, its own before all."""
    for policy in (*(task.policies or ()), *of_job):
        if _EVICTION_EVENTS & {policy.event, *(policy.events or ())}:
            return policy.action in _ENDING_ACTIONS
    return False
