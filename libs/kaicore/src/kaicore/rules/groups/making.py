"""A group, made of its source, its pods and the priority classes.

The source's fields come first. Fields that it leaves empty come from the group's oldest pod, and the rest has the
defaults of Kubernetes.
"""

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from kaicore.rules.groups.kai_topology import kai_topology, pod_topology
from kaicore.rules.groups.koordinator import (
    gang_group,
    gang_min_available,
    gather_strategy,
    match_policy,
    topology_index,
)
from kaicore.rules.groups.kueue import kueue_topology, pod_group_rank, pod_group_size, starts_whole
from kaicore.rules.groups.labels import (
    KAI_POD_GROUP,
    KUEUE_WORKLOAD,
    PREEMPTIBILITY_LABEL,
    PRIORITY_CLASS_LABEL,
    SIGS_POD_GROUP,
    VOLCANO_PREEMPTABLE,
    is_admitted,
    names_kai_queue,
    preemption_delay_problem,
    preemption_delay_us,
    queue_of,
)
from kaicore.rules.groups.membership import POD, Membership
from kaicore.rules.groups.volcano import annotated_tiers
from kaicore.rules.model.group import Group, MatchPolicy, PodSet, TopologyConstraint
from kaicore.rules.model.group_source import GroupSource, GroupTemplate, source_key
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.provisioning import PROVISIONING_CLASS_ANNOTATION

#: From this priority on, a group of KAI's dialect that does not say otherwise cannot be preempted.
#: Source: KAI-Scheduler, `preemptibility` of PodGroup v2alpha2.
NON_PREEMPTIBLE_PRIORITY = 100


_PREEMPTIBILITIES = {"preemptible": True, "non-preemptible": False}
_VOLCANO_PREEMPTABLE = {"true": True, "false": False}

PriorityOf = Callable[[str], int | None]


def make_group(
    member: Membership,
    source: GroupSource | None,
    oldest: Pod | None,
    *,
    pod_sets: Iterable[str] = (),
    priority_of: PriorityOf,
) -> Group:
    """Return a group.

    Args:
        member: where its pods belong.
        source: what it is made of; None where pods alone make it.
        oldest: the first of its pods by age and name; None without any, which only a source can be.
        pod_sets: the sets that its pods are in.
        priority_of: the value of a priority class, None where there is none of that name.
    """
    if source is None:
        assert oldest is not None
        return _of_pods(member, oldest)
    template = source.template(member.template) or source.templates[0]
    alone = member.group == source.key
    priority = source.priority
    for name in (source.priority_class, oldest.labels.get(PRIORITY_CLASS_LABEL, "") if oldest is not None else ""):
        priority = priority_of(name) if priority is None and name else priority
    if priority is None:
        priority = oldest.priority if oldest is not None else 0
    kai = source.kai or (oldest is not None and names_kai_queue(oldest))
    return Group(
        key=member.group,
        namespace=source.namespace,
        name=member.group.split("/", 2)[2],
        uid=source.uid,
        origin=source.kind,
        sets=_sets(template, pod_sets)
        if source.kind == KAI_POD_GROUP
        else _with_topology(_sets(template, pod_sets), oldest),
        queue=source.queue or (queue_of(oldest) if oldest is not None else ""),
        priority=priority,
        preemptible=_preemptible(source.preemptible, oldest, priority=priority, kai=kai),
        created_at=source.created_at if alone or oldest is None else oldest.created_at,
        together=_together(source.together, member.group),
        match_policy=source.match_policy,
        staleness_grace_us=source.staleness_grace_us,
        preemption_delay_us=source.preemption_delay_us or 0,
        ends_whole=source.ends_whole,
        provisioning_class=source.provisioning_class or (_provisioning_class(oldest) if oldest is not None else ""),
        admitted=oldest is not None and is_admitted(oldest),
    )


