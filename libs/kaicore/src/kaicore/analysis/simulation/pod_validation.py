"""Validation of a pod's spec and status, in a pod or in a template, as an API server does it.

Source: the parts of `pkg/apis/core/validation` of Kubernetes 1.36 that concern scheduling. Fields that a manifest may
leave out here (images, for example) are not required. Constraints on nodes and other pods are checked where they are
read (`kaicore.kube.normalize_rules`). The functions take objects with fields of verified types.
"""

from collections.abc import Iterable, Iterator, Mapping

from kaicore.analysis.simulation.names import is_dns_label, is_dns_name, is_label_value, is_qualified_name
from kaicore.errors import InvalidQuantity
from kaicore.kube.workloads import Object
from kaicore.rules.model.quantity import CPU, EPHEMERAL_STORAGE, MEMORY, is_hugepages, is_native, is_whole, read_amount

#: A field, its value, and what is wrong with it.
Problem = tuple[str, object, str]

_CHOICES = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
    "preemptionPolicy": ("PreemptLowerPriority", "Never"),
}
_CONTAINER_CHOICES = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
}
_STATUS_CHOICES = {
    "phase": ("Pending", "Running", "Succeeded", "Failed", "Unknown"),
    "qosClass": ("Guaranteed", "Burstable", "BestEffort"),
}
_PROTOCOLS = ("TCP", "UDP", "SCTP")
#: Comparisons with a taint's value are asked for by a gate of 1.35; they permit nothing here.
_OPERATORS = ("Equal", "Exists", "Gt", "Lt")
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_STANDARD = (CPU, MEMORY, EPHEMERAL_STORAGE)
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_MAX_PORT = 65535


def choices(wire: Object, field: str, named: Mapping[str, tuple[str, ...]]) -> Iterator[Problem]:
    """Yield the fields that say none of what they may say."""
    for name, allowed in named.items():
        value = wire.get(name)
        if value is not None and value not in allowed:
            yield f"{field}.{name}".removeprefix("."), value, f"is none of {', '.join(allowed)}"


def int32_problems(wire: Object, name: str, *, field: str) -> Iterator[Problem]:
    """Yield a number that does not have 32 bits."""
    value = wire.get(name)
    if isinstance(value, int) and not -(2**31) <= value < 2**31:
        yield field, value, "is no 32-bit integer"


def pod_problems(pod: Object) -> Iterator[Problem]:
    """Yield what is wrong with a pod's spec and status."""
    spec = pod.get("spec")
    if spec is None:
        yield "spec", None, "is missing"
        return
    yield from choices(spec, "spec", _CHOICES)
    yield from int32_problems(spec, "priority", field="spec.priority")
    yield from choices(pod.get("status") or {}, "status", _STATUS_CHOICES)
    yield from _containers(spec)
    yield from _resources(spec.get("resources") or {}, "spec.resources")
    yield from amount_problems(spec.get("overhead"), "spec.overhead")
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    if required is not None and not required.get("nodeSelectorTerms"):
        where = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
        yield where, required.get("nodeSelectorTerms"), "needs a term"
    for name in ("affinity", "topologySpreadConstraints"):
        yield from _label_keys(spec.get(name), f"spec.{name}")
    for key, value in (spec.get("nodeSelector") or {}).items():
        yield from label_problems(key, value, "spec.nodeSelector")
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        yield from _toleration(toleration, f"spec.tolerations[{index}]")
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        name = gate.get("name")
        if not name or not is_qualified_name(name):
            yield f"spec.schedulingGates[{index}].name", name, "not a qualified name"
    if spec.get("nodeName") and not is_dns_name(spec["nodeName"]):
        yield "spec.nodeName", spec["nodeName"], "not the name of a node"


def _label_keys(part: object, field: str) -> Iterator[Problem]:
    """Yield what is wrong with the labels that constraints name, wherever they do."""
    if isinstance(part, list):
        for index, item in enumerate(part):
            yield from _label_keys(item, f"{field}[{index}]")
    elif isinstance(part, dict):
        for name, value in part.items():
            if name == "matchLabels":
                for key, wanted in (value or {}).items():
                    yield from label_problems(key, wanted, f"{field}.{name}")
            elif name in ("key", "topologyKey") and isinstance(value, str) and not is_qualified_name(value):
                yield f"{field}.{name}", value, "not a label's key"
            else:
                yield from _label_keys(value, f"{field}.{name}")


