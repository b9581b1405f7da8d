"""Nodes from the wire into the model, with their NUMA zones and with priority classes.

Zones come from NodeResourceTopologies, v1alpha1 and v1alpha2 alike.

The kubelet's policy and scope come from attributes, if there are any. Each overrides on its own the value in the
deprecated `topologyPolicies`. Source: kubernetes-sigs/scheduler-plugins @903da7df,
`pkg/noderesourcetopology/nodeconfig/topologymanager.go`. Only zones of type `Node` are NUMA nodes; exporters may
publish sockets and caches beside them.

An invalid part affects only itself, as in scheduler-plugins and KAI. An invalid attribute, policy, scope or zone counts
as missing, and an invalid distance as unknown. A zone has nothing to give of a resource with invalid figures.
"""

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TypeVar

import msgspec

from kaicore.errors import InvalidObject, InvalidQuantity, Lost, unheard
from kaicore.kube.normalize.fields import amount, amounts
from kaicore.kube.wire import objects
from kaicore.kube.wire.resources import PartT, decode_part, named_subject
from kaicore.rules.model.node import Node, NodeTopology, Taint, TopologyPolicy, TopologyScope, Zone, ZoneResource
from kaicore.rules.model.pod import PriorityClass
from kaicore.rules.model.quantity import is_hugepages
from kaicore.rules.objects.wire import int32

