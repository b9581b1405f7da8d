"""The kubelet's checks after the resource managers: whether the node as a whole suits the pod.

`lifecycle/predicate.go`.
"""

from collections.abc import Iterable, Mapping

from kai_fleet.kubelet.pod import Pod
from kai_fleet.kubelet.rejection import Rejection, out_of, predicate_failed

#: The order in which the scheduler's resource fit, which the kubelet re-uses, names what is lacking.
_FIRST = ("pods", "cpu", "memory", "ephemeral-storage")


def check_predicates(
    pod: Pod,
    *,
    allocatable: Mapping[str, int],
    used: Mapping[str, int],
    labels: Mapping[str, str],
    host_ports: Iterable[tuple[str, str, int]],
) -> Rejection | None:
    """Return the first thing that speaks against the pod, or None.

    Args:
        pod: the pod to be admitted.
        allocatable: what the node offers as a whole, `pods` included.
        used: what the node's active pods request in all, `pods` included.
        labels: of the node, its name under `metadata.name`.
        host_ports: host ports of the active pods.
    """
    return (
        _lacking(pod, allocatable, used)
        or (predicate_failed("NodeAffinity") if pod.node_affinity and not pod.node_affinity(labels) else None)
        or (predicate_failed("NodePorts") if _conflict(pod.host_ports, host_ports) else None)
    )


def _lacking(pod: Pod, allocatable: Mapping[str, int], used: Mapping[str, int]) -> Rejection | None:
    """Name the first resource that is short.

    Extended resources that the node does not have at all are no concern of the kubelet
    (`removeMissingExtendedResources`).
    """
    requests = pod.node_requests()
    requests["pods"] = 1
    for resource in (*_FIRST, *sorted(requests.keys() - set(_FIRST))):
        requested = requests.get(resource, 0)
        if not requested:
            continue
        capacity = allocatable.get(resource)
        if capacity is None:
            if _is_extended(resource):
                continue
            capacity = 0
        if used.get(resource, 0) + requested > capacity:
            return out_of(resource, requested=requested, used=used.get(resource, 0), capacity=capacity)
    return None


def _is_extended(resource: str) -> bool:
    """Whether the name is qualified by a domain that is not Kubernetes' own."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


def _conflict(wanted: frozenset[tuple[str, str, int]], taken: Iterable[tuple[str, str, int]]) -> bool:
    """Same protocol and port, on the same address or on all of them."""
    if not wanted:
        return False
    everywhere = ("0.0.0.0", "::", "")  # noqa: S104
    return any(
        protocol == other_protocol and port == other_port and (ip == other or ip in everywhere or other in everywhere)
        for ip, protocol, port in wanted
        for other, other_protocol, other_port in taken
    )
