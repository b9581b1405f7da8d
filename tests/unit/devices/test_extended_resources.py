"""Extended resources that device classes stand for: by devices where there is no plugin, as ever where there is one."""

import pytest
from kaicore.rules.devices.extended_requests import IMPLICIT_PREFIX, ExtendedRequests, extended_requests
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.reasons.node import DevicesTaken, ResourceClaimNotReady
from kaicore.rules.model.pod import Container, ContainerKind
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.devices import (
    DRIVER,
    add_slice,
    add_taint_rule,
    devices,
    from_template,
    gpu,
    read_class,
    slice_document,
)
from tests.given.cluster.factory import Cluster, amounts, pod
from tests.given.work.workloads import OWNER, Workloads

GPU = "nvidia.com/gpu"


def scene(**gpus: int) -> Workloads:
    """Nodes with devices of a class that stands for GPUs, and a node `plugin` with two GPUs of a device plugin."""
    cluster = Workloads()
    devices(cluster, **gpus)
    served = read_class(DRIVER, f'device.driver == "{DRIVER}"', extendedResourceName=GPU)
    cluster.record("deviceclass/gpu", payloads.DeviceClassObserved(served))
    return cluster


def decisions(cluster: Cluster) -> dict[str, payloads.PodPlaced]:
    decoded = (decode_payload(event) for event in cluster.events if event.type == "PodPlaced")
    return {item.name: item for item in decoded if isinstance(item, payloads.PodPlaced)}


def test_pod_gets_devices_by_a_claim_of_its_own_or_the_plugins_resource() -> None:
    cluster = scene(a1=2)
    cluster.add_node("plugin", cpu=8, gpu=2)
    for number in range(5):
        cluster.add_pod(pod(f"p{number}", cpu=1, gpu=1))
    assert len(cluster.cycle().placements) == 4
    by_node: dict[str, list[payloads.PodPlaced]] = {}
    for one in decisions(cluster).values():
        by_node.setdefault(one.node, []).append(one)
    assert [one.extended_claim for one in by_node["plugin"]] == [None, None]
    assert not any(one.devices for one in by_node["plugin"])
    given = {}
    for one in by_node["a1"]:
        assert one.extended_claim is not None
        (request,) = one.extended_claim.requests
        (mapping,) = one.extended_claim.mappings
        assert (request.device_class, request.count, request.selectors) == (DRIVER, 1, ())
        assert (mapping.resource, mapping.request) == (GPU, request.name)
        (allocation,) = one.devices.values()
        given[allocation.devices[0].device] = allocation.devices[0].request
    assert given == dict.fromkeys(("gpu-0", "gpu-1"), "container-0-request-1")
    assert encode_state(decode_state(encode_state(cluster.state))) == encode_state(cluster.state)


def test_claims_and_extended_resources_share_the_devices_of_a_node() -> None:
    cluster = scene(a1=2)
    from_template(cluster, name="claiming")
    cluster.cycle()
    for name in ("first", "second"):
        cluster.add_pod(pod(name, cpu=1, gpu=1))
    result = cluster.cycle()
    assert cluster.placed(result) == {"first": "a1"}
    (reason,) = (reason for pending in result.pending for reason in pending.reasons)
    assert isinstance(reason, DevicesTaken)
    held = [one for each in decisions(cluster).values() for item in each.devices.values() for one in item.devices]
    assert sorted(one.device for one in held) == ["gpu-0", "gpu-1"]


def test_node_offers_what_its_devices_are_as_they_come_and_go() -> None:
    cluster = scene(a1=1)

    def offered() -> int:
        columns = cluster.state.columns
        return int(columns.allocatable[columns.rows["a1"], columns.resources[GPU]]) if GPU in columns.resources else 0

    assert offered() == 1
    add_slice(cluster, slice_document("a1", gpu("gpu-0"), gpu("gpu-1"), gpu("gpu-2")))
    assert offered() == 3
    add_taint_rule(cluster, deviceSelector={"device": "gpu-1"})
    assert offered() == 2
    cluster.add_node("a1", cpu=8, gpu=7)
    assert offered() == 7
    cluster.add_node("a1", cpu=8)
    assert offered() == 2
    cluster.record("deviceclass/gpu", payloads.DeviceClassDeleted(f"uid-{DRIVER}", DRIVER))
    assert offered() == 0


