"""Slices, device classes and taint rules from the wire into the model.

Features of a later Kubernetes that this version does not know are listed in `unsupported`; pods that need them wait.
"""

import re

from kaicore.errors import InvalidObject
from kaicore.kube.constraint_objects import NodeSelector
from kaicore.kube.device_objects import (
    AttributeWire,
    BasicDeviceWire,
    CapacityWire,
    CounterWire,
    DeviceClassObject,
    DeviceWire,
    SliceObject,
    TaintRuleObject,
)
from kaicore.kube.losses import Lost, unheard
from kaicore.kube.normalize_fields import seconds
from kaicore.kube.normalize_resource_claim import cel_expressions, thousandths_of, unknown_selectors
from kaicore.kube.normalize_selector import node_terms
from kaicore.kube.resources import named_subject
from kaicore.rules.model.device import (
    ALL,
    EXACT_COUNT,
    CapacityPolicy,
    CounterUse,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClass,
    DeviceTaint,
    DeviceTaintRule,
    NodeSelection,
    ResourceSlice,
    Thousandths,
)

_MODES = (EXACT_COUNT, ALL)
#: A semantic version, as Kubernetes takes one for the value of an attribute.
_VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")


def normalize_slice(wire: SliceObject, lost: Lost = unheard) -> ResourceSlice:
    """Reduce a ResourceSlice; a device that makes no sense is left out, and its pool not used.

    Raises:
        InvalidObject: it names no driver or no pool, or selects its nodes in no way that is known.
    """
    metadata, spec = wire.metadata, wire.spec
    subject = named_subject("ResourceSlice", wire)
    for field, value in (("spec.driver", spec.driver), ("spec.pool.name", spec.pool.name)):
        if not value:
            raise InvalidObject(subject, field, value, "is empty")
    nodes = _nodes(spec.node_name, spec.all_nodes, spec.node_selector, subject=subject, field="spec")
    if (nodes is None) != bool(spec.per_device_node_selection):
        raise InvalidObject(subject, "spec.nodeName", None, "its devices are for no node, or in two ways for some")
    devices: list[Device] = []
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
    return ResourceSlice(
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


def normalize_device_class(wire: DeviceClassObject, _: Lost = unheard) -> DeviceClass:
    """Reduce a DeviceClass.

    Raises:
        InvalidObject: it has no name.
    """
    metadata, spec = wire.metadata, wire.spec
    named_subject("DeviceClass", wire)
    return DeviceClass(
        uid=metadata.uid,
        name=metadata.name,
        resource_version=metadata.resource_version,
        selectors=cel_expressions(spec.selectors),
        extended_resource=spec.extended_resource_name or "",
        created_at=seconds(metadata.creation_timestamp) or 0,
        unsupported=tuple(unknown_selectors(spec.selectors, field="spec")),
    )


def normalize_taint_rule(wire: TaintRuleObject, lost: Lost = unheard) -> DeviceTaintRule:
    """Reduce a DeviceTaintRule; one that asks for more than this version looks at is for more devices than it says.

    Raises:
        InvalidObject: it has no name, or its taint no key.
    """
    metadata, taint, selector = wire.metadata, wire.spec.taint, wire.spec.device_selector
    subject = named_subject("DeviceTaintRule", wire)
    if not taint.key:
        raise InvalidObject(subject, "spec.taint.key", taint.key, "is empty")
    if selector is not None and (selector.device_class_name or selector.selectors):
        problem = "selects by class or expression, as until Kubernetes 1.34: taken as for all devices otherwise met"
        lost(InvalidObject(subject, "spec.deviceSelector", None, problem))
    return DeviceTaintRule(
        uid=metadata.uid,
        name=metadata.name,
        resource_version=metadata.resource_version,
        taint=DeviceTaint(taint.key, taint.effect, taint.value or ""),
        none=selector is None,
        driver="" if selector is None else selector.driver or "",
        pool="" if selector is None else selector.pool or "",
        device="" if selector is None else selector.device or "",
    )


# Slices.


def _nodes(
    node: str | None, everywhere: bool | None, selector: NodeSelector | None, *, subject: str, field: str
) -> NodeSelection | None:
    if node:
        return NodeSelection(node)
    if everywhere:
        return NodeSelection(everywhere=True)
    if selector is not None:
        return NodeSelection(terms=node_terms(selector, subject=subject, field=f"{field}.nodeSelector"))
    return None


_NOT_HONOURED = "is what this version cannot honour, so this device is not used"


def _device(wire: DeviceWire, driver: str, *, own_nodes: bool, subject: str, field: str, skips: bool) -> Device:
    if not wire.name:
        raise InvalidObject(subject, f"{field}.name", wire.name, "is empty")
    basic: BasicDeviceWire = wire.basic or wire
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
    return Device(
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
            CounterUse(use.counter_set, _counters(use.counters, subject=subject, field=f"{field}.consumesCounters"))
            for use in basic.consumes_counters or ()
        ),
        nodes=nodes,
        taints=tuple(DeviceTaint(taint.key, taint.effect, taint.value or "") for taint in basic.taints or ()),
        shared=bool(basic.allow_multiple_allocations),
        binds_to_node=bool(basic.binds_to_node),
        binding_conditions=tuple(basic.binding_conditions or ()),
        failure_conditions=tuple(basic.binding_failure_conditions or ()),
    )


def _full_name(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def _attribute(wire: AttributeWire, *, subject: str, field: str) -> DeviceAttribute:
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
    given = [DeviceAttribute(kind, tuple(values), listed=True) for kind, values in lists if values is not None]
    given += [DeviceAttribute(kind, (value,)) for kind, value in single if value is not None]
    if len(given) != 1:
        raise InvalidObject(subject, field, None, "has not exactly one value of a known kind")
    (attribute,) = given
    if attribute.kind == "version":
        for value in attribute.values:
            if not _VERSION.fullmatch(str(value)):
                raise InvalidObject(subject, field, value, "is no semantic version")
    return attribute


def _capacity(wire: CapacityWire, *, subject: str, field: str) -> DeviceCapacity:
    def amount(text: str | int | None, name: str) -> int | None:
        return None if text is None else thousandths_of(text, subject=subject, field=f"{field}.{name}")

    value, policy = thousandths_of(wire.value, subject=subject, field=f"{field}.value"), wire.request_policy
    if policy is None:
        return DeviceCapacity(value)
    bounds = policy.valid_range
    return DeviceCapacity(
        value,
        CapacityPolicy(
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


def _counters(wire: dict[str, CounterWire] | None, *, subject: str, field: str) -> Thousandths:
    return {
        name: thousandths_of(counter.value, subject=subject, field=f"{field}.counters[{name}]")
        for name, counter in sorted((wire or {}).items())
    }
