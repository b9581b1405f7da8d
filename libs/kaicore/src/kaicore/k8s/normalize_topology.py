"""NodeResourceTopologies from the wire into the model, v1alpha1 and v1alpha2 alike.

The kubelet's policy and scope come from attributes where there are any, each overriding on its own what the deprecated
`topologyPolicies` says (as in scheduler-plugins, `facts/numa-and-kubelet.md` section 1.2). Only zones of type `Node`
are NUMA nodes; exporters may publish sockets and caches beside them.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from kaicore.errors import InvalidObject
from kaicore.k8s.objects import TopologyObject, TopologyResource, TopologyZone, ZoneCost
from kaicore.k8s.resources import subject_of
from kaicore.model.node import NodeTopology, TopologyPolicy, TopologyScope, Zone, ZoneResource
from kaicore.model.quantity import is_hugepages, parse_amount

#: The largest NUMA id: masks of zones must fit a signed 64-bit integer.
MAX_NUMA_ID = 62

#: The farthest distance that a SLIT can hold.
MAX_COST = 255

NUMA_ZONE_TYPE = "Node"

_POLICY = "topologyManagerPolicy"
_SCOPE = "topologyManagerScope"
_MAX_NUMA_NODES = "topologyManagerMaxNUMANodes"
_OPTION = "topologyManagerOption"
_CPU_OPTION = "cpuManagerOption"
_FINGERPRINT = "nodeTopologyPodsFingerprint"
_FINGERPRINT_METHOD = "nodeTopologyPodsFingerprintMethod"
_FINGERPRINT_ANNOTATION = "topology.node.k8s.io/fingerprint"
_FINGERPRINT_METHODS = ("all", "with-exclusive-resources")

_single, _restricted, _best_effort = (
    TopologyPolicy.SINGLE_NUMA_NODE,
    TopologyPolicy.RESTRICTED,
    TopologyPolicy.BEST_EFFORT,
)
_container, _pod = TopologyScope.CONTAINER, TopologyScope.POD

#: What `topologyPolicies` may say; the bare names are those of v1alpha1 and of KAI.
LEGACY_POLICIES = {
    "SingleNUMANode": (_single, _container),
    "SingleNUMANodeContainerLevel": (_single, _container),
    "SingleNUMANodePodLevel": (_single, _pod),
    "Restricted": (_restricted, _container),
    "RestrictedContainerLevel": (_restricted, _container),
    "RestrictedPodLevel": (_restricted, _pod),
    "BestEffort": (_best_effort, _container),
    "BestEffortContainerLevel": (_best_effort, _container),
    "BestEffortPodLevel": (_best_effort, _pod),
    "None": (TopologyPolicy.NONE, _container),
}

_ZONE_NAME = re.compile(r"node-(\d{1,9})", re.ASCII)
_EnumT = TypeVar("_EnumT", bound=StrEnum)


def normalize_topology(wire: TopologyObject) -> NodeTopology:
    """Reduce a NodeResourceTopology to what scheduling needs; its name is its node's.

    Raises:
        InvalidObject: naming the field that says something impossible.
    """
    metadata = wire.metadata
    subject = subject_of("NodeResourceTopology", "", metadata.name)
    if not metadata.name:
        raise InvalidObject(subject, "metadata.name", metadata.name, "is empty")
    # Of attributes of one name the first counts.
    attributes = {attribute.name: attribute.value for attribute in reversed(wire.attributes or ())}
    policy, scope = _policy_and_scope(wire, attributes, subject=subject)
    method = attributes.get(_FINGERPRINT_METHOD, "all")
    fingerprint = attributes.get(_FINGERPRINT, (metadata.annotations or {}).get(_FINGERPRINT_ANNOTATION, ""))
    return NodeTopology(
        node=metadata.name,
        resource_version=metadata.resource_version,
        zones=_zones(wire.zones or (), subject=subject),
        policy=policy,
        scope=scope,
        options=_options(attributes, _OPTION),
        cpu_options=_options(attributes, _CPU_OPTION),
        # A print that was made by an unknown method cannot be compared with anything.
        fingerprint=fingerprint if method in _FINGERPRINT_METHODS else "",
        fingerprint_method=method if method in _FINGERPRINT_METHODS else "all",
        uid=metadata.uid,
    )


def _policy_and_scope(
    wire: TopologyObject, attributes: dict[str, str], *, subject: str
) -> tuple[TopologyPolicy, TopologyScope]:
    policy = _attribute(TopologyPolicy, attributes, _POLICY, subject=subject)
    scope = _attribute(TopologyScope, attributes, _SCOPE, subject=subject)
    if policy is not None and scope is not None:
        return policy, scope
    legacy_policy, legacy_scope = TopologyPolicy.NONE, TopologyScope.CONTAINER
    if wire.topology_policies:
        name = wire.topology_policies[0]
        if name not in LEGACY_POLICIES:
            raise InvalidObject(subject, "topologyPolicies[0]", name, "is no known policy")
        legacy_policy, legacy_scope = LEGACY_POLICIES[name]
    return policy or legacy_policy, scope or legacy_scope


def _attribute(kind: type[_EnumT], attributes: dict[str, str], name: str, *, subject: str) -> _EnumT | None:
    value = attributes.get(name)
    if not value:
        return None
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise InvalidObject(subject, f"attributes[{name}]", value, f"must be one of {known}") from None


def _options(attributes: dict[str, str], prefix: str) -> dict[str, str]:
    """Return a manager's options under the kubelet's own names, such as `prefer-closest-numa-nodes`."""
    options = {}
    for name, value in attributes.items():
        if name == _MAX_NUMA_NODES and prefix == _OPTION:
            options["max-allowable-numa-nodes"] = value
        elif name.startswith(prefix) and len(name) > len(prefix):
            words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+", name[len(prefix) :])
            options["-".join(word.lower() for word in words)] = value
    return options


def _zones(zones: Iterable[TopologyZone], *, subject: str) -> tuple[Zone, ...]:
    found: dict[int, Zone] = {}
    for index, zone in enumerate(zones):
        if zone.type != NUMA_ZONE_TYPE:
            continue
        where = f"zones[{index}]"
        match = _ZONE_NAME.fullmatch(zone.name)
        if match is None:
            raise InvalidObject(subject, f"{where}.name", zone.name, "must be node-<NUMA id>")
        numa_id = int(match[1])
        if numa_id > MAX_NUMA_ID:
            raise InvalidObject(subject, f"{where}.name", zone.name, f"has a NUMA id above {MAX_NUMA_ID}")
        if numa_id in found:
            raise InvalidObject(subject, f"{where}.name", zone.name, "is a zone that was named before")
        found[numa_id] = Zone(
            name=zone.name,
            numa_id=numa_id,
            resources=_zone_resources(zone.resources or (), subject=subject, field=f"{where}.resources"),
            costs=_costs(zone.costs or (), subject=subject, field=f"{where}.costs"),
        )
    return tuple(found[numa_id] for numa_id in sorted(found))


def _zone_resources(resources: Iterable[TopologyResource], *, subject: str, field: str) -> dict[str, ZoneResource]:
    found: dict[str, ZoneResource] = {}
    for index, resource in enumerate(resources):
        where = f"{field}[{index}]"
        if not resource.name:
            raise InvalidObject(subject, f"{where}.name", resource.name, "is empty")
        if resource.name in found:
            raise InvalidObject(subject, f"{where}.name", resource.name, "is a resource that was named before")
        figures: dict[str, int] = {}
        for name, value in (
            ("capacity", resource.capacity),
            ("allocatable", resource.allocatable),
            ("available", resource.available),
        ):
            if value is not None:
                figures[name] = parse_amount(
                    value if isinstance(value, str) else str(value),
                    resource=resource.name,
                    subject=subject,
                    field=f"{where}.{name}",
                )
        if "capacity" not in figures and "allocatable" not in figures:
            raise InvalidObject(subject, f"{where}.capacity", None, "is missing, and so is allocatable")
        # Hand-written objects leave out what they do not distinguish.
        allocatable = figures.get("allocatable", figures.get("capacity", 0))
        capacity = figures.get("capacity", allocatable)
        # Publishers read the host's hugepages anew, and a kubelet goes on with those that it has started with.
        if allocatable > capacity and not is_hugepages(resource.name):
            problem = f"is more than the capacity, {resource.capacity}"
            raise InvalidObject(subject, f"{where}.allocatable", resource.allocatable, problem)
        found[resource.name] = ZoneResource(
            capacity=capacity,
            allocatable=allocatable,
            available=figures.get("available", allocatable),
        )
    return {name: found[name] for name in sorted(found)}


def _costs(costs: Iterable[ZoneCost], *, subject: str, field: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for index, cost in enumerate(costs):
        where = f"{field}[{index}]"
        if not cost.name or cost.name in found:
            raise InvalidObject(subject, f"{where}.name", cost.name, "is empty, or a zone that was named before")
        if not 0 <= cost.value <= MAX_COST:
            raise InvalidObject(subject, f"{where}.value", cost.value, f"is no distance of 0 to {MAX_COST}")
        found[cost.name] = cost.value
    return {name: found[name] for name in sorted(found)}
