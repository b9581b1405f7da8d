"""Pods from the wire into the model: requests, constraints, and what kai-ledger cannot honour.

Requests of a pod to its scheduler that kai-ledger cannot honour are listed in `Pod.unsupported`. Invalid constraints
are listed in `Pod.malformed`. In both cases the pod waits, instead of being placed as if it had not asked.

While a pod is resized in place (KEP-1287), kube-scheduler's rule holds: of the amounts that are requested, allocated
and held by the runtime the largest counts, as long as the resize is under way or deferred. So a pod that shrinks holds
the old amount until its runtime has followed. The requested amount does not count where the kubelet will never grant it
(`Infeasible`, which it reports for Guaranteed pods beside static managers).

The same holds of the requests of the pod itself.

Source: `k8s.io/component-helpers`, `resource/helpers.go`: determineContainerReqs up to v0.34 and then
determineEffectiveRequests. v0.37 takes the largest of sums over containers, which is less only where one container
grows while another shrinks.

Constraints concern nodes and the pods near a pod. When a pod is created, the API server merges `matchLabelKeys` and
`mismatchLabelKeys` into selectors. This module merges them as well, because a manifest has not passed an API server;
merging twice changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from kaicore.errors import AbsurdQuantity, InvalidObject, Lost, unheard
from kaicore.kube.normalize.fields import (
    amounts,
    namespaced_identity,
    node_term,
    required_nodes,
    selector,
    sorted_requirements,
)
from kaicore.kube.normalize.share_dialects import annotated_mig, gpu_share, virtual_gpus
from kaicore.kube.wire import objects
from kaicore.kube.wire.resources import named_subject
from kaicore.rules.groups.dialects.table import DIALECTS
from kaicore.rules.model.device import PodClaim
from kaicore.rules.model.placement import DOMAINS_ANNOTATION, MEMORY_GROUPS_PREDICTED, PREDICTED_ANNOTATION
from kaicore.rules.model.pod import (
    LAST_CHECKPOINT_ANNOTATION,
    MIRROR_ANNOTATION,
    Amounts,
    ClaimUse,
    Container,
    ContainerKind,
    HostPort,
    Pod,
    PodRules,
    PodTerm,
    PreferredNodes,
    PreferredPods,
    QosClass,
    SpreadConstraint,
    Toleration,
    WorkloadRef,
    controller,
)
from kaicore.rules.model.quantity import CPU, MEMORY
from kaicore.rules.model.selector import PodSelector, Requirement
from kaicore.rules.objects.mappings import Fields
from kaicore.rules.objects.wire import DEFAULT_SCHEDULER, int32, seconds, subject_of

_RESIZABLE = (CPU, MEMORY)


def resized(
    containers: tuple[Container, ...],
    pod_resources: Amounts | None,
    status: objects.PodStatus,
    subject: str,
    lost: Lost,
) -> tuple[tuple[Container, ...], Amounts | None]:
    """Return the containers of a pod on a node, and the pod's own requests, with what they hold as their requests.

    Args:
        containers: as the pod's spec has them.
        pod_resources: likewise.
        subject: the pod, for what is lost.
        lost: is called with amounts that are none.
    """
    infeasible = any(one.type == "PodResizePending" and one.reason == "Infeasible" for one in status.conditions or ())
    running = status.resources.requests if status.resources is not None else None
    if pod_resources is not None and (status.allocated_resources or running):
        of_status = _held(status.allocated_resources, running, subject=subject, where="status", lost=lost)
        pod_resources = _largest(pod_resources, of_status, infeasible=infeasible)
    held: dict[str, Amounts] = {}
    for field, group in (
        ("initContainerStatuses", status.init_container_statuses),
        ("containerStatuses", status.container_statuses),
    ):
        for one in group or ():
            running = one.resources.requests if one.resources is not None else None
            if one.allocated_resources or running:
                where = f"status.{field}[{one.name}]"
                held[one.name] = _held(one.allocated_resources, running, subject=subject, where=where, lost=lost)
    if held:
        containers = tuple(_resized(item, held.get(item.name, {}), infeasible=infeasible) for item in containers)
    return containers, pod_resources


def _held(
    allocated: objects.Quantities | None, running: objects.Quantities | None, *, subject: str, where: str, lost: Lost
) -> Amounts:
    """Return the larger of what is set aside and what the runtime has; nearly always they are written alike."""
    both = amounts(allocated, subject=subject, field=f"{where}.allocatedResources", lost=lost)
    if running and running != allocated:
        has = amounts(running, subject=subject, field=f"{where}.resources.requests", lost=lost)
        both = both | {name: max(amount, both.get(name, 0)) for name, amount in has.items()}
    return both


def _resized(container: Container, of_status: Amounts, *, infeasible: bool) -> Container:
    requests = _largest(container.requests, of_status, infeasible=infeasible)
    return container if requests == container.requests else msgspec.structs.replace(container, requests=requests)


def _largest(requests: Amounts, held: Amounts, *, infeasible: bool) -> Amounts:
    """Return requests with what counts of what can be resized."""
    least = {} if infeasible else requests
    known = [name for name in _RESIZABLE if name in held and name in requests]
    return requests | {name: max(held[name], least.get(name, 0)) for name in known}


#: Counts have 32 bits.
_MOST_COUNT = 2**31 - 1
_MAX_WEIGHT = 100
_MAX_PORT = 65535
_NOTHING = PodRules()
_SPREAD = "topologySpreadConstraints"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def claim_uses(volumes: list[objects.Volume] | None, *, pod: str) -> Iterator[ClaimUse]:
    """Yield the claims that volumes refer to; an ephemeral volume's claim is named after pod and volume."""
    for volume in volumes or ():
        if volume.persistent_volume_claim is not None:
            yield ClaimUse(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            yield ClaimUse(f"{pod}-{volume.name}", owned=True)


def _ports_at_all(wire: objects.PodObject) -> bool:
    return any(
        container.ports for group in (wire.spec.init_containers, wire.spec.containers) for container in group or ()
    )


class _Reader:
    """Reads one pod's constraints."""

    def __init__(self, wire: objects.PodObject) -> None:
        self._spec, metadata = wire.spec, wire.metadata
        self._subject = subject_of("Pod", metadata.namespace, metadata.name)
        self._namespace = metadata.namespace
        self._labels = metadata.labels or {}
        self._affinity = Fields(self._subject, wire.spec.affinity or {}, "spec.affinity")
        self._nodes = self._affinity.inside("nodeAffinity")

    def required_nodes(self) -> tuple[tuple[Requirement, ...], ...]:
        """Return the terms of which a node has to meet any; none where every node will do."""
        return required_nodes(self._nodes, _REQUIRED) or ()

    def rules(self) -> PodRules | None:
        """Return what the pod asks for beyond amounts and required node labels; None for nothing."""
        near, apart = self._affinity.inside("podAffinity"), self._affinity.inside("podAntiAffinity")
        spread = Fields(self._subject, {_SPREAD: self._spec.topology_spread_constraints}, "spec")
        of_pod = PodRules(
            affinity=tuple(map(self._term, near.items(_REQUIRED))),
            anti_affinity=tuple(map(self._term, apart.items(_REQUIRED))),
            preferred_pods=(*self._preferred(near, 1), *self._preferred(apart, -1)),
            spread=tuple(map(self._spread, spread.items(_SPREAD))),
            preferred_nodes=tuple(self._preferred_nodes()),
            host_ports=tuple(sorted(set(self._host_ports()))),
        )
        return None if of_pod == _NOTHING else of_pod

    def _preferred(self, pods: Fields, sign: int) -> Iterator[PreferredPods]:
        for term in pods.items(_PREFERRED):
            yield PreferredPods(sign * self._weight(term), self._term(term.inside("podAffinityTerm")))

    def _preferred_nodes(self) -> Iterator[PreferredNodes]:
        for term in self._nodes.items(_PREFERRED):
            weight, wanted = self._weight(term), term.read("preference", objects.NodeSelectorTerm)
            requirements = wanted and node_term(wanted, subject=self._subject, field=term.where("preference"))
            # A term without expressions selects no node.
            if requirements:
                yield PreferredNodes(weight, requirements)

    def _spread(self, constraint: Fields) -> SpreadConstraint:
        most_skew, least_domains = constraint.read("maxSkew", int) or 0, constraint.read("minDomains", int)
        for name, count in (("maxSkew", most_skew), ("minDomains", least_domains)):
            if count is not None and not 1 <= count <= _MOST_COUNT:
                raise constraint.error(name, f"not from 1 to {_MOST_COUNT}")
        labels = self._merged(selector(constraint, "labelSelector"), constraint.texts("matchLabelKeys"), "In")
        return SpreadConstraint(
            max_skew=most_skew,
            topology_key=self._key(constraint),
            selector=PodSelector((self._namespace,), labels=labels, living=True),
            required=self._one_of(constraint, "whenUnsatisfiable", "DoNotSchedule", "ScheduleAnyway"),
            min_domains=least_domains or 1,
            honor_affinity=self._one_of(constraint, "nodeAffinityPolicy", "Honor", "Ignore", default="Honor"),
            honor_taints=self._one_of(constraint, "nodeTaintsPolicy", "Honor", "Ignore", default="Ignore"),
        )

    def _host_ports(self) -> Iterator[HostPort]:
        """Yield the ports of the node that the running pod takes; ordinary init containers' are not among them."""
        spec = self._spec
        sidecars = (
            (f"spec.initContainers[{index}]", container)
            for index, container in enumerate(spec.init_containers or ())
            if container.restart_policy == "Always"
        )
        others = ((f"spec.containers[{index}]", container) for index, container in enumerate(spec.containers or ()))
        for where, container in (*sidecars, *others):
            yield from self._ports(container, where)

    def _ports(self, container: objects.ContainerSpec, where: str) -> Iterator[HostPort]:
        for index, port in enumerate(container.ports or ()):
            if not port.host_port:
                continue
            if not 0 < port.host_port <= _MAX_PORT:
                raise InvalidObject(self._subject, f"{where}.ports[{index}].hostPort", port.host_port, "not a port")
            # An absent hostIP is every address.
            yield HostPort(port.host_port, port.protocol or "TCP", port.host_ip or HostPort(port.host_port).ip)

    def _term(self, term: Fields) -> PodTerm:
        labels = self._merged(selector(term, "labelSelector"), term.texts("matchLabelKeys"), "In")
        labels = self._merged(labels, term.texts("mismatchLabelKeys"), "NotIn")
        namespace_labels = selector(term, "namespaceSelector")
        names = tuple(sorted(set(term.texts("namespaces"))))
        if not names and namespace_labels is None:
            names = (self._namespace,)
        return PodTerm(self._key(term), PodSelector(names, namespace_labels, labels))

    def _merged(
        self, labels: tuple[Requirement, ...] | None, keys: list[str], operator: str
    ) -> tuple[Requirement, ...] | None:
        if labels is None:
            return None
        there = {requirement.key for requirement in labels if requirement.operator == operator}
        return sorted_requirements(
            (
                *labels,
                *(
                    Requirement(key, operator, (self._labels[key],))
                    for key in keys
                    if key in self._labels and key not in there
                ),
            )
        )

    @staticmethod
    def _key(given: Fields) -> str:
        if not (key := given.text("topologyKey")):
            raise given.error("topologyKey", "is empty")
        return key

    @staticmethod
    def _weight(term: Fields) -> int:
        weight = term.read("weight", int) or 0
        if not 1 <= weight <= _MAX_WEIGHT:
            raise term.error("weight", "not from 1 to 100")
        return weight

    @staticmethod
    def _one_of(given: Fields, name: str, true: str, false: str, *, default: str = "") -> bool:
        value = given.text(name) or default
        if value not in (true, false):
            raise given.error(name, f"neither {true} nor {false}")
        return value == true


#: Annotations that are kept: those of kai-ledger and of the workload APIs that say how pods belong together, and by
#: which uid the kubelet knows a static pod.
ANNOTATION_PREFIXES = (
    "gang.",
    "gpu-",
    "grove.io/",
    "kai.scheduler/",
    MIRROR_ANNOTATION,
    "kueue.x-k8s.io/",
    "network-topology",
    "pod-group",
    "run.ai/",
    "runai/",
    "scheduling.",
    "topology.",
    *(prefix for dialect in DIALECTS for prefix in dialect.annotations),
)

#: Of those, what comes from the log and is not read: it stands with the decision.
OWN_ANNOTATIONS = frozenset({PREDICTED_ANNOTATION, MEMORY_GROUPS_PREDICTED, DOMAINS_ANNOTATION})

#: Annotations that stand in no pod: those, and what a field of its own has.
_NOT_KEPT = OWN_ANNOTATIONS | {LAST_CHECKPOINT_ANNOTATION}

#: So many of a pod's malformed fields are shown.
_MOST_SAID = 3

_QOS_CLASSES = {str(qos): qos for qos in QosClass}
_TOLERATION_OPERATORS = ("Equal", "Exists")


class Constraints(NamedTuple):
    """A pod's required and preferred nodes, by their labels and by the pods near them."""

    node_affinity: tuple[tuple[Requirement, ...], ...] = ()
    rules: PodRules | None = None


def read_constraints(wire: objects.PodObject) -> Constraints:
    """Return a pod's constraints. Raises InvalidObject: one of them makes no sense."""
    if not (wire.spec.affinity or wire.spec.topology_spread_constraints) and not _ports_at_all(wire):
        return Constraints()
    reader = _Reader(wire)
    return Constraints(reader.required_nodes(), reader.rules())


def normalize_pod(wire: objects.PodObject, lost: Lost = unheard) -> Pod:  # long: one line for each field of the model
    """Reduce a Pod to what scheduling needs.

    An amount that is none makes the pod malformed, and it waits; where it runs already it counts as all else that it
    requests. One that is too large to be believed counts as the most that is.
    """
    metadata, spec, status = wire.metadata, wire.spec, wire.status
    subject = named_subject("Pod", wire)
    annotations = metadata.annotations or {}
    constraints, share = Constraints(), None
    malformed: list[InvalidObject] = []
    try:
        constraints = read_constraints(wire)
        share = gpu_share(annotations, spec, subject=subject)
    except InvalidObject as error:
        malformed.append(error)

    def misread(error: InvalidObject) -> None:
        (lost if isinstance(error, AbsurdQuantity) else malformed.append)(error)

    containers = tuple(_containers(spec, subject=subject, lost=misread))
    pod_resources = None
    if spec.resources is not None and (spec.resources.requests or spec.resources.limits):
        pod_resources, pod_limits = _resources(spec.resources, subject=subject, field="spec.resources", lost=misread)
        qos = _qos_class([(pod_resources, pod_limits)])
    else:
        qos = _qos_class([(container.requests, container.limits) for container in containers])
    if spec.node_name:
        containers, pod_resources = resized(containers, pod_resources, status, subject, lost)
    overhead = amounts(spec.overhead, subject=subject, field="spec.overhead", lost=misread)
    return Pod(
        **namespaced_identity(metadata),
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
            if name.startswith(ANNOTATION_PREFIXES) and name not in _NOT_KEPT
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
        # The kubelet writes it long before the phase: reported with the phase, it costs no fact of its own.
        start_time=0 if status.phase in (None, "", "Pending") else seconds(status.start_time) or 0,
        active_deadline_s=max(spec.active_deadline_seconds or 0, 0),
        checkpoint_at=_checkpoint_at(annotations, subject=subject, lost=lost),
        gpu_share=share,
        unready=_unready(wire),
    )


def _unready(wire: objects.PodObject) -> bool:
    """Tell whether a pod runs on and is not ready; as it ends none is, which costs no fact of its own."""
    if wire.status.phase != "Running" or wire.metadata.deletion_timestamp is not None:
        return False
    return any(one.type == "Ready" and one.status != "True" for one in wire.status.conditions or ())


def _checkpoint_at(annotations: Mapping[str, str], *, subject: str, lost: Lost) -> int:
    text = annotations.get(LAST_CHECKPOINT_ANNOTATION)
    if not text:
        return 0
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        field = f"metadata.annotations[{LAST_CHECKPOINT_ANNOTATION}]"
        lost(InvalidObject(subject, field, text, "no time as RFC 3339 has it"))
        return 0
    return max(int(time.timestamp()), 0)


def _containers(spec: objects.PodSpec, *, subject: str, lost: Lost) -> Iterator[Container]:
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


def _resources(
    resources: objects.ResourceRequirements, *, subject: str, field: str, lost: Lost
) -> tuple[Amounts, Amounts]:
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


def normalize_toleration(toleration: objects.PodToleration) -> Toleration:
    """Reduce a toleration."""
    return Toleration(
        key=toleration.key or "",
        operator=toleration.operator or "Equal",
        value=toleration.value or "",
        effect=toleration.effect or "",
    )


def _workload(spec: objects.PodSpec) -> WorkloadRef | None:
    if spec.scheduling_group is not None and spec.scheduling_group.pod_group_name:
        return WorkloadRef(spec.scheduling_group.pod_group_name)
    reference = spec.workload_ref
    if reference is None:
        return None
    return WorkloadRef(reference.pod_group, reference.name, reference.pod_group_replica_key or "")


def _resource_claims(wire: objects.PodObject) -> Iterator[PodClaim]:
    """Yield the ResourceClaims that a pod uses, in its order; those from templates as far as they are made."""
    made = {status.name: status.resource_claim_name for status in wire.status.resource_claim_statuses or ()}
    for reference in wire.spec.resource_claims or ():
        if reference.resource_claim_name:
            yield PodClaim(reference.name, reference.resource_claim_name)
            continue
        template = reference.resource_claim_template_name or ""
        claim = made.get(reference.name)
        yield PodClaim(reference.name, claim or "", template, needless=reference.name in made and not claim)


def _unsupported(wire: objects.PodObject, constraints: Constraints) -> Iterator[str]:
    for term in constraints.node_affinity:
        for requirement in term:
            if requirement.field and requirement.key != "metadata.name":
                yield f"node affinity by field {requirement.key}"
    yield from virtual_gpus(wire.spec)
    yield from annotated_mig(wire.metadata.annotations or {})
