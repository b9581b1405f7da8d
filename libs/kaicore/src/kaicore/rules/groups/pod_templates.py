"""A tree of pod sets, each with the topology constraints of its pod template, in the terms of Kueue, Volcano or KAI.

Pods of Volcano's Jobs and HyperJobs name their pod set, and the highest tier within which they stay. The tier is a
field of objects, or an annotation on pods. Source: Volcano v1.16.0-alpha.1, `NetworkTopologySpec` of
`volcano.sh/apis`, and `pkg/webhooks/admission/jobs/validate`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from kaicore.rules.groups.kai_topology import named_topology, segment_rank, segments
from kaicore.rules.groups.kueue import GROUP_NAME, kueue_rank, kueue_topology, refused_group
from kaicore.rules.groups.labels import refused
from kaicore.rules.model.group import PodSet, RankSource, TopologyConstraint
from kaicore.rules.model.node import HYPER_NODE
from kaicore.rules.objects.wire import count_in

MODE = "volcano.sh/network-topology-mode"
HIGHEST_TIER = "volcano.sh/network-topology-highest-tier"

_HARD, _SOFT = "hard", "soft"


def tier_topology(*, mode: str, tier: int | None, tier_name: str, field: str) -> TopologyConstraint:
    """Return where pods are to be: as close as they can, and where it is `hard` within a HyperNode of a tier.

    Without a tier they may be anywhere, as in Volcano. A soft constraint's tier says nothing there either.

    Args:
        mode: `hard`, which is also the default, or `soft`.
        tier: the highest that is allowed; None for none.
        tier_name: the same by its name; empty for none.
        field: its path, for people.
    """
    if mode not in ("", _HARD, _SOFT):
        return refused(HYPER_NODE, f"{field}.mode", "is neither hard nor soft", mode)
    if tier is not None and tier_name:
        return refused(HYPER_NODE, f"{field}.highestTierName", "excludes highestTierAllowed", tier_name)
    if tier is not None and tier < 0:
        return refused(HYPER_NODE, f"{field}.highestTierAllowed", "is no tier of 0 or more", tier)
    level = "" if mode == _SOFT else tier_name if tier is None else str(tier)
    by = "highestTierName" if tier is None else "highestTierAllowed"
    return TopologyConstraint(required=level, field=f"{field}.{by}" if level else "", kind=HYPER_NODE, closest=True)


def annotated_tiers(annotations: Mapping[str, str], *, where: str = "metadata") -> TopologyConstraint | None:
    """Return what annotations on pods, or on their template, say of it; None where they say nothing.

    Args:
        where: the metadata that they stand in, for people.
    """
    mode, tier = annotations.get(MODE), annotations.get(HIGHEST_TIER)
    if mode is None and tier is None:
        return None
    if mode not in (None, "", _HARD, _SOFT):
        return refused(HYPER_NODE, f"{where}.annotations[{MODE}]", "is neither hard nor soft", mode)
    if tier and count_in(tier) is None:
        return refused(HYPER_NODE, f"{where}.annotations[{HIGHEST_TIER}]", "is no tier of 0 or more", tier)
    level = str(int(tier)) if tier and mode != _SOFT else ""
    field = f"{where}.annotations[{HIGHEST_TIER}]" if level else ""
    return TopologyConstraint(required=level, field=field, kind=HYPER_NODE, closest=True)


class PodSetTemplate(NamedTuple):
    """The pod template of a set.

    Attributes:
        where: the path of its metadata in the object, for people.
        pods: how many pods the set has in all; 0 where it is not known.
        slice_size: the default of slices; 0 for none.
        rank: where its pods tell their rank by themselves; None where they do not.
        leads: whether its pods lead others, so that KAI's segments are not of them.
        works: whether the owner's segments are of its pods.
        segment_size: pods of a segment, where the object itself says it; 0 where it does not.
    """

    annotations: Mapping[str, str]
    where: str
    pods: int
    slice_size: int = 0
    rank: RankSource | None = None
    leads: bool = False
    works: bool = False
    segment_size: int = 0


def with_templates(
    sets: Sequence[PodSet], templates: Mapping[str, PodSetTemplate], *, owner: Mapping[str, str] | None = None
) -> tuple[PodSet, ...]:
    """Return a tree with the topology constraints of its leaves, and where their pods tell their ranks.

    Two sets of one `podset-group-name`, such as a leader and its workers, come below an inner set that has their
    constraint; slices stay with the set that they are of (Kueue's TASGroupedPodSetSlicing).

    Args:
        sets: the tree, the root first and every parent before its children.
        templates: by the leaf that it is of.
        owner: the annotations of the object that has the templates.
    """
    filled = [_with_template(one, templates[one.name], owner or {}) if one.name in templates else one for one in sets]
    groups: dict[str, list[str]] = {}
    for one in sets:
        if one.name in templates and (group := templates[one.name].annotations.get(GROUP_NAME)):
            groups.setdefault(group, []).append(one.name)
    for group, names in groups.items():
        filled = _grouped(filled, f"podset-group.{group}", names, templates)
    return tuple(filled)


def _with_template(one: PodSet, template: PodSetTemplate, owner: Mapping[str, str]) -> PodSet:
    topology = kueue_topology(
        template.annotations, pods=template.pods, where=template.where, slice_size=template.slice_size
    )
    topology = topology or annotated_tiers(template.annotations, where=template.where)
    rank = kueue_rank(template.annotations, template.rank)
    if topology is None and not template.leads:
        above = owner if template.works else named_topology(owner)
        rank = segment_rank(template.annotations, above, rank)
        topology = segments(
            template.annotations,
            above,
            pods=template.pods,
            where=template.where,
            size=template.segment_size,
            ranked=rank is not None,
        )
    return replace(one, topology=topology or one.topology, rank=rank)


def _grouped(
    sets: Sequence[PodSet], inner: str, names: Sequence[str], templates: Mapping[str, PodSetTemplate]
) -> list[PodSet]:
    """Return a tree in which sets are below one that has their constraint; if they cannot be, each says why."""
    members = [one for one in sets if one.name in names]
    if any(one.topology is not None and one.topology.problem for one in members):
        return list(sets)
    if problem := _group_problem([one.topology for one in members], [templates[name].pods for name in names]):
        return [
            replace(
                one,
                topology=refused_group(
                    templates[one.name].annotations, where=templates[one.name].where, problem=problem
                ),
            )
            if one.name in names
            else one
            for one in sets
        ]
    parent = next(one for one in sets if one.name == members[0].parent)
    siblings = [one.name for one in sets[1:] if one.parent == parent.name]
    shared = next(one.topology for one in members if one.topology is not None)
    around = PodSet(inner, parent.name, topology=replace(shared, slices=()))
    if len(siblings) == len(members):
        # All that the parent holds: how many of them must be satisfied is now said of the set between.
        around, parent = replace(around, min_sets=parent.min_sets), replace(parent, min_sets=None)
    pod_sets: list[PodSet] = []
    for one in sets:
        if one is members[0]:
            pod_sets.append(around)
        if one.name in names:
            sliced = one.topology is not None and one.topology.slices
            own = replace(one.topology, spread=(), spread_with=()) if one.topology is not None and sliced else None
            pod_sets.append(replace(one, parent=inner, topology=own))
        else:
            pod_sets.append(parent if one.name == parent.name else one)
    return pod_sets


def _group_problem(topologies: Sequence[TopologyConstraint | None], pods: Sequence[int]) -> str:
    """Return why sets cannot be placed as a group of Kueue; empty if they can."""
    if len(topologies) != 2:
        return f"is the name of {len(topologies)} pod sets that start together, and must be of 2"
    if 1 not in pods:
        return "needs a pod set of one pod, the leader"
    first, second = (replace(one or TopologyConstraint(), slices=(), field="") for one in topologies)
    if (first.required, first.preferred) != (second.required, second.preferred):
        return "needs the same topology on both of its pod sets"
    if (first.spread, first.spread_with) != (second.spread, second.spread_with):
        return "needs the same topology spreading on both of its pod sets"
    return ""
