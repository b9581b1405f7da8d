"""NodeResourceTopologies from the wire into the model."""

from typing import Any

import pytest
from kaicore.kube.normalize.node import LEGACY_POLICIES, normalize_topology
from kaicore.kube.wire.resources import TOPOLOGIES
from kaicore.rules.model.node import NodeTopology, TopologyPolicy, TopologyScope, Zone, ZoneResource

from tests.given.cluster import wire

GI = 2**30


def normalized(document: wire.Wire, version: str = "v1alpha2") -> NodeTopology:
    return normalize_topology(TOPOLOGIES.at(version).decode(wire.encode(document)))


def attributes(**values: str) -> list[wire.Wire]:
    return [{"name": name, "value": value} for name, value in values.items()]


def test_topology_in_full_is_normalized() -> None:
    zones = [
        # As a real publisher writes it: zones and resources in any order, devices beside CPUs.
        {
            "name": "node-1",
            "type": "Node",
            "costs": [{"name": "node-0", "value": 21}, {"name": "node-1", "value": 10}],
            "resources": [
                {"name": "nvidia.com/gpu", "capacity": "4", "allocatable": "4", "available": "1"},
                {"name": "cpu", "capacity": "36", "allocatable": "32", "available": "30"},
            ],
        },
        {"name": "socket-0", "type": "Socket", "resources": [{"name": "cpu"}]},
        {"name": "node-0", "type": "Node", "resources": [{"name": "memory", "capacity": 100, "allocatable": "90"}]},
    ]
    document = wire.topology(
        "n1",
        version="12",
        zones=zones,
        attributes=attributes(
            topologyManagerPolicy="restricted",
            topologyManagerScope="pod",
            topologyManagerMaxNUMANodes="16",
            topologyManagerOptionPreferClosestNumaNodes="true",
            nodeTopologyPodsFingerprint="pfp0v001ef46db3751d8e999",
            nodeTopologyPodsFingerprintMethod="with-exclusive-resources",
            cpu_core="0-7",
        ),
    )
    assert normalized(document) == NodeTopology(
        node="n1",
        resource_version="12",
        uid="uid-n1",
        zones=(
            Zone(name="node-0", numa_id=0, resources={"memory": ZoneResource(100, 90, 90)}),
            Zone(
                name="node-1",
                numa_id=1,
                resources={"cpu": ZoneResource(36_000, 32_000, 30_000), "nvidia.com/gpu": ZoneResource(4, 4, 1)},
                costs={"node-0": 21, "node-1": 10},
            ),
        ),
        policy=TopologyPolicy.RESTRICTED,
        scope=TopologyScope.POD,
        options={"max-allowable-numa-nodes": "16", "prefer-closest-numa-nodes": "true"},
        fingerprint="pfp0v001ef46db3751d8e999",
        fingerprint_method="with-exclusive-resources",
    )


def test_missing_figures_follow_from_the_others() -> None:
    resources = [
        {"name": "cpu", "capacity": "4"},
        {"name": "memory", "allocatable": "8", "available": "3"},
        {"name": "hugepages-2Mi", "capacity": "0", "allocatable": "0", "available": "0"},
        # The host has fewer since the kubelet started.
        {"name": "hugepages-1Gi", "capacity": "1Gi", "allocatable": "2Gi", "available": "2Gi"},
    ]
    (zone,) = normalized(wire.topology(zones=[{"name": "node-7", "type": "Node", "resources": resources}])).zones
    assert zone.numa_id == 7
    assert zone.resources == {
        "cpu": ZoneResource(4000, 4000, 4000),
        "hugepages-1Gi": ZoneResource(2**30, 2**31, 2**31),
        "hugepages-2Mi": ZoneResource(0, 0, 0),
        "memory": ZoneResource(8, 8, 3),
    }


@pytest.mark.parametrize("version", ["v1alpha1", "v1alpha2"])
@pytest.mark.parametrize("name", LEGACY_POLICIES)
def test_deprecated_policy_names_give_policy_and_scope(name: str, version: str) -> None:
    nrt = normalized(wire.topology(topologyPolicies=[name], attributes=[]), version)
    assert (nrt.policy, nrt.scope) == LEGACY_POLICIES[name]


@pytest.mark.parametrize(
    ("attributes_", "policy", "scope"),
    [
        ({}, "single-numa-node", "pod"),
        ({"topologyManagerPolicy": "best-effort"}, "best-effort", "pod"),
        ({"topologyManagerScope": "container"}, "single-numa-node", "container"),
        ({"topologyManagerPolicy": "none", "topologyManagerScope": "container"}, "none", "container"),
        ({"topologyManagerPolicy": "", "topologyManagerScope": ""}, "single-numa-node", "pod"),
    ],
)
def test_attributes_override_one_by_one(attributes_: dict[str, str], policy: str, scope: str) -> None:
    nrt = normalized(wire.topology(topologyPolicies=["SingleNUMANodePodLevel"], attributes=attributes(**attributes_)))
    assert (nrt.policy, nrt.scope) == (policy, scope)


def test_of_attributes_of_one_name_the_first_counts() -> None:
    twice = attributes(topologyManagerPolicy="restricted") + attributes(topologyManagerPolicy="none")
    assert normalized(wire.topology(attributes=twice)).policy is TopologyPolicy.RESTRICTED


def test_an_unknown_deprecated_policy_is_not_asked_where_attributes_say_all() -> None:
    assert normalized(wire.topology(topologyPolicies=["Odd"])).policy is TopologyPolicy.SINGLE_NUMA_NODE


@pytest.mark.parametrize(
    ("more", "fingerprint", "method"),
    [
        ({}, "", "all"),
        ({"annotations": {"topology.node.k8s.io/fingerprint": "pfp0v001aa"}}, "pfp0v001aa", "all"),
        ({"attributes": attributes(nodeTopologyPodsFingerprint="pfp0v001bb")}, "pfp0v001bb", "all"),
        (
            {
                "attributes": attributes(nodeTopologyPodsFingerprint="pfp0v001bb"),
                "annotations": {"topology.node.k8s.io/fingerprint": "pfp0v001aa"},
            },
            "pfp0v001bb",
            "all",
        ),
        (
            {
                "attributes": attributes(
                    nodeTopologyPodsFingerprint="pfp0v001bb", nodeTopologyPodsFingerprintMethod="by-star-sign"
                )
            },
            "",
            "all",
        ),
    ],
)
def test_fingerprint_of_a_topology_is_read_with_its_method(more: dict[str, Any], fingerprint: str, method: str) -> None:
    nrt = normalized(wire.topology(**more))
    assert (nrt.fingerprint, nrt.fingerprint_method) == (fingerprint, method)


def test_topology_without_numa_zones_is_no_error() -> None:
    assert normalized(wire.topology(zones=[])).zones == ()
    assert normalized({"metadata": wire.metadata("n1"), "zones": None}).zones == ()
