"""The group of a pod, and its pod set in that group. Only this module knows the terms of every dialect.

A pod that names a group belongs to that one. Otherwise its owners are followed upwards as far as they are known, and
the topmost one that stands for groups is its group. Otherwise it is a group of its own, or of its pod group of Kueue.

The order of the dialects, where a pod uses several: KAI, scheduler-plugins and Koordinator, the native Workload API,
Volcano, LeaderWorkerSet and JobSet by their labels, owners, Kueue's pod groups.
"""

from collections.abc import Callable
from typing import NamedTuple

from kaicore.rules.events.reasons import group as group_reasons
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.composite import place_in_tree
from kaicore.rules.groups.dialects.dialect import SetName
from kaicore.rules.groups.dialects.table import NAME_LABELS, OWNER_KINDS, WORKLOADS
from kaicore.rules.groups.koordinator import GROUP_LABEL, NAME_ANNOTATION, gang_problem
from kaicore.rules.groups.kueue import KUEUE_GROUP_LABEL, pod_group_problem
from kaicore.rules.groups.labels import (
    HYPER_JOBS,
    KAI_POD_GROUP,
    KUEUE_WORKLOAD,
    NATIVE_POD_GROUP,
    SIGS_POD_GROUP,
    VOLCANO_JOB,
    VOLCANO_POD_GROUP,
    WORKLOAD,
    X_POD_GROUP,
    matches,
    preemption_delay_problem,
)
from kaicore.rules.model.group import GroupSource, GroupTemplate, leaves, source_key
from kaicore.rules.model.pod import Owner, Pod
from kaicore.rules.objects.mappings import kind_of

KAI_GROUP_ANNOTATION = "pod-group-name"
KAI_SUBGROUP_LABEL = "kai.scheduler/subgroup-name"
SIGS_GROUP_LABEL = "pod-group.scheduling.sigs.k8s.io"
X_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
VOLCANO_GROUP_ANNOTATIONS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")

#: Labels by which a pod may name its group.
_NAMING = frozenset({SIGS_GROUP_LABEL, X_GROUP_LABEL, GROUP_LABEL})

#: Pods without any group are groups of their own, of this origin.
POD = "Pod"

#: Longest chain of owners that is followed.
_MOST_OWNERS = 8

FindSource = Callable[[str], GroupSource | None]


class Membership(NamedTuple):
    """A pod's group and pod set.

    Attributes:
        pod_set: name of the set in it that it counts for.
        source: key of the source that the group is made of; empty where pods alone make it.
        template: name of the source's template.
        problem: why it cannot be decided on (`kaicore.rules.events.reasons.group`); None if it can.
        looked_at: keys of the sources on which this depends, also of those that are not there.
    """

    group: str
    pod_set: str = ""
    source: str = ""
    template: str = ""
    problem: Reason | None = None
    looked_at: tuple[str, ...] = ()


def membership(pod: Pod, find: FindSource) -> Membership:
    """Return where a pod belongs (`find`: returns a source by its key, None where there is none)."""
    named = named_membership(pod, find)
    if named is None:
        return _owned(pod, find)
    missing = isinstance(named.problem, group_reasons.GroupNotFound)
    of_podgroup = named.source.startswith(f"{VOLCANO_POD_GROUP}/")
    if (missing or of_podgroup) and pod.owner is not None and owner_kind(pod.owner) == VOLCANO_JOB:
        # Volcano's controller makes the PodGroup that a job's pods name; without it the job itself says as much. Of a
        # HyperJob it tells nothing.
        owned = _owned(pod, find)
        by_owner = missing and find(owned.source) is not None
        chosen = owned if by_owner or (of_podgroup and _kind(owned.source) in HYPER_JOBS) else named
        return chosen._replace(looked_at=(*named.looked_at, *owned.looked_at))
    return named


def named_membership(pod: Pod, find: FindSource) -> Membership | None:
    """Return where a pod belongs that names an object made for grouping pods; None for one that names none."""
    annotations, labels = pod.annotations, pod.labels
    if not annotations and pod.workload is None and _NAMING.isdisjoint(labels):
        return None
    if name := annotations.get(KAI_GROUP_ANNOTATION):
        return _named(pod, find, KAI_POD_GROUP, name)
    if name := labels.get(SIGS_GROUP_LABEL):
        return _named(pod, find, SIGS_POD_GROUP, name)
    if name := labels.get(X_GROUP_LABEL):
        return _named(pod, find, X_POD_GROUP, name)
    if name := labels.get(GROUP_LABEL) or annotations.get(NAME_ANNOTATION):
        # A gang that annotations describe; an object of that name knows better.
        key = source_key(SIGS_POD_GROUP, pod.namespace, name)
        if find(key) is None:
            return Membership(key, problem=gang_problem(pod), looked_at=(key,))
        return _named(pod, find, SIGS_POD_GROUP, name)
    if pod.workload is not None:
        reference = pod.workload
        if not reference.workload:
            return _named(pod, find, NATIVE_POD_GROUP, reference.group)
        instance = reference.group + (f":{reference.replica}" if reference.replica else "")
        return _named(pod, find, WORKLOAD, reference.workload, instance=instance, template=reference.group)
    if name := next((annotations[key] for key in VOLCANO_GROUP_ANNOTATIONS if annotations.get(key)), ""):
        return _named(pod, find, VOLCANO_POD_GROUP, name)
    return None


