"""PodGroups of all dialects, and Workloads, from the wire into the model."""

import json

from kaicore.errors import InvalidObject, Lost, unheard
from kaicore.kube.wire import custom_resources
from kaicore.rules.groups import labels
from kaicore.rules.groups.composite import WORKLOAD_NAME
from kaicore.rules.groups.dialects.source import count, duration, group_source, preemptible, source_subject
from kaicore.rules.groups.koordinator import GANG, gang_group, gather_strategy, match_policy, topology_index
from kaicore.rules.groups.tree import check_minimums, ordered
from kaicore.rules.model.group import (
    GroupSource,
    GroupTemplate,
    MatchPolicy,
    PodSet,
    TopologyConstraint,
    source_key,
)
from kaicore.rules.model.node import KAI_TOPOLOGY
from kaicore.rules.objects.wire import said_count

#: A grace that is never over: Kubernetes ends no gang for being below its minimum (KEP-4671).
_FOR_EVER = -1


def normalize_kai_pod_group(wire: custom_resources.KaiPodGroup, lost: Lost = unheard) -> GroupSource:
    """Reduce a `scheduling.run.ai` PodGroup.

    Its minimum is of pods or of sub-groups; with neither, all sub-groups must run, or one pod where there are none.
    """
    spec = wire.spec
    subject = source_subject(labels.KAI_POD_GROUP, wire)
    given = spec.sub_groups or []
    parents = {one.parent for one in given}
    if spec.min_member is not None and spec.min_sub_group is not None:
        raise InvalidObject(subject, "spec.minSubGroup", spec.min_sub_group, "excludes minMember")
    if spec.min_sub_group is not None and not given:
        raise InvalidObject(subject, "spec.minSubGroup", spec.min_sub_group, "asks for sub-groups and there are none")
    sets = [
        _kai_sub_group(one, inner=one.name in parents, subject=subject, field=f"spec.subGroups[{index}]")
        for index, one in enumerate(given)
    ]
    root = PodSet(
        min_pods=count(spec.min_member, 0 if given else 1, subject=subject, field="spec.minMember"),
        min_sets=_optional_count(spec.min_sub_group, subject=subject, field="spec.minSubGroup"),
        topology=_kai_topology(spec.topology_constraint, field="spec.topologyConstraint"),
    )
    tree = ordered(sets, root=root, subject=subject, field="spec.subGroups")
    check_minimums(tree, subject=subject, field="spec.subGroups")
    kept = {
        name: json.dumps(value)
        for name, value in (
            ("markUnschedulable", spec.mark_unschedulable),
            ("schedulingBackoff", spec.scheduling_backoff),
        )
        if value is not None
    }
    return group_source(
        wire.metadata,
        labels.KAI_POD_GROUP,
        (GroupTemplate(sets=tree),),
        lost=lost,
        queue=spec.queue,
        priority_class=spec.priority_class_name,
        preemptible=preemptible(spec.preemptibility, subject=subject, field="spec.preemptibility", lost=lost),
        kai=True,
        staleness_grace_us=duration(
            spec.staleness_grace_period, subject=subject, field="spec.stalenessGracePeriod", lost=lost
        ),
        preemption_delay_us=duration(spec.preemption_delay, subject=subject, field="spec.preemptionDelay", lost=lost),
        kept=kept,
    )


def _kai_sub_group(wire: custom_resources.KaiSubGroup, *, inner: bool, subject: str, field: str) -> PodSet:
    if wire.min_member is not None and wire.min_sub_group is not None:
        raise InvalidObject(subject, f"{field}.minSubGroup", wire.min_sub_group, "excludes minMember")
    if wire.min_sub_group is not None and not inner:
        raise InvalidObject(subject, f"{field}.minSubGroup", wire.min_sub_group, "asks for sub-groups of a leaf")
    return PodSet(
        name=wire.name,
        parent=wire.parent or "",
        min_pods=count(wire.min_member, 0 if inner else 1, subject=subject, field=f"{field}.minMember"),
        min_sets=_optional_count(wire.min_sub_group, subject=subject, field=f"{field}.minSubGroup"),
        topology=_kai_topology(wire.topology_constraint, field=f"{field}.topologyConstraint"),
    )


