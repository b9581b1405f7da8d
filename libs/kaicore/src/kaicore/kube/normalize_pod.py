"""Pods from the wire into the model.

Requests of a pod to its scheduler that kai-ledger cannot honour are listed in `Pod.unsupported`. Invalid constraints
are listed in `Pod.malformed`. In both cases the pod waits, instead of being placed as if it had not asked.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kaicore.errors import AbsurdQuantity, InvalidObject
from kaicore.kube.losses import Lost, unheard
from kaicore.kube.normalize_fields import amounts, controller, int32, seconds
from kaicore.kube.normalize_resize import resized
from kaicore.kube.normalize_rules import claim_uses, pod_rules, required_nodes
from kaicore.kube.objects import (
    DEFAULT_SCHEDULER,
    PodObject,
    PodSpec,
    PodToleration,
    ResourceRequirements,
)
from kaicore.kube.resources import subject_of
from kaicore.rules.model.device import PodClaim
from kaicore.rules.model.placement import DOMAINS_ANNOTATION, PREDICTED_ANNOTATION
from kaicore.rules.model.pod import (
    GPU_SHARE,
    MIRROR_ANNOTATION,
    Amounts,
    Container,
    ContainerKind,
    Pod,
    QosClass,
    Toleration,
    WorkloadRef,
)
from kaicore.rules.model.pod_rules import PodRules
from kaicore.rules.model.quantity import CPU, MEMORY
from kaicore.rules.model.selector import Requirement

#: Annotations that are kept: those of kai-ledger and of the workload APIs that say how pods belong together, and by
#: which uid the kubelet knows a static pod.
ANNOTATION_PREFIXES = (
    "batch.kubernetes.io/",
    "gang.",
    "gpu-",
    "grove.io/",
    "jobset.sigs.k8s.io/",
    "kai.scheduler/",
    "kubeflow.org/",
    MIRROR_ANNOTATION,
    "kueue.x-k8s.io/",
    "leaderworkerset.",
    "network-topology",
    "pod-group",
    "ray.io/",
    "run.ai/",
    "scheduling.",
    "topology.",
    "training.kubeflow.org/",
    "volcano.sh/",
)

#: Of those, what comes from the log and is not read: it stands with the decision.
OWN_ANNOTATIONS = frozenset({PREDICTED_ANNOTATION, DOMAINS_ANNOTATION})

#: Annotations by which a pod asks for a part of a GPU, which no node's allocatable accounts for.
GPU_SHARE_ANNOTATIONS = ("gpu-fraction", "gpu-fraction-num-devices", "gpu-memory")

#: So many of a pod's malformed fields are told.
_MOST_SAID = 3

_QOS_CLASSES = {str(qos): qos for qos in QosClass}
_TOLERATION_OPERATORS = ("Equal", "Exists")


class Constraints(NamedTuple):
    """Which nodes a pod may go to and which it prefers, by their labels and by the pods near them."""

    node_affinity: tuple[tuple[Requirement, ...], ...] = ()
    rules: PodRules | None = None


def read_constraints(wire: PodObject) -> Constraints:
    """Return a pod's constraints.

    Raises:
        InvalidObject: naming the field that says something impossible.
    """
    subject = subject_of("Pod", wire.metadata.namespace, wire.metadata.name)
    return Constraints(required_nodes(wire.spec.affinity, subject=subject), pod_rules(wire, subject=subject))


def normalize_pod(wire: PodObject, lost: Lost = unheard) -> Pod:  # long: one line for each field of the model
    """Reduce a Pod to what scheduling needs.

    An amount that is none makes the pod malformed, and it waits; where it runs already it counts as all else that it
    requests. One that is too large to be believed counts as the most that is.

    Raises:
        InvalidObject: it has no name.
    """
    metadata, spec, status = wire.metadata, wire.spec, wire.status
    subject = subject_of("Pod", metadata.namespace, metadata.name)
    if not metadata.name:
        raise InvalidObject(subject, "metadata.name", metadata.name, "is empty")
    annotations = metadata.annotations or {}
    constraints = Constraints()
    malformed: list[InvalidObject] = []
    try:
        constraints = read_constraints(wire)
    except InvalidObject as error:
        malformed.append(error)

    def misread(error: InvalidObject) -> None:
        (lost if isinstance(error, AbsurdQuantity) else malformed.append)(error)

    containers = tuple(_containers(spec, subject=subject, lost=misread))
    if spec.node_name:
        containers = resized(containers, status, subject=subject, lost=lost)
    pod_resources = None
    if spec.resources is not None and (spec.resources.requests or spec.resources.limits):
        pod_resources, pod_limits = _resources(spec.resources, subject=subject, field="spec.resources", lost=misread)
        qos = _qos_class([(pod_resources, pod_limits)])
    else:
        qos = _qos_class([(container.requests, container.limits) for container in containers])
    overhead = amounts(spec.overhead, subject=subject, field="spec.overhead", lost=misread)
    return Pod(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        resource_version=metadata.resource_version,
        created_at=seconds(metadata.creation_timestamp) or 0,
        scheduler_name=spec.scheduler_name or DEFAULT_SCHEDULER,
        qos=_QOS_CLASSES.get(status.qos_class or "", qos),
        containers=containers,
        phase=status.phase or "Pending",
        node_name=spec.node_name or "",
        priority=int32(spec.priority or 0, subject=subject, field="spec.priority", lost=lost),
        priority_class=spec.priority_class_name or "",
        preemption_policy=spec.preemption_policy or "PreemptLowerPriority",
        labels=metadata.labels or {},
        annotations={
            name: value
            for name, value in annotations.items()
            if name.startswith(ANNOTATION_PREFIXES) and name not in OWN_ANNOTATIONS
        },
        overhead=overhead,
        pod_resources=pod_resources,
        node_selector=spec.node_selector or {},
        node_affinity=constraints.node_affinity,
        # One with an operator of a later Kubernetes permits nothing that would be known here.
        tolerations=tuple(
            normalize_toleration(toleration)
            for toleration in spec.tolerations or ()
            if (toleration.operator or "Equal") in _TOLERATION_OPERATORS
        ),
        scheduling_gates=tuple(sorted(gate.name for gate in spec.scheduling_gates or ())),
        owner=controller(metadata),
        reason=status.reason or "",
        message=status.message or "",
        deletion_at=seconds(metadata.deletion_timestamp),
        nominated_node=status.nominated_node_name or "",
        workload=_workload(spec),
        unsupported=tuple(sorted(set(_unsupported(wire, constraints)))),
        malformed="; ".join(f"{error.field}: {error.problem}: {error.value!r}" for error in malformed[:_MOST_SAID]),
        rules=constraints.rules,
        claims=tuple(sorted(set(claim_uses(spec.volumes, pod=metadata.name)), key=lambda use: use.name)),
        resource_claims=tuple(_resource_claims(wire)) if spec.resource_claims else (),
        # The kubelet writes it long before the phase: told with that, it costs no fact of its own.
        start_time=0 if status.phase in (None, "", "Pending") else seconds(status.start_time) or 0,
        active_deadline_s=max(spec.active_deadline_seconds or 0, 0),
    )


def _containers(spec: PodSpec, *, subject: str, lost: Lost) -> Iterator[Container]:
    """Yield containers in the order in which the kubelet admits them: init containers, then the others."""
    for field, group in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, container in enumerate(group or ()):
            where = f"spec.{field}[{index}]"
            kind = ContainerKind.APP
            if field == "initContainers":
                kind = ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT
            requests: Amounts = {}
            limits: Amounts = {}
            if container.resources is not None:
                requests, limits = _resources(
                    container.resources, subject=subject, field=f"{where}.resources", lost=lost
                )
            yield Container(name=container.name, kind=kind, requests=requests, limits=limits)


def _resources(resources: ResourceRequirements, *, subject: str, field: str, lost: Lost) -> tuple[Amounts, Amounts]:
    """Return requests and limits; a limit without a request is a request too, as the API server defaults it."""
    limits = amounts(resources.limits, subject=subject, field=f"{field}.limits", lost=lost)
    requests = amounts(resources.requests, subject=subject, field=f"{field}.requests", lost=lost)
    return {**limits, **requests}, limits


def _qos_class(holders: Iterable[tuple[Amounts, Amounts]]) -> QosClass:
    """Classify by CPU and memory, as the API server does when a pod is created (`ComputePodQOS`)."""
    bounded = True
    requested: Amounts = {}
    limited: Amounts = {}
    for requests, limits in holders:
        for resource in (CPU, MEMORY):
            requested[resource] = requested.get(resource, 0) + requests.get(resource, 0)
            limited[resource] = limited.get(resource, 0) + limits.get(resource, 0)
            bounded = bounded and limits.get(resource, 0) > 0
    if not any(requested.values()) and not any(limited.values()):
        return QosClass.BEST_EFFORT
    return QosClass.GUARANTEED if bounded and requested == limited else QosClass.BURSTABLE


def normalize_toleration(toleration: PodToleration) -> Toleration:
    """Reduce a toleration."""
    return Toleration(
        key=toleration.key or "",
        operator=toleration.operator or "Equal",
        value=toleration.value or "",
        effect=toleration.effect or "",
    )


def _workload(spec: PodSpec) -> WorkloadRef | None:
    if spec.scheduling_group is not None and spec.scheduling_group.pod_group_name:
        return WorkloadRef(spec.scheduling_group.pod_group_name)
    reference = spec.workload_ref
    if reference is None:
        return None
    return WorkloadRef(reference.pod_group, reference.name, reference.pod_group_replica_key or "")


def _resource_claims(wire: PodObject) -> Iterator[PodClaim]:
    """Yield the ResourceClaims that a pod uses, in its order; those from templates as far as they are made."""
    made = {status.name: status.resource_claim_name for status in wire.status.resource_claim_statuses or ()}
    for reference in wire.spec.resource_claims or ():
        if reference.resource_claim_name:
            yield PodClaim(reference.name, reference.resource_claim_name)
            continue
        template = reference.resource_claim_template_name or ""
        claim = made.get(reference.name)
        yield PodClaim(reference.name, claim or "", template, needless=reference.name in made and not claim)


def _unsupported(wire: PodObject, constraints: Constraints) -> Iterator[str]:
    for term in constraints.node_affinity:
        for requirement in term:
            if requirement.field and requirement.key != "metadata.name":
                yield f"node affinity by field {requirement.key}"
    annotations = wire.metadata.annotations or {}
    for name in GPU_SHARE_ANNOTATIONS:
        if name in annotations:
            yield f"{GPU_SHARE} ({name})"
