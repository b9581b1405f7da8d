"""LeaderWorkerSets from the wire into the model: each leader with its workers is a group.

Source: KAI-Scheduler 0.17, its guide to segments; for its sub-groups LeaderWorkerSet 0.7,
`pkg/webhooks/pod_webhook.go`.
"""

from msgspec.structs import replace

from kaicore.errors import InvalidObject, Lost, unheard
from kaicore.kube.normalize.owner import count, group_source
from kaicore.kube.wire.groups import LeaderWorkerSetObject, LeaderWorkerTemplate, annotations_of
from kaicore.rules.groups.kai_topology import names_segments
from kaicore.rules.groups.labels import LEADER_WORKER_SET
from kaicore.rules.groups.membership import FIRST_WORKERS, LWS_WORKER_LABEL
from kaicore.rules.groups.pod_templates import PodSetTemplate, with_templates
from kaicore.rules.model.group import PodSet, RankSource, TopologyConstraint
from kaicore.rules.model.group_source import GroupSource, GroupTemplate
from kaicore.rules.objects.wire import subject_of

_FIELD = "spec.leaderWorkerTemplate"

#: The set of a leader and the workers that share its segment.
_FIRST_SEGMENT = "segment-0"


def normalize_leader_worker_set(wire: LeaderWorkerSetObject, lost: Lost = unheard) -> GroupSource:
    """Reduce a LeaderWorkerSet: each leader starts with its workers, or before them where they are made after it.

    Raises:
        InvalidObject: naming the field that says something impossible.
    """
    subject = subject_of(LEADER_WORKER_SET, wire.metadata.namespace, wire.metadata.name)
    given = wire.spec.leader_worker_template
    size = count(given.size, 1, subject=subject, field=f"{_FIELD}.size")
    if not size:
        raise InvalidObject(subject, f"{_FIELD}.size", size, "is no count of 1 or more")
    sets = _sets(wire, size, subject=subject)
    return group_source(wire, LEADER_WORKER_SET, (GroupTemplate(sets=sets),), lost=lost)


def _sets(wire: LeaderWorkerSetObject, size: int, *, subject: str) -> tuple[PodSet, ...]:
    given, owner = wire.spec.leader_worker_template, wire.metadata.annotations or {}
    # Workers that are made when their leader runs start together after it: the second of two sub-groups.
    least = 1 if wire.spec.startup_policy == "LeaderReady" else None
    sets: tuple[PodSet, ...] = (PodSet(min_sets=least), PodSet("leader", min_pods=1))
    if size > 1:
        sets = (*sets, PodSet("workers", min_pods=size - 1))
    workers = PodSetTemplate(
        annotations_of(given.worker_template),
        f"{_FIELD}.workerTemplate.metadata",
        size - 1,
        rank=RankSource(LWS_WORKER_LABEL, 1),
        works=True,
    )
    if names_segments(workers.annotations) or names_segments(owner):
        return _segmented(sets, workers, given, owner, subject=subject)
    if given.leader_template is None:
        return _of_one_template(sets, workers, size)
    leader = PodSetTemplate(annotations_of(given.leader_template), f"{_FIELD}.leaderTemplate.metadata", 1, leads=True)
    return with_templates(sets, {"leader": leader, "workers": workers}, owner=owner)


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
    sets: tuple[PodSet, ...],
    workers: PodSetTemplate,
    given: LeaderWorkerTemplate,
    owner: dict[str, str],
    *,
    subject: str,
) -> tuple[PodSet, ...]:
    """Return the tree of a leader and workers that are placed in segments of KAI.

    The leader is in the first segment: one of its pods where the size of the set divides by that of the segments, else
    besides them. With `LeaderExcluded` it is in none.
    """
    policy = given.sub_group_policy
    given_size = policy.sub_group_size if policy is not None else None
    length = count(given_size, 0, subject=subject, field=f"{_FIELD}.subGroupPolicy.subGroupSize")
    pods = workers.pods
    workers = workers._replace(pods=pods + 1, segment_size=length)
    (whole,) = with_templates((PodSet(min_pods=pods + 1),), {"": workers}, owner=owner)
    topology = whole.topology
    root, leader, *rest = sets
    if topology is None or not topology.slices or not rest:
        return (replace(root, topology=topology), leader, *rest)
    if policy is not None and policy.sub_group_policy_type == "LeaderExcluded":
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
