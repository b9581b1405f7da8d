"""Device classes, slices and resource claims of a cluster, and what they mean for the pods that use them."""

from collections.abc import Iterable, Iterator

from kaicore.rules.engine.constraints.device_demand import NO_DEVICES, DeviceDemand
from kaicore.rules.events import payloads
from kaicore.rules.model.device import DeviceClass, DeviceRequest, PodClaim, ResourceClaim, ResourceSlice
from kaicore.rules.model.pod import Pod

#: Facts that are for `DeviceRegistry.take`.
DEVICE_FACTS: tuple[type[payloads.Payload], ...] = (
    payloads.ResourceSliceObserved,
    payloads.ResourceSliceDeleted,
    payloads.DeviceClassObserved,
    payloads.DeviceClassDeleted,
    payloads.ResourceClaimObserved,
    payloads.ResourceClaimDeleted,
)


class DeviceRegistry:
    """Everything about devices, at one position of a cluster's log."""

    def __init__(self) -> None:
        #: By name.
        self.slices: dict[str, ResourceSlice] = {}
        self.classes: dict[str, DeviceClass] = {}
        #: By `namespace/name`.
        self.claims: dict[str, ResourceClaim] = {}

    def take(self, payload: payloads.Payload) -> None:
        """Take in one of `DEVICE_FACTS`."""
        match payload:
            case payloads.ResourceSliceObserved(resource_slice):
                self.slices[resource_slice.name] = resource_slice
            case payloads.ResourceSliceDeleted(_, name):
                self.slices.pop(name, None)
            case payloads.DeviceClassObserved(device_class):
                self.classes[device_class.name] = device_class
            case payloads.DeviceClassDeleted(_, name):
                self.classes.pop(name, None)
            case payloads.ResourceClaimObserved(claim):
                self.claims[claim.key] = claim
            case payloads.ResourceClaimDeleted(_, namespace, name):
                self.claims.pop(f"{namespace}/{name}", None)
            case _:
                pass

    def restore(
        self,
        *,
        slices: Iterable[ResourceSlice],
        classes: Iterable[DeviceClass],
        claims: Iterable[ResourceClaim],
    ) -> None:
        """Put the facts back, before any pod."""
        self.slices = {one.name: one for one in slices}
        self.classes = {one.name: one for one in classes}
        self.claims = {one.key: one for one in claims}

    def demand(self, pod: Pod) -> DeviceDemand:
        """Return what the pod's resource claims ask of its node."""
        if not pod.resource_claims:
            return NO_DEVICES
        waits: list[str] = []
        places = []
        for use in pod.resource_claims:
            if use.needless:
                continue
            claim = self.claims.get(f"{pod.namespace}/{use.claim}")
            waits += [f"claim {use.claim or use.name} {problem}" for problem in self._problems(pod, use, claim)]
            if claim is not None and claim.allocation is not None and claim.allocation.terms is not None:
                places.append(("node selector of an allocated claim", claim.allocation.terms))
        return DeviceDemand(tuple(waits), tuple(dict.fromkeys(places)))

    def _problems(self, pod: Pod, use: PodClaim, claim: ResourceClaim | None) -> Iterator[str]:
        """Say what keeps a claim from being used at all."""
        if not use.claim:
            yield f"is not made yet from template {use.template}"
        elif claim is None:
            yield "does not exist"
        elif use.template and claim.owner != pod.uid:
            yield "was not made for this pod"
        elif claim.deleting:
            yield "is being deleted"
        elif claim.allocation is None:
            yield from (f"asks for what this version does not allocate: {part}" for part in claim.unsupported)
            for request in claim.requests:
                yield from self._class_problems(request)
            yield "is not allocated, and this version allocates no devices"

    def _class_problems(self, request: DeviceRequest) -> Iterator[str]:
        for part in request.alternatives or (request,):
            device_class = self.classes.get(part.device_class)
            if device_class is None:
                yield f"asks for device class {part.device_class}, which does not exist"
            else:
                for problem in device_class.unsupported:
                    yield f"asks for device class {part.device_class}, of which {problem}"
