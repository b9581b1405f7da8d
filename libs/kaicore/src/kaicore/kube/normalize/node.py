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
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from kaicore.errors import InvalidObject, InvalidQuantity, Lost, unheard
from kaicore.kube.normalize.fields import amount, amounts, identity
from kaicore.kube.wire import objects
from kaicore.kube.wire.resources import named_subject
from kaicore.rules.model.node import Node, NodeTopology, Taint, TopologyPolicy, TopologyScope, Zone, ZoneResource
from kaicore.rules.model.pod import PriorityClass
from kaicore.rules.model.quantity import is_hugepages
from kaicore.rules.objects.mappings import Fields
from kaicore.rules.objects.wire import int32

#: The conditions that kubelets and cloud providers set; those that say a node is unfit come with taints.
_OF_KUBELET = frozenset({"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "EtcdIsVoter"})


def normalize_node(wire: objects.NodeObject, lost: Lost = unheard) -> Node:
    """Reduce a Node to what scheduling needs; it has nothing of a resource without a usable amount."""
    metadata, spec, status = wire.metadata, wire.spec, wire.status
    subject = named_subject("Node", wire)
    return Node(
        **identity(metadata),
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
        **identity(metadata),
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

_FIGURES = ("capacity", "allocatable", "available")
#: Types of a figure in JSON.
_QUANTITIES = (str, int, float, type(None))
_ZONE_NAME = re.compile(r"node-(\d{1,9})", re.ASCII)
_EnumT = TypeVar("_EnumT", bound=StrEnum)


def normalize_topology(wire: objects.TopologyObject, lost: Lost = unheard) -> NodeTopology:
    """Reduce a NodeResourceTopology to what scheduling needs; its name is its node's."""
    metadata = wire.metadata
    given = _fields(wire, named_subject("NodeResourceTopology", wire))
    pairs: list[tuple[str, str]] = []
    _each(given, "attributes", lambda one: pairs.append((_text(one, "name"), _text(one, "value"))), lost)
    # The first attribute of a name counts.
    attributes = dict(reversed(pairs))
    policy, scope = _policy_and_scope(given, attributes, lost=lost)
    method = attributes.get(_FINGERPRINT_METHOD, "all")
    fingerprint = attributes.get(_FINGERPRINT, (metadata.annotations or {}).get(_FINGERPRINT_ANNOTATION, ""))
    return NodeTopology(
        node=metadata.name,
        resource_version=metadata.resource_version,
        zones=_zones(given, lost),
        policy=policy,
        scope=scope,
        options=_options(attributes, _OPTION),
        cpu_options=_options(attributes, _CPU_OPTION),
        feature_gates=_gates(attributes, subject=given.subject, lost=lost),
        # A print that was made by an unknown method cannot be compared with anything.
        fingerprint=fingerprint if method in _FINGERPRINT_METHODS else "",
        fingerprint_method=method if method in _FINGERPRINT_METHODS else "all",
        uid=metadata.uid,
    )


def zone_usage(wire: objects.TopologyObject) -> dict[str, int | None]:
    """Return how much is used of each resource that zones name, over all of them; None where that cannot be read."""
    used: dict[str, int | None] = {}

    def add(resource: Fields) -> None:
        name = _resource_name(resource)
        before, more = used.get(name, 0), _usage(resource, name)
        used[name] = None if before is None or more is None else before + more

    _each(_fields(wire, ""), "zones", lambda zone: _each(zone, "resources", add, unheard), unheard)
    return used


def _usage(resource: Fields, name: str) -> int | None:
    figures = (resource.value.get("allocatable"), resource.value.get("available"))
    try:
        allocatable, available = (
            amount("" if figure is None else figure, resource=name, subject="", field="", lost=unheard)
            for figure in figures
        )
    except InvalidQuantity:
        return None
    return allocatable - available


def _fields(wire: objects.TopologyObject, subject: str) -> Fields:
    parts = {"attributes": wire.attributes, "topologyPolicies": wire.topology_policies, "zones": wire.zones}
    return Fields(subject, parts)


def _text(given: Fields, name: str) -> str:
    value = given.value.get(name)
    if not isinstance(value, str | None):
        raise given.error(name, "must be a text")
    return value or ""


def _each(given: Fields, name: str, take: Callable[[Fields], None], lost: Lost) -> None:
    """Take each mapping of a list; one that is refused is lost. Raises InvalidObject: it is no list."""
    items = given.value.get(name)
    if not isinstance(items, list | None):
        raise given.error(name, "must be a list")
    for index, item in enumerate(items or ()):
        part = Fields(given.subject, item, f"{given.where(name)}[{index}]")
        try:
            if not isinstance(item, dict):
                raise InvalidObject(given.subject, part.path, item, "must be a mapping")
            take(part)
        except InvalidObject as error:
            lost(error)


def _policy_and_scope(given: Fields, attributes: dict[str, str], *, lost: Lost) -> tuple[TopologyPolicy, TopologyScope]:
    policy = _attribute(TopologyPolicy, attributes, _POLICY, subject=given.subject, lost=lost)
    scope = _attribute(TopologyScope, attributes, _SCOPE, subject=given.subject, lost=lost)
    if policy is not None and scope is not None:
        return policy, scope
    legacy_policy, legacy_scope = TopologyPolicy.NONE, TopologyScope.CONTAINER
    for name in (given.value["topologyPolicies"] or ())[:1]:
        if isinstance(name, str) and name in LEGACY_POLICIES:
            legacy_policy, legacy_scope = LEGACY_POLICIES[name]
        else:
            lost(InvalidObject(given.subject, "topologyPolicies[0]", name, "is no known policy"))
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


def _zones(given: Fields, lost: Lost) -> tuple[Zone, ...]:
    zones: dict[int, Zone] = {}

    def take(zone: Fields) -> None:
        name = _text(zone, "name")
        if _text(zone, "type") != NUMA_ZONE_TYPE:
            return
        match = _ZONE_NAME.fullmatch(name)
        numa_id = int(match[1]) if match is not None else -1
        if match is None:
            raise InvalidObject(zone.subject, zone.where("name"), name, "must be node-<NUMA id>")
        if numa_id > MAX_NUMA_ID:
            raise zone.error("name", f"has a NUMA id above {MAX_NUMA_ID}")
        if numa_id in zones:
            raise zone.error("name", "is a zone that was named before")
        zones[numa_id] = Zone(
            name=name, numa_id=numa_id, resources=_zone_resources(zone, lost), costs=_costs(zone, lost)
        )

    _each(given, "zones", take, lost)
    return tuple(zones[numa_id] for numa_id in sorted(zones))


def _resource_name(resource: Fields) -> str:
    """Return the name of a zone's resource. Raises InvalidObject: a field is of another type."""
    for figure in _FIGURES:
        if type(resource.value.get(figure)) not in _QUANTITIES:
            raise resource.error(figure, "is no quantity")
    return _text(resource, "name")


def _zone_resources(zone: Fields, lost: Lost) -> dict[str, ZoneResource]:
    figures: dict[str, ZoneResource] = {}

    def take(resource: Fields) -> None:
        name = _resource_name(resource)
        if not name or name in figures:
            problem = "is a resource that was named before" if name else "is empty"
            raise InvalidObject(resource.subject, resource.where("name"), name, problem)
        figures[name] = _figures(resource, name, lost)

    _each(zone, "resources", take, lost)
    return {name: figures[name] for name in sorted(figures)}


def _figures(resource: Fields, name: str, lost: Lost) -> ZoneResource:
    """Return what a zone has of a resource; a figure that is negative or no quantity gives nothing, and is reported."""
    given = {figure: resource.value[figure] for figure in _FIGURES if resource.value.get(figure) is not None}
    figures: dict[str, int] = {}
    for figure, value in given.items():
        field = resource.where(figure)
        try:
            figures[figure] = amount(value, resource=name, subject=resource.subject, field=field, lost=lost)
        except InvalidQuantity as error:
            lost(error)
    if not {"capacity", "allocatable"} & given.keys():
        lost(resource.error("capacity", "is missing, and so is allocatable"))
    # Hand-written objects leave out what they do not distinguish; what cannot be read is another matter.
    spoiled = "allocatable" in given and "allocatable" not in figures
    allocatable = figures.get("allocatable", 0 if spoiled else figures.get("capacity", 0))
    capacity = figures.get("capacity", allocatable)
    # Publishers read the host's hugepages anew, and a kubelet goes on with those that it has started with.
    if allocatable > capacity and not is_hugepages(name):
        lost(resource.error("allocatable", f"is more than the capacity, {given.get('capacity')}"))
        allocatable = capacity
    return ZoneResource(
        capacity=capacity,
        allocatable=allocatable,
        available=figures.get("available", allocatable),
    )


def _costs(zone: Fields, lost: Lost) -> dict[str, int]:
    costs_by_zone: dict[str, int] = {}

    def take(cost: Fields) -> None:
        name, value = _text(cost, "name"), cost.read("value", int) or 0
        if not name or name in costs_by_zone:
            raise InvalidObject(cost.subject, cost.where("name"), name, "is empty, or a zone that was named before")
        if not 0 <= value <= MAX_COST:
            raise InvalidObject(cost.subject, cost.where("value"), value, f"is no distance of 0 to {MAX_COST}")
        costs_by_zone[name] = value

    _each(zone, "costs", take, lost)
    return {name: costs_by_zone[name] for name in sorted(costs_by_zone)}
