"""A tree of pod sets, each with the topology constraints of its pod template, in the terms of Kueue, Volcano or KAI."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from kaicore.rules.groups.kai_topology import named_topology, segment_rank, segments
from kaicore.rules.groups.kueue import GROUP_NAME, kueue_rank, kueue_topology, refused_group
from kaicore.rules.groups.volcano import annotated_tiers
from kaicore.rules.model.group import PodSet, RankSource, TopologyConstraint


class PodSetTemplate(NamedTuple):
    """The pod template of a set.

    Attributes:
        annotations: of its metadata.
        where: the path of its metadata in the object, for people.
        pods: how many pods the set has in all; 0 where it is not known.
        slice_size: of slices of which no size is said; 0 for none.
        rank: where its pods tell their rank by themselves; None where they do not.
        leads: whether its pods lead others, so that KAI's segments are not of them.
        works: whether its pods are those of which the segments are that the owner asks for.
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
    constraint.

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
    around = PodSet(inner, parent.name, topology=members[0].topology)
    if len(siblings) == len(members):
        # All that the parent holds: how many of them must be satisfied is now said of the set between.
        around, parent = replace(around, min_sets=parent.min_sets), replace(parent, min_sets=None)
    pod_sets: list[PodSet] = []
    for one in sets:
        if one is members[0]:
            pod_sets.append(around)
        if one.name in names:
            pod_sets.append(replace(one, parent=inner, topology=None))
        else:
            pod_sets.append(parent if one.name == parent.name else one)
    return pod_sets


def _group_problem(topologies: Sequence[TopologyConstraint | None], pods: Sequence[int]) -> str:
    """Return why sets cannot be placed as a group of Kueue; empty if they can."""
    if len(topologies) != 2:
        return f"is the name of {len(topologies)} pod sets that start together, and must be of 2"
    if 1 not in pods:
        return "needs a pod set of one pod, the leader"
    first, second = ((one.required, one.preferred) if one is not None else ("", "") for one in topologies)
    if first != second:
        return "needs the same topology on both of its pod sets"
    return ""