def label_problems(key: str, value: object, field: str) -> Iterator[Problem]:
    """Yield what is wrong with a label, or with what is asked of one."""
    if not is_qualified_name(key):
        yield field, key, "not a label's key"
    if isinstance(value, str) and not is_label_value(value):
        yield f"{field}[{key}]", value, "not a label's value"


def amount_problems(amounts: Object | None, field: str) -> Iterator[Problem]:
    """Yield resources without a proper name, amounts that are none, and parts of what is counted in whole pieces."""
    for name, given in (amounts or {}).items():
        amount = str(given)
        try:
            read_amount(amount, resource=name, subject="", field="")
        except InvalidQuantity as error:
            yield f"{field}[{name}]", error.value, error.problem
        if not is_qualified_name(name):
            yield field, name, "not the name of a resource"
        elif not is_native(name) and not is_whole(amount):
            yield f"{field}[{name}]", amount, "must be a whole number"


def _containers(spec: Object) -> Iterator[Problem]:
    names: set[str] = set()
    if not spec.get("containers"):
        yield "spec.containers", spec.get("containers"), "a pod needs a container"
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            field = f"spec.{group}[{index}]"
            name = container.get("name")
            if not name or not is_dns_label(name):
                yield f"{field}.name", name, "a container's name must be a DNS label"
                continue
            if name in names:
                yield f"{field}.name", name, "is the name of another container"
            names.add(name)
            yield from choices(container, field, _CONTAINER_CHOICES)
            yield from _resources(container.get("resources") or {}, f"{field}.resources")
            yield from _ports(container.get("ports") or (), f"{field}.ports")


def _ports(ports: Iterable[Object], field: str) -> Iterator[Problem]:
    for index, port in enumerate(ports):
        where = f"{field}[{index}]"
        yield from choices(port, where, {"protocol": _PROTOCOLS})
        number = port.get("containerPort")
        if number is not None and not 0 < number <= _MAX_PORT:
            yield f"{where}.containerPort", number, "not a port"


def _resources(resources: Object, field: str) -> Iterator[Problem]:
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for kind, amounts in (("requests", requests), ("limits", limits)):
        yield from amount_problems(amounts, f"{field}.{kind}")
        for name in amounts:
            if "/" not in name and name not in _STANDARD and not is_hugepages(name):
                yield f"{field}.{kind}", name, "not a resource of containers; others have a domain before their name"
    for name, request in requests.items():
        where = f"{field}.requests[{name}]"
        limit = limits.get(name)
        # Of what cannot be promised twice there is no more to be had than was asked for.
        fixed = is_hugepages(name) or not is_native(name)
        if limit is None:
            continue
        try:
            wanted, most = (read_amount(str(one), resource=name, subject="", field="")[0] for one in (request, limit))
        except InvalidQuantity:
            # Named above; what else is wrong with the pod is still to be told.
            continue
        if wanted > most:
            yield where, request, f"is more than the limit of {limit}"
        elif fixed and wanted < most:
            yield where, request, f"must be as much as the limit of {limit}"


def missing_limits(pod: Object) -> Iterator[str]:
    """Yield the requests that an API server would want a limit beside, of as much: what is meant is clear without."""
    spec = pod.get("spec") or {}
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            resources = container.get("resources") or {}
            limits = resources.get("limits") or {}
            for name in resources.get("requests") or ():
                if name not in limits and (is_hugepages(name) or not is_native(name)):
                    yield f"spec.{group}[{index}].resources.requests[{name}]"


def _toleration(toleration: Object, field: str) -> Iterator[Problem]:
    key, operator = toleration.get("key"), toleration.get("operator") or "Equal"
    if operator not in _OPERATORS:
        yield f"{field}.operator", operator, f"is none of {', '.join(_OPERATORS)}"
    elif not key and operator != "Exists":
        yield f"{field}.operator", operator, "must be Exists where there is no key"
    elif operator == "Exists" and toleration.get("value"):
        yield f"{field}.value", toleration["value"], "must be empty where the operator is Exists"
    if key and not is_qualified_name(key):
        yield f"{field}.key", key, "not a taint's key"
    effect = toleration.get("effect")
    if effect and effect not in TAINT_EFFECTS:
        yield f"{field}.effect", effect, f"is none of {', '.join(TAINT_EFFECTS)}"
    elif toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        yield f"{field}.effect", effect, "must be NoExecute where there are tolerationSeconds"
