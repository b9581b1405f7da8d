"""Devices from the wire into the model: slices, device classes, taint rules and resource claims.

`v1` and `v1beta2` have the same fields. `v1beta1` has the fields of `exactly` in the request itself, and those of a
device under `basic`. Both places are read in every version. Features of a later Kubernetes that this version does not
know are listed in `unsupported`; pods that need them wait.
"""

import re
from collections.abc import Iterable, Iterator

from kaicore.errors import InvalidObject, InvalidQuantity, Lost, unheard
from kaicore.kube.normalize.fields import identity, namespaced_identity, required_nodes
from kaicore.kube.wire.resources import named_fields
from kaicore.rules.model import device as models
from kaicore.rules.model.quantity import parse_thousandths
from kaicore.rules.objects.mappings import Fields
from kaicore.rules.objects.wire import OwnerReference, PlainObject, seconds

_MODES = (models.EXACT_COUNT, models.ALL)


def normalize_resource_claim(wire: PlainObject, lost: Lost = unheard) -> models.ResourceClaim:
    """Reduce a ResourceClaim."""
    metadata, given = wire.metadata, named_fields("ResourceClaim", wire)
    devices, status = given.inside("spec").inside("devices"), given.inside("status")
    requests, constraints = devices.items("requests"), devices.items("constraints")
    controller = next((owner for owner in metadata.owner_references or () if owner.controller), None)
    allocated = status.value.get("allocation") is not None
    return models.ResourceClaim(
        **namespaced_identity(metadata),
        owner=controller.uid if controller is not None and controller.kind == "Pod" else "",
        group=controller.name if controller is not None and _is_group(controller) else "",
        requests=tuple(map(_request, requests)),
        constraints=tuple(
            models.DeviceConstraint(tuple(one.texts("requests")), one.text(_MATCH), one.text(_DISTINCT))
            for one in constraints
        ),
        allocation=read_allocation(status.inside("allocation"), lost) if allocated else None,
        reserved_for=tuple(sorted(consumer.text("uid") for consumer in status.items("reservedFor"))),
        deleting=metadata.deletion_timestamp is not None,
        unsupported=tuple(sorted({*_unsupported(requests), *_unknown_constraints(constraints)})),
    )


_MATCH, _DISTINCT = "matchAttribute", "distinctAttribute"


def _is_group(owner: OwnerReference) -> bool:
    """Tell whether an owner is a PodGroup of Kubernetes' own, of any version (`resourceclaim.IsForPod`, 1.37)."""
    return owner.kind == "PodGroup" and owner.api_version.startswith("scheduling.k8s.io/")


def _expressions(given: Fields) -> tuple[str, ...]:
    """Return the CEL expressions of selectors."""
    selectors = [one.inside("cel") for one in given.items("selectors") if one.value.get("cel") is not None]
    return tuple(cel.read("expression", str) or "" for cel in selectors)


def _unknown_selectors(given: Fields) -> Iterator[str]:
    """Yield the selectors of a kind that is not known."""
    for one in given.items("selectors"):
        if one.value.get("cel") is None:
            yield f"{one.path} is no CEL expression"


def _exactly(request: Fields) -> Fields:
    given = request.value.get("exactly")
    return Fields(request.subject, request.value if given is None else given, request.where("exactly"))


def _request(request: Fields) -> models.DeviceRequest:
    name, alternatives = request.text("name"), request.items("firstAvailable")
    if alternatives:
        return models.DeviceRequest(name, alternatives=tuple(_exact(one, one.text("name")) for one in alternatives))
    return _exact(_exactly(request), name)


def _exact(request: Fields, name: str) -> models.DeviceRequest:
    capacity = request.inside("capacity").inside("requests")
    mode, count = request.text("allocationMode") or models.EXACT_COUNT, request.read("count", int)
    return models.DeviceRequest(
        name=name,
        device_class=request.text("deviceClassName"),
        selectors=_expressions(request),
        mode=mode,
        # The API server fills it in; with `All` it says nothing.
        count=1 if mode == models.ALL or not count else count,
        admin=request.flag("adminAccess"),
        tolerations=_tolerations(request),
        capacity={key: _thousandths(capacity, key) for key in sorted(capacity.value)},
    )


def _tolerations(given: Fields) -> tuple[models.DeviceToleration, ...]:
    return tuple(
        models.DeviceToleration(one.text("key"), one.text("operator") or "Equal", one.text("value"), one.text("effect"))
        for one in given.items("tolerations")
    )


