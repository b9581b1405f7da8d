"""PodGroups of all dialects, and Workloads, into the model."""

import json

from msgspec.structs import replace

from kaicore.rules.groups import labels
from kaicore.rules.groups.composite import WORKLOAD_NAME
from kaicore.rules.groups.dialects.dialect import ReadObject, duration, preemptible
from kaicore.rules.groups.koordinator import GANG, gang_group, gather_strategy, match_policy, topology_index
from kaicore.rules.model.group import (
    GroupSource,
    GroupTemplate,
    MatchPolicy,
    PodSet,
    TopologyConstraint,
    check_minimums,
    ordered,
    source_key,
)
from kaicore.rules.model.node import KAI_TOPOLOGY
from kaicore.rules.objects.mappings import Fields
from kaicore.rules.objects.wire import said_count

#: A grace that is never over: Kubernetes ends no gang for being below its minimum (KEP-4671).
_FOR_EVER = -1


def normalize_kai_pod_group(group: ReadObject) -> GroupSource:
    """Reduce a `scheduling.run.ai` PodGroup.

    Its minimum is of pods or of sub-groups; with neither, all sub-groups must run, or one pod where there are none.
    """
    spec, lost = group.spec, group.lost
    given = spec.items("subGroups")
    parents = {one.text("parent") for one in given}
    root = _kai_set(spec, inner=bool(given), leaf="and there are none")
    sets = [
        replace(
            _kai_set(one, inner=one.text("name") in parents, leaf="of a leaf"),
            name=one.text("name"),
            parent=one.text("parent"),
        )
        for one in given
    ]
    tree = ordered(sets, root=root, subject=spec.subject, field="spec.subGroups")
    check_minimums(tree, subject=spec.subject, field="spec.subGroups")
    delay, grace = (
        duration(spec.text(name), subject=spec.subject, field=spec.where(name), lost=lost)
        for name in ("preemptionDelay", "stalenessGracePeriod")
    )
    return group.source(
        GroupTemplate(sets=tree),
        queue=spec.text("queue"),
        priority_class=spec.text("priorityClassName"),
        preemptible=preemptible(
            spec.text("preemptibility"), subject=spec.subject, field="spec.preemptibility", lost=lost
        ),
        kai=True,
        staleness_grace_us=grace,
        preemption_delay_us=delay,
        kept={
            name: json.dumps(spec.value[name])
            for name in ("markUnschedulable", "schedulingBackoff")
            if spec.value.get(name) is not None
        },
    )


def _kai_set(one: Fields, *, inner: bool, leaf: str) -> PodSet:
    """Return the set of a PodGroup or of one of its sub-groups.

    Args:
        inner: whether there are sub-groups below it.
        leaf: the end of the error where there are none.
    """
    if one.value.get("minSubGroup") is not None:
        if one.value.get("minMember") is not None:
            raise one.error("minSubGroup", "excludes minMember")
        if not inner:
            raise one.error("minSubGroup", f"asks for sub-groups {leaf}")
    return PodSet(
        min_pods=one.integer("minMember", 0 if inner else 1),
        min_sets=one.integer("minSubGroup", None),
        topology=_kai_topology(one.inside("topologyConstraint")),
    )


def normalize_sigs_pod_group(group: ReadObject) -> GroupSource:
    """Reduce a `scheduling.sigs.k8s.io` PodGroup, with Koordinator's annotations, or one of `scheduling.x-k8s.io`.

    As in Koordinator, an annotation with no valid value counts as absent.
    """
    annotations = group.annotations
    least = group.spec.integer("minMember", 0)
    kept = {
        name: annotations[f"{GANG}/{name}"]
        for name in ("mode", "total-number", "waiting-time")
        if f"{GANG}/{name}" in annotations
    }
    timeout = group.spec.value.get("scheduleTimeoutSeconds")
    if timeout is not None:
        kept["scheduleTimeoutSeconds"] = str(timeout)
    # Without any word of Koordinator's, what runs counts: the scheduler-plugins count all assigned pods.
    topology = gather_strategy(annotations, pods=least)
    koordinator = any(name.startswith(GANG) for name in annotations)
    return group.source(
        GroupTemplate(sets=(PodSet(min_pods=least, topology=topology, rank=topology_index(topology)),)),
        together=gang_group(annotations),
        match_policy=match_policy(annotations) if koordinator else MatchPolicy.WAITING_AND_RUNNING,
        kept=kept,
    )


def normalize_native_pod_group(group: ReadObject) -> GroupSource:
    """Reduce a `scheduling.k8s.io` PodGroup.

    Its minimum may change while it runs. That is for pods that are yet to be placed: as in Kubernetes, what runs is not
    ended because it is less than the minimum.
    """
    return _native(group, _native_root(group.spec))


