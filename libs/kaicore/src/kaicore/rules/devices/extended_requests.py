"""Requests for devices that stand for a pod's extended resources, where a device class does (`extendedResourceName`).

Of each resource: containers that run together have a request each. Init containers that end before them use the
devices of those that start after them, and share one request for what they need beyond that.

Source: kube-scheduler 1.37, `createRequestsAndMappings` of its plugin DynamicResources.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec

from kaicore.rules.model.device import Allocation, DeviceRequest, ExtendedClaim, ExtendedMapping
from kaicore.rules.model.pod import Container, ContainerKind, Pod

#: A device class stands for the resource of this name and its own, whatever other it names.
IMPLICIT_PREFIX = "deviceclass.resource.kubernetes.io/"

_MOST_BASE = 58
_encoder = msgspec.msgpack.Encoder(order="deterministic")


class ExtendedRequest(NamedTuple):
    """A request for devices that stand for a resource."""

    resource: str
    request: DeviceRequest


class ExtendedRequests(NamedTuple):
    """All requests of a pod, in order of their names, and which containers use them for which resources."""

    requests: tuple[ExtendedRequest, ...] = ()
    mappings: tuple[ExtendedMapping, ...] = ()


def extended_requests(pod: Pod, classes: Mapping[str, str]) -> ExtendedRequests:
    """Return the requests for what a pod asks of some resources.

    Args:
        classes: the device class that stands for each of the resources, by name.
    """
    requests: list[ExtendedRequest] = []
    mappings: list[ExtendedMapping] = []
    for resource, device_class in sorted(classes.items()):
        one = _Resource(pod.containers, resource, device_class)
        requests += (ExtendedRequest(resource, request) for request in one.requests())
        mappings += one.mappings
    return ExtendedRequests(tuple(sorted(requests, key=lambda one: one.request.name)), tuple(mappings))


def extended_claim(pod: Pod, of: ExtendedRequests, allocation: Allocation) -> ExtendedClaim | None:
    """Return the claim that is to be made for what a pod gets on its node; None where it gets nothing there.

    The name is that of the pod, and another one for other devices, so that a claim that is left over is not mistaken.
    """
    served = {device.request for device in allocation.devices}
    if not served:
        return None
    resources = {one.resource for one in of.requests if one.request.name in served}
    devices = [(device.request, device.id) for device in allocation.devices]
    digest = sha256(_encoder.encode((pod.uid, devices))).hexdigest()[:5]
    return ExtendedClaim(
        name=f"{f'{pod.name}-extended-resources-'[:_MOST_BASE]}{digest}",
        requests=tuple(one.request for one in of.requests if one.resource in resources),
        mappings=tuple(one for one in of.mappings if one.resource in resources),
    )


class _Resource:
    def __init__(self, containers: Sequence[Container], resource: str, device_class: str) -> None:
        self._resource, self._class = resource, device_class
        self.mappings: list[ExtendedMapping] = []
        lasting: dict[int, DeviceRequest] = {}
        for index, container in enumerate(containers):
            if container.kind is not ContainerKind.INIT:
                request, mappings = self._of_container(index, container, ())
                self.mappings += mappings
                if request is not None:
                    lasting[index] = request
        self._lasting = lasting
        self._largest, passing = self._of_init_containers(containers)
        self.mappings += passing

    def requests(self) -> Iterator[DeviceRequest]:
        """Yield what is to be allocated."""
        if self._largest is not None:
            yield self._largest
        yield from self._lasting.values()

    def _of_init_containers(
        self, containers: Sequence[Container]
    ) -> tuple[DeviceRequest | None, tuple[ExtendedMapping, ...]]:
        largest: DeviceRequest | None = None
        names: set[str] = set()
        passing: list[ExtendedMapping] = []
        for index, container in enumerate(containers):
            if container.kind is not ContainerKind.INIT:
                continue
            later = [request for at, request in sorted(self._lasting.items()) if at >= index]
            request, mappings = self._of_container(index, container, later)
            passing += mappings
            if request is not None:
                names.add(request.name)
                if largest is None or largest.count < request.count:
                    largest = request
        if largest is None:
            return None, tuple(passing)
        name = largest.name
        replaced = (msgspec.structs.replace(one, request=name) if one.request in names else one for one in passing)
        return largest, tuple(replaced)

    def _of_container(
        self, index: int, container: Container, reusable: Sequence[DeviceRequest]
    ) -> tuple[DeviceRequest | None, list[ExtendedMapping]]:
        asked = container.requests.get(self._resource, 0)
        mappings: list[ExtendedMapping] = []
        if not asked:
            return None, mappings
        there = 0
        for request in reusable:
            there += request.count
            mappings.append(ExtendedMapping(container.name, self._resource, request.name))
            if there >= asked:
                return None, mappings
        name = f"container-{index}-request-{sorted(container.requests).index(self._resource)}"
        mappings.append(ExtendedMapping(container.name, self._resource, name))
        return DeviceRequest(name, self._class, count=asked - there), mappings
