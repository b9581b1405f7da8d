"""ProvisioningRequests made and deleted: what is written, once, and what is recorded when it cannot be."""

from typing import Any

import pytest
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import (
    PodPlaced,
    ProvisioningPodSet,
    ProvisioningRequestCreated,
    ProvisioningRequested,
    ProvisioningRequestRefused,
    ProvisioningRequestRemoved,
    ProvisioningWithdrawn,
)
from kaicore.rules.objects.provisioning import CONSUMED_CLASS_KEY, CONSUMED_REQUEST_ANNOTATION, NOT_SERVED
from kaicore.yaml_text import load_yaml

from tests.given.processes.waiting import until_events
from tests.given.servers.kube import CRDS, DEFINITIONS, PODS, Api, Json
from tests.integration.binder.conftest import Scene

TEMPLATES = "/api/v1/namespaces/default/podtemplates"
REQUESTS = "/apis/autoscaling.x-k8s.io/{version}/namespaces/default/provisioningrequests"
OUTCOMES = ("ProvisioningRequestCreated", "ProvisioningRequestRemoved", "ProvisioningRequestRefused")
CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
CONTROLLER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-train", "controller": True}


async def serve(api: Api, *, without: str = "") -> None:
    document = load_yaml((CRDS / "provisioning/autoscaling.x-k8s.io.yaml").read_text())
    versions = [version for version in document["spec"]["versions"] if version["name"] != without]
    document["spec"]["versions"] = [version | {"storage": version is versions[0]} for version in versions]
    await api.post(DEFINITIONS, document)


async def decide(scene: Scene, payload: ProvisioningRequested | ProvisioningWithdrawn) -> None:
    """Record a decision on its request's stream."""
    await scene.record((f"provisioning/default/{payload.name}", payload))


async def outcomes(scene: Scene, count: int) -> list[Any]:
    events = await until_events(scene.log, scene.cluster, *OUTCOMES, holds=lambda events: len(events) >= count)
    assert len({event.cause for event in events}) == len(events) == count
    return [decode_payload(event) for event in events]


def request(*pods: Json, count: int = 4, name: str = "kai-train-1") -> ProvisioningRequested:
    sets = tuple(
        ProvisioningPodSet(f"class-{number}", count, pod["metadata"]["uid"], pod["metadata"]["name"])
        for number, pod in enumerate(pods)
    )
    return ProvisioningRequested(
        group="Job.batch/default/train",
        namespace="default",
        name=name,
        cycle="default/1",
        provisioning_class=CLASS,
        attempt=1,
        pod_sets=sets,
        parameters={"ValidUntilSeconds": "600"},
    )


def withdrawal(asked: ProvisioningRequested) -> ProvisioningWithdrawn:
    return ProvisioningWithdrawn(asked.group, "default", asked.name, "default/2", "Started", len(asked.pod_sets))


