"""LeaderWorkerSets: each leader with its workers is a group.

Sources: KAI-Scheduler 0.17, its guide to segments; LeaderWorkerSet 0.7 (`pkg/controllers`,
`pkg/webhooks/pod_webhook.go`). Leaders belong to a StatefulSet named as the set, the workers of a group to one named as
their leader.
"""

from collections.abc import Iterator
from copy import deepcopy

from msgspec.structs import replace

from kaicore.rules.groups.dialects.apps import template_hash
from kaicore.rules.groups.dialects.dialect import Dialect, ReadObject, SetName, WorkloadKind, pod_set_template
from kaicore.rules.groups.kai_topology import names_segments
from kaicore.rules.groups.labels import own_rank
from kaicore.rules.groups.pod_templates import PodSetTemplate, with_templates
from kaicore.rules.model.group import GroupSource, GroupTemplate, PodSet, RankSource, TopologyConstraint
from kaicore.rules.model.pod import Pod
from kaicore.rules.objects.made import Made, keep_alone, made_object, mapping_in, pod_from, require
from kaicore.rules.objects.mappings import Fields, Object, annotation_of, name_of, namespace_of, sha1_key, spec_of

LEADER_WORKER_SET = "LeaderWorkerSet.leaderworkerset.x-k8s.io"
LWS_NAME_LABEL = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP_LABEL = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER_LABEL = "leaderworkerset.sigs.k8s.io/worker-index"
_PREFIX = "leaderworkerset.sigs.k8s.io"
_GROUP_KEY = f"{_PREFIX}/group-key"
_EXCLUSIVE_TOPOLOGY = f"{_PREFIX}/exclusive-topology"

#: Name of the set of the workers that share the first segment with the leader of a LeaderWorkerSet, where it is besides
#: them: the first so many as the set has at least.
FIRST_WORKERS = "workers-0"

#: The set of a leader and the workers that share its segment.
_FIRST_SEGMENT = "segment-0"


def normalize_leader_worker_set(owner: ReadObject) -> GroupSource:
    """Reduce a LeaderWorkerSet: each leader starts with its workers, or before them where they are made after it."""
    return owner.source(GroupTemplate(sets=_sets(owner)))


def _sets(owner: ReadObject) -> tuple[PodSet, ...]:
    given = owner.spec.inside("leaderWorkerTemplate")
    size = given.integer("size", 1, least=1)
    # Workers that are made when their leader runs start together after it: the second of two sub-groups.
    least = 1 if owner.spec.text("startupPolicy") == "LeaderReady" else None
    sets: tuple[PodSet, ...] = (PodSet(min_sets=least), PodSet("leader", min_pods=1))
    if size > 1:
        sets = (*sets, PodSet("workers", min_pods=size - 1))
    workers = pod_set_template(given.inside("workerTemplate"), size - 1)
    workers = workers._replace(rank=RankSource(LWS_WORKER_LABEL, 1), works=True)
    if names_segments(workers.annotations) or names_segments(owner.annotations):
        return _segmented(sets, workers, given.inside("subGroupPolicy"), owner.annotations)
    if given.value.get("leaderTemplate") is None:
        return _of_one_template(sets, workers, size)
    leader = pod_set_template(given.inside("leaderTemplate"), 1)._replace(leads=True)
    return with_templates(sets, {"leader": leader, "workers": workers}, owner=owner.annotations)


def _of_one_template(sets: tuple[PodSet, ...], workers: PodSetTemplate, size: int) -> tuple[PodSet, ...]:
    """Return the tree of a leader and workers of one pod template, which for Kueue are one set of pods."""
    template = workers._replace(pods=size, rank=RankSource(LWS_WORKER_LABEL))
    (whole,) = with_templates((PodSet(min_pods=size),), {"": template})
    topology = whole.topology
    if topology is not None and topology.slices:
        if sets[0].min_sets is None:
            # A slice may have the leader and workers in it.
            return (whole,)
        topology = _starts_apart(topology)
    root, leader, *rest = sets
    root = replace(root, topology=topology)
    return (root, leader, *(replace(one, rank=workers.rank) for one in rest))


def _starts_apart(topology: TopologyConstraint) -> TopologyConstraint:
    problem = f"{topology.field}: needs leader and workers that start together, and startupPolicy is LeaderReady"
    return TopologyConstraint(kind=topology.kind, problem=problem)


