"""Facts about devices, and about the claims that pods use them by (dynamic resource allocation)."""

from kaicore.rules.events.payloads.base import Payload
from kaicore.rules.model.device import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice


class ResourceSliceObserved(Payload, frozen=True):
    """The watcher saw a slice of a pool of devices that is new or has changed."""

    resource_slice: ResourceSlice


class ResourceSliceDeleted(Payload, frozen=True):
    """A slice is gone."""

    uid: str
    name: str


class DeviceClassObserved(Payload, frozen=True):
    """The watcher saw a device class that is new or has changed."""

    device_class: DeviceClass


class DeviceClassDeleted(Payload, frozen=True):
    """A device class is gone."""

    uid: str
    name: str


class DeviceTaintRuleObserved(Payload, frozen=True):
    """The watcher saw a rule that gives devices a taint, new or changed."""

    rule: DeviceTaintRule


class DeviceTaintRuleDeleted(Payload, frozen=True):
    """A rule is gone, and with it its taint."""

    uid: str
    name: str


class ResourceClaimObserved(Payload, frozen=True):
    """The watcher saw a resource claim that is new, or was allocated, reserved or released."""

    claim: ResourceClaim


class ResourceClaimDeleted(Payload, frozen=True):
    """A resource claim is gone."""

    uid: str
    namespace: str
    name: str
