"""Objects that group pods as `GroupSource`s, and the parts of such objects that several dialects share.

Source: the pod grouper of KAI-Scheduler 0.17 (`pkg/podgrouper/podgrouper/plugins`), with a sub-group for each kind of
pods where it counts them all together.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from kaicore.errors import InvalidObject, Lost
from kaicore.rules.groups.kai_topology import around_segments, kai_topology, misplaced_segments, names_segments
from kaicore.rules.groups.labels import (
    FAILED_NODES_THRESHOLD,
    KAI_QUEUE_LABEL,
    POD_GROUPS,
    PREEMPTIBILITIES,
    PREEMPTIBILITY_LABEL,
    PREEMPTION_DELAY_ANNOTATION,
    PRIORITY_CLASS_LABEL,
    declared_limit_s,
    queue_name,
)
from kaicore.rules.groups.pod_templates import PodSetTemplate
from kaicore.rules.model.group import GroupSource, GroupTemplate, PodSet, TopologyConstraint
from kaicore.rules.model.node import KAI_TOPOLOGY
from kaicore.rules.model.pod import controller
from kaicore.rules.model.quantity import parse_duration
from kaicore.rules.objects.mappings import Fields
from kaicore.rules.objects.provisioning import PROVISIONING_CLASS_ANNOTATION
from kaicore.rules.objects.wire import ObjectMeta, seconds, subject_of


def pod_set_template(template: Fields, pods: int) -> PodSetTemplate:
    """Return what the metadata of a pod template says about a set of so many pods; 0 where that is not known."""
    metadata = template.inside("metadata")
    return PodSetTemplate(metadata.text_by_name("annotations"), template.where("metadata"), pods)


#: Kueue's status names eight failed nodes at most.
_FAILED_NODES = tuple("12345678")


def group_source(
    metadata: ObjectMeta, kind: str, templates: tuple[GroupTemplate, ...], *, lost: Lost, **given: Any
) -> GroupSource:
    """Return the source that an object is.

    Args:
        metadata: its labels and annotations may name queue, priority class, preemptibility, delay and topology.
        templates: the groups that it stands for.
        lost: is called with labels and annotations that make no sense; they count as absent.
        given: further fields of `GroupSource`; what is None or empty there is left to labels and annotations.
    """
    subject = subject_of(kind, metadata.namespace, metadata.name)
    if not metadata.name:
        raise InvalidObject(subject, "metadata.name", metadata.name, "is empty")
    labels, annotations = metadata.labels or {}, metadata.annotations or {}
    fields: dict[str, Any] = {
        "queue": queue_name(labels, annotations, namespace=metadata.namespace),
        "priority_class": labels.get(PRIORITY_CLASS_LABEL, ""),
        "preemptible": preemptible(
            labels.get(PREEMPTIBILITY_LABEL),
            subject=subject,
            field=f"metadata.labels[{PREEMPTIBILITY_LABEL}]",
            lost=lost,
        ),
        "preemption_delay_us": duration(
            annotations.get(PREEMPTION_DELAY_ANNOTATION),
            subject=subject,
            field=f"metadata.annotations[{PREEMPTION_DELAY_ANNOTATION}]",
            lost=lost,
        ),
        "kai": KAI_QUEUE_LABEL in labels,
        "provisioning_class": annotations.get(PROVISIONING_CLASS_ANNOTATION, ""),
        "most_failed_nodes": _most_failed_nodes(annotations, subject=subject, lost=lost),
        "active_deadline_s": declared_limit_s(labels, annotations),
    }
    fields |= {name: value for name, value in given.items() if value not in (None, "")}
    return GroupSource(
        kind=kind,
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        resource_version=metadata.resource_version,
        created_at=seconds(metadata.creation_timestamp) or 0,
        owner=controller(metadata),
        templates=_with_topology(templates, annotations, of_pods=kind not in POD_GROUPS),
        **fields,
    )


def _most_failed_nodes(annotations: Mapping[str, str], *, subject: str, lost: Lost) -> int:
    text = annotations.get(FAILED_NODES_THRESHOLD)
    if text is None or text in _FAILED_NODES:
        return int(text or 0)
    lost(InvalidObject(subject, f"metadata.annotations[{FAILED_NODES_THRESHOLD}]", text, "is no number of 1 to 8"))
    return 0


def _with_topology(
    templates: tuple[GroupTemplate, ...], annotations: Mapping[str, str], *, of_pods: bool
) -> tuple[GroupTemplate, ...]:
    """Return templates with what KAI's annotations say about all pods, where the objects themselves say nothing.

    Args:
        templates: the groups that an object stands for.
        of_pods: whether it makes pods, so that segments are of some of them; a PodGroup of KAI repeats what its owner
            says.
    """
    constraint = kai_topology(annotations)
    segmented = any(one.topology is not None for template in templates for one in template.sets)
    if of_pods and names_segments(annotations) and not segmented:
        constraint = misplaced_segments(annotations)
    if constraint is None:
        return templates
    return tuple(replace(template, sets=_around(constraint, template.sets)) for template in templates)


def _around(constraint: TopologyConstraint, sets: tuple[PodSet, ...]) -> tuple[PodSet, ...]:
    root, *others = sets
    own = root.topology
    if own is None:
        root = replace(root, topology=constraint)
    elif own.kind == KAI_TOPOLOGY and own.slices and not own.required and not own.preferred:
        root = replace(root, topology=around_segments(constraint, own))
    return (root, *others)


def preemptible(value: str | None, *, subject: str, field: str, lost: Lost) -> bool | None:
    """Return whether a group may be preempted; None without one of the two words."""
    if value and value not in PREEMPTIBILITIES:
        lost(InvalidObject(subject, field, value, "is neither preemptible nor non-preemptible"))
    return PREEMPTIBILITIES.get(value or "")


def duration(text: str | None, *, subject: str, field: str, lost: Lost) -> int | None:
    """Return a duration in microseconds; None without one."""
    if not text:
        return None
    try:
        return parse_duration(text, subject=subject, field=field)
    except InvalidObject as error:
        lost(error)
        return None


def check_names(
    names: Sequence[str], owner: Fields, field: str, problem: str = "need names, each of them once"
) -> None:
    """Raise InvalidObject where a name of the items of a list is empty or there twice."""
    if len(set(names)) < len(names) or "" in names:
        raise InvalidObject(owner.subject, owner.where(field), list(names), problem)
