"""Nodes and priority classes from the wire into the model."""

from kaicore.errors import InvalidObject
from kaicore.kube.losses import Lost, unheard
from kaicore.kube.normalize_fields import amounts, int32
from kaicore.kube.objects import NodeObject, PriorityClassObject
from kaicore.kube.resources import subject_of
from kaicore.rules.model.node import Node, Taint
from kaicore.rules.model.pod import PriorityClass


def normalize_node(wire: NodeObject, lost: Lost = unheard) -> Node:
    """Reduce a Node to what scheduling needs; it has nothing of a resource whose amount is none.

    Raises:
        InvalidObject: it has no name.
    """
    metadata, spec, status = wire.metadata, wire.spec, wire.status
    subject = subject_of("Node", "", metadata.name)
    if not metadata.name:
        raise InvalidObject(subject, "metadata.name", metadata.name, "is empty")
    return Node(
        uid=metadata.uid,
        name=metadata.name,
        resource_version=metadata.resource_version,
        allocatable=amounts(status.allocatable, subject=subject, field="status.allocatable", lost=lost),
        capacity=amounts(status.capacity, subject=subject, field="status.capacity", lost=lost),
        labels=metadata.labels or {},
        taints=tuple(
            Taint(key=taint.key, effect=taint.effect, value=taint.value or "")
            for taint in sorted(spec.taints or (), key=lambda taint: (taint.key, taint.effect))
        ),
        unschedulable=bool(spec.unschedulable),
        ready=any(condition.type == "Ready" and condition.status == "True" for condition in status.conditions or ()),
        kubelet_version=status.node_info.kubelet_version if status.node_info is not None else "",
        declared_features=tuple(sorted(set(status.declared_features or ()))),
    )


def normalize_priority_class(wire: PriorityClassObject, lost: Lost = unheard) -> PriorityClass:
    """Reduce a PriorityClass to what scheduling needs.

    Raises:
        InvalidObject: it has no name.
    """
    metadata = wire.metadata
    subject = subject_of("PriorityClass", "", metadata.name)
    if not metadata.name:
        raise InvalidObject(subject, "metadata.name", metadata.name, "is empty")
    return PriorityClass(
        uid=metadata.uid,
        name=metadata.name,
        resource_version=metadata.resource_version,
        value=int32(wire.value, subject=subject, field="value", lost=lost),
        global_default=bool(wire.global_default),
        preemption_policy=wire.preemption_policy or "PreemptLowerPriority",
    )
