"""Resource claims get the devices that were decided, before their pod is bound, and are let go where it is not."""

from typing import Any

import pytest
from kai_binder.writes.claims import FINALIZER
from kaicore.rules.model.device import AllocatedDevice, Allocation, DeviceRequest, ExtendedClaim, ExtendedMapping
from kaicore.rules.model.selector import Requirement

from tests.given.cluster.devices import DRIVER
from tests.given.processes.waiting import eventually
from tests.given.servers.kube import PODS, Json
from tests.integration.binder.conftest import Scene

GROUP = "/apis/resource.k8s.io/v1"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
HERE = ((Requirement("metadata.name", "In", ("n1",), field=True),),)


def allocation(device: str = "gpu-0", **more: Any) -> Allocation:
    return Allocation((AllocatedDevice("gpu", DRIVER, "n1", device, **more),), HERE)


async def claimed(scene: Scene, name: str = "c") -> None:
    opaque = {"driver": DRIVER, "parameters": {"sharing": "TimeSlicing"}}
    spec: Json = {
        "devices": {
            "requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}],
            "config": [{"requests": ["gpu"], "opaque": opaque}],
        }
    }
    await scene.api.post(CLAIMS, {"metadata": {"name": name}, "spec": spec})


async def test_claim_is_allocated_and_reserved_for_all_its_pods_before_they_are_bound(scene: Scene) -> None:
    opaque = {"driver": DRIVER, "parameters": {"logLevel": "debug"}}
    device_class = {"metadata": {"name": DRIVER}, "spec": {"config": [{"opaque": opaque}]}}
    await scene.api.post(f"{GROUP}/deviceclasses", device_class)
    pods = [await scene.api.pod(name) for name in ("a", "b", "late")]
    await claimed(scene)
    scene.api.faults(verb="patch", resource="resourceclaims", kind="conflict", times=1)
    scene.start()
    await scene.decide((pods[0], "n1"), (pods[1], "n1"), devices={"c": allocation(consumed={"memory": 2**30 * 1000})})
    await scene.decide((pods[2], "n1"), reserved_claims=("c",))
    await scene.bound(3)
    claim = await scene.api.get(f"{CLAIMS}/c")
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    given = claim["status"]["allocation"]
    (result,) = given["devices"]["results"]
    assert (result["pool"], result["device"], result["consumedCapacity"]) == ("n1", "gpu-0", {"memory": "1Gi"})
    assert [(one["source"], one["opaque"]["parameters"]) for one in given["devices"]["config"]] == [
        ("FromClass", {"logLevel": "debug"}),
        ("FromClaim", {"sharing": "TimeSlicing"}),
    ]
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert given["nodeSelector"] == {"nodeSelectorTerms": [{"matchFields": [field]}]}
    assert {one["name"] for one in claim["status"]["reservedFor"]} == {"a", "b", "late"}


