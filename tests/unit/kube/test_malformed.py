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

POD_CASES = [
    (wire.pod(containers="none"), "spec.containers", "none"),
    (wire.pod(containers=[{"name": 7}]), "spec.containers[0].name", 7),
    (wire.pod(nodeSelector={"a": 1}), "spec.nodeSelector[...]", {"a": 1}),
    (wire.pod() | {"status": []}, "status", []),
]

NODE_CASES = [
    (wire.node(spec={"unschedulable": "yes"}), "spec.unschedulable", "yes"),
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
        (
            read_topology,
            "NodeResourceTopology n1",
            wire.topology() | {"zones": {"node-0": {}}},
            "zones",
            {"node-0": {}},
        ),
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