def _unsupported(requests: Iterable[Fields]) -> Iterator[str]:
    for request in requests:
        alternatives = request.items("firstAvailable")
        for part in (_exactly(request), *alternatives):
            if not alternatives or part.path != request.where("exactly"):
                if not part.text("deviceClassName"):
                    yield f"{part.path}.deviceClassName is empty"
                if (part.text("allocationMode") or models.EXACT_COUNT) not in _MODES:
                    yield f"{part.path}.allocationMode {part.text('allocationMode')}"
            if part.value.get("derivedAttributes"):
                yield f"{part.path}.derivedAttributes"
            yield from _unknown_selectors(part)


def _unknown_constraints(constraints: Iterable[Fields]) -> Iterator[str]:
    for one in constraints:
        if not one.text(_MATCH) and not one.text(_DISTINCT):
            yield f"{one.path} is of a kind that is not known"


def read_allocation(given: Fields, lost: Lost = unheard) -> models.Allocation:
    """Reduce what a claim was allocated. Raises InvalidObject: its node selector makes no sense."""
    devices = []
    for result in given.inside("devices").items("results"):
        amounts = result.inside("consumedCapacity")
        consumed: models.Thousandths | None = None
        if any(result.value.get(name) is not None for name in ("shareID", "consumedCapacity")):
            consumed = {}
            for name in sorted(amounts.value):
                try:
                    consumed[name] = _thousandths(amounts, name)
                except InvalidQuantity as error:
                    lost(error)
        devices.append(
            models.AllocatedDevice(
                request=result.text("request"),
                driver=result.text("driver"),
                pool=result.text("pool"),
                device=result.text("device"),
                admin=result.flag("adminAccess"),
                consumed=consumed,
                conditions=tuple(result.texts("bindingConditions")),
                failures=tuple(result.texts("bindingFailureConditions")),
                tolerations=_tolerations(result),
            )
        )
    return models.Allocation(tuple(devices), required_nodes(given, "nodeSelector"))


def _thousandths(given: Fields, name: str) -> int:
    """Return an amount in thousandths; 0 where there is none. Raises InvalidQuantity: it is no amount."""
    return parse_thousandths(str(given.value.get(name, 0)), subject=given.subject, field=given.where(name))


#: A semantic version, as Kubernetes takes one for the value of an attribute.
_VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")


def normalize_slice(wire: PlainObject, lost: Lost = unheard) -> models.ResourceSlice:
    """Reduce a ResourceSlice; a device that makes no sense is left out, and its pool not used.

    Raises InvalidObject: it names no driver or no pool, or selects its nodes in no way that is known.
    """
    metadata, spec = wire.metadata, named_fields("ResourceSlice", wire).inside("spec")
    driver, pool = spec.text("driver"), spec.inside("pool")
    for place, name in ((spec, "driver"), (pool, "name")):
        if not place.text(name):
            raise place.error(name, "is empty")
    nodes = _nodes(spec)
    if (nodes is None) != spec.flag("perDeviceNodeSelection"):
        raise spec.error("nodeName", "its devices are for no node, or in two ways for some")
    skips, given = bool(spec.texts("skipNodeOperations")), spec.items("devices")
    devices: list[models.Device] = []
    for device in given:
        try:
            devices.append(_device(device, driver, own_nodes=nodes is None, skips=skips))
        except InvalidObject as error:
            lost(error)
    return models.ResourceSlice(
        **identity(metadata),
        driver=driver,
        pool=pool.text("name"),
        generation=pool.read("generation", int) or 0,
        slices=pool.read("resourceSliceCount", int) or 0,
        nodes=nodes,
        devices=tuple(devices),
        counters={one.text("name"): _counters(one) for one in spec.items("sharedCounters")},
        partial=len(devices) < len(given),
    )


def normalize_device_class(wire: PlainObject, _: Lost = unheard) -> models.DeviceClass:
    """Reduce a DeviceClass."""
    metadata, spec = wire.metadata, named_fields("DeviceClass", wire).inside("spec")
    return models.DeviceClass(
        **identity(metadata),
        selectors=_expressions(spec),
        extended_resource=spec.text("extendedResourceName"),
        created_at=seconds(metadata.creation_timestamp) or 0,
        unsupported=tuple(_unknown_selectors(spec)),
    )


