"""What all objects that group pods have in common, on their way from the wire into the model."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from kaicore.errors import InvalidObject
from kaicore.kube.losses import Lost
from kaicore.kube.normalize_fields import controller, int32, seconds
from kaicore.kube.objects import KubernetesObject
from kaicore.kube.resources import subject_of
from kaicore.rules.groups.making import PREEMPTIBILITY_LABEL, PRIORITY_CLASS_LABEL
from kaicore.rules.groups.preemption_delay import PREEMPTION_DELAY_ANNOTATION
from kaicore.rules.groups.queue_names import KAI_QUEUE_LABEL, queue_name
from kaicore.rules.model.duration import parse_duration
from kaicore.rules.model.group import TopologyConstraint
from kaicore.rules.model.group_source import GroupSource, GroupTemplate
from kaicore.rules.model.provisioning import PROVISIONING_CLASS_ANNOTATION

MIN_MEMBER_ANNOTATION = "kai.scheduler/batch-min-member"

#: Largest count that is believed, as in the schemas of these kinds.
_MOST = 2**31 - 1

#: KAI's annotations by which an object says where in a topology all pods of its groups are to be.
TOPOLOGY_ANNOTATION = "kai.scheduler/topology"
REQUIRED_PLACEMENT_ANNOTATION = "kai.scheduler/topology-required-placement"
REQUIRED_SEGMENT_ANNOTATION = "kai.scheduler/segment-topology-required-placement"
PREFERRED_PLACEMENT_ANNOTATION = "kai.scheduler/topology-preferred-placement"

_REQUIRED_PLACEMENTS = (REQUIRED_PLACEMENT_ANNOTATION, REQUIRED_SEGMENT_ANNOTATION)

_PREEMPTIBILITIES = {"": None, "preemptible": True, "non-preemptible": False}


def group_source(
    wire: KubernetesObject, kind: str, templates: tuple[GroupTemplate, ...], *, lost: Lost, **said: Any
) -> GroupSource:
    """Return the source that an object is.

    Args:
        wire: the object; its labels and annotations may name queue, priority class, preemptibility, delay and topology.
        kind: with its API group.
        templates: the groups that it stands for.
        lost: is told of labels and annotations that say nothing that there is; they count as not there.
        said: further fields of `GroupSource`; what is None or empty there is left to labels and annotations.

    Raises:
        InvalidObject: it has no name.
    """
    metadata = wire.metadata
    subject = subject_of(kind, metadata.namespace, metadata.name)
    if not metadata.name:
        raise InvalidObject(subject, "metadata.name", metadata.name, "is empty")
    labels, annotations = metadata.labels or {}, metadata.annotations or {}
    found: dict[str, Any] = {
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
    }
    found |= {name: value for name, value in said.items() if value not in (None, "")}
    if "priority" in found:
        found["priority"] = int32(found["priority"], subject=subject, field="spec.priority", lost=lost)
    return GroupSource(
        kind=kind,
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        resource_version=metadata.resource_version,
        created_at=seconds(metadata.creation_timestamp) or 0,
        owner=controller(metadata),
        templates=_with_topology(templates, annotations),
        **found,
    )


def _with_topology(templates: tuple[GroupTemplate, ...], annotations: Mapping[str, str]) -> tuple[GroupTemplate, ...]:
    """Return templates with what annotations say about topology, unless the objects themselves require something."""
    required = next((name for name in _REQUIRED_PLACEMENTS if annotations.get(name)), "")
    constraint = TopologyConstraint(
        annotations.get(TOPOLOGY_ANNOTATION, ""),
        annotations.get(required, ""),
        annotations.get(PREFERRED_PLACEMENT_ANNOTATION, ""),
        f"metadata.annotations[{required}]" if required else "",
    )
    if not (constraint.required or constraint.preferred):
        return templates
    found = []
    for template in templates:
        root, *others = template.sets
        if root.topology is None or not root.topology.required:
            root = replace(root, topology=constraint)
        found.append(replace(template, sets=(root, *others)))
    return tuple(found)


def preemptible(said: str | None, *, subject: str, field: str, lost: Lost) -> bool | None:
    """Return whether a group may be preempted, None where neither of the two words there are is said."""
    if (said or "") not in _PREEMPTIBILITIES:
        lost(InvalidObject(subject, field, said, "is neither preemptible nor non-preemptible"))
    return _PREEMPTIBILITIES.get(said or "")


def duration(text: str | None, *, subject: str, field: str, lost: Lost) -> int | None:
    """Return a duration in microseconds, None where none is said."""
    if not text:
        return None
    try:
        return parse_duration(text, subject=subject, field=field)
    except InvalidObject as error:
        lost(error)
        return None


def count(value: int | None, default: int, *, subject: str, field: str) -> int:
    """Return how many; the default where nothing is said.

    Raises:
        InvalidObject: it is negative, or more than 32 bits hold.
    """
    if value is None:
        return default
    if not 0 <= value <= _MOST:
        raise InvalidObject(subject, field, value, "is no count")
    return value
