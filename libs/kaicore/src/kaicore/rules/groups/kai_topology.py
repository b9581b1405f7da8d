"""Topology constraints of a group in KAI's terms: annotations of owners and of pods.

Source: KAI-Scheduler 0.17, its guides to topology and to segments, `pkg/podgrouper`.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from kaicore.rules.groups.labels import refused
from kaicore.rules.model.group import RankSource, SliceLayer, TopologyConstraint
from kaicore.rules.model.node import KAI_TOPOLOGY
from kaicore.rules.objects.wire import count_in

_KAI = "kai.scheduler"
TOPOLOGY_ANNOTATION = f"{_KAI}/topology"
REQUIRED_ANNOTATION = f"{_KAI}/topology-required-placement"
PREFERRED_ANNOTATION = f"{_KAI}/topology-preferred-placement"
SEGMENT_SIZE_ANNOTATION = f"{_KAI}/segment-size"
SEGMENT_REQUIRED_ANNOTATION = f"{_KAI}/segment-topology-required-placement"
SEGMENT_PREFERRED_ANNOTATION = f"{_KAI}/segment-topology-preferred-placement"
INDEX_LABEL_ANNOTATION = f"{_KAI}/pod-index-label"

#: Our own: how many nodes of a segment's domain are left free, so that the pods of one that fails have somewhere to go.
SPARES_ANNOTATION = f"{_KAI}/segment-spare-nodes"

_SEGMENTS = (SEGMENT_SIZE_ANNOTATION, SEGMENT_REQUIRED_ANNOTATION, SEGMENT_PREFERRED_ANNOTATION, SPARES_ANNOTATION)


def kai_topology(annotations: Mapping[str, str]) -> TopologyConstraint | None:
    """Return the constraint of all pods of an object; None without one.

    Args:
        annotations: of the topmost owner, or of a pod that has none.
    """
    given = [name for name in (REQUIRED_ANNOTATION, PREFERRED_ANNOTATION) if annotations.get(name)]
    if not given:
        return None
    return TopologyConstraint(
        topology=annotations.get(TOPOLOGY_ANNOTATION, ""),
        required=annotations.get(REQUIRED_ANNOTATION, ""),
        preferred=annotations.get(PREFERRED_ANNOTATION, ""),
        field=f"metadata.annotations[{', '.join(given)}]",
        kind=KAI_TOPOLOGY,
    )


def pod_topology(annotations: Mapping[str, str]) -> TopologyConstraint | None:
    """Return the constraint of pods without an owner that stands for a group; None without one.

    Segments are of the pods of an owner: without one, they are a problem.
    """
    constraint = kai_topology(annotations)
    if constraint is None and names_segments(annotations):
        name = next(name for name in _SEGMENTS if name in annotations)
        problem = "has no owner of which the pods of a segment could be"
        return refused(KAI_TOPOLOGY, f"metadata.annotations[{name}]", problem)
    return constraint


def named_topology(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return of annotations only the one that names the topology."""
    return {name: annotations[name] for name in (TOPOLOGY_ANNOTATION,) if name in annotations}


def names_segments(annotations: Mapping[str, str]) -> bool:
    """Tell whether annotations ask for segments."""
    return any(name in annotations for name in _SEGMENTS)


def segments(
    annotations: Mapping[str, str],
    owner: Mapping[str, str],
    *,
    pods: int,
    where: str = "metadata",
    size: int = 0,
    ranked: bool = True,
) -> TopologyConstraint | None:
    """Return the segments in which the pods of a set are placed; None without any.

    Segments are slices by the pods' own index. Those beyond the minimum of the set start when their pods come.

    Args:
        annotations: of the pod template; they count before those of the owner.
        pods: how many pods there are in all; 0 where it is not known.
        where: the metadata of the pod template, for people.
        size: of a segment, where the object itself says it; 0 if it does not.
    """
    given = annotations if names_segments(annotations) else owner
    if not names_segments(given):
        return None
    where = where if given is annotations else "metadata"

    def impossible(name: str, problem: str) -> TopologyConstraint:
        return refused(KAI_TOPOLOGY, f"{where}.annotations[{name}]", problem, given.get(name))

    if not ranked:
        needs = f"needs pods that tell their index; name the label in {INDEX_LABEL_ANNOTATION}"
        return impossible(SEGMENT_SIZE_ANNOTATION, needs)
    length = size or count_in(given.get(SEGMENT_SIZE_ANNOTATION, ""))
    if length is None or length < 2 or (pods and length > pods):
        most = f"from 2 to the {pods} pods that there are" if pods else "of 2 or more"
        return impossible(SEGMENT_SIZE_ANNOTATION, f"is no count {most}")
    required, preferred = given.get(SEGMENT_REQUIRED_ANNOTATION, ""), given.get(SEGMENT_PREFERRED_ANNOTATION, "")
    if not (required or preferred):
        return impossible(SEGMENT_REQUIRED_ANNOTATION, f"is missing, and so is {SEGMENT_PREFERRED_ANNOTATION}")
    spares = count_in(given.get(SPARES_ANNOTATION, "0"))
    if spares is None:
        return impossible(SPARES_ANNOTATION, "is no count")
    names = [name for name in _SEGMENTS[1:3] if given.get(name)]
    return TopologyConstraint(
        topology=annotations.get(TOPOLOGY_ANNOTATION) or owner.get(TOPOLOGY_ANNOTATION, ""),
        field=f"{where}.annotations[{', '.join(names)}]",
        kind=KAI_TOPOLOGY,
        slices=(SliceLayer(length, required=required, preferred=preferred, spares=spares),),
    )


def segment_rank(
    annotations: Mapping[str, str], owner: Mapping[str, str], rank: RankSource | None
) -> RankSource | None:
    """Return where the pods of segments tell their index: in the label that an annotation names, or as they do."""
    given = annotations if names_segments(annotations) else owner
    label = given.get(INDEX_LABEL_ANNOTATION) if names_segments(given) else ""
    return RankSource(label) if label else rank


def misplaced_segments(annotations: Mapping[str, str]) -> TopologyConstraint:
    """Return the constraint of an object that asks for segments where nothing says of which pods."""
    name = next(name for name in _SEGMENTS if name in annotations)
    problem = "is for workers that have an index; put it on their pod template"
    return refused(KAI_TOPOLOGY, f"metadata.annotations[{name}]", problem)


def around_segments(whole: TopologyConstraint, slices: TopologyConstraint) -> TopologyConstraint:
    """Return the constraint of a set that has both: a domain of all pods, and segments within it."""
    return replace(
        slices,
        topology=slices.topology or whole.topology,
        required=whole.required,
        preferred=whole.preferred,
        field=f"{whole.field}, {slices.field}",
    )