def _segmented(
    sets: tuple[PodSet, ...], workers: PodSetTemplate, policy: Fields, owner: dict[str, str]
) -> tuple[PodSet, ...]:
    """Return the tree of a leader and workers that are placed in segments of KAI.

    The leader is in the first segment: one of its pods where the size of the set divides by that of the segments, else
    besides them. With `LeaderExcluded` it is in none.
    """
    pods = workers.pods
    workers = workers._replace(pods=pods + 1, segment_size=policy.integer("subGroupSize", 0))
    (whole,) = with_templates((PodSet(min_pods=pods + 1),), {"": workers}, owner=owner)
    topology = whole.topology
    root, leader, *rest = sets
    if topology is None or not topology.slices or not rest:
        return (replace(root, topology=topology), leader, *rest)
    if policy.text("subGroupPolicyType") == "LeaderExcluded":
        if pods % topology.slices[0].size:
            problem = f"{topology.field}: {pods} workers do not divide into segments of {topology.slices[0].size}"
            topology = TopologyConstraint(kind=topology.kind, problem=f"{problem}, and the leader is excluded")
        return (root, leader, replace(rest[0], topology=topology, rank=whole.rank))
    if root.min_sets is not None:
        return (replace(root, topology=_starts_apart(topology)), leader, *rest)
    size = topology.slices[0].size
    if pods % size:
        return (replace(whole, rank=_counted_from(whole.rank, 0)),)
    return _leader_besides(sets, topology, size, whole.rank)


def _leader_besides(
    sets: tuple[PodSet, ...], topology: TopologyConstraint, size: int, rank: RankSource | None
) -> tuple[PodSet, ...]:
    """Return the tree of a leader that is in the domain of the first segment besides its workers."""
    root, leader, workers = sets
    layer = topology.slices[0]
    together = replace(topology, required=layer.required, preferred=layer.preferred, slices=())
    first = (
        PodSet(_FIRST_SEGMENT, topology=together),
        replace(leader, parent=_FIRST_SEGMENT),
        PodSet(FIRST_WORKERS, _FIRST_SEGMENT, min_pods=size, rank=_counted_from(rank, 1)),
    )
    if workers.min_pods == size:
        return (root, *first)
    others = replace(workers, min_pods=workers.min_pods - size, topology=topology, rank=_counted_from(rank, 1 + size))
    return (root, first[0], others, *first[1:])


def _counted_from(rank: RankSource | None, offset: int) -> RankSource | None:
    return None if rank is None else replace(rank, offset=offset)


def _pod_set(pod: Pod, template: GroupTemplate, _key: str) -> SetName:
    index = pod.labels.get(LWS_WORKER_LABEL, "")
    if index == "0":
        return SetName("leader")
    first = next((one for one in template.sets if one.name == FIRST_WORKERS), None)
    if first is None:
        return SetName("workers")
    rank = own_rank(pod, RankSource(LWS_WORKER_LABEL, 1))
    within = 0 <= rank < first.min_pods or all(one.name != "workers" for one in template.sets)
    return SetName(FIRST_WORKERS if within else "workers")


def leader_worker_set_pods(owner: Object) -> Iterator[Made]:
    """Yield leaders and workers of all groups; a group has `size` pods, its leader among them."""
    spec = spec_of(owner)
    template = spec.inside("leaderWorkerTemplate", required=True)
    worker = template.inside("workerTemplate", required=True)
    leader = template.inside("leaderTemplate") if template.value.get("leaderTemplate") else worker
    size = template.pods("size", 1, least=1)
    revision = template_hash(template)
    leaders = _stateful_set(owner, name_of(owner))
    topology_key = annotation_of(owner, _EXCLUSIVE_TOPOLOGY)
    for group in range(spec.pods("replicas", 1)):
        leader_name = f"{name_of(owner)}-{group}"
        workers = _stateful_set(owner, leader_name)
        for index in range(size):
            labels = {
                LWS_NAME_LABEL: name_of(owner),
                LWS_GROUP_LABEL: str(group),
                LWS_WORKER_LABEL: str(index),
                f"{_PREFIX}/template-revision-hash": revision,
                _GROUP_KEY: sha1_key(f"{namespace_of(owner)}/{leader_name}"),
            }
            notes = {f"{_PREFIX}/size": str(size)}
            if index:
                notes[f"{_PREFIX}/leader-name"] = leader_name
            _mark_subgroup(template, labels, notes, leader=leader_name, index=index, size=size)
            name = f"{leader_name}-{index}" if index else leader_name
            labels["statefulset.kubernetes.io/pod-name"] = name
            labels["apps.kubernetes.io/pod-index"] = str(index or group)
            pod = pod_from(
                workers if index else leaders,
                worker if index else leader,
                name=name,
                labels=labels,
                annotations=notes | ({_EXCLUSIVE_TOPOLOGY: topology_key} if topology_key else {}),
            )
            if topology_key:
                keep_alone(pod.object, label=_GROUP_KEY, topology_key=topology_key)
            yield pod


