"""Devices and the resource claims of pods (dynamic resource allocation): facts, and the allocations of decisions."""

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


class DevicesCharged(Payload, frozen=True):
    """Devices were given that no node's stream guards: any decision about them on an older state is stale.

    That is of a pool that several nodes can use, or of a claim that several pods can use.

    Attributes:
        of: the pool as `driver/name`, or the claim as `namespace/name`; the event's stream tells which.
        cycle: id of the cycle.
        pods: uids of the pods that get them.
    """

    of: str
    cycle: str
    pods: tuple[str, ...]
