"""Devices from the wire into the model: slices, device classes, taint rules and resource claims.

Features of a later Kubernetes that this version does not know are listed in `unsupported`; pods that need them wait.
"""

import re
from collections.abc import Iterable, Iterator

from kaicore.errors import InvalidObject, InvalidQuantity, Lost, unheard
from kaicore.kube.normalize.fields import node_terms
from kaicore.kube.wire import devices as wires
from kaicore.kube.wire.objects import NodeSelector
from kaicore.kube.wire.resources import named_subject
from kaicore.rules.model import device as models
from kaicore.rules.model.quantity import parse_thousandths
from kaicore.rules.objects.wire import OwnerReference, seconds

_MODES = (models.EXACT_COUNT, models.ALL)


def normalize_resource_claim(wire: wires.ResourceClaimObject, lost: Lost = unheard) -> models.ResourceClaim:
    """Reduce a ResourceClaim."""
    metadata, spec, status = wire.metadata, wire.spec.devices, wire.status
    subject = named_subject("ResourceClaim", wire)
    requests = list(spec.requests or ())
    controller = next((owner for owner in metadata.owner_references or () if owner.controller), None)
    return models.ResourceClaim(
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
            models.DeviceConstraint(
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


def cel_expressions(selectors: list[wires.SelectorWire] | None) -> tuple[str, ...]:
    """Return the CEL expressions of selectors."""
    return tuple(selector.cel.expression for selector in selectors or () if selector.cel is not None)


def unknown_selectors(selectors: Iterable[wires.SelectorWire] | None, *, field: str) -> Iterator[str]:
    """Say which selectors are of a kind that is not known."""
    for index, selector in enumerate(selectors or ()):
        if selector.cel is None:
            yield f"{field}.selectors[{index}] is no CEL expression"


def _request(wire: wires.RequestWire, *, subject: str, field: str) -> models.DeviceRequest:
    if wire.first_available:
        alternatives = tuple(
            _exact(alternative, alternative.name, subject=subject, field=f"{field}.firstAvailable[{index}]")
            for index, alternative in enumerate(wire.first_available)
        )
        return models.DeviceRequest(wire.name, alternatives=alternatives)
    return _exact(wire.exactly or wire, wire.name, subject=subject, field=field)


def _exact(wire: wires.ExactRequestWire, name: str, *, subject: str, field: str) -> models.DeviceRequest:
    capacity = wire.capacity.requests if wire.capacity is not None else None
    mode = wire.allocation_mode or models.EXACT_COUNT
    return models.DeviceRequest(
        name=name,
        device_class=wire.device_class_name or "",
        selectors=cel_expressions(wire.selectors),
        mode=mode,
        # The API server fills it in; with `All` it says nothing.
        count=1 if mode == models.ALL or not wire.count else wire.count,
        admin=bool(wire.admin_access),
        tolerations=tuple(map(_toleration, wire.tolerations or ())),
        capacity={
            key: thousandths_of(text, subject=subject, field=f"{field}.capacity.requests[{key}]")
            for key, text in sorted((capacity or {}).items())
        },
    )


def _toleration(wire: wires.TolerationWire) -> models.DeviceToleration:
    return models.DeviceToleration(wire.key or "", wire.operator or "Equal", wire.value or "", wire.effect or "")


def _unsupported(wire: wires.ResourceClaimObject) -> Iterator[str]:
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
                if (part.allocation_mode or models.EXACT_COUNT) not in _MODES:
                    yield f"{where}.allocationMode {part.allocation_mode}"
            if part.derived_attributes:
                yield f"{where}.derivedAttributes"
            yield from unknown_selectors(part.selectors, field=where)
    for index, constraint in enumerate(devices.constraints or ()):
        if not constraint.match_attribute and not constraint.distinct_attribute:
            yield f"spec.devices.constraints[{index}] is of a kind that is not known"


def read_allocation(wire: wires.AllocationWire, *, subject: str, lost: Lost = unheard) -> models.Allocation:
    """Reduce what a claim was allocated. Raises InvalidObject: its node selector makes no sense."""
    terms = None
    if wire.node_selector is not None:
        terms = node_terms(wire.node_selector, subject=subject, field="status.allocation.nodeSelector")
    devices = []
    for index, result in enumerate(wire.devices.results or ()):
        field = f"status.allocation.devices.results[{index}]"
        consumed: models.Thousandths | None = None
        if result.share_id is not None or result.consumed_capacity is not None:
            consumed = {}
            for name, text in sorted((result.consumed_capacity or {}).items()):
                try:
                    consumed[name] = thousandths_of(text, subject=subject, field=f"{field}.consumedCapacity[{name}]")
                except InvalidQuantity as error:
                    lost(error)
        devices.append(
            models.AllocatedDevice(
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
    return models.Allocation(tuple(devices), terms)


def thousandths_of(text: str | float, *, subject: str, field: str) -> int:
    """Return an amount in thousandths. Raises InvalidQuantity: it is none."""
    return parse_thousandths(str(text), subject=subject, field=field)


#: A semantic version, as Kubernetes takes one for the value of an attribute.
_VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")


def normalize_slice(wire: wires.SliceObject, lost: Lost = unheard) -> models.ResourceSlice:
    """Reduce a ResourceSlice; a device that makes no sense is left out, and its pool not used.

    Raises InvalidObject: it names no driver or no pool, or selects its nodes in no way that is known.
    """
    metadata, spec = wire.metadata, wire.spec
    subject = named_subject("ResourceSlice", wire)
    for field, value in (("spec.driver", spec.driver), ("spec.pool.name", spec.pool.name)):
        if not value:
            raise InvalidObject(subject, field, value, "is empty")
    nodes = _nodes(spec.node_name, spec.all_nodes, spec.node_selector, subject=subject, field="spec")
    if (nodes is None) != bool(spec.per_device_node_selection):
        raise InvalidObject(subject, "spec.nodeName", None, "its devices are for no node, or in two ways for some")
    devices: list[models.Device] = []
    for index, device in enumerate(spec.devices or ()):
        field = f"spec.devices[{index}]"
        try:
            devices.append(
                _device(
                    device,
                    spec.driver,
                    own_nodes=nodes is None,
                    subject=subject,
                    field=field,
                    skips=bool(spec.skip_node_operations),
                )
            )
        except InvalidObject as error:
            lost(error)
    return models.ResourceSlice(
        uid=metadata.uid,
        name=metadata.name,
        resource_version=metadata.resource_version,
        driver=spec.driver,
        pool=spec.pool.name,
        generation=spec.pool.generation,
        slices=spec.pool.resource_slice_count,
        nodes=nodes,
        devices=tuple(devices),
        counters={
            counter_set.name: _counters(counter_set.counters, subject=subject, field="spec.sharedCounters")
            for counter_set in spec.shared_counters or ()
        },
        partial=len(devices) < len(spec.devices or ()),
    )


def normalize_device_class(wire: wires.DeviceClassObject, _: Lost = unheard) -> models.DeviceClass:
    """Reduce a DeviceClass."""
    metadata, spec = wire.metadata, wire.spec
    named_subject("DeviceClass", wire)
    return models.DeviceClass(
        uid=metadata.uid,
        name=metadata.name,
        resource_version=metadata.resource_version,
        selectors=cel_expressions(spec.selectors),
        extended_resource=spec.extended_resource_name or "",
        created_at=seconds(metadata.creation_timestamp) or 0,
        unsupported=tuple(unknown_selectors(spec.selectors, field="spec")),
    )


def normalize_taint_rule(wire: wires.TaintRuleObject, lost: Lost = unheard) -> models.DeviceTaintRule:
    """Reduce a DeviceTaintRule; one that asks for more than this version looks at is for more devices than it says.

    Raises InvalidObject: it has no name, or its taint no key.
    """
    metadata, taint, selector = wire.metadata, wire.spec.taint, wire.spec.device_selector
    subject = named_subject("DeviceTaintRule", wire)
    if not taint.key:
        raise InvalidObject(subject, "spec.taint.key", taint.key, "is empty")
    if selector is not None and (selector.device_class_name or selector.selectors):
        problem = "selects by class or expression, as until Kubernetes 1.34: taken as for all devices otherwise met"
        lost(InvalidObject(subject, "spec.deviceSelector", None, problem))
    return models.DeviceTaintRule(
        uid=metadata.uid,
        name=metadata.name,
        resource_version=metadata.resource_version,
        taint=models.DeviceTaint(taint.key, taint.effect, taint.value or ""),
        none=selector is None,
        driver="" if selector is None else selector.driver or "",
        pool="" if selector is None else selector.pool or "",
        device="" if selector is None else selector.device or "",
    )


# Slices.


def _nodes(
    node: str | None, everywhere: bool | None, selector: NodeSelector | None, *, subject: str, field: str
) -> models.NodeSelection | None:
    if node:
        return models.NodeSelection(node)
    if everywhere:
        return models.NodeSelection(everywhere=True)
    if selector is not None:
        return models.NodeSelection(terms=node_terms(selector, subject=subject, field=f"{field}.nodeSelector"))
    return None


_NOT_HONOURED = "is what this version cannot honour, so this device is not used"


def _device(
    wire: wires.DeviceWire, driver: str, *, own_nodes: bool, subject: str, field: str, skips: bool
) -> models.Device:
    if not wire.name:
        raise InvalidObject(subject, f"{field}.name", wire.name, "is empty")
    basic: wires.BasicDeviceWire = wire.basic or wire
    if skips:
        raise InvalidObject(subject, "spec.skipNodeOperations", wire.name, _NOT_HONOURED)
    for number, use in enumerate(basic.consumes_counters or ()):
        if use.compatibility_groups:
            place = f"{field}.consumesCounters[{number}].compatibilityGroups"
            raise InvalidObject(subject, place, wire.name, _NOT_HONOURED)
    nodes = None
    if own_nodes:
        nodes = _nodes(basic.node_name, basic.all_nodes, basic.node_selector, subject=subject, field=field)
        if nodes is None:
            raise InvalidObject(subject, f"{field}.nodeName", None, "the device is for no node")
    return models.Device(
        name=wire.name,
        attributes={
            _full_name(name, driver): _attribute(value, subject=subject, field=f"{field}.attributes[{name}]")
            for name, value in sorted((basic.attributes or {}).items())
        },
        capacity={
            name: _capacity(value, subject=subject, field=f"{field}.capacity[{name}]")
            for name, value in sorted((basic.capacity or {}).items())
        },
        consumes=tuple(
            models.CounterUse(
                use.counter_set, _counters(use.counters, subject=subject, field=f"{field}.consumesCounters")
            )
            for use in basic.consumes_counters or ()
        ),
        nodes=nodes,
        taints=tuple(models.DeviceTaint(taint.key, taint.effect, taint.value or "") for taint in basic.taints or ()),
        shared=bool(basic.allow_multiple_allocations),
        binds_to_node=bool(basic.binds_to_node),
        binding_conditions=tuple(basic.binding_conditions or ()),
        failure_conditions=tuple(basic.binding_failure_conditions or ()),
    )


def _full_name(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def _attribute(wire: wires.AttributeWire, *, subject: str, field: str) -> models.DeviceAttribute:
    lists = (
        ("int", wire.int_values),
        ("bool", wire.bool_values),
        ("string", wire.string_values),
        ("version", wire.version_values),
    )
    single = (
        ("int", wire.int_value),
        ("bool", wire.bool_value),
        ("string", wire.string_value),
        ("version", wire.version_value),
    )
    given = [models.DeviceAttribute(kind, tuple(values), listed=True) for kind, values in lists if values is not None]
    given += [models.DeviceAttribute(kind, (value,)) for kind, value in single if value is not None]
    if len(given) != 1:
        raise InvalidObject(subject, field, None, "has not exactly one value of a known kind")
    (attribute,) = given
    if attribute.kind == "version":
        for value in attribute.values:
            if not _VERSION.fullmatch(str(value)):
                raise InvalidObject(subject, field, value, "is no semantic version")
    return attribute


def _capacity(wire: wires.CapacityWire, *, subject: str, field: str) -> models.DeviceCapacity:
    def amount(text: str | int | None, name: str) -> int | None:
        return None if text is None else thousandths_of(text, subject=subject, field=f"{field}.{name}")

    value, policy = thousandths_of(wire.value, subject=subject, field=f"{field}.value"), wire.request_policy
    if policy is None:
        return models.DeviceCapacity(value)
    bounds = policy.valid_range
    return models.DeviceCapacity(
        value,
        models.CapacityPolicy(
            default=amount(policy.default, "requestPolicy.default"),
            values=tuple(
                thousandths_of(text, subject=subject, field=f"{field}.requestPolicy.validValues")
                for text in policy.valid_values or ()
            ),
            least=None if bounds is None else amount(bounds.min, "requestPolicy.validRange.min"),
            most=None if bounds is None else amount(bounds.max, "requestPolicy.validRange.max"),
            step=None if bounds is None else amount(bounds.step, "requestPolicy.validRange.step"),
        ),
    )


def _counters(wire: dict[str, wires.CounterWire] | None, *, subject: str, field: str) -> models.Thousandths:
    return {
        name: thousandths_of(counter.value, subject=subject, field=f"{field}.counters[{name}]")
        for name, counter in sorted((wire or {}).items())
    }
