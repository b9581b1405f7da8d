"""Whatever is wrong with an object is said once and clearly: which object, which field, which value."""

from collections.abc import Callable
from typing import Any

import pytest
from kaicore.errors import InvalidObject
from kaicore.kube.normalize.node import normalize_node, normalize_priority_class, normalize_topology
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.wire.resources import NODES, PODS, PRIORITY_CLASSES, TOPOLOGIES, identity

from tests.given.cluster import wire
from tests.given.work.losses import refuse


def zones(*documents: wire.Wire) -> wire.Wire:
    return wire.topology(zones=list(documents))


def zone_with(**resource: Any) -> wire.Wire:
    return zones({"name": "node-0", "type": "Node", "resources": [{"name": "cpu", **resource}]})


def zone_costing(*costs: wire.Wire) -> wire.Wire:
    return zones({"name": "node-0", "type": "Node", "costs": list(costs)})


def attribute(name: str, value: str) -> wire.Wire:
    return wire.topology(attributes=[{"name": name, "value": value}])


def limited(**limits: Any) -> wire.Wire:
    return wire.pod(containers=[{"name": "c", "resources": {"limits": limits}}])


POD_CASES = [
    (limited(memory="9e999"), "spec.containers[0].resources.limits[memory]", "9e999"),
    (wire.pod(priority=2**40), "spec.priority", 2**40),
    (wire.pod(containers="none"), "spec.containers", "none"),
    (wire.pod(containers=[{"name": 7}]), "spec.containers[0].name", 7),
    (wire.pod(nodeSelector={"a": 1}), "spec.nodeSelector[...]", {"a": 1}),
    (wire.pod() | {"status": []}, "status", []),
]

NODE_CASES = [
    (wire.node(allocatable={"cpu": "lots"}), "status.allocatable[cpu]", "lots"),
    (wire.node(spec={"unschedulable": "yes"}), "spec.unschedulable", "yes"),
]

TOPOLOGY_CASES: list[tuple[wire.Wire, str, object]] = [
    (zone_with(capacity="-4"), "zones[0].resources[0].capacity", "-4"),
    (zone_with(capacity="4", allocatable="99999999999999999999"), "zones[0].resources[0].allocatable", "9" * 20),
    (zone_with(capacity="4", allocatable="99"), "zones[0].resources[0].allocatable", "99"),
    (zone_with(capacity="4", available="4 cores"), "zones[0].resources[0].available", "4 cores"),
    (zone_with(available="4"), "zones[0].resources[0].capacity", None),
    (zone_with(capacity={"value": 4}), "zones[0].resources[0].capacity", {"value": 4}),
    (zones({"type": "Node"}), "zones[0].name", ""),
    (zones(wire.zone(0), {"name": "numa1", "type": "Node"}), "zones[1].name", "numa1"),
    (zones({"name": "node--1", "type": "Node"}), "zones[0].name", "node--1"),
    (zones({"name": "node-\u0661", "type": "Node"}), "zones[0].name", "node-\u0661"),
    (zones(wire.zone(63)), "zones[0].name", "node-63"),
    (zones(wire.zone(1), wire.zone(1)), "zones[1].name", "node-1"),
    (zones({"name": "node-0", "type": "Node", "resources": [{"capacity": "1"}]}), "zones[0].resources[0].name", ""),
    (
        zones({"name": "node-0", "type": "Node", "resources": [{"name": "cpu", "capacity": "1"}] * 2}),
        "zones[0].resources[1].name",
        "cpu",
    ),
    (zone_costing({"name": "node-0", "value": -1}), "zones[0].costs[0].value", -1),
    (
        zone_costing({"name": "node-0", "value": 10}, {"name": "node-0", "value": 20}),
        "zones[0].costs[1].name",
        "node-0",
    ),
    (zone_costing({"name": "node-0", "value": "far"}), "zones[0].costs[0].value", "far"),
    (attribute("topologyManagerPolicy", "strict"), "attributes[topologyManagerPolicy]", "strict"),
    (attribute("topologyManagerScope", "node"), "attributes[topologyManagerScope]", "node"),
    (wire.topology(topologyPolicies=["Odd"], attributes=[]), "topologyPolicies[0]", "Odd"),
    (wire.topology() | {"zones": {"node-0": {}}}, "zones", {"node-0": {}}),
]


def read_pod(data: bytes) -> Any:
    return normalize_pod(PODS.decode(data), refuse)


def read_node(data: bytes) -> Any:
    return normalize_node(NODES.decode(data), refuse)


def read_topology(data: bytes) -> Any:
    return normalize_topology(TOPOLOGIES.at("v1alpha2").decode(data), refuse)


def read_priority_class(data: bytes) -> Any:
    return normalize_priority_class(PRIORITY_CLASSES.decode(data), refuse)


@pytest.mark.parametrize(
    ("read", "subject", "document", "field", "value"),
    [
        *((read_pod, "Pod default/p", *case) for case in POD_CASES),
        *((read_node, "Node n1", *case) for case in NODE_CASES),
        *((read_topology, "NodeResourceTopology n1", *case) for case in TOPOLOGY_CASES),
        (read_priority_class, "PriorityClass pc", {"metadata": wire.metadata("pc"), "value": 2**31}, "value", 2**31),
    ],
)
def test_the_error_names_object_field_and_value(
    read: Callable[[bytes], Any], subject: str, document: wire.Wire, field: str, value: object
) -> None:
    with pytest.raises(InvalidObject) as caught:
        read(wire.encode(document))
    assert (caught.value.subject, caught.value.field, caught.value.value) == (subject, field, value)


@pytest.mark.parametrize("read", [read_pod, read_node, read_topology, read_priority_class])
@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{", b'{"metadata":{}}', b'{"metadata":{"name":""}}', b"\xff"])
def test_bytes_that_are_no_object_are_refused(read: Callable[[bytes], Any], data: bytes) -> None:
    with pytest.raises(InvalidObject):
        read(data)


def test_broken_object_keeps_its_identity() -> None:
    broken = wire.pod("p", version="8") | {"spec": 7}
    named = identity(wire.encode(broken))
    assert named is not None
    assert (named.namespace, named.name, named.uid, named.resource_version) == ("default", "p", "uid-p", "8")
    assert identity(b'{"metadata":{"name":"p"}}') is None
    assert identity(b'{"metadata":[]}') is None
