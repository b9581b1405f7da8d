"""What containers hold while a pod is resized in place (KEP-1287): what is asked for, or what is set aside for them.

As kube-scheduler counts it: the larger of both while a resize is under way or deferred; what is set aside where the
kubelet will never do it (`Infeasible`), which it says of exclusive CPUs and memory of zones.

Source: `k8s.io/component-helpers` v0.37.2, `resource/helpers.go`, determineContainerReqs.
"""

import msgspec

from kaicore.kube.losses import Lost
from kaicore.kube.normalize_fields import amounts
from kaicore.kube.objects import PodStatus
from kaicore.rules.model.pod import Amounts, Container
from kaicore.rules.model.quantity import CPU, MEMORY

_RESIZABLE = (CPU, MEMORY)


def resized(containers: tuple[Container, ...], status: PodStatus, *, subject: str, lost: Lost) -> tuple[Container, ...]:
    """Return the containers of a pod on a node with what they hold as their requests.

    Args:
        containers: as the pod's spec has them.
        status: the pod's.
        subject: the pod, for what is lost.
        lost: is told of amounts that are none.
    """
    allocated: dict[str, Amounts] = {}
    for field, group in (
        ("initContainerStatuses", status.init_container_statuses),
        ("containerStatuses", status.container_statuses),
    ):
        for one in group or ():
            if one.allocated_resources:
                where = f"status.{field}[{one.name}].allocatedResources"
                allocated[one.name] = amounts(one.allocated_resources, subject=subject, field=where, lost=lost)
    if not allocated:
        return containers
    conditions = status.conditions or ()
    infeasible = any(one.type == "PodResizePending" and one.reason == "Infeasible" for one in conditions)
    return tuple(_resized(item, allocated.get(item.name, {}), infeasible=infeasible) for item in containers)


def _resized(container: Container, allocated: Amounts, *, infeasible: bool) -> Container:
    held = {name: allocated[name] for name in _RESIZABLE if name in allocated and name in container.requests}
    if not infeasible:
        held = {name: max(amount, container.requests[name]) for name, amount in held.items()}
    if all(container.requests[name] == amount for name, amount in held.items()):
        return container
    return msgspec.structs.replace(container, requests=container.requests | held)