def _of_pods(member: Membership, oldest: Pod) -> Group:
    """Return a group that pods alone make: a pod, a gang that annotations describe, or a pod group of Kueue."""
    kind = member.group.partition("/")[0]
    if kind == KUEUE_WORKLOAD:
        return _pod_group_of_kueue(member, oldest)
    gang = kind != POD
    annotations = oldest.annotations
    count = int(gang_min_available(oldest)) if gang else 0
    gathering = gather_strategy(annotations, pods=count) if gang else None
    topology = gathering or (pod_topology(annotations) if gang else _pod_topology(oldest))
    root = PodSet(min_pods=count, topology=topology, rank=topology_index(gathering))
    return Group(
        key=member.group,
        namespace=oldest.namespace,
        name=member.group.split("/", 2)[2],
        uid="" if gang else oldest.uid,
        origin=SIGS_POD_GROUP if gang else POD,
        sets=(root,),
        queue=queue_of(oldest),
        priority=oldest.priority,
        preemptible=_preemptible(None, oldest, priority=oldest.priority, kai=names_kai_queue(oldest)),
        created_at=oldest.created_at,
        together=_together(gang_group(annotations), member.group) if gang else (),
        match_policy=match_policy(annotations) if gang else MatchPolicy.WAITING_AND_RUNNING,
        preemption_delay_us=0 if gang or preemption_delay_problem(oldest) else preemption_delay_us(oldest),
        provisioning_class=_provisioning_class(oldest),
        admitted=is_admitted(oldest),
    )


def _pod_topology(pod: Pod) -> TopologyConstraint | None:
    """Return where a pod without any group is to be, in Kueue's words, Volcano's or KAI's."""
    annotations = pod.annotations
    return kueue_topology(annotations, pods=1) or annotated_tiers(annotations) or pod_topology(annotations)


def _pod_group_of_kueue(member: Membership, oldest: Pod) -> Group:
    """Return a pod group of Kueue; its oldest pod speaks for all."""
    size = pod_group_size(oldest)
    topology = kueue_topology(oldest.annotations, pods=size)
    least = size if starts_whole(oldest) else 1
    return Group(
        key=member.group,
        namespace=oldest.namespace,
        name=member.group.split("/", 2)[2],
        origin=KUEUE_WORKLOAD,
        sets=(PodSet(min_pods=least, topology=topology, rank=pod_group_rank(oldest.annotations)),),
        queue=queue_of(oldest),
        priority=oldest.priority,
        preemptible=_preemptible(None, oldest, priority=oldest.priority, kai=names_kai_queue(oldest)),
        created_at=oldest.created_at,
        provisioning_class=_provisioning_class(oldest),
        admitted=is_admitted(oldest),
    )


def _provisioning_class(pod: Pod) -> str:
    return pod.annotations.get(PROVISIONING_CLASS_ANNOTATION, "")


def _together(names: tuple[str, ...], key: str) -> tuple[str, ...]:
    """Return the keys of gangs that start at once, the group's own among them; none if it is the only one."""
    keys = {source_key(SIGS_POD_GROUP, *name.split("/", 1)) for name in names} | {key}
    return tuple(sorted(keys)) if len(keys) > 1 else ()


def _sets(template: GroupTemplate, pod_sets: Iterable[str]) -> tuple[PodSet, ...]:
    """Return a template's tree, with the sets that arise from the labels of the pods there are."""
    if not template.rules:
        return template.sets
    sets = list(template.sets)
    arisen = sorted(pod_sets)
    for rule in template.rules:
        sets.append(PodSet(rule.name, rule.parent, min_sets=rule.min_sets))
        prefix = f"{rule.name}."
        names = [name for name in arisen if name.startswith(prefix)]
        sets += [PodSet(name, rule.name, rule.min_pods, topology=rule.topology, rank=rule.rank) for name in names]
    return tuple(sets)


def _with_topology(sets: tuple[PodSet, ...], oldest: Pod | None) -> tuple[PodSet, ...]:
    """Return a tree with what its oldest pod says about topology in KAI's words, where the source says nothing.

    A PodGroup of KAI itself has the last word.
    """
    root, *others = sets
    if oldest is None or any(one.topology is not None for one in sets):
        return sets
    topology = kai_topology(oldest.annotations)
    return sets if topology is None else (replace(root, topology=topology), *others)


def _preemptible(declared: bool | None, oldest: Pod | None, *, priority: int, kai: bool) -> bool:
    if declared is not None:
        return declared
    if oldest is not None:
        for values, text in (
            (_PREEMPTIBILITIES, oldest.labels.get(PREEMPTIBILITY_LABEL)),
            (_VOLCANO_PREEMPTABLE, oldest.annotations.get(VOLCANO_PREEMPTABLE)),
            (_VOLCANO_PREEMPTABLE, oldest.labels.get(VOLCANO_PREEMPTABLE)),
        ):
            if text in values:
                return values[text]
    return not kai or priority < NON_PREEMPTIBLE_PRIORITY
