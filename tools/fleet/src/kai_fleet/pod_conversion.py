"""From a pod as the API server sends it to the pod that the kubelet model decides on."""

from kaicore.errors import InvalidObject
from kaicore.kube.objects import Quantities, ResourceRequirements

from kai_fleet.kubelet.pod import Amounts, Container, Kind, Pod
from kai_fleet.node_affinity import node_matcher
from kai_fleet.quantity import parse_amount
from kai_fleet.wire import ContainerSpec, PodObject

_NONE = ResourceRequirements()


def convert_pod(pod: PodObject) -> Pod:
    """Convert a pod.

    Raises:
        InvalidObject: naming the pod, the field and the value.
    """
    spec, meta = pod.spec, pod.metadata
    subject = str(pod)
    init = spec.init_containers or []
    containers = [
        *(_container(c, subject, f"spec.initContainers[{i}]", "init") for i, c in enumerate(init)),
        *(_container(c, subject, f"spec.containers[{i}]", "app") for i, c in enumerate(spec.containers)),
    ]
    names = {container.name for container in containers}
    if not spec.containers:
        raise InvalidObject(subject, "spec.containers", [], "a pod needs a container")
    if len(names) < len(containers):
        raise InvalidObject(
            subject, "spec.containers", [c.name for c in containers], "a container's name appears twice"
        )
    level = spec.resources or _NONE
    return Pod(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        containers=tuple(containers),
        overhead=_amounts(spec.overhead, subject, "spec.overhead"),
        pod_requests=_requests(level, subject, "spec.resources"),
        pod_limits=_amounts(level.limits, subject, "spec.resources.limits"),
        node_affinity=node_matcher(pod),
        host_ports=frozenset(
            (port.host_ip or "", port.protocol or "TCP", port.host_port)
            for container in (*init, *spec.containers)
            for port in container.ports or ()
            if port.host_port
        ),
    )


def _container(container: ContainerSpec, subject: str, field: str, kind: Kind) -> Container:
    if kind == "init" and container.restart_policy == "Always":
        kind = "sidecar"
    resources = container.resources or _NONE
    return Container(
        name=container.name,
        kind=kind,
        requests=_requests(resources, subject, f"{field}.resources"),
        limits=_amounts(resources.limits, subject, f"{field}.resources.limits"),
    )


def _requests(resources: ResourceRequirements, subject: str, field: str) -> Amounts:
    """A limit without a request is a request too, as the API server defaults it."""
    requests, limits = resources.requests, resources.limits
    if not limits or (requests and limits.keys() <= requests.keys()):
        return _amounts(requests, subject, f"{field}.requests")
    return _amounts({**limits, **(requests or {})}, subject, f"{field}.requests")


def _amounts(quantities: Quantities | None, subject: str, field: str) -> dict[str, int]:
    if not quantities:
        return {}
    return {
        resource: parse_amount(resource, quantity, subject=subject, field=f"{field}[{resource}]")
        for resource, quantity in quantities.items()
    }
