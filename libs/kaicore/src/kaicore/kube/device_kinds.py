"""The kinds of dynamic resource allocation: their API paths, and their conversion into facts."""

from typing import Any

from kaicore.kube.device_objects import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, TAINT_RULES
from kaicore.kube.kind import Kind
from kaicore.kube.normalize_device import normalize_device_class, normalize_slice, normalize_taint_rule
from kaicore.kube.normalize_resource_claim import normalize_resource_claim
from kaicore.rules.events import payloads

DEVICE_CLASS = Kind(
    DEVICE_CLASSES,
    normalize_device_class,
    payloads.DeviceClassObserved,
    payloads.DeviceClassDeleted,
    "deviceclass/{name}",
)
RESOURCE_SLICE = Kind(
    RESOURCE_SLICES,
    normalize_slice,
    payloads.ResourceSliceObserved,
    payloads.ResourceSliceDeleted,
    "resourceslice/{name}",
)
DEVICE_TAINT_RULE = Kind(
    TAINT_RULES,
    normalize_taint_rule,
    payloads.DeviceTaintRuleObserved,
    payloads.DeviceTaintRuleDeleted,
    "devicetaintrule/{name}",
)
RESOURCE_CLAIM = Kind(
    RESOURCE_CLAIMS,
    normalize_resource_claim,
    payloads.ResourceClaimObserved,
    payloads.ResourceClaimDeleted,
    "resourceclaim/{namespace}/{name}",
)

#: Every kind of dynamic resource allocation that decides where pods may go.
DEVICE_KINDS: tuple[Kind[Any], ...] = (DEVICE_CLASS, DEVICE_TAINT_RULE, RESOURCE_SLICE, RESOURCE_CLAIM)