def normalize_composite_pod_group(group: ReadObject) -> GroupSource:
    """Reduce a `scheduling.k8s.io` CompositePodGroup: its minimum is of groups that name it as their parent."""
    least = _least(group.spec.inside("schedulingPolicy"), "minGroupCount")
    return _native(group, PodSet(min_sets=least, topology=_native_topology(group.spec)))


def _native(group: ReadObject, root: PodSet) -> GroupSource:
    """Return a native group as source.

    PodGroups are of v1alpha2 (Kubernetes 1.36), v1alpha3 and v1beta1 (1.37), v1 (planned for 1.38). What is read of
    them is called the same in all of them, but for how pods are disrupted.
    """
    spec = group.spec
    parent = spec.text("parentCompositePodGroupName")
    in_tree = parent or group.kind == labels.COMPOSITE_POD_GROUP
    workload = spec.inside("workloadRef")
    return group.source(
        GroupTemplate(sets=(root,)),
        priority_class=spec.text("priorityClassName"),
        priority=spec.integer("priority", None, least=-(2**31)),
        preemption_policy=spec.text("preemptionPolicy"),
        ends_whole=_ends_whole(spec.value.get("disruptionMode")),
        staleness_grace_us=_FOR_EVER,
        parent=source_key(labels.COMPOSITE_POD_GROUP, group.metadata.namespace, parent) if parent else "",
        kept={WORKLOAD_NAME: workload.text("workloadName")} if in_tree and workload.value else {},
    )


def normalize_workload(workload: ReadObject) -> GroupSource:
    """Reduce a `scheduling.k8s.io` Workload: each of its pod groups, and each replica of one, is a group.

    From Kubernetes 1.36 on it has templates of PodGroups instead, which are objects of their own.
    """
    templates: dict[str, GroupTemplate] = {}

    def add(one: Fields, root: PodSet) -> None:
        name = one.text("name")
        if not name or name in templates:
            raise one.error("name", "is there twice or empty")
        templates[name] = GroupTemplate(name, (root,))

    for one in workload.spec.items("podGroups"):
        add(one, PodSet(min_pods=_least(one.inside("policy"), "minCount")))
    for one in workload.spec.items("podGroupTemplates"):
        add(one, _native_root(one))
    return workload.source(*templates.values(), staleness_grace_us=_FOR_EVER)


def normalize_kueue_workload(workload: ReadObject) -> GroupSource:
    """Reduce a `kueue.x-k8s.io` Workload to what it stands for and how long that may still run.

    Kueue counts from the admission, and takes off what ran before an eviction. Source: Kueue, KEP 3125.
    """
    most = said_count(workload.spec.value.get("maximumExecutionTimeSeconds"))
    past = said_count(workload.status.value.get("accumulatedPastExecutionTimeSeconds"))
    return workload.source(GroupTemplate(), active_deadline_s=max(most - past, 1) if most else 0)


def _native_root(spec: Fields) -> PodSet:
    return PodSet(min_pods=_least(spec.inside("schedulingPolicy"), "minCount"), topology=_native_topology(spec))


def _native_topology(spec: Fields) -> TopologyConstraint | None:
    """Return the node labels with one value for all pods (KEP-5732); None without any.

    Of a key and all others each is required; the API server lets one be given.
    """
    constraints = spec.inside("schedulingConstraints")
    field, keys = constraints.where("topology"), [one.text("key") for one in constraints.items("topology")]
    if not keys:
        return None
    if "" in keys:
        return TopologyConstraint(problem=f"{field}[{keys.index('')}].key: is empty")
    return TopologyConstraint(required=keys[0], required_also=tuple(keys[1:]), field=field)


def _least(policy: Fields, name: str) -> int:
    """Return the minimum of a gang: of the pods of a PodGroup, or the groups of a CompositePodGroup; 0 without one."""
    return 0 if policy.value.get("gang") is None else policy.inside("gang").integer(name, 1)


def _kai_topology(given: Fields) -> TopologyConstraint | None:
    constraint = TopologyConstraint(
        topology=given.text("topology"),
        required=given.text("requiredTopologyLevel"),
        preferred=given.text("preferredTopologyLevel"),
        field=given.path,
        kind=KAI_TOPOLOGY,
    )
    return constraint if constraint.required or constraint.preferred else None


def _ends_whole(mode: object) -> bool:
    """Tell whether no pod is disrupted without all others.

    A word in v1alpha2 (`Pod`, `PodGroup`), later versions have an object with one of several keys (`single`, `all`).
    """
    return mode == "PodGroup" or (isinstance(mode, dict) and mode.get("all") is not None)