#: The conditions that kubelets and cloud providers set; those that say a node is unfit come with taints.
_OF_KUBELET = frozenset({"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "EtcdIsVoter"})


def normalize_node(wire: objects.NodeObject, lost: Lost = unheard) -> Node:
    """Reduce a Node to what scheduling needs; it has nothing of a resource without a usable amount."""
    metadata, spec, status = wire.metadata, wire.spec, wire.status
    subject = named_subject("Node", wire)
    return Node(
        uid=metadata.uid,
        name=metadata.name,
        resource_version=metadata.resource_version,
        allocatable=amounts(status.allocatable, subject=subject, field="status.allocatable", lost=lost),
        capacity=amounts(status.capacity, subject=subject, field="status.capacity", lost=lost),
        labels=metadata.labels or {},
        taints=tuple(
            Taint(key=taint.key, effect=taint.effect, value=taint.value or "")
            for taint in sorted(spec.taints or (), key=lambda taint: (taint.key, taint.effect))
        ),
        unschedulable=bool(spec.unschedulable),
        ready=any(condition.type == "Ready" and condition.status == "True" for condition in status.conditions or ()),
        kubelet_version=status.node_info.kubelet_version if status.node_info is not None else "",
        declared_features=tuple(sorted(set(status.declared_features or ()))),
        problems=tuple(
            sorted(one.type for one in status.conditions or () if one.status == "True" and one.type not in _OF_KUBELET)
        ),
        gpus_repeated=bool((metadata.annotations or {}).get(_HAMI_DEVICES)),
    )


def normalize_priority_class(wire: objects.PriorityClassObject, lost: Lost = unheard) -> PriorityClass:
    """Reduce a PriorityClass to what scheduling needs."""
    metadata = wire.metadata
    subject = named_subject("PriorityClass", wire)
    return PriorityClass(
        uid=metadata.uid,
        name=metadata.name,
        resource_version=metadata.resource_version,
        value=int32(wire.value, subject=subject, field="value", lost=lost),
        global_default=bool(wire.global_default),
        preemption_policy=wire.preemption_policy or "PreemptLowerPriority",
    )


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
_GATE = "kubeletFeatureGate"
_FINGERPRINT = "nodeTopologyPodsFingerprint"
_FINGERPRINT_METHOD = "nodeTopologyPodsFingerprintMethod"
#: The GPUs of a node, as HAMi's device plugin writes them; it offers each of them several times.
_HAMI_DEVICES = "hami.io/node-nvidia-register"
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


def normalize_topology(wire: objects.TopologyObject, lost: Lost = unheard) -> NodeTopology:
    """Reduce a NodeResourceTopology to what scheduling needs; its name is its node's."""
    metadata = wire.metadata
    subject = named_subject("NodeResourceTopology", wire)
    given = _parts(wire.attributes, objects.Attribute, subject=subject, field="attributes", lost=lost)
    # The first attribute of a name counts.
    attributes = {attribute.name: attribute.value for _, attribute in reversed(list(given))}
    policy, scope = _policy_and_scope(wire, attributes, subject=subject, lost=lost)
    method = attributes.get(_FINGERPRINT_METHOD, "all")
    fingerprint = attributes.get(_FINGERPRINT, (metadata.annotations or {}).get(_FINGERPRINT_ANNOTATION, ""))
    return NodeTopology(
        node=metadata.name,
        resource_version=metadata.resource_version,
        zones=_zones(wire.zones, subject=subject, lost=lost),
        policy=policy,
        scope=scope,
        options=_options(attributes, _OPTION),
        cpu_options=_options(attributes, _CPU_OPTION),
        feature_gates=_gates(attributes, subject=subject, lost=lost),
        # A print that was made by an unknown method cannot be compared with anything.
        fingerprint=fingerprint if method in _FINGERPRINT_METHODS else "",
        fingerprint_method=method if method in _FINGERPRINT_METHODS else "all",
        uid=metadata.uid,
    )


def zone_usage(wire: objects.TopologyObject) -> dict[str, int | None]:
    """Return how much is used of each resource that zones name, over all of them; None where that cannot be read."""
    used: dict[str, int | None] = {}
    for _, zone in _parts(wire.zones, objects.TopologyZone, subject="", field="", lost=unheard):
        for _, resource in _parts(zone.resources, objects.TopologyResource, subject="", field="", lost=unheard):
            before, more = used.get(resource.name, 0), _usage(resource)
            used[resource.name] = None if before is None or more is None else before + more
    return used


def _usage(resource: objects.TopologyResource) -> int | None:
    figures = resource.allocatable, resource.available
    try:
        allocatable, available = (
            amount("" if figure is None else figure, resource=resource.name, subject="", field="", lost=unheard)
            for figure in figures
        )
    except InvalidQuantity:
        return None
    return allocatable - available


def _parts(
    raw: Iterable[msgspec.Raw] | None, type_: type[PartT], *, subject: str, field: str, lost: Lost
) -> Iterator[tuple[str, PartT]]:
    """Yield the parts of a list that can be decoded, each with its path."""
    for index, data in enumerate(raw or ()):
        where = f"{field}[{index}]"
        try:
            yield where, decode_part(data, type_, subject=subject, field=where)
        except InvalidObject as error:
            lost(error)


def _policy_and_scope(
    wire: objects.TopologyObject, attributes: dict[str, str], *, subject: str, lost: Lost
) -> tuple[TopologyPolicy, TopologyScope]:
    policy = _attribute(TopologyPolicy, attributes, _POLICY, subject=subject, lost=lost)
    scope = _attribute(TopologyScope, attributes, _SCOPE, subject=subject, lost=lost)
    if policy is not None and scope is not None:
        return policy, scope
    legacy_policy, legacy_scope = TopologyPolicy.NONE, TopologyScope.CONTAINER
    for where, name in _parts(
        (wire.topology_policies or ())[:1], str, subject=subject, field="topologyPolicies", lost=lost
    ):
        if name in LEGACY_POLICIES:
            legacy_policy, legacy_scope = LEGACY_POLICIES[name]
        else:
            lost(InvalidObject(subject, where, name, "is no known policy"))
    return policy or legacy_policy, scope or legacy_scope


def _attribute(kind: type[_EnumT], attributes: dict[str, str], name: str, *, subject: str, lost: Lost) -> _EnumT | None:
    value = attributes.get(name)
    if not value:
        return None
    if value not in set(kind):
        lost(InvalidObject(subject, f"attributes[{name}]", value, f"must be one of {', '.join(kind)}"))
        return None
    return kind(value)


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


def _gates(attributes: dict[str, str], *, subject: str, lost: Lost) -> dict[str, bool]:
    gates = {}
    for name, value in sorted(attributes.items()):
        if not name.startswith(_GATE):
            continue
        if value.lower() in ("true", "false"):
            gates[name.removeprefix(_GATE)] = value.lower() == "true"
        else:
            lost(InvalidObject(subject, f"attributes[{name}]", value, "must be true or false"))
    return gates


def _zones(raw: Iterable[msgspec.Raw] | None, *, subject: str, lost: Lost) -> tuple[Zone, ...]:
    zones: dict[int, Zone] = {}
    for where, zone in _parts(raw, objects.TopologyZone, subject=subject, field="zones", lost=lost):
        if zone.type != NUMA_ZONE_TYPE:
            continue
        match = _ZONE_NAME.fullmatch(zone.name)
        numa_id = int(match[1]) if match is not None else -1
        problem = ""
        if match is None:
            problem = "must be node-<NUMA id>"
        elif numa_id > MAX_NUMA_ID:
            problem = f"has a NUMA id above {MAX_NUMA_ID}"
        elif numa_id in zones:
            problem = "is a zone that was named before"
        if problem:
            lost(InvalidObject(subject, f"{where}.name", zone.name, problem))
            continue
        zones[numa_id] = Zone(
            name=zone.name,
            numa_id=numa_id,
            resources=_zone_resources(zone, subject=subject, field=f"{where}.resources", lost=lost),
            costs=_costs(zone, subject=subject, field=f"{where}.costs", lost=lost),
        )
    return tuple(zones[numa_id] for numa_id in sorted(zones))


def _zone_resources(zone: objects.TopologyZone, *, subject: str, field: str, lost: Lost) -> dict[str, ZoneResource]:
    figures: dict[str, ZoneResource] = {}
    for where, resource in _parts(zone.resources, objects.TopologyResource, subject=subject, field=field, lost=lost):
        if not resource.name or resource.name in figures:
            problem = "is a resource that was named before" if resource.name else "is empty"
            lost(InvalidObject(subject, f"{where}.name", resource.name, problem))
        else:
            figures[resource.name] = _figures(resource, subject=subject, field=where, lost=lost)
    return {name: figures[name] for name in sorted(figures)}


def _figures(resource: objects.TopologyResource, *, subject: str, field: str, lost: Lost) -> ZoneResource:
    """Return what a zone has of a resource; a figure that is negative or no quantity gives nothing, and is reported."""
    given = {"capacity": resource.capacity, "allocatable": resource.allocatable, "available": resource.available}
    figures: dict[str, int] = {}
    for name, value in given.items():
        if value is None:
            continue
        try:
            figures[name] = amount(value, resource=resource.name, subject=subject, field=f"{field}.{name}", lost=lost)
        except InvalidQuantity as error:
            lost(error)
    if resource.capacity is None and resource.allocatable is None:
        lost(InvalidObject(subject, f"{field}.capacity", None, "is missing, and so is allocatable"))
    # Hand-written objects leave out what they do not distinguish; what cannot be read is another matter.
    spoiled = resource.allocatable is not None and "allocatable" not in figures
    allocatable = figures.get("allocatable", 0 if spoiled else figures.get("capacity", 0))
    capacity = figures.get("capacity", allocatable)
    # Publishers read the host's hugepages anew, and a kubelet goes on with those that it has started with.
    if allocatable > capacity and not is_hugepages(resource.name):
        problem = f"is more than the capacity, {resource.capacity}"
        lost(InvalidObject(subject, f"{field}.allocatable", resource.allocatable, problem))
        allocatable = capacity
    return ZoneResource(
        capacity=capacity,
        allocatable=allocatable,
        available=figures.get("available", allocatable),
    )


def _costs(zone: objects.TopologyZone, *, subject: str, field: str, lost: Lost) -> dict[str, int]:
    costs_by_zone: dict[str, int] = {}
    for where, cost in _parts(zone.costs, objects.ZoneCost, subject=subject, field=field, lost=lost):
        if not cost.name or cost.name in costs_by_zone:
            lost(InvalidObject(subject, f"{where}.name", cost.name, "is empty, or a zone that was named before"))
        elif not 0 <= cost.value <= MAX_COST:
            lost(InvalidObject(subject, f"{where}.value", cost.value, f"is no distance of 0 to {MAX_COST}"))
        else:
            costs_by_zone[cost.name] = cost.value
    return {name: costs_by_zone[name] for name in sorted(costs_by_zone)}