async def owned_pod(api: Api, name: str, **spec: Any) -> Json:
    container = {"name": "main", "image": "x", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    return await api.post(
        PODS,
        {
            "metadata": {"name": name, "labels": {"app": "train"}, "ownerReferences": [CONTROLLER]},
            "spec": {"schedulerName": "kai-ledger", "containers": [container], **spec},
        },
    )


@pytest.mark.parametrize(("version", "without"), [("v1", ""), ("v1beta1", "v1")])
async def test_a_request_is_made_with_its_templates_and_deleted_with_them(
    scene: Scene, version: str, without: str
) -> None:
    await serve(scene.api, without=without)
    collection = REQUESTS.format(version=version)
    selector = {"pool": "a100"}
    asked = request(await owned_pod(scene.api, "train-0", nodeSelector=selector), await owned_pod(scene.api, "ps-0"))
    binder = scene.start()
    await decide(scene, asked)
    assert await outcomes(scene, 1) == [ProvisioningRequestCreated(asked.group, "default", asked.name)]
    made = await scene.api.get(f"{collection}/{asked.name}")
    assert made["spec"] == {
        "provisioningClassName": CLASS,
        "parameters": {"ValidUntilSeconds": "600"},
        "podSets": [
            {"podTemplateRef": {"name": f"{asked.name}-0"}, "count": 4},
            {"podTemplateRef": {"name": f"{asked.name}-1"}, "count": 4},
        ],
    }
    owner = {name: value for name, value in CONTROLLER.items() if name != "controller"}
    assert made["metadata"]["ownerReferences"] == [owner]
    assert made["metadata"]["annotations"] == {"kai.scheduler/group": asked.group}
    template = await scene.api.get(f"{TEMPLATES}/{asked.name}-0")
    assert template["metadata"]["ownerReferences"] == [owner]
    assert template["template"]["metadata"]["labels"] == {"app": "train"}
    spec = template["template"]["spec"]
    assert spec["nodeSelector"] == selector
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert spec["tolerations"], "also what the API server has added counts"

    await decide(scene, withdrawal(asked))
    assert (await outcomes(scene, 2))[1] == ProvisioningRequestRemoved(asked.group, "default", asked.name)
    assert await scene.api.items(collection) == []
    assert await scene.api.items(TEMPLATES) == []
    assert binder.metric("provisioning_requests_total", outcome="created") == 1
    assert binder.metric("provisioning_requests_total", outcome="removed") == 1


async def test_pods_without_a_controller_own_what_is_made_for_them(scene: Scene) -> None:
    await serve(scene.api)
    pod = await scene.api.pod("alone")
    scene.start()
    await decide(scene, request(pod))
    await outcomes(scene, 1)
    (made,) = await scene.api.items(REQUESTS.format(version="v1"))
    (owner,) = made["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Pod", "name": "alone", "uid": pod["metadata"]["uid"]}


async def test_what_was_decided_before_the_binder_started_is_done_once(scene: Scene) -> None:
    await serve(scene.api)
    asked = request(await owned_pod(scene.api, "train-0"))
    await decide(scene, asked)
    first = scene.start()
    await outcomes(scene, 1)
    await first.stop()
    await decide(scene, withdrawal(asked))
    second = scene.start()
    await outcomes(scene, 2)
    assert second.metric("provisioning_requests_total", outcome="created") == 0


async def test_a_request_whose_answer_was_lost_is_there_once(scene: Scene) -> None:
    await serve(scene.api)
    for resource in ("podtemplates", "provisioningrequests"):
        scene.api.faults(verb="create", resource=resource, kind="lost-answer", times=1)
    asked = request(await owned_pod(scene.api, "train-0"))
    scene.start()
    await decide(scene, asked)
    (outcome,) = await outcomes(scene, 1)
    assert outcome == ProvisioningRequestCreated(asked.group, "default", asked.name, attempts=3)
    assert len(await scene.api.items(TEMPLATES)) == 1


@pytest.mark.parametrize("group_served", [False, True])
async def test_where_requests_are_not_served_that_is_the_outcome_and_nothing_is_left(
    scene: Scene, group_served: bool
) -> None:
    if group_served:
        await scene.api.install("autoscaling.x-k8s.io", "v1beta1", "CapacityBuffer")
    asked = request(await owned_pod(scene.api, "train-0"))
    scene.start()
    await decide(scene, asked)
    (refused,) = await outcomes(scene, 1)
    assert isinstance(refused, ProvisioningRequestRefused)
    assert (refused.code, refused.reason, refused.removing) == (404, NOT_SERVED, False)
    assert await scene.api.items(TEMPLATES) == []
    await decide(scene, withdrawal(asked))
    assert isinstance((await outcomes(scene, 2))[1], ProvisioningRequestRemoved)


async def test_a_request_that_is_not_valid_is_refused_with_the_servers_words(scene: Scene) -> None:
    await serve(scene.api)
    scene.start()
    await decide(scene, request(await owned_pod(scene.api, "train-0"), count=0))
    (refused,) = await outcomes(scene, 1)
    assert (refused.code, refused.reason) == (422, "Invalid")
    assert "spec.podSets[0].count" in refused.message
    assert await scene.api.items(TEMPLATES) == []


async def test_a_pod_that_is_gone_or_another_one_by_now_asks_for_nothing(scene: Scene) -> None:
    await serve(scene.api)
    gone = {"metadata": {"name": "gone", "uid": "uid-gone"}}
    other = await owned_pod(scene.api, "train-0")
    before = {"metadata": {**other["metadata"], "uid": "uid-before"}}
    scene.start()
    await decide(scene, request(gone, name="kai-a"))
    await decide(scene, request(before, name="kai-b"))
    refused = await outcomes(scene, 2)
    assert [(one.code, one.reason) for one in refused] == [(404, "NotFound")] * 2
    assert await scene.api.items(REQUESTS.format(version="v1")) == []


async def test_a_refusal_for_good_is_the_outcome_also_of_deleting(scene: Scene) -> None:
    await serve(scene.api)
    for verb in ("create", "delete"):
        scene.api.faults(verb=verb, resource="provisioningrequests", kind="gone")
    asked = request(await owned_pod(scene.api, "train-0"))
    scene.start()
    await decide(scene, asked)
    await outcomes(scene, 1)
    await decide(scene, withdrawal(asked))
    refused = await outcomes(scene, 2)
    assert [(one.code, one.removing) for one in refused] == [(410, False), (410, True)]


async def test_a_request_that_is_withdrawn_before_its_turn_is_not_made(scene: Scene) -> None:
    await serve(scene.api)
    asked = request(await owned_pod(scene.api, "train-0"))
    await decide(scene, asked)
    await decide(scene, withdrawal(asked))
    binder = scene.start()
    (removed,) = await outcomes(scene, 1)
    assert isinstance(removed, ProvisioningRequestRemoved)
    assert binder.metric("provisioning_requests_total", outcome="created") == 0


async def test_a_pod_on_nodes_that_were_asked_for_says_so_to_the_autoscaler(scene: Scene) -> None:
    pod = await scene.api.pod("a")
    scene.start()
    meta = pod["metadata"]
    placed = PodPlaced(
        uid=meta["uid"],
        namespace="default",
        name="a",
        node="n1",
        cycle="default/1",
        pod_class="class",
        provisioning_request="kai-train-1",
        provisioning_class=CLASS,
    )
    await scene.append((meta["uid"], placed))
    await scene.outcomes(1)
    annotations = (await scene.api.get(f"{PODS}/a"))["metadata"]["annotations"]
    assert annotations[CONSUMED_REQUEST_ANNOTATION] == "kai-train-1"
    assert annotations[CONSUMED_CLASS_KEY] == CLASS
