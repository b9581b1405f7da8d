"""Pods with claims that get devices in cycles: each device once, on the node that the pod gets."""

import pytest
from kaicore.rules.deciding.why import pending_reasons, story_of
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.reasons.node import DevicesTaken, NoMatchingDevices, ResourceClaimNotReady
from kaicore.rules.model.device import AllocatedDevice, Allocation, PodClaim
from kaicore.rules.model.pod import WorkloadRef
from kaicore.rules.model.selector import Requirement
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster import devices as dra
from tests.given.cluster.factory import Cluster, amounts, pod
from tests.given.work.groups import source


def placed(cluster: Cluster) -> dict[str, payloads.PodPlaced]:
    decoded = (decode_payload(event) for event in cluster.events if event.type == "PodPlaced")
    return {item.name: item for item in decoded if isinstance(item, payloads.PodPlaced)}


def names(allocation: Allocation) -> list[str]:
    return [f"{one.pool}/{one.device}" for one in allocation.devices]


def test_decision_says_which_devices_a_claim_gets_and_ties_it_to_the_node() -> None:
    cluster = dra.devices(a1=2)
    dra.from_template(cluster, dra.exactly(count=2))
    assert [one.node for one in cluster.cycle().placements] == ["a1"]
    assert placed(cluster)["p"].devices == {
        "p-gpu": Allocation(
            (AllocatedDevice("gpu", dra.DRIVER, "a1", "gpu-0"), AllocatedDevice("gpu", dra.DRIVER, "a1", "gpu-1")),
            ((Requirement("metadata.name", "In", ("a1",), field=True),),),
        )
    }


def test_no_device_is_given_twice_in_a_cycle_or_between_decision_and_claim() -> None:
    cluster = dra.devices(a1=2, b1=1)
    for number in range(5):
        dra.from_template(cluster, name=f"p{number}")
    assert len(cluster.cycle().placements) == 3
    (pending,) = cluster.cycle().pending
    assert {type(reason) for reason in pending.reasons} == {DevicesTaken}
    given = [name for one in placed(cluster).values() for claim in one.devices.values() for name in names(claim)]
    assert sorted(given) == ["a1/gpu-0", "a1/gpu-1", "b1/gpu-0"]
    assert encode_state(decode_state(encode_state(cluster.state))) == encode_state(cluster.state)


def test_device_is_free_again_when_a_binding_failed_and_when_its_claim_is_gone() -> None:
    cluster = dra.devices(a1=1)
    first = dra.from_template(cluster, name="first")
    cluster.cycle()
    cluster.record(
        f"pod/{first.uid}",
        payloads.BindFailed(first.uid, "default", "first", "a1", 0, "Conflict", gone=True),
    )
    second = dra.from_template(cluster, name="second")
    assert [one.name for one in cluster.cycle().placements] == ["second"]
    result = {"request": "gpu", "driver": dra.DRIVER, "pool": "a1", "device": "gpu-0"}
    dra.add_claim(cluster, "second-gpu", owner=second, status={"allocation": {"devices": {"results": [result]}}})
    cluster.delete_pod(second)
    dra.from_template(cluster, name="third")
    assert not cluster.cycle().placements
    cluster.record("resourceclaim/s", payloads.ResourceClaimDeleted("uid-second-gpu", "default", "second-gpu"))
    assert [one.name for one in cluster.cycle().placements] == ["third"]


def test_pods_that_share_a_claim_share_its_devices_and_its_node() -> None:
    cluster = dra.devices(a1=1, b1=1)
    dra.add_claim(cluster, "shared")
    for number in range(3):
        dra.using(cluster, "shared", name=f"p{number}")
    cluster.cycle()
    dra.using(cluster, "shared", name="later")
    cluster.cycle()
    decisions = placed(cluster)
    assert len(decisions) == 4
    assert len({one.node for one in decisions.values()}) == 1
    assert len({str(one.devices) for one in decisions.values()}) == 1


def test_pod_has_its_reasons_when_the_same_cycle_gives_devices_to_a_claim_that_it_shares() -> None:
    cluster = dra.devices(a1=1)
    dra.add_claim(cluster, "shared")
    large = dra.using(cluster, "shared", name="large", cpu=9)
    dra.using(cluster, "shared", name="small")
    assert [one.name for one in cluster.cycle().placements] == ["small"]
    assert [reason.code for reason in pending_reasons(cluster.state.pods[large.uid], cluster.state)] == ["NodeTooSmall"]