async def test_claim_that_has_other_devices_gives_the_pod_back_and_stays_as_it_is(scene: Scene) -> None:
    pod = await scene.api.pod("a")
    await claimed(scene)
    result = {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": "other"}
    await scene.api.merge(f"{CLAIMS}/c/status", {"status": {"allocation": {"devices": {"results": [result]}}}})
    scene.start()
    await scene.decide((pod, "n1"), devices={"c": allocation()})
    assert (await scene.failure()).reason == "ResourceClaimAllocated"
    assert (await scene.api.get(f"{CLAIMS}/c"))["status"]["allocation"]["devices"]["results"][0]["device"] == "other"


EXTENDED = ExtendedClaim(
    "a-extended-resources-12345",
    (DeviceRequest("container-0-request-1", DRIVER, count=2),),
    (ExtendedMapping("main", "nvidia.com/gpu", "container-0-request-1"),),
)
DEVICES = {
    EXTENDED.name: Allocation(
        tuple(AllocatedDevice("container-0-request-1", DRIVER, "n1", f"gpu-{number}") for number in range(2)), HERE
    )
}


async def test_claim_for_extended_resources_is_made_and_named_in_the_pod_before_it_is_bound(scene: Scene) -> None:
    await scene.api.post(f"{GROUP}/deviceclasses", {"metadata": {"name": DRIVER}, "spec": {}})
    pod = await scene.api.pod("a")
    scene.api.faults(verb="create", resource="resourceclaims", kind="lost-answer", times=1)
    scene.start()
    await scene.decide((pod, "n1"), devices=DEVICES, extended_claim=EXTENDED)
    await scene.bound()
    claim = await scene.api.get(f"{CLAIMS}/{EXTENDED.name}")
    assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert [one["uid"] for one in claim["metadata"]["ownerReferences"]] == [pod["metadata"]["uid"]]
    (request,) = claim["spec"]["devices"]["requests"]
    assert (request["exactly"]["deviceClassName"], request["exactly"]["count"]) == (DRIVER, 2)
    assert [one["device"] for one in claim["status"]["allocation"]["devices"]["results"]] == ["gpu-0", "gpu-1"]
    assert claim["status"]["allocation"]["allocationTimestamp"]
    status = (await scene.api.get(f"{PODS}/a"))["status"]["extendedResourceClaimStatus"]
    mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-1"}
    assert status == {"resourceClaimName": EXTENDED.name, "requestMappings": [mapping]}


@pytest.mark.parametrize("failures", [0, 6])
async def test_claim_for_extended_resources_goes_when_the_pod_is_given_back_or_later_when_the_server_answers_again(
    scene: Scene, failures: int
) -> None:
    await scene.api.post(f"{GROUP}/deviceclasses", {"metadata": {"name": DRIVER}, "spec": {}})
    pod = await scene.api.pod("a")
    await scene.api.bind("a", "n2")
    if failures:
        scene.api.faults(verb="delete", resource="resourceclaims", kind="internal-error", times=failures)
    # Time for four tries to take the claim away.
    scene.start(volumes_give_up_s=0.5)
    await scene.decide((pod, "n1"), devices=DEVICES, extended_claim=EXTENDED)
    await scene.failure()
    if failures:
        await eventually(lambda: scene.api.items(CLAIMS), lambda claims: not claims)
    assert not await scene.api.items(CLAIMS)


async def test_claim_of_that_name_which_is_not_the_pods_own_is_left_alone(scene: Scene) -> None:
    pod = await scene.api.pod("a")
    await claimed(scene, EXTENDED.name)
    scene.start()
    await scene.decide((pod, "n1"), devices=DEVICES, extended_claim=EXTENDED)
    assert (await scene.failure()).reason == "ResourceClaimExists"
    assert len(await scene.api.items(CLAIMS)) == 1


async def test_devices_are_let_go_when_the_pod_is_not_bound(scene: Scene) -> None:
    pods = [await scene.api.pod(name) for name in ("a", "b")]
    await claimed(scene)
    scene.start()
    await scene.decide((pods[0], "n1"), devices={"c": allocation()})
    await scene.outcomes(1)
    await scene.api.bind("b", "n2")
    await scene.decide((pods[1], "n1"), reserved_claims=("c",))
    await scene.failure("b", count=2)
    status = (await scene.api.get(f"{CLAIMS}/c"))["status"]
    assert [one["name"] for one in status["reservedFor"]] == ["a"]
    assert status["allocation"]["devices"]["results"][0]["device"] == "gpu-0"


async def test_pod_waits_for_devices_to_be_ready_and_is_given_back_when_they_fail(scene: Scene) -> None:
    pod = await scene.api.pod("a")
    await claimed(scene)
    scene.start()
    await scene.decide((pod, "n1"), devices={"c": allocation(conditions=("attached",), failures=("broken",))})
    await scene.api.until(f"{CLAIMS}/c", lambda claim: "allocation" in (claim.get("status") or {}))
    since = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    condition = {"type": "broken", "status": "True", "reason": "x", "message": "", **since}
    device = {"driver": DRIVER, "pool": "n1", "device": "gpu-0", "conditions": [condition]}
    await scene.api.merge(f"{CLAIMS}/c/status", {"status": {"devices": [device]}})
    failed = await scene.failure()
    assert (failed.reason, failed.message) == ("DeviceBindingFailed", "claim c: device gpu-0: broken")
    assert not (await scene.api.get(f"{CLAIMS}/c"))["status"].get("allocation")
