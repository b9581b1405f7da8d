"""A pod with a smaller request of one resource: the amounts that a user would write, and the pod's class with them."""

from contextlib import suppress
from dataclasses import dataclass

import msgspec

from kaicore.errors import InvalidQuantity
from kaicore.rules.engine.placement.pod_class import PodClass, class_identity, node_requests, pod_class, variant
from kaicore.rules.model.pod import Amounts, Container, Pod
from kaicore.rules.model.quantity import CPU, HUGEPAGES_PREFIX, is_bytes, is_hugepages, parse_amount

_MI, _GI = 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts of a resource, ascending, in the steps in which people write them; none is 0."""

    small: range
    large: range

    @classmethod
    def of(cls, resource: str, *, below: int) -> "Sizes":
        """Return all amounts below one.

        CPUs: whole ones, below one by 100m. Bytes: Gi, below one by Mi; hugepages: whole pages besides. Devices: one.
        """
        small, large = _steps(resource)
        return cls(range(small, min(below, large), small), range(large, below, large))

    def __len__(self) -> int:
        return len(self.small) + len(self.large)

    def __getitem__(self, index: int) -> int:
        return self.small[index] if index < len(self.small) else self.large[index - len(self.small)]


def _steps(resource: str) -> tuple[int, int]:
    if resource == CPU:
        return 100, 1000
    if not is_bytes(resource):
        return 1, 1
    page = 0
    if is_hugepages(resource):
        with suppress(InvalidQuantity):
            size = resource.removeprefix(HUGEPAGES_PREFIX)
            page = parse_amount(size, resource=resource, subject=resource, field="page size")
    return max(page, _MI), max(page, _GI)


def with_at_most(pod: Pod, resource: str, most: int) -> Pod | None:
    """Return a pod that asks for no more than `most` of a resource in all, less in its largest container.

    A limit that equals the request goes down with it, so that the pod keeps its quality of service.

    Args:
        pod: the pod.
        resource: of which it asks for less.
        most: in the resource's unit, as a node counts it (`node_requests`).

    Returns:
        the pod; None if it does not come to that by lowering one container after the other, the largest first, each to
        something above nothing.
    """
    overhead = pod.overhead.get(resource, 0)
    if pod.pod_resources is not None and resource in pod.pod_resources:
        bare = most - overhead
        containers = msgspec.structs.replace(pod, pod_resources=None, overhead={})
        if bare <= 0 or node_requests(containers).get(resource, 0) > bare:
            return None
        return msgspec.structs.replace(pod, pod_resources={**pod.pod_resources, resource: bare})
    for _ in pod.containers:
        excess = node_requests(pod).get(resource, 0) - most
        if excess <= 0:
            return pod
        asked = [container.requests.get(resource, 0) for container in pod.containers]
        largest = asked.index(max(asked))
        if asked[largest] <= excess:
            return None
        containers_now = list(pod.containers)
        containers_now[largest] = _lowered(pod.containers[largest], resource, asked[largest] - excess)
        pod = msgspec.structs.replace(pod, containers=tuple(containers_now))
    return pod if node_requests(pod).get(resource, 0) <= most else None


def lowered_containers(pod: Pod, smaller: Pod) -> list[str]:
    """Return the names of the containers that ask for less; empty where the pod has one only."""
    pairs = zip(pod.containers, smaller.containers, strict=True)
    return [one.name for one, other in pairs if one != other] if len(pod.containers) > 1 else []


def resized(of_class: PodClass, smaller: Pod) -> PodClass:
    """Return the class of a pod of a class that asks for less now; all else of it is as it is."""
    base = pod_class(smaller, class_identity(smaller))
    return variant(base, of_class.selected, of_class.volumes, of_class.flavors, of_class.devices)


def _lowered(container: Container, resource: str, amount: int) -> Container:
    def lower(amounts: Amounts) -> Amounts:
        return {**amounts, resource: amount}

    same_limit = container.limits.get(resource) == container.requests[resource]
    limits = lower(container.limits) if same_limit else container.limits
    return msgspec.structs.replace(container, requests=lower(container.requests), limits=limits)