def normalize_sigs_pod_group(wire: custom_resources.SigsPodGroup, lost: Lost = unheard) -> GroupSource:
    """Reduce a `scheduling.sigs.k8s.io` PodGroup, with Koordinator's annotations.

    As in Koordinator, an annotation with no valid value counts as absent.
    """
    return _sigs(wire, labels.SIGS_POD_GROUP, lost)


def normalize_x_pod_group(wire: custom_resources.SigsPodGroup, lost: Lost = unheard) -> GroupSource:
    """Reduce a `scheduling.x-k8s.io` PodGroup: the same under the scheduler-plugins' newer name."""
    return _sigs(wire, labels.X_POD_GROUP, lost)


def _sigs(wire: custom_resources.SigsPodGroup, kind: str, lost: Lost) -> GroupSource:
    subject = source_subject(kind, wire)
    annotations = wire.metadata.annotations or {}
    least = count(wire.spec.min_member, 0, subject=subject, field="spec.minMember")
    kept = {
        name: annotations[f"{GANG}/{name}"]
        for name in ("mode", "total-number", "waiting-time")
        if f"{GANG}/{name}" in annotations
    }
    timeout = wire.spec.schedule_timeout_seconds
    if timeout is not None:
        kept["scheduleTimeoutSeconds"] = str(timeout)
    # Without any word of Koordinator's, what runs counts: the scheduler-plugins count all assigned pods.
    topology = gather_strategy(annotations, pods=least)
    koordinator = any(name.startswith(GANG) for name in annotations)
    return group_source(
        wire.metadata,
        kind,
        (GroupTemplate(sets=(PodSet(min_pods=least, topology=topology, rank=topology_index(topology)),)),),
        lost=lost,
        together=gang_group(annotations),
        match_policy=match_policy(annotations) if koordinator else MatchPolicy.WAITING_AND_RUNNING,
        kept=kept,
    )


def normalize_native_pod_group(wire: custom_resources.NativePodGroup, lost: Lost = unheard) -> GroupSource:
    """Reduce a `scheduling.k8s.io` PodGroup.

    Its minimum may change while it runs. That is for pods that are yet to be placed: as in Kubernetes, what runs is not
    ended because it is less than the minimum.
    """
    root = _native_root(wire.spec, subject=source_subject(labels.NATIVE_POD_GROUP, wire), field="spec")
    return _native(wire, labels.NATIVE_POD_GROUP, root, lost)


def normalize_composite_pod_group(wire: custom_resources.NativePodGroup, lost: Lost = unheard) -> GroupSource:
    """Reduce a `scheduling.k8s.io` CompositePodGroup: its minimum is of groups that name it as their parent."""
    gang = wire.spec.scheduling_policy.gang
    least = 0
    if gang is not None:
        subject, field = source_subject(labels.COMPOSITE_POD_GROUP, wire), "spec.schedulingPolicy.gang.minGroupCount"
        least = count(gang.min_group_count, 1, subject=subject, field=field)
    topology = _native_topology(wire.spec.scheduling_constraints, field="spec.schedulingConstraints.topology")
    return _native(wire, labels.COMPOSITE_POD_GROUP, PodSet(min_sets=least, topology=topology), lost)


def _native(wire: custom_resources.NativePodGroup, kind: str, root: PodSet, lost: Lost) -> GroupSource:
    spec = wire.spec
    parent = spec.parent_composite_pod_group_name
    in_tree = parent or kind == labels.COMPOSITE_POD_GROUP
    return group_source(
        wire.metadata,
        kind,
        (GroupTemplate(sets=(root,)),),
        lost=lost,
        priority_class=spec.priority_class_name,
        priority=spec.priority,
        preemption_policy=spec.preemption_policy,
        ends_whole=_ends_whole(spec.disruption_mode),
        staleness_grace_us=_FOR_EVER,
        parent=source_key(labels.COMPOSITE_POD_GROUP, wire.metadata.namespace, parent) if parent else "",
        kept={WORKLOAD_NAME: spec.workload_ref.workload_name} if in_tree and spec.workload_ref else {},
    )


