"""Validation of objects as an API server does it, and detection of unknown fields.

Sources: the parts of `pkg/apis/{core,apps,batch,scheduling,storage}/validation` of Kubernetes 1.36 that concern
scheduling, and `apimachinery/pkg/util/validation` for names, labels and keys.

Of a pod, alone or in a template, fields that a manifest may leave out here (images, for example) are not required.
Constraints on nodes and other pods are checked where they are read (`kaicore.kube.normalize.pod`). The functions take
objects with fields of verified types.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from kaicore.errors import InvalidObject, InvalidQuantity
from kaicore.kube.normalize.fields import label_requirements
from kaicore.kube.normalize.pod import read_constraints
from kaicore.kube.wire.builtin_fields import check_fields, type_of
from kaicore.kube.wire.resources import PODS
from kaicore.rules.model.quantity import CPU, EPHEMERAL_STORAGE, MEMORY, is_hugepages, is_native, is_whole, read_amount
from kaicore.rules.model.selector import meets
from kaicore.rules.objects.mappings import Object, group_of
from kaicore.rules.objects.wire import LabelSelector

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_QUALIFIED = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LONGEST_LABEL = 63
_LONGEST_NAME = 253


def is_dns_label(text: str) -> bool:
    """True if containers and namespaces may have this name (RFC 1123 label)."""
    return len(text) <= _LONGEST_LABEL and _DNS_LABEL.fullmatch(text) is not None


def is_dns_name(text: str) -> bool:
    """True if objects may have this name (RFC 1123 subdomain)."""
    return len(text) <= _LONGEST_NAME and _DNS_NAME.fullmatch(text) is not None


def is_qualified_name(text: str) -> bool:
    """True if labels, annotations, taints and resources may have this name: a name, perhaps after a domain."""
    domain, slash, name = text.rpartition("/")
    if slash and not is_dns_name(domain):
        return False
    return len(name) <= _LONGEST_LABEL and _QUALIFIED.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    """True if labels may have this value."""
    return not text or (len(text) <= _LONGEST_LABEL and _QUALIFIED.fullmatch(text) is not None)


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
        # Resources that cannot be promised twice have equal requests and limits.
        fixed = is_hugepages(name) or not is_native(name)
        if limit is None:
            continue
        try:
            wanted, most = (read_amount(str(one), resource=name, subject="", field="")[0] for one in (request, limit))
        except InvalidQuantity:
            # Named above; the pod's other problems are still to be reported.
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


#: Built-in owners with what the restart policy of their pods may be: their template is at `spec.template`.
_OWNERS = {
    "DaemonSet": ("Always",),
    "Deployment": ("Always",),
    "Job": ("OnFailure", "Never"),
    "ReplicaSet": ("Always",),
    "ReplicationController": ("Always",),
    "StatefulSet": ("Always",),
}
_POLICIES = {"preemptionPolicy": ("PreemptLowerPriority", "Never")}
_BINDING_MODES = {"volumeBindingMode": ("Immediate", "WaitForFirstConsumer")}
_NO_LIMIT = "an API server asks for a limit of as much; taken as if it were there"
_INDEX = re.compile(r"\[\d+\]")
_encoder = msgspec.json.Encoder()
_TRUTHS = {"status": ("True", "False", "Unknown")}


def is_built_in(wire: Object) -> bool:
    """True if an object's type is known field by field."""
    return type_of(group_of(wire["apiVersion"]), wire["kind"]) is not None


class Validation(NamedTuple):
    """The problems of an object.

    Attributes:
        odd: paths of fields that cannot be meant as they are, though the meaning is known, and what is odd:
            fields that its type does not have, and devices without a limit.
        faults: all that an API server would not take.
    """

    odd: list[tuple[str, str]]
    faults: list[InvalidObject]


def validate(wire: Object, *, subject: str) -> Validation:
    """Tell what is wrong with an object (`wire`: the object, with name and namespace)."""
    type_name = type_of(group_of(wire["apiVersion"]), wire["kind"])
    unknown: list[tuple[str, str]] = []
    if type_name is not None:
        version = wire["apiVersion"].rpartition("/")[2]
        if version != "v1":
            problem = f"there is no {wire['kind']} but of v1"
            return Validation([], [InvalidObject(subject, "apiVersion", wire["apiVersion"], problem)])
        unknown, faults = check_fields(wire, type_name, subject=subject)
        if faults:
            # Fields of a wrong type get no further check.
            return Validation([], faults)
    faults = _faults(wire, subject=subject, built_in=type_name is not None)
    if faults:
        return Validation([], faults)
    odd = [(path, f"there is no such field; what it says is not read{better}") for path, better in unknown]
    if type_name is not None:
        prefix, pod = ("", wire) if wire["kind"] == "Pod" else ("spec.template.", _template(wire))
        odd += [(prefix + path, _NO_LIMIT) for path in missing_limits(pod)]
    return Validation(odd, [])


