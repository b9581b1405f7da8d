"""The demands of a pod's resource claims on its node, from claims, device classes and the allocations of decisions."""

import msgspec

from kaicore.rules.model.device import DeviceConstraint, DeviceRequest
from kaicore.rules.model.selector import Requirement


class WantedClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A claim that is to be allocated.

    Claims that one pod uses are not named, so that alike pods with claims of their own stay one class.

    Attributes:
        requests: as the claim has them, the selectors of each request's device class before its own.
        constraints: as the claim has them.
        claim: `namespace/name` of a claim that several pods use: where it is allocated for one, the others use that.
        extended: of a claim for extended resources, the resource of each request; one that a node's kubelet has is not
            asked of devices there.
    """

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    claim: str = ""
    extended: tuple[str, ...] = ()


class DeviceDemand(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a pod's resource claims let it go.

    Attributes:
        waits: what has to happen to the pod's claims, or to device classes, before it can go anywhere.
        places: node selector terms of claims that are allocated, any of which must hold; each with what asks for it.
        wanted: claims that are to be allocated on its node, in the order in which they choose.
    """

    waits: tuple[str, ...] = ()
    places: tuple[tuple[str, tuple[tuple[Requirement, ...], ...]], ...] = ()
    wanted: tuple[WantedClaim, ...] = ()


#: Of pods without claims.
NO_DEVICES = DeviceDemand()