def _stateful_set(owner: Object, name: str) -> Object:
    return made_object(owner, api_version="apps/v1", kind="StatefulSet", name=name)


def _mark_subgroup(
    template: Fields, labels: dict[str, str], notes: dict[str, str], *, leader: str, index: int, size: int
) -> None:
    """Say which subgroup a pod belongs to, where the group is divided."""
    policy = template.inside("subGroupPolicy")
    width = policy.integer("subGroupSize", 0)
    if not width:
        return
    notes[f"{_PREFIX}/subgroup-size"] = str(width)
    alone = policy.text("subGroupPolicyType", "LeaderWorker") == "LeaderExcluded"
    if alone and not index:
        return
    # A leader that is one too many joins the first subgroup.
    extra = alone or (size - 1) % width == 0
    number = max(index - 1, 0) // width if extra else index // width
    labels[f"{_PREFIX}/subgroup-index"] = str(number)
    labels[f"{_PREFIX}/subgroup-key"] = sha1_key(f"{leader}/{number}")


_SET = "disaggregatedset.x-k8s.io"


def disaggregated_set_parts(owner: Object) -> Iterator[Made]:
    """Yield the LeaderWorkerSets of all roles of a DisaggregatedSet, slice by slice.

    Source: LeaderWorkerSet (kubernetes-sigs/lws, August 2026), `pkg/controllers/disaggregatedset/lws_manager.go`.
    """
    spec, name = spec_of(owner), name_of(owner)
    policy = spec.inside("placementPolicy")
    revision = template_hash(Fields("", {"roles": spec.value.get("roles")}))
    for number in range(spec.pods("slices", 1)):
        for role in spec.items("roles"):
            role_name = role.text("name")
            labels = {
                "app": f"{name}-{number}-{role_name}",
                f"{_SET}/name": name,
                f"{_SET}/role": role_name,
                f"{_SET}/slice": str(number),
                f"{_SET}/revision": revision,
            }
            part = made_object(
                owner,
                api_version="leaderworkerset.x-k8s.io/v1",
                kind="LeaderWorkerSet",
                name=f"{name}-{number}-{revision}-{role_name}",
                metadata=role.inside("metadata"),
            )
            part["metadata"]["labels"].update(labels)
            part["spec"] = deepcopy(role.inside("spec", required=True).value)
            templates = mapping_in(part["spec"], "leaderWorkerTemplate")
            for of in ("leaderTemplate", "workerTemplate"):
                if templates.get(of):
                    mapping_in(mapping_in(templates[of], "metadata"), "labels").update(labels)
                    _keep_slices_apart(mapping_in(templates[of], "spec"), policy, name, str(number))
            yield Made(part, role.where("spec"))


def _keep_slices_apart(pod_spec: Object, policy: Fields, name: str, number: str) -> None:
    """Give a pod the required affinities of its set's placement: with its slice, away from others."""
    kind, level = policy.text("type"), policy.text("topology")
    if kind not in ("ExclusiveSlice", "ExclusiveTopology") or not level:
        return
    own_set, own_slice = (
        {"key": f"{_SET}/{of}", "values": [value]} for of, value in (("name", name), ("slice", number))
    )
    here: Object = {"operator": "In"}
    elsewhere: Object = {"operator": "NotIn"}
    affinity = mapping_in(pod_spec, "affinity")
    require(affinity, "podAffinity", [own_set | here, own_slice | here], topology_key=level)
    require(affinity, "podAntiAffinity", [own_set | here, own_slice | elsewhere], topology_key=level)
    if kind == "ExclusiveTopology":
        others: list[Object] = [{"key": f"{_SET}/name", "operator": "Exists"}, own_set | elsewhere]
        require(affinity, "podAntiAffinity", others, topology_key=level)


DIALECT = Dialect(
    "LeaderWorkerSet",
    (
        WorkloadKind(f"DisaggregatedSet.{_SET}", "disaggregatedsets", ("v1",), made=disaggregated_set_parts),
        WorkloadKind(
            LEADER_WORKER_SET,
            "leaderworkersets",
            ("v1",),
            normalize_leader_worker_set,
            leader_worker_set_pods,
            name_label=LWS_NAME_LABEL,
            instance_label=LWS_GROUP_LABEL,
            pod_set=_pod_set,
            short_names=("lws",),
        ),
    ),
    annotations=("leaderworkerset.",),
)
