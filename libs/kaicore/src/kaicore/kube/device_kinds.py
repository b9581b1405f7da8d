"""The kinds of dynamic resource allocation: where they are served, and how each becomes a fact."""

from typing import Any

from kaicore.kube.device_objects import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from kaicore.kube.kind import Kind
from kaicore.kube.normalize_device import normalize_device_class, normalize_resource_claim, normalize_slice
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
RESOURCE_CLAIM = Kind(
    RESOURCE_CLAIMS,
    normalize_resource_claim,
    payloads.ResourceClaimObserved,
    payloads.ResourceClaimDeleted,
    "resourceclaim/{namespace}/{name}",
)

#: Every kind of dynamic resource allocation that decides where pods may go.
DEVICE_KINDS: tuple[Kind[Any], ...] = (DEVICE_CLASS, RESOURCE_SLICE, RESOURCE_CLAIM)