def test_pods_with_like_claims_of_their_own_are_one_class() -> None:
    cluster = dra.devices(a1=1)
    for number in range(3):
        dra.from_template(cluster, name=f"p{number}")
    assert len({cluster.state.class_of(entry).key for entry in cluster.state.pods.values()}) == 1


def test_claim_with_a_selector_goes_where_its_device_is() -> None:
    cluster = dra.devices(a1=1)
    cluster.add_node("b1", cpu=8, memory=64)
    dra.add_slice(cluster, dra.slice_document("b1", dra.gpu("big", memory="141Gi")))
    larger = f'device.capacity["{dra.DRIVER}"].memory.isGreaterThan(quantity("80Gi"))'
    dra.from_template(cluster, dra.exactly("gpu", dra.DRIVER, larger), name="large")
    dra.from_template(cluster, dra.exactly("gpu", dra.DRIVER, "device.attributes['x'].y == 1"), name="broken")
    dra.from_template(cluster, dra.exactly("gpu", "unknown"), name="unknown")
    result = cluster.cycle()
    assert {one.name: one.node for one in result.placements} == {"large": "b1"}
    reasons = {type(reason): str(reason) for pending in result.pending for reason in pending.reasons}
    assert "device class unknown, which does not exist" in reasons[ResourceClaimNotReady]
    assert 'Key not found in map : "y"' in reasons[NoMatchingDevices]


def test_pods_of_a_pod_group_share_the_claim_that_was_made_for_it_and_its_node() -> None:
    cluster = dra.devices(a1=2, b1=2)
    train = source(
        "apiVersion: scheduling.k8s.io/v1beta1\nkind: PodGroup\nmetadata: {name: train}\n"
        "spec: {schedulingPolicy: {gang: {minCount: 2}}}"
    )
    cluster.record(f"group/{train.key}", payloads.GroupSourceObserved(train))
    dra.add_claim(cluster, "train-gpu-x", dra.exactly(count=2), group="train")
    use = PodClaim("gpu", "train-gpu-x", "two-gpus")
    for name in ("first", "second"):
        cluster.add_pod(pod(name, cpu=1, resource_claims=(use,), workload=WorkloadRef("train")))
    cluster.cycle()
    cluster.add_pod(pod("later", cpu=1, resource_claims=(use,), workload=WorkloadRef("train")))
    cluster.cycle()
    decisions = placed(cluster)
    assert len(decisions) == 3
    assert len({one.node for one in decisions.values()}) == 1
    assert {tuple(names(one.devices["train-gpu-x"])) for one in decisions.values()} in (
        {("a1/gpu-0", "a1/gpu-1")},
        {("b1/gpu-0", "b1/gpu-1")},
    )


@pytest.mark.parametrize("workload", [None, WorkloadRef("other"), WorkloadRef("train", workload="train")])
def test_pod_gets_no_claim_of_a_template_that_is_another_pod_groups(workload: WorkloadRef | None) -> None:
    cluster = dra.devices(a1=1)
    dra.add_claim(cluster, "train-gpu-x", group="train")
    use = PodClaim("gpu", "train-gpu-x", "one-gpu")
    one = cluster.add_pod(pod("p", cpu=1, resource_claims=(use,), workload=workload))
    (waits,) = cluster.state.constraints.devices.demand(one).waits
    assert waits == "claim train-gpu-x was not made for this pod, nor for its PodGroup"


def test_device_is_taken_on_the_zone_of_the_exclusive_cpus() -> None:
    cluster = dra.devices()
    zone = amounts(cpu=8, memory=32)
    cluster.add_node("a1", zone, zone)
    gpus = [
        dra.gpu(f"gpu-{number}", numa=[zone, 1 - zone] if number > 1 else zone)
        for number, zone in enumerate((1, 0, 0, 1))
    ]
    dra.add_slice(cluster, dra.slice_document("a1", *gpus))
    for name in ("first", "second"):
        dra.from_template(cluster, name=name, cpu=6)
    cluster.cycle()
    decisions = placed(cluster)
    zones = {name: one.placement.containers[0].zones[0].zone for name, one in decisions.items() if one.placement}
    given = {name: one.devices[f"{name}-gpu"].devices[0].device for name, one in decisions.items()}
    assert zones == {"first": "node-0", "second": "node-1"}
    assert given == {"first": "gpu-1", "second": "gpu-0"}
    story = " ".join(
        line.text for line in story_of([event for event in cluster.events if event.stream == "pod/uid-first"])
    )
    assert f"claim first-gpu gets gpu-1 ({dra.DRIVER}, pool a1, NUMA 0)" in story
