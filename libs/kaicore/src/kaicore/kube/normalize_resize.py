"""The amounts of containers while a pod is resized in place (KEP-1287): requested, allocated, or held by the runtime.

kube-scheduler's rule: the largest of the three counts while a resize is under way or deferred. So a pod that shrinks
holds the old amount until its runtime has followed. The requested amount does not count where the kubelet will never
grant it (`Infeasible`, which it reports for Guaranteed pods beside static managers).

Source: `k8s.io/component-helpers`, `resource/helpers.go`: determineContainerReqs up to v0.34 and then
determineEffectiveRequests. v0.37 takes the largest of sums over containers, which is less only where one container
grows while another shrinks.
"""

import msgspec

from kaicore.kube.losses import Lost
from kaicore.kube.normalize_fields import amounts
from kaicore.kube.objects import PodStatus, Quantities
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
    held: dict[str, Amounts] = {}
    for field, group in (
        ("initContainerStatuses", status.init_container_statuses),
        ("containerStatuses", status.container_statuses),
    ):
        for one in group or ():
            running = one.resources.requests if one.resources is not None else None
            if one.allocated_resources or running:
                where = f"status.{field}[{one.name}]"
                held[one.name] = _held(one.allocated_resources, running, subject=subject, where=where, lost=lost)
    if not held:
        return containers
    conditions = status.conditions or ()
    infeasible = any(one.type == "PodResizePending" and one.reason == "Infeasible" for one in conditions)
    return tuple(_resized(item, held.get(item.name, {}), infeasible=infeasible) for item in containers)


def _held(allocated: Quantities | None, running: Quantities | None, *, subject: str, where: str, lost: Lost) -> Amounts:
    """Return the larger of what is set aside and what the runtime has; nearly always they are written alike."""
    both = amounts(allocated, subject=subject, field=f"{where}.allocatedResources", lost=lost)
    if running and running != allocated:
        has = amounts(running, subject=subject, field=f"{where}.resources.requests", lost=lost)
        both = both | {name: max(amount, both.get(name, 0)) for name, amount in has.items()}
    return both


def _resized(container: Container, of_status: Amounts, *, infeasible: bool) -> Container:
    held = {name: of_status[name] for name in _RESIZABLE if name in of_status and name in container.requests}
    if not infeasible:
        held = {name: max(amount, container.requests[name]) for name, amount in held.items()}
    if all(container.requests[name] == amount for name, amount in held.items()):
        return container
    return msgspec.structs.replace(container, requests=container.requests | held)
