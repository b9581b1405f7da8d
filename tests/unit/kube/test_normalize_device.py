"""Slices, classes and claims as drivers, users and kube-scheduler write them."""

from typing import Any

import msgspec
import pytest
from kaicore.errors import InvalidObject
from kaicore.kube.normalize.device import normalize_slice
from kaicore.kube.wire.resources import RESOURCE_SLICES
from kaicore.rules.model.device import (
    AllocatedDevice,
    Allocation,
    CapacityPolicy,
    CounterUse,
    DeviceAttribute,
    DeviceCapacity,
    DeviceConstraint,
    DeviceRequest,
    DeviceTaint,
    DeviceToleration,
    NodeSelection,
)
from kaicore.rules.model.selector import Requirement

from tests.given.cluster.devices import (
    DRIVER,
    claim_document,
    exactly,
    gpu,
    read_claim,
    read_class,
    read_slice,
    slice_document,
)

GI = 2**30 * 1000


def test_slice_of_a_gpu_driver_is_read_with_full_names() -> None:
    taint = {"key": "example.com/unhealthy", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    device = gpu("gpu-0", numa=[1, 0], taints=[taint])
    seen = read_slice(slice_document("n1", device, pool={"generation": 3}))
    assert (seen.driver, seen.pool, seen.generation, seen.slices) == (DRIVER, "n1", 3, 1)
    assert seen.nodes == NodeSelection("n1")
    (read,) = seen.devices
    assert read.attributes["resource.kubernetes.io/numaNode"] == DeviceAttribute("int", (1, 0), listed=True)
    assert read.attributes[f"{DRIVER}/driverVersion"] == DeviceAttribute("version", ("580.65.6",))
    assert read.capacity == {"memory": DeviceCapacity(80 * GI)}
    assert read.taints == (DeviceTaint("example.com/unhealthy", "NoExecute"),)


def test_first_version_keeps_devices_and_requests_in_other_places() -> None:
    inner = {key: value for key, value in gpu("gpu-0").items() if key != "name"}
    old = slice_document("n1", {"name": "gpu-0", "basic": inner})
    assert read_slice(old, "v1beta1") == read_slice(slice_document("n1", gpu("gpu-0")))
    flat = {"name": "gpu", **exactly("gpu", DRIVER, "true", count=2)["exactly"]}
    assert read_claim(claim_document("c", flat), "v1beta1") == read_claim(
        claim_document("c", exactly("gpu", DRIVER, "true", count=2))
    )


def test_partitions_and_shares_of_devices_are_read() -> None:
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "80Gi", "step": "512Mi"}}
    partition = {
        "name": "gpu-0-mig-0",
        "nodeName": "n1",
        "consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": "10Gi"}}}],
        "allowMultipleAllocations": True,
        "capacity": {"memory": {"value": "10Gi", "requestPolicy": policy}},
        "bindsToNode": True,
        "bindingConditions": ["attached"],
        "bindingFailureConditions": ["failed"],
    }
    seen = read_slice(slice_document("n1", partition, perDeviceNodeSelection=True))
    (read,) = seen.devices
    assert (seen.nodes, read.nodes) == (None, NodeSelection("n1"))
    assert read.consumes == (CounterUse("gpu-0", {"memory": 10 * GI}),)
    assert read.capacity["memory"].policy == CapacityPolicy(GI, (), GI, 80 * GI, GI // 2)
    assert (read.shared, read.binds_to_node, read.binding_conditions) == (True, True, ("attached",))
    counters = slice_document(
        "n1", sharedCounters=[{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}], allNodes=True
    )
    assert read_slice(counters).counters == {"gpu-0": {"memory": 80 * GI}}


def test_claim_is_read_with_what_it_has() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    result = {"request": "any/small", "driver": DRIVER, "pool": "n1", "device": "gpu-0", "shareID": "s"}
    alternatives = [
        {"name": "large", "deviceClassName": "large", "allocationMode": "All"},
        {"name": "small", "deviceClassName": "small", "count": 2, "tolerations": [{"operator": "Exists"}]},
    ]
    seen = read_claim(
        claim_document(
            "c",
            {"name": "any", "firstAvailable": alternatives},
            exactly("watch", adminAccess=True, capacity={"requests": {"memory": "1Gi"}}),
            constraints=[{"requests": ["any"], "matchAttribute": "resource.kubernetes.io/numaNode"}],
            status={
                "allocation": {
                    "devices": {"results": [{**result, "consumedCapacity": {"memory": "1Gi"}}]},
                    "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
                },
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "uid-p"}],
            },
        )
    )
    small = DeviceRequest("small", "small", count=2, tolerations=(DeviceToleration(operator="Exists"),))
    assert seen.requests == (
        DeviceRequest("any", alternatives=(DeviceRequest("large", "large", mode="All"), small)),
        DeviceRequest("watch", DRIVER, admin=True, capacity={"memory": GI}),
    )
    assert seen.constraints == (DeviceConstraint(("any",), "resource.kubernetes.io/numaNode"),)
    terms = ((Requirement("metadata.name", "In", ("n1",), field=True),),)
    device = AllocatedDevice("any/small", DRIVER, "n1", "gpu-0", consumed={"memory": GI})
    assert seen.allocation == Allocation((device,), terms)
    assert (seen.reserved_for, seen.unsupported) == (("uid-p",), ())