def _faults(wire: Object, *, subject: str, built_in: bool) -> list[InvalidObject]:
    faults: dict[str, InvalidObject] = {}
    try:
        for field, value, problem in _problems(wire, subject=subject, built_in=built_in):
            # One fault is enough for a field.
            faults.setdefault(field, InvalidObject(subject, field, value, problem))
    except InvalidObject as error:
        faults.setdefault(error.field, error)
    return list(faults.values())


class OddFields:
    """Fields that are warned of, once for a kind however many of its objects have them."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], tuple[str, set[str]]] = {}

    def add(self, where: str, subject: str, path: str, odd: str) -> None:
        """Take note of one."""
        line = f"{where}: {subject}: {path}: {odd}"
        self._first.setdefault((subject.partition(" ")[0], _INDEX.sub("[]", path)), (line, set()))[1].add(where)

    def warnings(self) -> list[str]:
        """Say which."""
        return [
            line + (f" (in {len(places)} objects like this)" if len(places) > 1 else "")
            for line, places in self._first.values()
        ]


def _problems(wire: Object, *, subject: str, built_in: bool) -> Iterator[Problem]:
    yield from _metadata(wire)
    if not built_in:
        return
    match wire["kind"]:
        case "Pod":
            yield from pod_problems(wire)
        case "Node":
            yield from _node(wire)
        case "PriorityClass":
            yield from choices(wire, "", _POLICIES)
            yield from int32_problems(wire, "value", field="value")
        case "StorageClass":
            yield from choices(wire, "", _BINDING_MODES)
        case "RuntimeClass":
            yield from amount_problems((wire.get("overhead") or {}).get("podFixed"), "overhead.podFixed")
        case kind if kind in _OWNERS:
            yield from _owner(wire, subject=subject)


def _metadata(wire: Object) -> Iterator[Problem]:
    metadata = wire["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    if not (is_dns_label(name) if wire["kind"] == "Namespace" else is_dns_name(name)):
        yield "metadata.name", name, "not a name: lower case letters, digits, - and . (RFC 1123)"
    if namespace and not is_dns_label(namespace):
        yield "metadata.namespace", namespace, "not the name of a namespace (RFC 1123 label)"
    # The types of other kinds are unknown.
    for key, value in _mapping(metadata.get("labels")).items():
        yield from label_problems(key, value, "metadata.labels")
    for key in _mapping(metadata.get("annotations")):
        if not is_qualified_name(key.lower()):
            yield "metadata.annotations", key, "not an annotation's key"


def _template(owner: Object) -> Object:
    """Return the pod template of a built-in owner; empty for all else."""
    template = (owner.get("spec") or {}).get("template") if owner["kind"] in _OWNERS else None
    return _mapping(template)


def _mapping(value: object) -> Object:
    return value if isinstance(value, dict) else {}


def _node(node: Object) -> Iterator[Problem]:
    status = node.get("status") or {}
    for field in ("allocatable", "capacity"):
        yield from amount_problems(status.get(field), f"status.{field}")
    for index, condition in enumerate(status.get("conditions") or ()):
        yield from choices(condition, f"status.conditions[{index}]", _TRUTHS)
    seen = set()
    for index, taint in enumerate((node.get("spec") or {}).get("taints") or ()):
        field = f"spec.taints[{index}]"
        key, effect = taint.get("key"), taint.get("effect")
        if not key or not is_qualified_name(key):
            yield f"{field}.key", key, "not a taint's key"
        if effect not in TAINT_EFFECTS:
            yield f"{field}.effect", effect, f"is none of {', '.join(TAINT_EFFECTS)}"
        if (key, effect) in seen:
            yield field, taint, "is there twice"
        seen.add((key, effect))


def _owner(owner: Object, *, subject: str) -> Iterator[Problem]:
    spec = owner.get("spec") or {}
    template = spec.get("template") or {}
    policy, policies = (template.get("spec") or {}).get("restartPolicy"), _OWNERS[owner["kind"]]
    if policy is not None and policy not in policies:
        yield "spec.template.spec.restartPolicy", policy, f"pods of a {owner['kind']} have {' or '.join(policies)}"
    if template.get("spec") is not None:
        for field, value, problem in pod_problems(template):
            yield f"spec.template.{field}", value, problem
    labels = (template.get("metadata") or {}).get("labels") or {}
    for key, value in labels.items():
        yield from label_problems(key, value, "spec.template.metadata.labels")
    if template.get("spec") is not None:
        yield from _constraints(template["spec"], labels)
    if owner["kind"] == "Job" or spec.get("selector") is None:
        return
    selector = LabelSelector(match_labels=spec["selector"])
    if owner["kind"] != "ReplicationController":
        selector = msgspec.convert(spec["selector"], LabelSelector)
    requirements = label_requirements(selector, subject=subject, field="spec.selector")
    if not meets(labels, requirements or ()):
        yield "spec.template.metadata.labels", labels, "the owner's selector does not select them"


def _constraints(spec: Object, labels: Object) -> Iterator[Problem]:
    pod = {"metadata": {"name": "any", "labels": labels}, "spec": spec}
    try:
        read_constraints(PODS.decode(_encoder.encode(pod)))
    except InvalidObject as error:
        yield f"spec.template.{error.field}", error.value, error.problem
