"""From a pod as the API server sends it to the pod that the kubelet model decides on.

Node selectors and required node affinity, as the kubelet's general predicate matches them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from kaicore.errors import InvalidObject
from kaicore.kube.wire.objects import (
    ContainerPort,
    NodeSelector,
    NodeSelectorTerm,
    PodClaimReference,
    Quantities,
    ResourceRequirements,
)
from kaicore.kube.wire.resources import Resource
from kaicore.rules.objects.mappings import Fields
from kaicore.rules.objects.wire import KubernetesObject, ObjectMeta, SelectorRequirement, Wire

from kai_fleet.kubelet.pod import Amounts, Container, Kind, Pod
from kai_fleet.kubelet.quantity import parse_amount


class PodMeta(ObjectMeta):
    """`metadata` of a pod."""

    deletion_grace_period_seconds: int | None = None
    finalizers: list[str] | None = None


class ContainerSpec(Wire):
    """A container, or an init container."""

    name: str = ""
    image: str = ""
    command: list[str] | None = None
    resources: ResourceRequirements | None = None
    restart_policy: str | None = None
    ports: list[ContainerPort] | None = None


class PodSpec(Wire):
    """`spec` of a pod."""

    containers: list[ContainerSpec] = msgspec.field(default_factory=list)
    node_name: str = ""
    init_containers: list[ContainerSpec] | None = None
    restart_policy: str = "Always"
    overhead: Quantities | None = None
    resources: ResourceRequirements | None = None
    node_selector: dict[str, str] | None = None
    affinity: dict[str, Any] | None = None
    resource_claims: list[PodClaimReference] | None = None


class PodStatus(Wire):
    """`status` of a pod."""

    phase: str = "Pending"
    resource_claim_statuses: list[PodClaimReference] | None = None
    extended_resource_claim_status: PodClaimReference | None = None


class PodObject(KubernetesObject):
    """A pod."""

    metadata: PodMeta
    spec: PodSpec
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    def __str__(self) -> str:
        return f"pod {self.metadata.namespace}/{self.metadata.name}"


class NodeInfo(Wire):
    """`status.nodeInfo` of a node; without a version no kubelet ever reported it."""

    kubelet_version: str = ""


class NodeCondition(Wire):
    """A condition of a node."""

    type: str = ""
    status: str = ""


class NodeStatus(Wire):
    """`status` of a node."""

    node_info: NodeInfo = msgspec.field(default_factory=NodeInfo)
    conditions: list[NodeCondition] | None = None


class NodeObject(KubernetesObject):
    """A node; the fleet knows the rest better."""

    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


#: Pods of all namespaces that are bound to a node.
BOUND_PODS = Resource("Pod", "/api/v1/pods?fieldSelector=spec.nodeName!%3D", PodObject)
NODES = Resource("Node", "/api/v1/nodes", NodeObject)


Labels = Mapping[str, str]


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Tell whether a toleration of a manifest is about a taint, as Kubernetes compares them."""
    if any(toleration.get(name) not in (None, "", taint.get(name)) for name in ("effect", "key")):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")


_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})


def node_matcher(pod: PodObject) -> Callable[[Labels], bool] | None:
    """Return a predicate over a node's labels (the node's name under `metadata.name`), or None when any node will do.

    Raises InvalidObject: an operator is unknown.
    """
    affinity = Fields(str(pod), pod.spec.affinity or {}, "spec.affinity").inside("nodeAffinity")
    required = affinity.read("requiredDuringSchedulingIgnoredDuringExecution", NodeSelector)
    wanted = pod.spec.node_selector
    if not wanted and not required:
        return None
    terms = (required.node_selector_terms or []) if required else []
    for term in terms:
        for requirement in (*(term.match_expressions or ()), *(term.match_fields or ())):
            if requirement.operator not in _OPERATORS:
                raise InvalidObject(str(pod), "spec.affinity.nodeAffinity", requirement.operator, "unknown operator")

    def matches(labels: Labels) -> bool:
        if any(labels.get(key) != value for key, value in (wanted or {}).items()):
            return False
        return not required or any(_term_holds(term, labels) for term in terms)

    return matches


def _term_holds(term: NodeSelectorTerm, labels: Labels) -> bool:
    requirements = [*(term.match_expressions or ()), *(term.match_fields or ())]
    return bool(requirements) and all(_holds(requirement, labels) for requirement in requirements)


def _holds(requirement: SelectorRequirement, labels: Labels) -> bool:
    value = labels.get(requirement.key)
    values = requirement.values or []
    match requirement.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case operator:
            try:
                number, bound = int(value or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return number > bound if operator == "Gt" else number < bound


_NONE = ResourceRequirements()


def convert_pod(pod: PodObject) -> Pod:
    """Convert a pod. Raises InvalidObject: naming the pod, the field and the value."""
    spec, meta = pod.spec, pod.metadata
    subject = str(pod)
    init = spec.init_containers or []
    containers = [
        *(_container(c, subject, f"spec.initContainers[{i}]", "init") for i, c in enumerate(init)),
        *(_container(c, subject, f"spec.containers[{i}]", "app") for i, c in enumerate(spec.containers)),
    ]
    names = {container.name for container in containers}
    if not spec.containers:
        raise InvalidObject(subject, "spec.containers", [], "a pod needs a container")
    if len(names) < len(containers):
        raise InvalidObject(
            subject, "spec.containers", [c.name for c in containers], "a container's name appears twice"
        )
    level = spec.resources or _NONE
    return Pod(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        containers=tuple(containers),
        overhead=_amounts(spec.overhead, subject, "spec.overhead"),
        pod_requests=_requests(level, subject, "spec.resources"),
        pod_limits=_amounts(level.limits, subject, "spec.resources.limits"),
        node_affinity=node_matcher(pod),
        host_ports=frozenset(
            (port.host_ip or "", port.protocol or "TCP", port.host_port)
            for container in (*init, *spec.containers)
            for port in container.ports or ()
            if port.host_port
        ),
    )


def _container(container: ContainerSpec, subject: str, field: str, kind: Kind) -> Container:
    if kind == "init" and container.restart_policy == "Always":
        kind = "sidecar"
    resources = container.resources or _NONE
    return Container(
        name=container.name,
        kind=kind,
        requests=_requests(resources, subject, f"{field}.resources"),
        limits=_amounts(resources.limits, subject, f"{field}.resources.limits"),
    )


def _requests(resources: ResourceRequirements, subject: str, field: str) -> Amounts:
    """A limit without a request is a request too, as the API server defaults it."""
    requests, limits = resources.requests, resources.limits
    if not limits or (requests and limits.keys() <= requests.keys()):
        return _amounts(requests, subject, f"{field}.requests")
    return _amounts({**limits, **(requests or {})}, subject, f"{field}.requests")


def _amounts(quantities: Quantities | None, subject: str, field: str) -> dict[str, int]:
    if not quantities:
        return {}
    return {
        resource: parse_amount(resource, quantity, subject=subject, field=f"{field}[{resource}]")
        for resource, quantity in quantities.items()
    }