def test_what_a_later_kubernetes_asks_for_is_named_by_its_field() -> None:
    claim = claim_document(
        "c",
        {"name": "a", "exactly": {"deviceClassName": "x", "allocationMode": "Some"}},
        {"name": "b", "exactly": {"deviceClassName": "x", "derivedAttributes": [{"name": "y"}]}},
        {"name": "c"},
        constraints=[{"sortBy": "y"}],
    )
    assert read_claim(claim).unsupported == (
        "spec.devices.constraints[0] is of a kind that is not known",
        "spec.devices.requests[0].exactly.allocationMode Some",
        "spec.devices.requests[1].exactly.derivedAttributes",
        "spec.devices.requests[2].exactly.deviceClassName is empty",
    )
    assert read_class("x").unsupported == ()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"driver": ""}, "spec.driver"),
        ({"perDeviceNodeSelection": True, "allNodes": True}, "spec.nodeName"),
        ({"perDeviceNodeSelection": False}, "spec.nodeName"),
    ],
)
def test_slice_that_says_nothing_possible_is_refused_by_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidObject) as refused:
        read_slice(slice_document("n1", **change))
    assert refused.value.field == field


def test_device_that_makes_no_sense_costs_only_itself() -> None:
    lost: list[InvalidObject] = []
    document = slice_document(
        "n1",
        gpu("good"),
        gpu("two-values", attributes={"x": {"int": 1, "string": "1"}}),
        gpu("no-version", attributes={"x": {"version": "1"}}),
        gpu("no-quantity", memory="much"),
        gpu("later", consumesCounters=[{"counterSet": "a", "compatibilityGroups": ["x"]}]),
    )
    seen = normalize_slice(RESOURCE_SLICES.at("v1").decode(msgspec.json.encode(document)), lost.append)
    assert [device.name for device in seen.devices] == ["good"]
    assert [error.field for error in lost] == [
        "spec.devices[1].attributes[x]",
        "spec.devices[2].attributes[x]",
        "spec.devices[3].capacity[memory].value",
        "spec.devices[4].consumesCounters[0].compatibilityGroups",
    ]


def test_devices_of_a_slice_that_skips_node_operations_are_not_used_and_the_field_is_named() -> None:
    lost: list[InvalidObject] = []
    document = slice_document("n1", gpu("one"), skipNodeOperations=["NodePrepareResources"])
    seen = normalize_slice(RESOURCE_SLICES.at("v1").decode(msgspec.json.encode(document)), lost.append)
    assert seen.devices == ()
    assert [(error.field, error.value) for error in lost] == [("spec.skipNodeOperations", "one")]