def test_class_stands_for_its_own_name_too_and_the_newer_of_two_for_one_name() -> None:
    cluster = scene(a1=1)
    newer = read_class("newer", "false", extendedResourceName=GPU)
    cluster.record(
        "deviceclass/newer", payloads.DeviceClassObserved(type(newer)(**{**_fields(newer), "created_at": 5}))
    )
    cluster.add_pod(pod("by-the-newer", cpu=1, gpu=1))
    implicit = f"{IMPLICIT_PREFIX}{DRIVER}"
    cluster.add_pod(pod("by-name", Container("c", requests={**amounts(cpu=1), implicit: 1})))
    assert cluster.placed(cluster.cycle()) == {"by-name": "a1"}


def _fields(one: object) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__struct_fields__}  # type: ignore[attr-defined]


def test_pod_makes_way_for_another_ones_devices_before_and_after_its_claim_is_seen() -> None:
    cluster = scene(a1=1)
    cluster.full(cluster.add_pod(pod("low", cpu=1, gpu=1, priority=1, owner=OWNER)))
    cluster.add_pod(pod("high", cpu=1, gpu=1, priority=2, owner=OWNER))
    result = cluster.cycle()
    assert cluster.evicted(result) == {"low": EvictionReason.PREEMPTED}
    cluster.go(result)
    assert cluster.placed(cluster.cycle()) == {"high": "a1"}


def test_binding_that_failed_frees_the_devices_and_another_try_has_a_claim_of_the_same_name() -> None:
    cluster = scene(a1=1)
    one = cluster.add_pod(pod("p", cpu=1, gpu=1))
    cluster.cycle()
    first = decisions(cluster)["p"].extended_claim
    failed = payloads.BindFailed(one.uid, "default", "p", "a1", 0, "Conflict", gone=False)
    cluster.record(f"pod/{one.uid}", failed)
    cluster.now += 3_600_000_000
    assert cluster.placed(cluster.cycle()) == {"p": "a1"}
    assert decisions(cluster)["p"].extended_claim == first


def test_device_is_close_to_the_exclusive_cpus() -> None:
    cluster = scene()
    zone = amounts(cpu=8, memory=32)
    cluster.add_node("a1", zone, zone)
    add_slice(cluster, slice_document("a1", *(gpu(f"gpu-{number}", numa=number // 2) for number in range(4))))
    for name in ("first", "second"):
        cluster.add_pod(pod(name, cpu=6, gpu=1))
    cluster.cycle()
    for one in decisions(cluster).values():
        assert one.placement is not None
        (allocation,) = one.devices.values()
        (held,) = one.placement.containers[0].zones
        assert f"node-{allocation.devices[0].numa[0]}" == held.zone
    assert len(decisions(cluster)) == 2


def test_class_that_cannot_be_evaluated_keeps_its_pods_waiting_and_says_so() -> None:
    cluster = scene(a1=1)
    broken = read_class(DRIVER, 'url("https://x").getHost() == "x"', extendedResourceName=GPU)
    cluster.record("deviceclass/gpu", payloads.DeviceClassObserved(broken))
    cluster.add_pod(pod("p", cpu=1, gpu=1))
    (reason,) = (reason for pending in cluster.cycle().pending for reason in pending.reasons)
    assert isinstance(reason, ResourceClaimNotReady)
    assert f"extended resource {GPU} has a selector that this version cannot evaluate" in str(reason)


INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


@pytest.mark.parametrize(
    ("containers", "requests", "mappings"),
    [
        ([("a", APP, 2), ("b", APP, 1)], {"container-0-request-0": 2, "container-1-request-0": 1}, "a:0 b:1"),
        ([("i", INIT, 3), ("a", APP, 2)], {"container-0-request-0": 1, "container-1-request-0": 2}, "a:1 i:1 i:0"),
        ([("i", INIT, 1), ("a", APP, 2)], {"container-1-request-0": 2}, "a:1 i:1"),
        ([("i", INIT, 2), ("j", INIT, 4)], {"container-1-request-0": 4}, "i:1 j:1"),
        (
            [("s", SIDECAR, 1), ("i", INIT, 1), ("a", APP, 0)],
            {"container-0-request-0": 1, "container-1-request-0": 1},
            "s:0 i:1",
        ),
    ],
)
def test_requests_are_those_of_kube_scheduler(
    containers: list[tuple[str, ContainerKind, int]], requests: dict[str, int], mappings: str
) -> None:
    asked = [Container(name, kind, {GPU: count} if count else {}) for name, kind, count in containers]
    made: ExtendedRequests = extended_requests(pod("p", *asked), {GPU: DRIVER})
    assert {one.request.name: one.request.count for one in made.requests} == requests
    assert " ".join(f"{one.container}:{one.request.split('-')[1]}" for one in made.mappings) == mappings
