"""Volcano's PodGroups and Jobs from the wire into the model. A Job contains, task by task, what its PodGroup repeats.

Sources: Volcano 1.13, `pkg/scheduler/api/job_info.go` (what must start), `pkg/controllers/job` (the PodGroup of a Job),
`pkg/webhooks/admission/jobs/mutate` (defaults of a Job).
"""

from kaicore.errors import InvalidObject
from kaicore.kube.group_objects import VolcanoPodGroup, VolcanoSubGroupPolicy
from kaicore.kube.losses import Lost, unheard
from kaicore.kube.normalize_source import count, group_source
from kaicore.kube.objects import DEFAULT_SCHEDULER, KubernetesObject
from kaicore.kube.owner_objects import VolcanoJobObject, VolcanoJobSpec
from kaicore.kube.resources import subject_of
from kaicore.kube.volcano_tasks import TASK_RANK, ends_whole, network_topology, task_tree, volcano_job_sets
from kaicore.rules.groups.kinds import VOLCANO_JOB, VOLCANO_POD_GROUP
from kaicore.rules.groups.making import VOLCANO_PREEMPTABLE
from kaicore.rules.groups.selecting import OPERATORS
from kaicore.rules.model.group import PodSet
from kaicore.rules.model.group_source import SCHEDULER_NAMES, GroupSource, GroupTemplate, SetRule
from kaicore.rules.model.selector import Requirement

_PREEMPTABLE = {"true": True, "false": False}


def normalize_volcano_pod_group(wire: VolcanoPodGroup, lost: Lost = unheard) -> GroupSource:
    """Reduce a `scheduling.volcano.sh` PodGroup.

    Raises:
        InvalidObject: naming the field that says something impossible.
    """
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

    A job whose policies end all of it when one pod is evicted is not evicted in part.

    Raises:
        InvalidObject: naming the field that says something impossible.
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