def normalize_workload(wire: custom_resources.WorkloadObject, lost: Lost = unheard) -> GroupSource:
    """Reduce a `scheduling.k8s.io` Workload: each of its pod groups, and each replica of one, is a group.

    From Kubernetes 1.36 on it has templates of PodGroups instead, which are objects of their own.
    """
    subject = source_subject(labels.WORKLOAD, wire)
    templates: dict[str, GroupTemplate] = {}

    def add(name: str, root: PodSet, field: str) -> None:
        if not name or name in templates:
            raise InvalidObject(subject, f"{field}.name", name, "is there twice or empty")
        templates[name] = GroupTemplate(name, (root,))

    for index, one in enumerate(wire.spec.pod_groups or ()):
        field = f"spec.podGroups[{index}]"
        add(one.name, PodSet(min_pods=_min_count(one.policy, subject=subject, field=f"{field}.policy")), field)
    for index, template in enumerate(wire.spec.pod_group_templates or ()):
        field = f"spec.podGroupTemplates[{index}]"
        add(template.name, _native_root(template, subject=subject, field=field), field)
    return group_source(
        wire.metadata, labels.WORKLOAD, tuple(templates.values()), lost=lost, staleness_grace_us=_FOR_EVER
    )


def normalize_kueue_workload(wire: custom_resources.KueueWorkloadObject, lost: Lost = unheard) -> GroupSource:
    """Reduce a `kueue.x-k8s.io` Workload to what it stands for and how long that may still run.

    Kueue counts from the admission, and takes off what ran before an eviction. Source: Kueue, KEP 3125.
    """
    most = said_count(wire.spec.maximum_execution_time_seconds)
    left = max(most - said_count(wire.status.accumulated_past_execution_time_seconds), 1) if most else 0
    return group_source(wire.metadata, labels.KUEUE_WORKLOAD, (GroupTemplate(),), lost=lost, active_deadline_s=left)


def _native_root(spec: custom_resources.NativePodGroupSpec, *, subject: str, field: str) -> PodSet:
    return PodSet(
        min_pods=_min_count(spec.scheduling_policy, subject=subject, field=f"{field}.schedulingPolicy"),
        topology=_native_topology(spec.scheduling_constraints, field=f"{field}.schedulingConstraints.topology"),
    )


def _native_topology(
    constraints: custom_resources.NativeConstraints | None, *, field: str
) -> TopologyConstraint | None:
    """Return the labels of nodes of which all pods must share a value (KEP-5732), None where there are none.

    Of a key and all others each is required; the API server lets one be given.
    """
    keys = [one.key for one in constraints.topology or ()] if constraints is not None else []
    if not keys:
        return None
    if "" in keys:
        return TopologyConstraint(problem=f"{field}[{keys.index('')}].key: is empty")
    return TopologyConstraint(required=keys[0], required_also=tuple(keys[1:]), field=field)


def _min_count(policy: custom_resources.NativePolicy, *, subject: str, field: str) -> int:
    if policy.gang is None:
        return 0
    return count(policy.gang.min_count, 1, subject=subject, field=f"{field}.gang.minCount")


def _optional_count(value: int | None, *, subject: str, field: str) -> int | None:
    return None if value is None else count(value, 0, subject=subject, field=field)


def _kai_topology(given: custom_resources.KaiTopologyConstraint | None, *, field: str) -> TopologyConstraint | None:
    if given is None:
        return None
    constraint = TopologyConstraint(
        topology=given.topology or "",
        required=given.required_topology_level or "",
        preferred=given.preferred_topology_level or "",
        field=field,
        kind=KAI_TOPOLOGY,
    )
    return constraint if constraint.required or constraint.preferred else None


def _ends_whole(mode: object) -> bool:
    """Tell whether no pod is disrupted without all others.

    A word in v1alpha2 (`Pod`, `PodGroup`), later versions have an object with one of several keys (`single`, `all`).
    """
    return mode == "PodGroup" or (isinstance(mode, dict) and mode.get("all") is not None)
