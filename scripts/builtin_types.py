"""Write down the fields of the built-in Kubernetes types, for all who check objects.

The source is the models of the installed `kubernetes_asyncio`, which are generated from Kubernetes' OpenAPI document.
Those take seconds to import and drop a few distinctions (quantities, micro-times), so programs read this digest
instead. Run it again after raising the version of `kubernetes_asyncio`: `.venv/bin/python scripts/builtin_types.py`.
"""

import inspect
import json
import re
from pathlib import Path
from typing import Any

from kubernetes_asyncio.client import models

TARGET = Path(__file__).parent.parent / "libs/kaicore/src/kaicore/kube/wire/builtin_types.json"

ROOTS = [
    "AuthenticationV1TokenRequest", "CoreV1Event", "EventsV1Event", "ResourceV1ResourceClaim", "V1Binding",
    "V1ClusterRole", "V1ClusterRoleBinding", "V1ConfigMap", "V1ControllerRevision", "V1CronJob", "V1CSIDriver",
    "V1CSINode", "V1CSIStorageCapacity", "V1CustomResourceDefinition", "V1DaemonSet", "V1DeleteOptions", "V1Deployment",
    "V1DeviceClass", "V1EndpointSlice", "V1Endpoints", "V1Eviction", "V1Ingress", "V1IngressClass", "V1Job", "V1Lease",
    "V1LimitRange", "V1LocalSubjectAccessReview", "V1Namespace", "V1NetworkPolicy", "V1Node", "V1PersistentVolume",
    "V1PersistentVolumeClaim", "V1Pod", "V1PodDisruptionBudget", "V1PodTemplate", "V1PriorityClass", "V1ReplicaSet",
    "V1ReplicationController", "V1ResourceClaimTemplate", "V1ResourceQuota", "V1ResourceSlice", "V1Role",
    "V1RoleBinding", "V1RuntimeClass", "V1Scale", "V1Secret", "V1SelfSubjectAccessReview", "V1SelfSubjectReview",
    "V1SelfSubjectRulesReview", "V1Service", "V1ServiceAccount", "V1StatefulSet", "V1StorageClass",
    "V1SubjectAccessReview", "V1TokenReview", "V1VolumeAttachment", "V1MutatingWebhookConfiguration",
    "V1ValidatingWebhookConfiguration",
    "V1beta2DeviceTaintRule", "V2HorizontalPodAutoscaler",
]  # fmt: skip

# What the models call `str` or `datetime` although the wire format is narrower.
QUANTITIES = {
    "V1CSIStorageCapacity.capacity", "V1CSIStorageCapacity.maximumVolumeSize",
    "V1ContainerStatus.allocatedResources", "V1EmptyDirVolumeSource.sizeLimit", "V1LimitRangeItem.default",
    "V1LimitRangeItem.defaultRequest", "V1LimitRangeItem.max", "V1LimitRangeItem.maxLimitRequestRatio",
    "V1LimitRangeItem.min", "V1NodeStatus.allocatable", "V1NodeStatus.capacity",
    "V1PersistentVolumeClaimStatus.allocatedResources", "V1PersistentVolumeClaimStatus.capacity",
    "V1PersistentVolumeSpec.capacity", "V1PodSpec.overhead", "V1Overhead.podFixed", "V1ResourceFieldSelector.divisor",
    "V1ResourceQuotaSpec.hard", "V1ResourceQuotaStatus.hard", "V1ResourceQuotaStatus.used",
    "V1ResourceRequirements.limits", "V1ResourceRequirements.requests", "V1VolumeResourceRequirements.limits",
    "V1VolumeResourceRequirements.requests", "V1DeviceCapacity.value", "V1PodStatus.allocatedResources",
    "V1CounterV1.value", "V1Counter.value",
}  # fmt: skip
MICRO_TIMES = {
    "CoreV1Event.eventTime", "CoreV1EventSeries.lastObservedTime", "EventsV1Event.eventTime",
    "EventsV1EventSeries.lastObservedTime", "V1LeaseSpec.acquireTime", "V1LeaseSpec.renewTime",
}  # fmt: skip
SCALARS = {"str": "string", "int": "integer", "bool": "boolean", "float": "number", "object": "any", "datetime": "time"}
CONTAINER = re.compile(r"^(list|dict)[\[(](?:str, )?(.+)[\])]$")
REQUIRED = re.compile(r"Invalid value for `(\w+)`, must not be `None`")


def notation(text: str, references: set[str]) -> str:
    """`list[V1Pod]` as `[]V1Pod`, `dict(str, str)` as `{}string`."""
    match = CONTAINER.match(text)
    if match:
        return ("[]" if match[1] == "list" else "{}") + notation(match[2], references)
    if text in SCALARS:
        return SCALARS[text]
    references.add(text)
    return text


def describe(name: str, references: set[str]) -> dict[str, Any]:
    model = getattr(models, name)
    # Each model has a file of its own.
    required = set(REQUIRED.findall(Path(inspect.getfile(model)).read_text()))
    fields = {}
    for attribute, wire in model.attribute_map.items():
        kind = notation(model.openapi_types[attribute], references)
        path = f"{name}.{wire}"
        if path in QUANTITIES:
            kind = kind.replace("string", "quantity")
        elif path in MICRO_TIMES:
            kind = "microtime"
        fields[wire] = kind
    order = [key for key in ("apiVersion", "kind", "metadata") if key in fields]
    order += [key for key in fields if key not in order]
    described: dict[str, Any] = {"fields": {key: fields[key] for key in order}}
    if required:
        described["required"] = [
            key for key in order if {v: k for k, v in model.attribute_map.items()}[key] in required
        ]
    return described


def digest() -> str:
    """The digest of the installed client library; fails on a root that it does not have."""
    todo: set[str] = set(ROOTS)
    types: dict[str, Any] = {}
    while todo:
        name = todo.pop()
        references: set[str] = set()
        types[name] = describe(name, references)
        todo |= references - types.keys()
    lines = [f'"{name}":{json.dumps(types[name], separators=(",", ":"))}' for name in sorted(types)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    TARGET.write_text(digest())