def normalize_taint_rule(wire: PlainObject, lost: Lost = unheard) -> models.DeviceTaintRule:
    """Reduce a DeviceTaintRule; one that asks for more than this version looks at is for more devices than it says.

    Raises InvalidObject: it has no name, or its taint no key.
    """
    metadata, spec = wire.metadata, named_fields("DeviceTaintRule", wire).inside("spec")
    taint, selector = spec.inside("taint"), spec.inside("deviceSelector")
    if not taint.text("key"):
        raise taint.error("key", "is empty")
    if selector.value.get("deviceClassName") or selector.value.get("selectors"):
        problem = "selects by class or expression, as until Kubernetes 1.34: taken as for all devices otherwise met"
        lost(InvalidObject(spec.subject, selector.path, None, problem))
    return models.DeviceTaintRule(
        **identity(metadata),
        taint=_taint(taint),
        none=spec.value.get("deviceSelector") is None,
        driver=selector.text("driver"),
        pool=selector.text("pool"),
        device=selector.text("device"),
    )


# Slices.


def _taint(given: Fields) -> models.DeviceTaint:
    return models.DeviceTaint(given.text("key"), given.text("effect"), given.text("value"))


def _nodes(given: Fields) -> models.NodeSelection | None:
    if node := given.text("nodeName"):
        return models.NodeSelection(node)
    if given.flag("allNodes"):
        return models.NodeSelection(everywhere=True)
    terms = required_nodes(given, "nodeSelector")
    return None if terms is None else models.NodeSelection(terms=terms)


_NOT_HONOURED = "is what this version cannot honour, so this device is not used"


def _device(device: Fields, driver: str, *, own_nodes: bool, skips: bool) -> models.Device:
    name, basic = device.text("name"), device
    if not name:
        raise device.error("name", "is empty")
    if device.value.get("basic") is not None:
        basic = Fields(device.subject, device.inside("basic").value, device.path)
    if skips:
        raise InvalidObject(device.subject, "spec.skipNodeOperations", name, _NOT_HONOURED)
    uses = basic.items("consumesCounters")
    for use in uses:
        if use.texts("compatibilityGroups"):
            raise InvalidObject(use.subject, use.where("compatibilityGroups"), name, _NOT_HONOURED)
    nodes = None
    if own_nodes:
        nodes = _nodes(basic)
        if nodes is None:
            raise basic.error("nodeName", "the device is for no node")
    return models.Device(
        name=name,
        attributes={_full_name(key, driver): _attribute(value) for key, value in basic.named("attributes")},
        capacity={key: _capacity(value) for key, value in basic.named("capacity")},
        consumes=tuple(models.CounterUse(use.text("counterSet"), _counters(use)) for use in uses),
        nodes=nodes,
        taints=tuple(map(_taint, basic.items("taints"))),
        shared=basic.flag("allowMultipleAllocations"),
        binds_to_node=basic.flag("bindsToNode"),
        binding_conditions=tuple(basic.texts("bindingConditions")),
        failure_conditions=tuple(basic.texts("bindingFailureConditions")),
    )


def _full_name(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


#: Types of attributes' values by kind; a list is in the field of the kind's plural.
_ATTRIBUTES: dict[str, type[int | bool | str]] = {"int": int, "bool": bool, "string": str, "version": str}


def _attribute(given: Fields) -> models.DeviceAttribute:
    found: list[models.DeviceAttribute] = []
    for name, value in given.value.items():
        kind = name.removesuffix("s")
        if value is None or kind not in _ATTRIBUTES:
            continue
        listed, values = name != kind, value if isinstance(value, list) else [value]
        if listed != isinstance(value, list) or any(type(one) is not _ATTRIBUTES[kind] for one in values):
            raise given.error(name, "is of another type")
        found.append(models.DeviceAttribute(kind, tuple(values), listed))
    if len(found) != 1:
        raise InvalidObject(given.subject, given.path, None, "has not exactly one value of a known kind")
    (attribute,) = found
    if attribute.kind == "version":
        for one in attribute.values:
            if not _VERSION.fullmatch(str(one)):
                raise InvalidObject(given.subject, given.path, one, "is no semantic version")
    return attribute


def _capacity(given: Fields) -> models.DeviceCapacity:
    value = _thousandths(given, "value")
    if given.value.get("requestPolicy") is None:
        return models.DeviceCapacity(value)
    policy = given.inside("requestPolicy")
    bounds = policy.inside("validRange")
    default, least, most, step = (
        None if place.value.get(name) is None else _thousandths(place, name)
        for place, name in ((policy, "default"), (bounds, "min"), (bounds, "max"), (bounds, "step"))
    )
    values = policy.read("validValues", list[str | int]) or ()
    field = policy.where("validValues")
    return models.DeviceCapacity(
        value,
        models.CapacityPolicy(
            default=default,
            values=tuple(parse_thousandths(str(text), subject=given.subject, field=field) for text in values),
            least=least,
            most=most,
            step=step,
        ),
    )


def _counters(given: Fields) -> models.Thousandths:
    return {name: _thousandths(one, "value") for name, one in given.named("counters")}
