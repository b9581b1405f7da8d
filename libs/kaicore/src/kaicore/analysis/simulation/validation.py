"""Validation of objects as an API server does it, and detection of unknown fields.

Source: the parts of `pkg/apis/{core,apps,batch,scheduling,storage}/validation` of Kubernetes 1.36 that concern
scheduling.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from kaicore.analysis.simulation.names import is_dns_label, is_dns_name, is_qualified_name
from kaicore.analysis.simulation.pod_validation import (
    TAINT_EFFECTS,
    Problem,
    amount_problems,
    choices,
    int32_problems,
    label_problems,
    missing_limits,
    pod_problems,
)
from kaicore.errors import InvalidObject
from kaicore.kube.builtin_fields import check_fields, type_of
from kaicore.kube.constraint_objects import LabelSelector
from kaicore.kube.normalize_pod import read_constraints
from kaicore.kube.normalize_selector import label_requirements
from kaicore.kube.resources import PODS
from kaicore.kube.workloads import Object, group_of
from kaicore.rules.model.selector import meets

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
    """Whether an object's type is known field by field."""
    return type_of(group_of(wire["apiVersion"]), wire["kind"]) is not None


class Validation(NamedTuple):
    """What is wrong with an object.

    Attributes:
        odd: paths of fields that cannot be meant as they are, though it can be told what is meant, and what is odd:
            fields that its type does not have, and devices without a limit.
        faults: all that an API server would not take.
    """

    odd: list[tuple[str, str]]
    faults: list[InvalidObject]


def validate(wire: Object, *, subject: str) -> Validation:
    """Tell what is wrong with an object.

    Args:
        wire: the object, with name and namespace.
        subject: the object, for errors.
    """
    type_name = type_of(group_of(wire["apiVersion"]), wire["kind"])
    unknown: list[tuple[str, str]] = []
    if type_name is not None:
        version = wire["apiVersion"].rpartition("/")[2]
        if version != "v1":
            problem = f"there is no {wire['kind']} but of v1"
            return Validation([], [InvalidObject(subject, "apiVersion", wire["apiVersion"], problem)])
        unknown, faults = check_fields(wire, type_name, subject=subject)
        if faults:
            # What else is wrong cannot be told of fields whose types are wrong.
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
        """Take note of one.

        Args:
            where: the object was found.
            subject: the object.
            path: of the field.
            odd: what is odd about it.
        """
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
    # Of kinds that are not built in the types are not known.
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
