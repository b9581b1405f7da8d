"""Volcano's PodGroups and Jobs from the wire into the model: a Job says of its tasks what its PodGroup repeats.

Sources: Volcano 1.13, `pkg/scheduler/api/job_info.go` (what must start), `pkg/controllers/job` (the PodGroup of a Job),
`pkg/webhooks/admission/jobs/mutate` (what is left out of a Job).
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from kaicore.errors import InvalidObject
from kaicore.kube.group_objects import VolcanoPodGroup, VolcanoSubGroupPolicy
from kaicore.kube.job_failures import ended_well
from kaicore.kube.losses import Lost, unheard
from kaicore.kube.normalize_source import count, group_source
from kaicore.kube.objects import KubernetesObject
from kaicore.kube.owner_objects import (
    VolcanoJobObject,
    VolcanoLifecyclePolicy,
    VolcanoNetworkTopology,
    VolcanoTask,
)
from kaicore.kube.resources import subject_of
from kaicore.rules.groups.kinds import VOLCANO_JOB, VOLCANO_POD_GROUP
from kaicore.rules.groups.making import VOLCANO_PREEMPTABLE
from kaicore.rules.groups.membership import REST
from kaicore.rules.groups.selecting import OPERATORS
from kaicore.rules.model.group import PodSet, TopologyConstraint
from kaicore.rules.model.group_source import GroupSource, GroupTemplate, SetRule
from kaicore.rules.model.selector import Requirement

_PREEMPTABLE = {"true": True, "false": False}

#: Events of pods that an eviction brings about, and actions that end all pods of a job.
_EVICTION_EVENTS = frozenset({"PodEvicted", "*"})
_ENDING_ACTIONS = frozenset({"AbortJob", "CompleteJob", "RestartJob", "TerminateJob"})


def normalize_volcano_pod_group(wire: VolcanoPodGroup, lost: Lost = unheard) -> GroupSource:
    """Reduce a `scheduling.volcano.sh` PodGroup.

    Raises:
        InvalidObject: naming the field that says something impossible.
    """
    spec = wire.spec
    subject = subject_of(VOLCANO_POD_GROUP, wire.metadata.namespace, wire.metadata.name)
    least = count(spec.min_member, 0, subject=subject, field="spec.minMember")
    tasks = {
        name: PodSet(name, min_pods=count(number, 0, subject=subject, field=f"spec.minTaskMember[{name}]"))
        for name, number in sorted((spec.min_task_member or {}).items())
    }
    rules = tuple(
        _rule(one, subject=subject, field=f"spec.subGroupPolicy[{index}]")
        for index, one in enumerate(spec.sub_group_policy or ())
    )
    names = [rule.name for rule in rules]
    if len(set(names)) < len(names) or "" in names:
        raise InvalidObject(subject, "spec.subGroupPolicy", names, "needs names, each of them once")
    root = PodSet(min_pods=least, topology=_topology(spec.network_topology, field="spec.networkTopology"))
    return group_source(
        wire,
        VOLCANO_POD_GROUP,
        (GroupTemplate(sets=_sets(root, tasks, split=bool(rules)), rules=rules),),
        lost=lost,
        queue=spec.queue,
        priority_class=spec.priority_class_name,
        preemptible=_preemptable(wire),
    )


def normalize_volcano_job(wire: VolcanoJobObject, lost: Lost = unheard) -> GroupSource:
    """Reduce a `batch.volcano.sh` Job: its tasks, and how many pods of all and of each must start together.

    A job whose policies end all of it when one pod is evicted is not evicted in part.

    Raises:
        InvalidObject: naming the field that says something impossible.
    """
    spec = wire.spec
    subject = subject_of(VOLCANO_JOB, wire.metadata.namespace, wire.metadata.name)
    tasks: dict[str, PodSet] = {}
    told = wire.status.task_status_count or {}
    for index, task in enumerate(spec.tasks or ()):
        field = f"spec.tasks[{index}]"
        name = task.name or f"default{index}"
        if name in tasks:
            raise InvalidObject(subject, f"{field}.name", name, "is the name of another task")
        replicas = count(task.replicas, 0, subject=subject, field=f"{field}.replicas")
        tasks[name] = PodSet(
            name,
            min_pods=count(task.min_available, replicas, subject=subject, field=f"{field}.minAvailable"),
            topology=_topology(
                task.partition_policy.network_topology if task.partition_policy is not None else None,
                field=f"{field}.partitionPolicy.networkTopology",
            ),
            ended=ended_well((told[name].phase or {}).get("Succeeded")) if name in told else 0,
        )
    least = count(spec.min_available, 0, subject=subject, field="spec.minAvailable")
    root = PodSet(
        # Not said, or 0, is the sum of its tasks'.
        min_pods=least or sum(task.min_pods for task in tasks.values()),
        topology=_topology(spec.network_topology, field="spec.networkTopology"),
    )
    return group_source(
        wire,
        VOLCANO_JOB,
        (GroupTemplate(sets=_sets(root, tasks, split=False)),),
        lost=lost,
        queue=spec.queue,
        priority_class=spec.priority_class_name,
        preemptible=_preemptable(wire),
        ends_whole=any(_ends_all(task, spec.policies or ()) for task in spec.tasks or ()) or None,
    )


def _sets(root: PodSet, tasks: Mapping[str, PodSet], *, split: bool) -> tuple[PodSet, ...]:
    """Return the tree of tasks.

    As in Volcano, minimums of tasks count only where that of all is no less than their sum; a smaller one means that
    the job may start with any of its pods.
    """
    if not (tasks or split):
        return (root,)
    binding = root.min_pods >= sum(task.min_pods for task in tasks.values())
    counted = tasks.values() if binding else [replace(task, min_pods=0) for task in tasks.values()]
    return root, *counted, PodSet(REST)


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
        topology=_topology(one.network_topology, field=f"{field}.networkTopology"),
    )


def _topology(said: VolcanoNetworkTopology | None, *, field: str) -> TopologyConstraint | None:
    """Return up to which tier of the network pods may be apart; as in Volcano, `hard` where no mode is said."""
    if said is None:
        return None
    tier, name = said.highest_tier_allowed, "highestTierAllowed"
    level = str(tier) if tier is not None else said.highest_tier_name or ""
    if tier is None and said.highest_tier_name:
        name = "highestTierName"
    if said.mode == "soft":
        return TopologyConstraint(preferred=level) if level else None
    return TopologyConstraint(required=level or "any tier", field=f"{field}.{name}")


def _preemptable(wire: KubernetesObject) -> bool | None:
    metadata = wire.metadata
    said = ((metadata.annotations or {}).get(VOLCANO_PREEMPTABLE), (metadata.labels or {}).get(VOLCANO_PREEMPTABLE))
    return next((_PREEMPTABLE[text] for text in said if text in _PREEMPTABLE), None)


def _ends_all(task: VolcanoTask, of_job: Iterable[VolcanoLifecyclePolicy]) -> bool:
    """Whether the eviction of a task's pod ends the whole job: the first policy about it counts, its own before all."""
    for policy in (*(task.policies or ()), *of_job):
        if _EVICTION_EVENTS & {policy.event, *(policy.events or ())}:
            return policy.action in _ENDING_ACTIONS
    return False
