"""Resource claims from the wire into the model: their requests and their allocation.

Features of a later Kubernetes that this version does not know are listed in `unsupported`; pods that need them wait.
"""

from collections.abc import Iterable, Iterator

from kaicore.errors import InvalidQuantity
from kaicore.kube.device_objects import (
    AllocationWire,
    ExactRequestWire,
    RequestWire,
    ResourceClaimObject,
    SelectorWire,
    TolerationWire,
)
from kaicore.kube.losses import Lost, unheard
from kaicore.kube.normalize_selector import node_terms
from kaicore.kube.objects import OwnerReference
from kaicore.kube.resources import named_subject
from kaicore.rules.model.device import (
    ALL,
    EXACT_COUNT,
    AllocatedDevice,
    Allocation,
    DeviceConstraint,
    DeviceRequest,
    DeviceToleration,
    ResourceClaim,
    Thousandths,
)
from kaicore.rules.model.quantity import parse_thousandths

_MODES = (EXACT_COUNT, ALL)


def normalize_resource_claim(wire: ResourceClaimObject, lost: Lost = unheard) -> ResourceClaim:
    """Reduce a ResourceClaim.

    Raises:
        InvalidObject: naming the field that says something impossible.
    """
    metadata, spec, status = wire.metadata, wire.spec.devices, wire.status
    subject = named_subject("ResourceClaim", wire)
    requests = list(spec.requests or ())
    controller = next((owner for owner in metadata.owner_references or () if owner.controller), None)
    return ResourceClaim(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        resource_version=metadata.resource_version,
        owner=controller.uid if controller is not None and controller.kind == "Pod" else "",
        group=controller.name if controller is not None and _is_group(controller) else "",
        requests=tuple(
            _request(request, subject=subject, field=f"spec.devices.requests[{index}]")
            for index, request in enumerate(requests)
        ),
        constraints=tuple(
            DeviceConstraint(
                tuple(constraint.requests or ()), constraint.match_attribute or "", constraint.distinct_attribute or ""
            )
            for constraint in spec.constraints or ()
        ),
        allocation=None
        if status.allocation is None
        else read_allocation(status.allocation, subject=subject, lost=lost),
        reserved_for=tuple(sorted(consumer.uid for consumer in status.reserved_for or ())),
        deleting=metadata.deletion_timestamp is not None,
        unsupported=tuple(sorted(set(_unsupported(wire)))),
    )


def _is_group(owner: OwnerReference) -> bool:
    """Tell whether an owner is a PodGroup of Kubernetes' own, of any version (`resourceclaim.IsForPod`, 1.37)."""
    return owner.kind == "PodGroup" and owner.api_version.startswith("scheduling.k8s.io/")


def cel_expressions(selectors: list[SelectorWire] | None) -> tuple[str, ...]:
    """Return the CEL expressions of selectors."""
    return tuple(selector.cel.expression for selector in selectors or () if selector.cel is not None)


def unknown_selectors(selectors: Iterable[SelectorWire] | None, *, field: str) -> Iterator[str]:
    """Say which selectors are of a kind that is not known."""
    for index, selector in enumerate(selectors or ()):
        if selector.cel is None:
            yield f"{field}.selectors[{index}] is no CEL expression"


def _request(wire: RequestWire, *, subject: str, field: str) -> DeviceRequest:
    if wire.first_available:
        alternatives = tuple(
            _exact(alternative, alternative.name, subject=subject, field=f"{field}.firstAvailable[{index}]")
            for index, alternative in enumerate(wire.first_available)
        )
        return DeviceRequest(wire.name, alternatives=alternatives)
    return _exact(wire.exactly or wire, wire.name, subject=subject, field=field)


def _exact(wire: ExactRequestWire, name: str, *, subject: str, field: str) -> DeviceRequest:
    capacity = wire.capacity.requests if wire.capacity is not None else None
    mode = wire.allocation_mode or EXACT_COUNT
    return DeviceRequest(
        name=name,
        device_class=wire.device_class_name or "",
        selectors=cel_expressions(wire.selectors),
        mode=mode,
        # The API server fills it in; with `All` it says nothing.
        count=1 if mode == ALL or not wire.count else wire.count,
        admin=bool(wire.admin_access),
        tolerations=tuple(map(_toleration, wire.tolerations or ())),
        capacity={
            key: thousandths_of(text, subject=subject, field=f"{field}.capacity.requests[{key}]")
            for key, text in sorted((capacity or {}).items())
        },
    )


def _toleration(wire: TolerationWire) -> DeviceToleration:
    return DeviceToleration(wire.key or "", wire.operator or "Equal", wire.value or "", wire.effect or "")


def _unsupported(wire: ResourceClaimObject) -> Iterator[str]:
    devices = wire.spec.devices
    for index, request in enumerate(devices.requests or ()):
        field = f"spec.devices.requests[{index}]"
        exact = request.exactly or request
        for where, part in (
            (f"{field}.exactly", exact),
            *((f"{field}.firstAvailable[{number}]", each) for number, each in enumerate(request.first_available or ())),
        ):
            if not request.first_available or part is not exact:
                if not part.device_class_name:
                    yield f"{where}.deviceClassName is empty"
                if (part.allocation_mode or EXACT_COUNT) not in _MODES:
                    yield f"{where}.allocationMode {part.allocation_mode}"
            if part.derived_attributes:
                yield f"{where}.derivedAttributes"
            yield from unknown_selectors(part.selectors, field=where)
    for index, constraint in enumerate(devices.constraints or ()):
        if not constraint.match_attribute and not constraint.distinct_attribute:
            yield f"spec.devices.constraints[{index}] is of a kind that is not known"


def read_allocation(wire: AllocationWire, *, subject: str, lost: Lost = unheard) -> Allocation:
    """Reduce what a claim was allocated.

    Raises:
        InvalidObject: its node selector makes no sense.
    """
    terms = None
    if wire.node_selector is not None:
        terms = node_terms(wire.node_selector, subject=subject, field="status.allocation.nodeSelector")
    devices = []
    for index, result in enumerate(wire.devices.results or ()):
        field = f"status.allocation.devices.results[{index}]"
        consumed: Thousandths | None = None
        if result.share_id is not None or result.consumed_capacity is not None:
            consumed = {}
            for name, text in sorted((result.consumed_capacity or {}).items()):
                try:
                    consumed[name] = thousandths_of(text, subject=subject, field=f"{field}.consumedCapacity[{name}]")
                except InvalidQuantity as error:
                    lost(error)
        devices.append(
            AllocatedDevice(
                request=result.request,
                driver=result.driver,
                pool=result.pool,
                device=result.device,
                admin=bool(result.admin_access),
                consumed=consumed,
                conditions=tuple(result.binding_conditions or ()),
                failures=tuple(result.binding_failure_conditions or ()),
                tolerations=tuple(map(_toleration, result.tolerations or ())),
            )
        )
    return Allocation(tuple(devices), terms)


def thousandths_of(text: str | float, *, subject: str, field: str) -> int:
    """Return an amount in thousandths.

    Raises:
        InvalidQuantity: it is none.
    """
    return parse_thousandths(str(text), subject=subject, field=field)