def _named(pod: Pod, find: FindSource, kind: str, name: str, *, instance: str = "", template: str = "") -> Membership:
    """Return the membership in a group of a source that the pod names, and without which it is not decided on."""
    key = source_key(kind, pod.namespace, name)
    group = f"{key}:{instance}" if instance else key
    source = find(key)
    if source is None:
        not_found = group_reasons.GroupNotFound(group=display_key(key))
        return Membership(group, source=key, problem=not_found, looked_at=(key,))
    named_template = source.template(template)
    if named_template is None:
        no_template = group_reasons.PodGroupNotInWorkload(group=display_key(key), pod_group=template)
        return Membership(group, source=key, problem=no_template, looked_at=(key,))
    if source.parent:
        top, looked_at, misplaced = place_in_tree(source, find)
        return Membership(top, "" if misplaced else source.name, top, "", misplaced, looked_at)
    pod_set, problem = _pod_set(pod, key, named_template)
    return Membership(group, pod_set, key, template, problem, (key,))


def _owned(pod: Pod, find: FindSource) -> Membership:
    for name_label, kind in NAME_LABELS if pod.labels else ():
        if name := pod.labels.get(name_label):
            return _of_owner(pod, find, source_key(kind, pod.namespace, name), looked_at=())
    top = ""
    looked_at: list[str] = []
    owner = pod.owner
    while owner is not None and len(looked_at) < _MOST_OWNERS:
        kind = owner_kind(owner)
        if kind not in OWNER_KINDS:
            break
        key = source_key(kind, pod.namespace, owner.name)
        source = find(key)
        looked_at.append(key)
        if source is not None and source.uid != owner.uid:
            # Another one of the name: the owner is gone, and the pod is about to follow it.
            break
        top = key
        owner = source.owner if source is not None else None
    if top:
        return _of_owner(pod, find, top, looked_at=tuple(looked_at))
    if name := pod.labels.get(KUEUE_GROUP_LABEL):
        key = source_key(KUEUE_WORKLOAD, pod.namespace, name)
        return Membership(key, problem=pod_group_problem(pod), looked_at=tuple(looked_at))
    key = source_key(POD, pod.namespace, pod.name)
    return Membership(key, problem=preemption_delay_problem(pod), looked_at=tuple(looked_at))


def _of_owner(pod: Pod, find: FindSource, key: str, *, looked_at: tuple[str, ...]) -> Membership:
    """Return the membership in a group of an owner's pods.

    An owner that is not there is about to be seen, or its pods are about to be deleted: they wait.
    """
    looked_at = looked_at or (key,)
    source = find(key)
    if source is None:
        unknown = group_reasons.OwnerNotFound(group=display_key(key))
        return Membership(key, source=key, problem=unknown, looked_at=looked_at)
    workload = WORKLOADS[_kind(key)]
    template = pod.labels.get(workload.template_label, "")
    if source.template(template) is None:
        template = ""
    instance = template or pod.labels.get(workload.instance_label, "")
    named_template = source.template(template) or source.templates[0]
    group = f"{key}:{instance}" if instance else key
    pod_set, problem = _pod_set(pod, key, named_template)
    return Membership(group, pod_set, key, named_template.name, problem, looked_at)


def display_key(key: str) -> str:
    """Write an object's key for people: `<kind> <namespace>/<name>`."""
    return key.replace("/", " ", 1)


def _pod_set(pod: Pod, key: str, template: GroupTemplate) -> tuple[str, Reason | None]:
    """Return the set that a pod counts for, and what is wrong with that."""
    if not template.rules and len(template.sets) == 1:
        return "", None
    names = {one.name for one in leaves(template.sets)} - {""}
    for rule in template.rules:
        if matches(pod.labels, rule.match_labels, rule.requirements):
            values = [pod.labels.get(label) for label in rule.label_keys]
            if None not in values:
                return ".".join((rule.name, *(value or "" for value in values or ("0",)))), None
    named = _named_set(pod, template, key)
    if named.name in names:
        return named.name, None
    if named.others in names and not named.required:
        return named.others, None
    there = ", ".join(sorted(names))
    if not named.name:
        return "", group_reasons.SubGroupNotNamed(group=display_key(key), sub_groups=there)
    return "", group_reasons.SubGroupNotFound(group=display_key(key), sub_groups=f"{named.name}; it has {there}")


def _named_set(pod: Pod, template: GroupTemplate, key: str) -> SetName:
    kind = _kind(key)
    if kind == KAI_POD_GROUP:
        return SetName(pod.labels.get(KAI_SUBGROUP_LABEL, ""))
    workload = WORKLOADS.get(kind)
    return SetName("") if workload is None or workload.pod_set is None else workload.pod_set(pod, template, key)


def _kind(key: str) -> str:
    return key.partition("/")[0]


def owner_kind(owner: Owner) -> str:
    """Return the kind of an owner with its API group: `Job.batch`, `Node`."""
    return kind_of(owner.api_version, owner.kind)
